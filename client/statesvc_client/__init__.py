"""statesvc_client: the light half that runs inside an agent. Depends on msgspec alone, never on the daemon.

The names below are loaded when they are first used: the daemon shares this package's wire and errors, and must not pay
for the adapter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .adapter_errors import (
        AdapterError,
        Closed,
        FlushTimeout,
        LeaseHeld,
        NotCached,
        OutboxFull,
        SpawnFailed,
        SpoolBusy,
        SpoolCorrupt,
        SpoolError,
        SpoolFailed,
        SpoolUnsafe,
    )
    from .aio import StateStore
    from .context import JobContext, get_current_job, job_context
    from .core import CloseReport
    from .desk import Counters
    from .election import Election
    from .errors import Gone, LeaseLost, StateError
    from .job import Job
    from .locks import Lock
    from .queue import ClaimedJob, Queue
    from .watching import Event, Watch
    from .worker import Routine, Worker
    from .writes import Write

__all__ = [
    "AdapterError",
    "ClaimedJob",
    "CloseReport",
    "Closed",
    "Counters",
    "Election",
    "Event",
    "FlushTimeout",
    "Gone",
    "Job",
    "JobContext",
    "LeaseHeld",
    "LeaseLost",
    "Lock",
    "NotCached",
    "OutboxFull",
    "Queue",
    "Routine",
    "SpawnFailed",
    "SpoolBusy",
    "SpoolCorrupt",
    "SpoolError",
    "SpoolFailed",
    "SpoolUnsafe",
    "StateError",
    "StateStore",
    "Watch",
    "Worker",
    "Write",
    "__version__",
    "get_current_job",
    "job_context",
]

_HOME = {
    "ClaimedJob": "queue",
    "CloseReport": "core",
    "Counters": "desk",
    "Election": "election",
    "Event": "watching",
    "Gone": "errors",
    "Job": "job",
    "JobContext": "context",
    "LeaseLost": "errors",
    "Lock": "locks",
    "Queue": "queue",
    "Routine": "worker",
    "StateError": "errors",
    "StateStore": "aio",
    "Watch": "watching",
    "Worker": "worker",
    "Write": "writes",
    "get_current_job": "context",
    "job_context": "context",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOME.get(name, 'adapter_errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
