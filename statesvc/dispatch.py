"""From a frame to an answer: op to handler, and the one place where an error becomes a reply.

Owns the shape of replies and the order of a client's numbered writes. Must not know transports, and decides nothing
about records: that is the store's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import UNSET, Raw

from statesvc_client import __version__, wire
from statesvc_client.errors import BadRequest, Internal, NotFound, StateError, Unavailable
from statesvc_client.wire import Limits, Malformed, Rejected, Reply, Request

from . import logs
from .store.batches import Batch
from .store.listing import ENVELOPE_BYTES, Paging, list_records
from .store.records import without_secrets
from .store.store import Decided, PointWrite, Store
from .store.syncing import SyncReport, sync
from .store.writes import Caller

log = logs.get(__name__)

Item = TypeVar("Item")


class Answer(NamedTuple):
    """A reply, to be sent once the batch `after` is committed; `request` tells whom to blame if it is not."""

    line: bytes
    after: Batch | None = None
    request: Request | None = None
    silent: bool = False
    """A write of an `ack: last` client that succeeded: the next acknowledgement covers it."""
    final: bool = False
    """Nothing more is read from this connection."""
    weight: int = 0
    """Bytes it holds in memory besides its line: the record that a silent answer is about."""


class Peerage(Protocol):
    """What a session may do to the connection it belongs to."""

    def end(self) -> Awaitable[None]:
        """Close it; done when nothing of it is under way any more."""


class Session:
    """One connection's standing: who is calling, and how far its numbered writes have come."""

    __slots__ = ("ack_last", "caller", "connection", "last_seq", "stopped_at")

    def __init__(self, connection: Peerage) -> None:
        self.connection = connection
        self.caller = Caller()
        self.ack_last = False
        self.last_seq = 0
        self.stopped_at: int | None = None
        """The write that failed and must come again before any later one."""

    def admit(self, request: wire.Write) -> bool:
        """Let a numbered write pass in order. Returns whether its seq has passed here before, unannounced."""
        seq = request.seq
        if self.stopped_at is not None:
            if seq is None or seq > self.stopped_at:
                raise Unavailable(f"write {self.stopped_at} failed and must be sent again before any later one")
            if seq == self.stopped_at:
                self.stopped_at = None
        if seq is None or not self.caller.client:
            return False
        replayed = seq <= self.last_seq and not request.again
        self.last_seq = max(self.last_seq, seq)
        return replayed

    def failed(self, request: Request | None, error: StateError) -> None:
        """Note a write that did not get through: those behind it have to wait for it."""
        seq = request.seq if isinstance(request, wire.Write) else None
        if seq is None or not self.caller.client or not error.stops_the_writer():
            return
        if self.stopped_at is None or seq <= self.stopped_at:
            self.stopped_at = seq
            self.last_seq = seq - 1


Handler = Callable[[Any, Session], Answer | Awaitable[Answer]]


