"""Calls to DynamoDB: one request, one reply, repeated inside a deadline where that is right.

Owns connections, repeating, and what is known about a call whose reply did not come. Must not know tables, items or
what a write is for. Requests and replies are DynamoDB's JSON; bytes in a request are written as base64, in replies they
are base64 texts.

Every write that is sent may be sent twice: it is conditional, or carries a token by which the service knows it again.
"""

from __future__ import annotations

import asyncio
import io
import random
import socket
import time
import zlib
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from statesvc_client.errors import Unavailable

from ... import logs
from .access import Access, Found, find
from .clock import SKEW_SECONDS, ServiceClock, elapsed
from .faults import (
    Cancelled,
    ConditionFailed,
    Failed,
    InUse,
    InvalidRequest,
    Lost,
    NoSuchTable,
    Reason,
    Refused,
    read_refusal,
)
from .identity import Identity, in_thread
from .signing import Credentials, Signer

if TYPE_CHECKING:
    import aiohttp

__all__ = [
    "Access",
    "Calls",
    "Cancelled",
    "ConditionFailed",
    "Failed",
    "InUse",
    "InvalidRequest",
    "Lost",
    "NoSuchTable",
    "Reason",
]

log = logs.get(__name__)

READS = frozenset(
    {
        "BatchGetItem",
        "DescribeTable",
        "DescribeTimeToLive",
        "GetItem",
        "Query",
        "Scan",
        "TransactGetItems",
    }
)
"""What may be asked again without a thought, and has no outcome to be unsure of."""

FIRST_PAUSE, LONGEST_PAUSE = 0.025, 1.0
"""Seconds before the first repeated try, at most; twice as many before each one after it, up to the second figure."""

LEAST_SECONDS, LEAST_SHARE = 0.25, 0.25
"""What has to be left of the time for another try, in seconds and of the whole: the less of both. A try that is cut
off by the deadline leaves a write in doubt; one that is not made does not."""

LEAST_PAUSE = 0.0025

CONNECT_SECONDS = 3.0
"""What making a connection may take: name, TCP and TLS. One that takes longer is tried anew."""

TRY_SHARE, LEAST_TRY_SECONDS, MOST_TRY_SECONDS = 1 / 3, 1.0, 10.0
"""What one try may take of the time a call has, so that a connection nobody answers on is not waited for to the end."""

ON_ITS_WAY_SECONDS = 10.0
"""How long the machine goes on sending what nobody confirms to have received, on a connection that was closed by us,
too. Otherwise a request that was given up may arrive when a broken network works again, minutes later."""

LARGE_BYTES = 512 * 1024

FINDING_SECONDS = 30.0
"""What finding region and credentials may take at the start, metadata of a busy machine and slow imports included."""

AWAY_AFTER = 5
"""Tries without any reply, of all calls together, before the log says that the service is away."""

THROTTLED_LOG_SECONDS = 60.0
"""How often the log says that calls are throttled."""

Trouble = Literal["busy", "refused", "lost", "damaged", "throttled", "conflicting", "failing"]

_WORDS: dict[Trouble, str] = {
    "busy": "every connection is in use",
    "refused": "no connection can be made",
    "lost": "no reply comes",
    "damaged": "replies do not match their checksums",
    "throttled": "it throttles the calls: the tables' capacity is used up",
    "conflicting": "other transactions hold the same items",
    "failing": "it says that it fails",
}

_UNSURE: frozenset[Trouble] = frozenset({"lost", "damaged", "failing"})
"""After these a write may have been applied."""


class _Reply(NamedTuple):
    status: int
    body: bytes
    date: str | None
    signed: float
    """When it was asked for, as the signature says."""
    took: float


class _Parts(NamedTuple):
    """What is there while it is open."""

    session: aiohttp.ClientSession
    signer: Signer
    identity: Identity
    found: Found


class _Call:
    """One call on its way: what was tried, and what is known from that."""

    __slots__ = (
        "body",
        "corrected",
        "least",
        "operation",
        "renewed",
        "seconds",
        "table",
        "tries",
        "trouble",
        "unsure",
        "until",
    )

    def __init__(self, operation: str, request: dict[str, Any], seconds: float) -> None:
        self.until = elapsed() + seconds
        self.operation = operation
        self.body = msgspec.json.encode(request)
        self.table = _table_of(request)
        self.seconds = seconds
        self.least = min(LEAST_SECONDS, seconds * LEAST_SHARE)
        self.tries = 0
        self.unsure = False
        self.trouble: Trouble = "busy"
        self.corrected = False
        self.renewed = False

    @property
    def left(self) -> float:
        """Seconds that are left. They pass while the machine sleeps, too: nothing is sent later than was meant."""
        return self.until - elapsed()

    def gave_up(self, url: str) -> Exception:
        """What is raised at the deadline."""
        where = url.partition("://")[2]
        within = f"{round(self.seconds, 2):g} s"
        text = f"DynamoDB at {where} did not do {self.operation} within {within}: {_WORDS[self.trouble]}"
        return Lost(text) if self.unsure else Unavailable(text)

    def not_done(self, text: str) -> Exception:
        """What is raised when trying on is no use, while an earlier try may have been applied."""
        return Lost(f"{self.operation}: {text}") if self.unsure else Unavailable(text)


