"""The current job: what code deep inside a job's work asks for without being handed it.

Owns the context variable, and a job's metadata, data and trace. Must not know queues or leases; a token it is given
guards its writes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self

from .adapter_errors import NotCached
from .face import Face, Record
from .watching import Event, history
from .writes import pointer

TRACE = "trace"
"""The type of the events that `trace` adds."""

_current: ContextVar[JobContext | None] = ContextVar("statesvc_current_job", default=None)


class JobContext:
    """A job while it is worked on. Reads come from the cache, own writes included; writes return at once."""

    def __init__(self, store: Face, id: str, *, kind: str = "job", record: Record | None = None) -> None:
        self._store = store
        self._kind = kind
        self._record = record or {}
        self._token: Callable[[], int | None] = lambda: None
        self._before: list[Token[JobContext | None]] = []
        self.job_id = id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.job_id!r})"

    # --- the current one -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._before.append(_current.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            _current.reset(self._before.pop())
        except ValueError:  # left in another context than it was entered in: there it was never the current one
            pass

    def guard_by(self, token: Callable[[], int]) -> None:
        """From here on writes count only while the lease of this token is held. What asking for it raises, they do."""
        self._token = token

    # --- what is known ---------------------------------------------------------------------------------------------

    @property
    def record(self) -> Record:
        """The job as this agent knows it."""
        try:
            return self._store.get(self.job_id, self._kind) or self._record
        except NotCached:
            return self._record

    @property
    def metadata(self) -> dict[str, Any]:
        return self.record.get("metadata") or {}

    @property
    def data(self) -> dict[str, Any]:
        return self.record.get("data") or {}

    @property
    def status(self) -> str | None:
        return self.record.get("status")

    @property
    def error(self) -> str | None:
        return self.record.get("error")

    @property
    def created_at(self) -> str | None:
        return self.record.get("createdAt")

    @property
    def completed_at(self) -> str | None:
        return self.record.get("completedAt")

    @property
    def flow_id(self) -> str | None:
        return self.record.get("flowId")

    @property
    def worker_id(self) -> str | None:
        """Who works on it: the holder of its lease."""
        return (self.record.get("lease") or {}).get("holder")

    def get_data(self, key: str, default: Any = None) -> Any:
        return self.data.get(key, default)

    # --- what is added ---------------------------------------------------------------------------------------------

    def set_data(self, key: str, value: Any) -> None:
        """Store a value of the job's own; `get_data` sees it at once."""
        self._store.update(self.job_id, set={pointer("data", key): value}, token=self._token(), kind=self._kind)

    def trace(self, routine_id: str, action: str, details: Any = None) -> None:
        """Add to the job's history what was done; watchers see it."""
        told = {"routine_id": routine_id, "action": action, "details": details}
        self._store.emit(self.job_id, TRACE, f"{routine_id}: {action}", told, kind=self._kind)

    async def _trace_log(self) -> list[dict[str, Any]]:
        core = self._store._core  # noqa: SLF001 - part of the store
        return [_traced(event) for event in await history(core, self.job_id, self._kind) if event.type == TRACE]


class AsyncJobContext(JobContext):
    """For asyncio."""

    async def trace_log(self) -> list[dict[str, Any]]:
        """What was traced, oldest first: timestamp, routine_id, action, details."""
        return await self._trace_log()


class BlockingJobContext(JobContext):
    """For threads."""

    def trace_log(self) -> list[dict[str, Any]]:
        """What was traced, oldest first: timestamp, routine_id, action, details."""
        return self._store._run(self._trace_log())  # noqa: SLF001 - part of the store


def _traced(event: Event) -> dict[str, Any]:
    return {"timestamp": event.at, **(event.data if isinstance(event.data, dict) else {})}


def get_current_job() -> Any:
    """The job that is worked on here, a `JobContext`, or None outside of any."""
    return _current.get()


def job_context() -> Any:
    """The job that is worked on here, a `JobContext`; raises `LookupError` outside of any."""
    current = _current.get()
    if current is None:
        raise LookupError("no job is worked on here: enter a claimed job, or state.job_context(id)")
    return current