class Dispatcher:
    """Answers frames from one store."""

    def __init__(
        self, store: Store, limits: Limits, paging: Paging, ready: Callable[[], Awaitable[None] | None]
    ) -> None:
        self._store = store
        self._limits = limits
        self._paging = paging
        self._ready = ready
        self._sessions: dict[str, Session] = {}
        immediate = store.engine.immediate
        self._handlers: dict[type[Request], Handler] = {
            wire.Create: self._write_now if immediate else self._write,
            wire.Update: self._write_now if immediate else self._write,
            wire.Delete: self._write_now if immediate else self._write,
            wire.Get: self._get_now if immediate else self._get,
            wire.List: self._list,
            wire.Sync: self._sync,
            wire.Hello: self._hello,
        }

    @property
    def congestion(self) -> Batch | None:
        """What to wait for before more frames are taken, if anything."""
        return self._store.commits.full

    def answer(self, frame: bytes, session: Session) -> Answer | Awaitable[Answer]:
        """The answer to one frame, or a promise of it. Never raises."""
        try:
            request = wire.decode_request(frame, self._limits)
        except Malformed as bad:
            line = wire.encode_line(_failure(bad.op, bad.request_id, bad.error, bad.seq))
            return Answer(line, final=bad.error.code == "too_large")
        if type(request) is wire.Ping:
            return Answer(wire.encode_line(Reply(request_id=request.request_id, success=True)))
        opening = self._ready()
        if opening is not None:
            return self._once_ready(opening, request, session)
        return self._handle(request, session)

    def _handle(self, request: Request, session: Session) -> Answer | Awaitable[Answer]:
        try:
            answer = self._handlers[type(request)](request, session)
        except Exception as problem:  # noqa: BLE001 - whatever happens, the frame gets its reply
            return self.failure(request, session, problem)
        return answer if type(answer) is Answer else self._awaited(answer, request, session)  # type: ignore[arg-type]

    async def _awaited(self, answer: Awaitable[Answer], request: Request, session: Session) -> Answer:
        try:
            return await answer
        except Exception as problem:  # noqa: BLE001 - whatever happens, the frame gets its reply
            return self.failure(request, session, problem)

    async def _once_ready(self, opening: Awaitable[None], request: Request, session: Session) -> Answer:
        try:
            await opening
        except StateError as problem:
            return self.failure(request, session, problem)
        answer = self._handle(request, session)
        return answer if isinstance(answer, Answer) else await answer

    def failure(self, request: Request | None, session: Session, problem: Exception) -> Answer:
        """The reply to a request that failed; a bug of ours is logged, not leaked."""
        error = problem if isinstance(problem, StateError) else _bug(request, problem)
        session.failed(request, error)
        op = "" if request is None else request.op
        seq = request.seq if isinstance(request, wire.Write) else None
        request_id = "" if request is None else request.request_id
        reply = _failure(op, request_id, error, seq)
        if error.record is not None and request is not None:
            _put_record(reply, request.kind, error.record)
        return Answer(wire.encode_line(reply), request=request)

    # --- handlers --------------------------------------------------------------------------------------------------

    def _hello(self, request: wire.Hello, session: Session) -> Answer | Awaitable[Answer]:
        if request.protocol != wire.PROTOCOL:
            raise BadRequest(f"protocol {request.protocol} is not spoken here; known: {wire.PROTOCOL}")
        if request.client is not None and not 1 <= len(request.client) <= self._limits.id_chars:
            raise BadRequest(f"client must have 1 to {self._limits.id_chars} characters")
        older = self._sessions.get(request.client or "")
        if older is session or session.caller.said_hello:
            return self._hello_again(request, session)
        if older is None:
            return self._introduce(request, session)
        return self._take_over(request, session, older)

    async def _hello_again(self, request: wire.Hello, session: Session) -> Answer:
        """Writes under way belong to who the caller was; they are answered before it becomes another."""
        await self._store.commits.settled()
        self.forget(session)
        older = self._sessions.get(request.client or "")
        return self._introduce(request, session) if older is None else await self._take_over(request, session, older)

    async def _take_over(self, request: wire.Hello, session: Session, older: Session) -> Answer:
        """What the client's older connection had under way is decided before this one begins."""
        await older.connection.end()
        return self._introduce(request, session)

    def _introduce(self, request: wire.Hello, session: Session) -> Answer:
        session.caller = Caller(said_hello=True, client=request.client or "")
        session.ack_last = request.ack == "last"
        session.last_seq, session.stopped_at = 0, None
        if request.client:
            self._sessions[request.client] = session
        return self._welcome(request)

    def _welcome(self, request: wire.Hello) -> Answer:
        engine = self._store.engine
        reply = Reply(
            request_id=request.request_id,
            success=True,
            protocol=wire.PROTOCOL,
            version=__version__,
            backend=engine.name,
            durability=engine.durability,
            epoch=engine.epoch,
            limits=self._limits,
        )
        return Answer(wire.encode_line(reply), request=request)

    def forget(self, session: Session) -> None:
        """The connection of this session is gone, or takes another name."""
        if self._sessions.get(session.caller.client) is session:
            del self._sessions[session.caller.client]

    def _write_now(self, request: PointWrite, session: Session) -> Answer:
        replayed = session.admit(request)
        return self._written(request, session, self._store.write_now(request, session.caller, replayed=replayed))

    async def _write(self, request: PointWrite, session: Session) -> Answer:
        replayed = session.admit(request)
        return self._written(request, session, await self._store.write(request, session.caller, replayed=replayed))

    def _written(self, request: PointWrite, session: Session, decided: Decided) -> Answer:
        if decided.refused is not None:
            return self.failure(request, session, decided.refused)._replace(after=decided.after)
        if session.ack_last and request.seq is not None:
            weight = 0 if decided.row is None else len(decided.row.body) + len(decided.row.marks)
            return Answer(b"", decided.after, request, silent=True, weight=weight)
        reply = Reply(request_id=request.request_id, success=True)
        if decided.duplicate_of is not None:
            reply.duplicate, reply.revision = True, decided.duplicate_of
        elif decided.row is not None and decided.row.body:
            _put_record(reply, request.kind, without_secrets(decided.row.body))
        return Answer(wire.encode_line(reply), decided.after, request)

    def _get_now(self, request: wire.Get, _: Session) -> Answer:
        return _found(request, self._store.get_now(request))

    async def _get(self, request: wire.Get, _: Session) -> Answer:
        return _found(request, await self._store.get(request))

    async def _list(self, request: wire.List, session: Session) -> Answer:
        page = await list_records(self._store, request, session.caller, self._paging)
        reply = Reply(
            request_id=request.request_id,
            success=True,
            next_cursor=page.next_cursor,
            as_of=page.as_of,
            truncated=page.truncated,
            total=page.total,
        )
        # Joblet's agents expect an empty list to be left out; everybody else reads the same from either.
        if page.rows or session.caller.said_hello:
            bodies = [Raw(row.body) for row in page.rows]
            reply.jobs, reply.records = (bodies, UNSET) if request.kind == "job" else (UNSET, bodies)
        return Answer(wire.encode_line(reply), request=request)

    async def _sync(self, request: wire.Sync, session: Session) -> Answer:
        session.admit(request)
        report = await sync(self._store, request, session.caller)
        if session.ack_last and request.seq is not None and not report.rejected:
            return Answer(b"", None, request, silent=True)
        reply = Reply(
            request_id=request.request_id,
            success=True,
            applied=report.applied,
            unchanged=report.unchanged,
        )
        self._put_lists(reply, request.kind, report)
        return Answer(wire.encode_line(reply), None, request)

    def _put_lists(self, reply: Reply, kind: str, report: SyncReport) -> None:
        """What was refused and what was missing, as far as a frame holds it."""
        room = self._limits.frame_bytes // 2
        rejected, missing = report.rejected, report.missing or []
        shown = [_rejected(kind, name, error) for name, error in _fitting(rejected, room, _rejected_bytes)]
        named = _fitting(missing, room, _name_bytes)
        reply.rejected, reply.missing = shown or None, named or None
        reply.truncated = len(shown) < len(rejected) or len(named) < len(missing)


