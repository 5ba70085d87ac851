"""From a frame to an answer: op to handler, and the one place where an error becomes a reply.

Owns who is calling and which handler answers. Must not know transports, and decides nothing about records: that is the
store's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from statesvc_client import __version__, wire
from statesvc_client.errors import BadRequest, Denied, Internal, StateError, Unavailable
from statesvc_client.wire import Limits, Malformed, Request

from . import logs
from .answers import Answer, Coming, Handler, Meanwhile, Session, failed, put_record, replied, succeeded
from .handlers.administering import AdministrationHandlers
from .handlers.following import FollowHandlers, Watching
from .handlers.leases import LeaseHandlers
from .handlers.measuring import MeasureHandlers
from .handlers.records import RecordHandlers
from .handlers.transactions import TransactionHandlers
from .store.allocation import Pools
from .store.batches import Batch
from .store.claims import Claims
from .store.deduplication import check_not_own
from .store.health import Health
from .store.listing import Paging
from .store.records import check_length
from .store.store import Store
from .store.turns import Share

log = logs.get(__name__)

OVERLAPPING: frozenset[type[Request]] = frozenset(
    {wire.Create, wire.Update, wire.Delete, wire.Release, wire.Cancel, wire.Retry, wire.Get}
)
"""Requests about one record. On a shared engine each takes a journey or two, so those of one connection go side by
side; the store keeps the order of those about the same record."""


LARGE_BYTES = 128 * 1024
"""Frames above this take a millisecond or more. Hardly any is: a job has some hundred bytes."""

NOTHING = Answer(b"")
"""To whoever is gone: what was not begun is not begun any more, and what changes nothing ends."""

_ALWAYS: frozenset[type[Request]] = frozenset({wire.Ping, wire.Health})
"""Requests that do not need the store."""


class Dispatcher:
    """Answers frames from one store."""

    def __init__(
        self,
        store: Store,
        limits: Limits,
        paging: Paging,
        ready: Callable[[], Awaitable[None] | None],
        claims: Claims,
        administering: AdministrationHandlers,
        pools: Pools,
        health: Health,
        watching: Watching = Watching(),  # noqa: B008 - a tuple of numbers
    ) -> None:
        self.serving = False
        """Requests can be served. Until then, and at the end, `ready` says what to wait for."""
        self._store = store
        self._limits = limits
        self._ready = ready
        self._large = Share()
        self._health = health
        self._sessions: dict[str, Session] = {}
        self._overlapping = frozenset[type[Request]]() if store.engine.immediate else OVERLAPPING
        records = RecordHandlers(store, limits, paging, self.failure)
        self._handlers: dict[type[Request], Handler] = {
            wire.Ping: lambda request, _: replied(succeeded(request), request),
            wire.Hello: self._hello,
            **records.table(),
            **TransactionHandlers(store, limits, pools, records).table(),
            **MeasureHandlers(store, health).table(),
            **LeaseHandlers(store, claims, records).table(),
            **administering.table(),
            **FollowHandlers(store, watching, self.failure).table(),
        }

    @property
    def congestion(self) -> Batch | None:
        """What to wait for before more frames are taken, if anything."""
        return self._store.commits.full

    def answer(
        self, frame: bytes, session: Session, *, busy: bool = False, in_turn: bool = False
    ) -> Answer | Coming | Meanwhile | Awaitable[Answer] | None:
        """The answer to one frame, or a promise of it. Never raises. While requests of the connection are under way
        that let others begin (`busy`), None means: not this one, offer it again when they are over."""
        if len(frame) > LARGE_BYTES and not in_turn:
            return None if busy else self._answer_in_turn(frame, session)
        try:
            request = wire.decode_request(frame, self._limits)
        except Malformed as bad:
            line = wire.encode_line(failed(bad.op, bad.request_id, bad.error, bad.seq))
            return Answer(line, final=bad.error.code == "too_large")
        asked = type(request)
        if busy and asked not in self._overlapping:
            return None
        if not self.serving and asked not in _ALWAYS and (opening := self._ready()) is not None:
            return self._once_ready(opening, request, session)
        answer = self._handle(request, session)
        if type(answer) is Answer:
            return answer
        if type(answer) is Coming:
            return answer if asked in self._overlapping else answer.wait()
        return Meanwhile(answer) if asked in self._overlapping else answer  # type: ignore[arg-type]

    async def _answer_in_turn(self, frame: bytes, session: Session) -> Answer:
        """The answer to a large frame: decoding it takes a while and cannot be divided, so those of all connections go
        one behind the other, with rests in which the small ones are served."""
        while await session.while_there(self._large.take()):
            try:
                if session.is_lost:
                    return NOTHING  # in the moment its turn came
                if (full := self.congestion) is None:
                    answer = self.answer(frame, session, in_turn=True)
                    break
            finally:
                self._large.give_back()
            await full.wait()
        else:
            return NOTHING
        return await _arrived(answer)  # type: ignore[arg-type]  # never None: not busy

    def _handle(self, request: Request, session: Session) -> Answer | Coming | Awaitable[Answer]:
        try:
            if request.admin and not session.caller.admin:
                raise Denied(f"{request.op} is for the daemon's own user, root and access.admin_uids")
            if request.kind != "job" and type(request) is not wire.Ping:
                check_not_own(request.kind)
            answer = self._handlers[type(request)](request, session)
        except Exception as problem:  # noqa: BLE001 - whatever happens, the frame gets its reply
            return self.failure(request, session, problem)
        if type(answer) is Answer or type(answer) is Coming:
            return answer
        return self._awaited(answer, request, session)  # type: ignore[arg-type]

    async def _awaited(self, answer: Awaitable[Answer], request: Request, session: Session) -> Answer:
        try:
            if request.writes or request.admin:
                return await answer
            # Not so a hello: what was sent behind it is taken in its name, also when the client has hung up.
            return await _unless_lost(answer, session, asks=type(request) is not wire.Hello)
        except Exception as problem:  # noqa: BLE001 - whatever happens, the frame gets its reply
            return self.failure(request, session, problem)

    async def _once_ready(self, opening: Awaitable[None], request: Request, session: Session) -> Answer:
        try:
            if not await session.while_there(opening) or session.is_lost:
                return NOTHING
        except StateError as problem:
            return self.failure(request, session, problem)
        return await _arrived(self._handle(request, session))

    def failure(self, request: Request | None, session: Session, problem: Exception) -> Answer:
        """The reply to a request that failed; a bug of ours is logged, not leaked."""
        error = problem if isinstance(problem, StateError) else _bug(request, problem)
        session.failed(request, error)
        if error is problem and isinstance(request, wire.Write):
            self._health.failed(error)
        if isinstance(request, wire.Write) and request.again and error.retryable and error.outcome == "not_applied":
            error = _not_taken_again(error)
        op = "" if request is None else request.op
        seq = request.seq if isinstance(request, wire.Write) else None
        request_id = "" if request is None else request.request_id
        reply = failed(op, request_id, error, seq)
        if error.record is not None and request is not None:
            put_record(reply, request.kind, error.record)
        return Answer(wire.encode_line(reply), request=request, failed=True)

    def overtook(self, answer: Answer, session: Session) -> Answer:
        """What is said of a write that went well behind one that did not: send both again, the first one first."""
        why = f"write {session.stopped_at} failed and must be sent again before any later one"
        return self.failure(answer.request, session, Unavailable(why, outcome="unknown"))

    # --- handlers --------------------------------------------------------------------------------------------------

    def _hello(self, request: wire.Hello, session: Session) -> Answer | Awaitable[Answer]:
        if request.protocol != wire.PROTOCOL:
            raise BadRequest(f"protocol {request.protocol} is not spoken here; known: {wire.PROTOCOL}")
        if request.client == "":
            raise BadRequest("client must not be empty: leave it out, or say who is calling")
        for word, said in (("client", request.client), ("name", request.name), ("bootId", request.boot_id)):
            check_length(word, said, self._limits.id_chars)
        if session.caller.said_hello:
            return self._hello_again(request, session)
        if request.client in self._sessions:
            return self._take_over(request, session)
        return self._introduce(request, session)

    async def _hello_again(self, request: wire.Hello, session: Session) -> Answer:
        """Writes under way belong to who the caller was; they are answered before it becomes another."""
        await self._store.commits.settled()
        self.forget(session)
        return await self._take_over(request, session)

    async def _take_over(self, request: wire.Hello, session: Session) -> Answer:
        """What the client's older connections had under way is decided before this one begins. While one ends, another
        may come."""
        while (older := self._sessions.get(request.client or "")) is not None:
            await older.connection.end()
        return self._introduce(request, session)

    def _introduce(self, request: wire.Hello, session: Session) -> Answer:
        session.caller = session.caller._replace(
            said_hello=True, client=request.client or "", name=request.name or "", boot_id=request.boot_id
        )
        session.epoch = self._store.engine.epoch
        session.ack_last = request.ack == "last"
        session.last_seq, session.stopped_at = 0, None
        if request.client:
            self._sessions[request.client] = session
        return self._welcome(request)

    def _welcome(self, request: wire.Hello) -> Answer:
        engine = self._store.engine
        reply = succeeded(
            request,
            protocol=wire.PROTOCOL,
            version=__version__,
            backend=engine.name,
            durability=engine.durability,
            epoch=engine.epoch,
            limits=self._limits,
        )
        return replied(reply, request)

    def forget(self, session: Session) -> None:
        """The connection of this session is gone, or takes another name: what it waits for is withdrawn."""
        session.withdraw()
        if self._sessions.get(session.caller.client) is session:
            del self._sessions[session.caller.client]


def _bug(request: Request | None, problem: Exception) -> StateError:
    log.error("handler_failed", op=None if request is None else request.op, exc_info=problem)
    return Internal(f"the daemon failed on this request ({type(problem).__name__}); see its log", outcome="unknown")


def _not_taken_again(error: StateError) -> StateError:
    """What is said of a write that came again and was not taken this time: what became of its first sending is not
    known. Never `internal`, which would say that it was tried and that this is what fails."""
    said = Unavailable if isinstance(error, Internal) else type(error)
    return said(error.text, outcome="unknown", record=error.record)


async def _unless_lost(answer: Awaitable[Answer], session: Session, *, asks: bool) -> Answer:
    """The answer to a request that changes no record: it is looked for as long as there is a connection, and what the
    client only asks for as long as there is somebody to tell it."""
    looking = asyncio.ensure_future(answer)
    try:
        return looking.result() if await session.while_there(looking, asks=asks) else NOTHING
    finally:
        del looking  # as a failure is not to be kept by its own frames


async def _arrived(answer: Answer | Coming | Meanwhile | Awaitable[Answer]) -> Answer:
    """The answer itself, as soon as it is there."""
    if isinstance(answer, Answer):
        return answer
    if isinstance(answer, Meanwhile):
        return await answer.answer
    return await (answer.wait() if isinstance(answer, Coming) else answer)
