"""What both faces of a store share: writes that return at once, reads of the cache, counters.

Owns the signatures an agent sees. Must not know event loops, threads or sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from . import writes
from .adapter_errors import NotCached
from .core import Core
from .desk import Counters
from .options import RejectedCallback

Record = dict[str, Any]
T = TypeVar("T")

_NOT_GIVEN = (None,) * 5


class Face:
    """A store of records. Every method here returns at once, from any thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._desk = core.desk
        self._views = core.desk.views
        self._admit = core.desk.admit

    # --- writes ----------------------------------------------------------------------------------------------------

    def create(self, record: Mapping[str, Any], /, *, kind: str = "job") -> None:
        """Make a record: a `Job` or a dict with its id (`uuid` for jobs, `id` elsewhere)."""
        self._admit(writes.create(kind, record))

    def update(
        self,
        id: str,
        patch: Mapping[str, Any] | None = None,
        /,
        *,
        set: Mapping[str, Any] | None = None,
        inc: Mapping[str, float] | None = None,
        append: Mapping[str, list[Any]] | None = None,
        if_revision: int | None = None,
        upsert: bool = False,
        token: int | None = None,
        kind: str = "job",
        **fields: Any,
    ) -> None:
        """Change a record: fields as keywords, or a merge patch (RFC 7396: null removes) as a dict, or both.

        `set` assigns, `inc` adds and `append` extends, each by top-level name or JSON Pointer. With `token` it counts
        only while that lease of the record is held. A field that is called like one of the named parameters goes into
        the dict.
        """
        if patch is not None:
            fields = {**writes.checked_names(patch), **fields}
        more = None
        if upsert or (set, inc, append, if_revision, token) != _NOT_GIVEN:
            more = writes.checked_more(set, inc, append, if_revision, upsert, token)
        self._admit(writes.update(kind, id, fields, more))

    def increment(
        self, id: str, amounts: Mapping[str, float] | None = None, /, *, kind: str = "job", **by: float
    ) -> None:
        """Add to numbers of a record: `increment("job-1", retryCount=1)`."""
        self.update(id, inc={**(amounts or {}), **by}, kind=kind)

    def append(
        self, id: str, values: Mapping[str, list[Any]] | None = None, /, *, kind: str = "job", **more: list[Any]
    ) -> None:
        """Extend lists of a record: `append("job-1", lines=["started"])`."""
        self.update(id, append={**(values or {}), **more}, kind=kind)

    def delete(self, id: str, /, *, if_revision: int | None = None, kind: str = "job") -> None:
        """Remove a record."""
        self._admit(writes.delete(kind, id, if_revision))

    def emit(self, id: str, type: str, message: str | None = None, data: Any = None, *, kind: str = "job") -> None:
        """Add an event of your own to a record's history; watchers see it."""
        told = {"type": type, "message": message, "data": data}
        self._admit(writes.emit(kind, id, {name: value for name, value in told.items() if value is not None}))

    def cancel(self, id: str, /, *, kind: str = "job") -> None:
        """End a job that waits; ask the holder of a running one to end it, which stays asked."""
        self._admit(writes.cancel(kind, id))

    def retry(self, id: str, /, *, kind: str = "job") -> None:
        """Put a failed job back into its queue."""
        self._admit(writes.retry(kind, id))

    # --- the cache -------------------------------------------------------------------------------------------------

    def get(self, id: str, kind: str = "job") -> Record | None:
        """The record as far as this agent knows, own writes included; None when it is known to be absent.

        No I/O. The dict is the cache's own: read it, do not change it; later writes replace it. Raises `NotCached`
        where the cache cannot tell.
        """
        try:
            return self._views[kind][id]
        except KeyError:
            self._check_absent(id, kind)
            return None

    def _check_absent(self, id: str, kind: str) -> None:
        cache = self._desk.caches.get(kind)
        if cache is None or not cache.complete or id in cache.wanted:
            raise NotCached(f"{kind} {id!r} is not cached; ask the daemon with fetch() or call('get', ...)")

    def records(self, kind: str = "job") -> list[Record]:
        """Every record the cache holds, at one moment."""
        views = self._views.get(kind)
        return [] if views is None else [view for view in list(views.values()) if view is not None]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def __len__(self) -> int:
        return self._desk.caches["job"].live

    def __bool__(self) -> bool:
        """A store is true, also an empty one."""
        return True

    def __contains__(self, id: object) -> bool:
        return self._views["job"].get(id) is not None  # type: ignore[call-overload]

    def _tell(self, callback: Callable[[], object]) -> None:
        """Call back where this face's callbacks are called, from any thread."""
        raise NotImplementedError

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work on the store's loop: for the face that waits."""
        raise NotImplementedError

    def kind(self, kind: str) -> Kind:
        """The same store for records of another kind: `volumes = state.kind("volume")`."""
        return Kind(self, kind)

    # --- about the store -------------------------------------------------------------------------------------------

    def on_rejected(self, callback: RejectedCallback) -> Callable[[], None]:
        """Also call this with (write, error) for each rejected write; returns how to stop that."""
        self._core.on_rejected.append(callback)

        def stop() -> None:
            if callback in self._core.on_rejected:
                self._core.on_rejected.remove(callback)

        return stop

    @property
    def counters(self) -> Counters:
        """What happened so far."""
        return self._desk.counters()

    @property
    def path(self) -> str:
        """The daemon's socket."""
        return self._core.path

    @property
    def connected(self) -> bool:
        return self._core.is_connected

    @property
    def epoch(self) -> str | None:
        """The daemon's epoch, once it was met: another one means that acknowledged state may be lost."""
        return self._core.epoch

    @property
    def durability(self) -> str | None:
        """What the daemon's acknowledgement survives: memory, os, disk or replicated."""
        return None if self._core.welcome is None else self._core.welcome.durability

    @property
    def daemon_pid(self) -> int | None:
        """The process id of the spawned daemon while it runs."""
        return None if self._core.daemon is None else self._core.daemon.pid