def _fitting(items: list[Item], room: int, size: Callable[[Item], int]) -> list[Item]:
    """As many items from the front as fit the room."""
    for number, item in enumerate(items):
        room -= size(item)
        if room < ENVELOPE_BYTES:
            return items[:number]
    return items


def _rejected_bytes(item: tuple[str, StateError]) -> int:
    name, error = item
    # Escaped as JSON a character takes six bytes at most, and the names of the fields take their part.
    return 6 * (len(name) + len(error.text)) + 64


def _name_bytes(name: str) -> int:
    return 6 * len(name) + 3


def _found(request: wire.Get, decided: Decided) -> Answer:
    row = decided.row
    if row is None:
        error = NotFound(f"{request.kind} not found")
        return Answer(wire.encode_line(_failure("get", request.request_id, error, None)), decided.after, request)
    reply = Reply(request_id=request.request_id, success=True)
    _put_record(reply, request.kind, row.body)
    return Answer(wire.encode_line(reply), decided.after, request)


def _put_record(reply: Reply, kind: str, body: bytes) -> None:
    if kind == "job":
        reply.job = Raw(body)
    else:
        reply.record = Raw(body)


def _rejected(kind: str, name: str, error: StateError) -> Rejected:
    if kind == "job":
        return Rejected(error.code, error.text, job_id=name)
    return Rejected(error.code, error.text, id=name)


def _failure(op: str, request_id: wire.RequestId, error: StateError, seq: int | None) -> Reply:
    known = op in wire.OPS
    return Reply(
        request_id=request_id,
        success=False,
        error=f"{op.upper()}_ERROR: {error.text}" if known else error.text,
        code=error.code,
        outcome=error.outcome if known and wire.OPS[op].writes else None,
        seq=seq,
    )


def _bug(request: Request | None, problem: Exception) -> StateError:
    log.error("handler_failed", op=None if request is None else request.op, exc_info=problem)
    return Internal(f"the daemon failed on this request ({type(problem).__name__}); see its log", outcome="unknown")