class Calls:
    """Connections to one endpoint, under one identity. Belongs to one event loop."""

    def __init__(self, access: Access) -> None:
        self.made: Counter[str] = Counter()
        """Requests sent, repeated ones included, by operation."""
        self.repeated: Counter[str] = Counter()
        """Requests that had to be sent again, by what was the matter."""
        self._access = access
        self._parts: _Parts | None = None
        self._free = asyncio.Semaphore(access.connections)
        self._clock = ServiceClock()
        self._missed = 0
        self._throttled_logged = float("-inf")

    async def open(self) -> None:
        """Find out where the service is and as whom to call it. Nothing is sent yet."""
        if self._parts is not None:
            return
        identity = Identity(self._access)
        try:
            async with asyncio.timeout(FINDING_SECONDS):
                found = await in_thread(self._look)
                await identity.wait()
        except TimeoutError:
            identity.close()
            raise Unavailable(
                f"region and credentials for DynamoDB were not found within {FINDING_SECONDS:g} s"
            ) from None
        self._parts = _Parts(self._session(found), Signer(found.url, found.region), identity, found)

    def _look(self) -> Found:
        # Slow to import: it is done here, in a thread, and finds it there afterwards.
        import aiohttp  # noqa: F401

        return find(self._access)

    def _session(self, found: Found) -> aiohttp.ClientSession:
        import aiohttp

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._access.connections, ssl=found.tls or True, socket_factory=_made_socket
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "statesvc"},
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS),
            proxy=found.proxy,
        )

    def now(self) -> float:
        """The time of day at the service, in seconds since 1970."""
        return self._clock.now()

    async def close(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.identity.close()
            await parts.session.close()

    async def call(self, operation: str, request: dict[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
        """Have the service do something, within `seconds` (else as configured).

        Raises what `faults` lists; `Unavailable` when it was surely not done, or only asked; `Lost` when a write was
        sent and nobody can tell whether it was applied.
        """
        call = _Call(operation, request, self._access.timeout_seconds if seconds is None else seconds)
        while True:
            body = await self._try(call)
            if body is not None:
                return body
            self.repeated[call.trouble] += 1
            spare = call.left - call.least
            if spare <= 0:
                raise call.gave_up(self._opened().found.url)
            await asyncio.sleep(min(_pause_before(call.tries), spare))

    async def _try(self, call: _Call) -> dict[str, Any] | None:
        """One try; None when it is worth another one."""
        call.tries += 1
        if not await self._connection_is_free(call.left):
            call.trouble = "busy"
            return None
        try:
            parts = self._opened()
            credentials = await self._credentials(parts, call)
            reply = await self._send(parts, call, credentials)
        finally:
            self._free.release()
        if reply is None:
            return None
        if reply.status == 200:
            return self._read(call, reply)
        await self._judge(parts, call, reply, credentials)
        return None

    def _opened(self) -> _Parts:
        if self._parts is None:
            raise Unavailable("the connections to DynamoDB are closed")
        return self._parts

    async def _connection_is_free(self, seconds: float) -> bool:
        if not self._free.locked():
            return await self._free.acquire()
        try:
            async with asyncio.timeout(seconds):
                return await self._free.acquire()
        except TimeoutError:
            return False

    async def _credentials(self, parts: _Parts, call: _Call) -> Credentials:
        held = parts.identity.ready()
        if held is not None:
            return held
        try:
            async with asyncio.timeout(call.left):
                return await parts.identity.wait()
        except TimeoutError:
            raise call.not_done("credentials for DynamoDB could not be had in time") from None
        except Unavailable as problem:
            raise call.not_done(problem.text) from problem

    async def _send(self, parts: _Parts, call: _Call, credentials: Credentials) -> _Reply | None:
        """The reply, or None with the trouble noted."""
        import aiohttp

        if call.operation not in READS:
            # Let the loop hear of connections the other side has closed: what is sent on one of them is lost for no
            # need, and whether it was applied is hard to find out. It looks in one turn, and may tell in the next.
            for _ in range(2):
                await asyncio.sleep(0)
        seconds = min(call.left, _try_seconds(call.seconds))
        if seconds <= call.least / 2:
            return None
        signed, sent = self.now(), elapsed()
        headers = parts.signer.headers(call.operation, call.body, credentials, signed)
        self.made[call.operation] += 1
        try:
            async with (
                asyncio.timeout(seconds),
                parts.session.post(
                    parts.found.url,
                    data=_payload(call.body),
                    headers=headers,
                    allow_redirects=False,
                    timeout=_connecting_within(seconds),
                ) as answer,
            ):
                body = await answer.read()
        except aiohttp.ClientConnectorCertificateError as problem:
            text = f"the certificate of {parts.found.url} is not one to be trusted (see AWS_CA_BUNDLE)"
            raise call.not_done(text) from problem
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError) as problem:
            self._in_trouble(call, "refused", type(problem).__name__)
            return None
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            self._in_trouble(call, "lost", type(problem).__name__)
            return None
        self._is_there()
        checksum = answer.headers.get("x-amz-crc32")
        if checksum is not None and checksum != str(zlib.crc32(body)):
            self._in_trouble(call, "damaged")
            return None
        return _Reply(answer.status, body, answer.headers.get("Date"), signed, elapsed() - sent)

    def _read(self, call: _Call, reply: _Reply) -> dict[str, Any] | None:
        try:
            body = msgspec.json.decode(reply.body)
        except msgspec.MsgspecError:
            body = None
        if isinstance(body, dict):
            self._clock.learn(reply.date, reply.took)
            return body
        # Said by something between us and the service.
        self._in_trouble(call, "damaged")
        return None

    async def _judge(self, parts: _Parts, call: _Call, reply: _Reply, credentials: Credentials) -> None:
        """A reply that is no success: raises, unless another try may do better."""
        refused = read_refusal(reply.status, reply.body)
        match refused.sort:
            case "throttled":
                self._throttles()
                self._in_trouble(call, "throttled")
            case "passing":
                self._in_trouble(call, "conflicting")
            case "unsure":
                self._in_trouble(call, "failing", refused.code)
            case "skewed" if not call.corrected and self._corrects_clock(reply):
                call.corrected = True
            case "skewed" | "credentials":
                await self._take_others(parts, call, credentials, refused)
            case "foreign":
                raise call.not_done(f"what answers at {parts.found.url} is not DynamoDB (HTTP {reply.status})")
            case "denied":
                raise call.not_done(
                    f"DynamoDB denies {refused.action or 'dynamodb:' + call.operation} on {call.table}: "
                    "the policy of the daemon's identity has to allow it"
                )
            case "final":
                raise refused.as_failed(call.operation, call.table, unsure=call.unsure)

    async def _take_others(self, parts: _Parts, call: _Call, credentials: Credentials, refused: Refused) -> None:
        """Credentials may have been replaced where they come from. They are looked for once a call."""
        try:
            async with asyncio.timeout(call.left):
                others = None if call.renewed else await parts.identity.other_than(credentials)
        except (TimeoutError, Unavailable):
            others = None
        if others is None:
            raise call.not_done(f"DynamoDB does not accept the credentials ({refused.code})")
        call.renewed = True

    def _corrects_clock(self, reply: _Reply) -> bool:
        """Whether the time that was signed is the reason; from here on it is the service's own."""
        self._clock.learn(reply.date, reply.took)
        return abs(self.now() - reply.took - reply.signed) >= SKEW_SECONDS

    # --- trouble, noted once ------------------------------------------------------------------------------------------

    def _in_trouble(self, call: _Call, trouble: Trouble, why: str = "") -> None:
        call.trouble = trouble
        if trouble in _UNSURE and call.operation not in READS:
            call.unsure = True
        if trouble in {"refused", "lost"}:
            self._missed += 1
            if self._missed == AWAY_AFTER:
                log.warning("dynamodb_away", operation=call.operation, trouble=trouble, why=why)

    def _is_there(self) -> None:
        if self._missed >= AWAY_AFTER:
            log.info("dynamodb_back")
        self._missed = 0

    def _throttles(self) -> None:
        now = time.monotonic()
        if now - self._throttled_logged >= THROTTLED_LOG_SECONDS:
            self._throttled_logged = now
            log.warning("dynamodb_throttled", calls=self.repeated["throttled"] + 1)


def _made_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(ON_ITS_WAY_SECONDS * 1000))
    return made


def _try_seconds(seconds: float) -> float:
    return min(MOST_TRY_SECONDS, max(LEAST_TRY_SECONDS, seconds * TRY_SHARE))


def _payload(body: bytes) -> bytes | io.BytesIO:
    """A large body is written in pieces: other connections have their turn in between."""
    return body if len(body) <= LARGE_BYTES else io.BytesIO(body)


@lru_cache
def _connect_timeout(seconds: float) -> aiohttp.ClientTimeout:
    import aiohttp

    return aiohttp.ClientTimeout(total=None, connect=seconds)


def _connecting_within(seconds: float) -> aiohttp.ClientTimeout:
    """A bound on connecting that ends before the try does: what ends while connecting was surely not applied."""
    return _connect_timeout(CONNECT_SECONDS if seconds > 2 * CONNECT_SECONDS else round(seconds / 2, 1) or 0.05)


def _pause_before(tries: int) -> float:
    """How long to wait after so many tries: anything up to a bound that doubles, so that no two keep step."""
    return max(LEAST_PAUSE, random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(tries - 1, 16))))


def _table_of(request: dict[str, Any]) -> str:
    """The table a request is about, for people."""
    name = request.get("TableName")
    if name is None and (tables := request.get("RequestItems")):
        name = ", ".join(tables)
    if name is None and (actions := request.get("TransactItems")):
        name = ", ".join(sorted({str(part.get("TableName")) for each in actions for part in each.values()}))
    return str(name or "the tables")
