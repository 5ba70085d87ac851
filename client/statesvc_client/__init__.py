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
    from .core import CloseReport
    from .desk import Counters
    from .errors import StateError
    from .job import Job
    from .writes import Write

__all__ = [
    "AdapterError",
    "CloseReport",
    "Closed",
    "Counters",
    "FlushTimeout",
    "Job",
    "NotCached",
    "OutboxFull",
    "SpawnFailed",
    "SpoolBusy",
    "SpoolCorrupt",
    "SpoolError",
    "SpoolFailed",
    "SpoolUnsafe",
    "StateError",
    "StateStore",
    "Write",
    "__version__",
]

_HOME = {
    "CloseReport": "core",
    "Counters": "desk",
    "Job": "job",
    "StateError": "errors",
    "StateStore": "aio",
    "Write": "writes",
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