class Kind:
    """A store seen through one kind of records."""

    def __init__(self, store: Face, kind: str) -> None:
        self._store = store
        self.name = kind

    def create(self, record: Mapping[str, Any], /) -> None:
        self._store.create(record, kind=self.name)

    def update(self, id: str, patch: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """As the store's `update`; a field may be called `kind` here."""
        named = {name: fields.pop(name) for name in _PARAMETERS & fields.keys()}
        self._store.update(id, {**(patch or {}), **fields}, kind=self.name, **named)

    def increment(self, id: str, amounts: Mapping[str, float] | None = None, /, **by: float) -> None:
        self._store.increment(id, {**(amounts or {}), **by}, kind=self.name)

    def append(self, id: str, values: Mapping[str, list[Any]] | None = None, /, **more: list[Any]) -> None:
        self._store.append(id, {**(values or {}), **more}, kind=self.name)

    def delete(self, id: str, /, *, if_revision: int | None = None) -> None:
        self._store.delete(id, if_revision=if_revision, kind=self.name)

    def emit(self, id: str, type: str, message: str | None = None, data: Any = None) -> None:
        self._store.emit(id, type, message, data, kind=self.name)

    def cancel(self, id: str, /) -> None:
        self._store.cancel(id, kind=self.name)

    def retry(self, id: str, /) -> None:
        self._store.retry(id, kind=self.name)

    def get(self, id: str, /) -> Record | None:
        return self._store.get(id, self.name)

    def fetch(self, id: str, /, *, timeout: float | None = None) -> Any:
        """As the store's `fetch`: to be awaited where that one is."""
        return self._store.fetch(id, kind=self.name, timeout=timeout)  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Record]:
        return iter(self._store.records(self.name))

    def __len__(self) -> int:
        return len(self._store.records(self.name))

    def __contains__(self, id: object) -> bool:
        return self._store._views.get(self.name, {}).get(id) is not None  # type: ignore[call-overload]  # noqa: SLF001


_PARAMETERS = frozenset({"set", "inc", "append", "if_revision", "upsert", "token"})
