"""Endpoints to test against: moto in a process of its own, a proxy that makes trouble, an endpoint that says one thing.

Owns starting and ending them. Must not know the engine. $STATESVC_TEST_DYNAMODB_ENDPOINT names a server to be used
instead of moto; credentials then come from the environment, and made-up ones are used where there are none.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import random
import ssl
import subprocess
import sys
import threading
import urllib.request
import uuid
import zlib
from collections import Counter, deque
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, get_args

import aiohttp
import msgspec

from tests.dynamodb.serving import Handler, Reply, Request, Served

ROOT = Path(__file__).parents[2]
REGION = "us-east-1"
START_SECONDS = 60.0
END_SECONDS = 10.0

T = TypeVar("T")

MADE_UP = {
    "AWS_ACCESS_KEY_ID": "AKIAMADEUPFORTESTS00",
    "AWS_SECRET_ACCESS_KEY": "made-up-secret-of-the-tests",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


def environment() -> dict[str, str]:
    """What a daemon of the tests needs in its environment to call the endpoint."""
    if elsewhere() and "AWS_ACCESS_KEY_ID" in os.environ:
        return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return dict(MADE_UP)


def elsewhere() -> str | None:
    """The server the tests were told to use, if they were."""
    return os.environ.get("STATESVC_TEST_DYNAMODB_ENDPOINT") or None


class Program:
    """A server in a process of its own: it prints its address when it is ready, and ends with us at the latest."""

    def __init__(self, *words: str, **variables: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        timer = threading.Timer(START_SECONDS, self._process.kill)
        timer.start()
        try:
            self.url = self._process.stdout.readline().strip()
        finally:
            timer.cancel()
        if not self.url:
            self.end()
            raise AssertionError(f"{' '.join(words)} did not start")
        atexit.register(self.end)

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        """At once: nothing it holds is worth keeping."""
        atexit.unregister(self.end)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(END_SECONDS)
        for each in (self._process.stdin, self._process.stdout):
            if each is not None:
                each.close()


class Moto(Program):
    """moto's DynamoDB, one request at a time. With `whole` all of moto answers: identities and policies, too."""

    def __init__(self, *, whole: bool = False, **variables: str) -> None:
        super().__init__("tests.dynamodb.moto_server", *(["--whole"] if whole else []), **variables)

    def settings(self, *, index_lag: float = 0.0, settling: int = 0, policy: dict[str, Any] | None = None) -> None:
        """See `shelves.Settings`. For the whole server: give such a test a server of its own."""
        body = json.dumps({"index_lag": index_lag, "settling": settling, "policy": policy}).encode()
        urllib.request.urlopen(f"{self.url}/-/settings", data=body, timeout=END_SECONDS).close()

    def actions(self) -> set[str]:
        """The actions of IAM that requests needed since the settings were changed last."""
        with urllib.request.urlopen(f"{self.url}/-/actions", timeout=END_SECONDS) as reply:
            return set(json.load(reply))


@contextmanager
def moto(*, whole: bool = False, **variables: str) -> Iterator[Moto]:
    """A server of one's own."""
    server = Moto(whole=whole, **variables)
    try:
        yield server
    finally:
        server.end()


_shared: Moto | None = None


def endpoint() -> str:
    """The endpoint all tests of this process share, each with tables of its own; started when it is first asked for."""
    global _shared  # noqa: PLW0603 - one server for the process, however many fixtures ask
    given = elsewhere()
    if given is not None:
        return given
    if _shared is None:
        _shared = Moto()
    return _shared.url


class Tables(NamedTuple):
    jobs: str
    companion: str


def own_tables() -> Tables:
    """Names nobody else uses."""
    name = f"jobs-{uuid.uuid4().hex[:16]}"
    return Tables(name, f"{name}-statesvc")


class InThread:
    """A played endpoint in a thread with a loop of its own, so that tests that block can use it as well."""

    def __init__(self, handler: Handler, tls: ssl.SSLContext | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.served = Served(handler, tls)
        self._do(self.served.open())

    @property
    def url(self) -> str:
        return self.served.url

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(START_SECONDS)

    def go_away(self) -> None:
        """Nobody listens on the address any more, and every connection is cut."""
        self._do(self.served.close())

    def come_back(self) -> None:
        """At the same address."""
        self._do(self.served.open(self.served.port))

    async def _last(self) -> None:
        """What is to be closed with it."""

    def end(self) -> None:
        self._do(self.served.close())
        self._do(self._last())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_SECONDS)
        self._loop.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


# --- trouble ----------------------------------------------------------------------------------------------------------

Fault = Literal[
    "throttle",  # refused for throughput; not applied
    "conflict",  # refused because of another transaction; not applied
    "fail",  # 500; not applied
    "fail_after",  # 500; applied
    "lose",  # the connection is cut before the request came through; not applied
    "drop",  # the connection is cut before the reply; applied
    "hang",  # no reply ever comes; not applied
    "hang_after",  # no reply ever comes; applied
    "garble",  # the reply does not match its checksum; applied
    "partial",  # a batch is done in part: the rest comes back as unprocessed
    "slow",  # the reply takes its time; applied
    "twice",  # the request arrives again a while after it was answered; applied, and nobody hears what the second did
]

FAULTS: tuple[Fault, ...] = get_args(Fault)

KEPT_CALLS = 100_000


class Call(NamedTuple):
    operation: str
    fault: Fault | None


@dataclass
class Shares:
    """How often each fault happens, of 1."""

    throttle: float = 0.0
    conflict: float = 0.0
    fail: float = 0.0
    fail_after: float = 0.0
    lose: float = 0.0
    drop: float = 0.0
    hang: float = 0.0
    hang_after: float = 0.0
    garble: float = 0.0
    partial: float = 0.0
    slow: float = 0.0
    twice: float = 0.0


SLOW_SECONDS = 0.3
"""What a slow reply, and a request that comes a second time, take at most."""


class TroubledEndpoint(InThread):
    """Between a daemon and its endpoint: passes requests on, and makes trouble as told, by shares or one by one."""

    def __init__(self, upstream: str, *, seed: int = 0, **shares: float) -> None:
        self.shares = Shares(**shares)
        self.only: frozenset[str] | None = None
        """Operations that are troubled; None: all."""
        self.calls: deque[Call] = deque(maxlen=KEPT_CALLS)
        self.counts: Counter[str] = Counter()
        """Requests that came, by operation."""
        self.faults: Counter[Fault] = Counter()
        self._planned: deque[Fault | None] = deque()
        self._random = random.Random(seed)
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None
        self.late: set[asyncio.Task[None]] = set()
        """Requests that are to arrive a second time."""
        super().__init__(self._handle)

    def next(self, *faults: Fault | None) -> None:
        """What happens to the next calls that may be troubled, in this order; None: nothing."""
        self._planned.extend(faults)

    def calm(self) -> None:
        self.shares = Shares()
        self._planned.clear()

    async def _last(self) -> None:
        await asyncio.gather(*self.late)
        if self._session is not None:
            await self._session.close()

    def _choose(self, operation: str) -> Fault | None:
        if self.only is not None and operation not in self.only:
            return None
        if self._planned:
            return self._planned.popleft()
        drawn = self._random.random()
        for fault in FAULTS:
            share: float = getattr(self.shares, fault)
            if drawn < share:
                return fault
            drawn -= share
        return None

    async def _handle(self, request: Request) -> Reply | None:
        fault = self._choose(request.operation)
        if fault == "partial" and request.operation not in {"BatchGetItem", "BatchWriteItem"}:
            fault = None
        self.calls.append(Call(request.operation, fault))
        self.counts[request.operation] += 1
        if fault is not None:
            self.faults[fault] += 1
        match fault:
            case "lose":
                return None
            case "hang":
                await _never()
            case "throttle":
                return _throttled(request, self.faults["throttle"])
            case "conflict" | "fail":
                return _refusal(fault, request)
            case "partial":
                return await self._pass_part(request)
        return await self._answered(request, await self._pass(request), fault)

    async def _answered(self, request: Request, reply: Reply, fault: Fault | None) -> Reply | None:
        """What becomes of the reply to a request that was carried out."""
        match fault:
            case "drop":
                return None
            case "hang_after":
                await _never()
            case "fail_after":
                return _refusal("fail", request)
            case "garble":
                reply.headers["x-amz-crc32"] = str(zlib.crc32(reply.body) ^ 1)
            case "slow":
                await self._a_while()
            case "twice":
                late = asyncio.get_running_loop().create_task(self._again(request))
                self.late.add(late)
                late.add_done_callback(self.late.discard)
        return reply

    async def _a_while(self) -> None:
        await asyncio.sleep(SLOW_SECONDS * self._random.random())

    async def _again(self, request: Request) -> None:
        await self._a_while()
        await self._pass(request)

    async def _pass(self, request: Request) -> Reply:
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=0))
        headers = {
            name: value for name, value in request.headers.items() if name not in {"content-length", "connection"}
        }
        async with self._session.request(
            request.method, self._upstream + request.path, headers=headers, data=request.body
        ) as answer:
            body = await answer.read()
            kept = {name.lower(): value for name, value in answer.headers.items()}
            kept = {
                name: value
                for name, value in kept.items()
                if name.startswith("x-amz") or name in {"content-type", "date"}
            }
            return Reply(answer.status, body, kept)

    async def _pass_part(self, request: Request) -> Reply:
        """Half of the batch is done, the rest comes back; a batch of one comes back whole."""
        asked = msgspec.json.decode(request.body)
        done, left = _halves(request.operation, asked["RequestItems"])
        told: dict[str, Any] = {"Responses": {}} if request.operation == "BatchGetItem" else {}
        if done:
            part = request._replace(body=msgspec.json.encode({**asked, "RequestItems": done}))
            reply = await self._pass(part)
            if reply.status != 200:
                return reply
            told = msgspec.json.decode(reply.body)
        name = "UnprocessedKeys" if request.operation == "BatchGetItem" else "UnprocessedItems"
        body = msgspec.json.encode({**told, name: left})
        return Reply(200, body, {"x-amz-crc32": str(zlib.crc32(body))})


def _halves(operation: str, tables: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    done: dict[str, Any] = {}
    left: dict[str, Any] = {}
    for table, asked in tables.items():
        every = asked["Keys"] if operation == "BatchGetItem" else asked
        half = len(every) // 2
        for part, into in ((every[:half], done), (every[half:], left)):
            if part:
                into[table] = {**asked, "Keys": part} if operation == "BatchGetItem" else part
    return done, left


async def _never() -> NoReturn:
    """Until the connection is closed."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody sets it")


def refusal(code: str, text: str = "", *, status: int = 400, **more: Any) -> Reply:
    """An error as DynamoDB words it."""
    body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": text, **more}).encode()
    return Reply(status, body, {"content-type": "application/x-amz-json-1.0", "x-amz-crc32": str(zlib.crc32(body))})


THROTTLED = ("ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded")
THROTTLED_ACTIONS = ("ThrottlingError", "ProvisionedThroughputExceeded")


def _throttled(request: Request, number: int) -> Reply:
    """Each time in another of the ways DynamoDB has for it; a transaction may be told by a reason for one action."""
    if request.operation == "TransactWriteItems" and number % 2:
        return _cancelled(request, THROTTLED_ACTIONS[number // 2 % len(THROTTLED_ACTIONS)])
    return refusal(THROTTLED[number // 2 % len(THROTTLED)], "The level of configured throughput was exceeded.")


def _refusal(fault: Literal["conflict", "fail"], request: Request) -> Reply:
    if fault == "fail":
        return refusal("InternalServerError", "Internal server error", status=500)
    if request.operation != "TransactWriteItems":
        return refusal("TransactionConflictException", "Transaction is ongoing for the item")
    return _cancelled(request, "TransactionConflict")


def _cancelled(request: Request, code: str) -> Reply:
    """A transaction that failed for one of its actions."""
    actions = len(msgspec.json.decode(request.body)["TransactItems"])
    reasons = [{"Code": code}, *[{"Code": "None"}] * (actions - 1)]
    return refusal("TransactionCanceledException", "Transaction cancelled", CancellationReasons=reasons)
