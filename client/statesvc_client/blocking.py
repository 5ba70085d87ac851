"""The blocking face: the same store for agents built on threads.

Owns the thread its event loop runs in. Must not decide anything: what a store does is in core.py.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from .adapter_errors import Closed, NotCached
from .claiming import TTL_SECONDS
from .context import BlockingJobContext
from .core import CloseReport, Core
from .desk import Counters
from .election import BlockingElection
from .face import Face, Record
from .holding import OnLost
from .locks import BlockingLock
from .options import OptionFields, Options
from .process import Daemon, Log
from .queue import BlockingQueue
from .watching import BlockingWatch, Event, history, watch_request
from .worker import REGISTER_SECONDS, BlockingWorker

T = TypeVar("T")

LINGER_SECONDS = 0.0005
"""The sender looks this often for more before it sleeps: waking another thread costs the caller a system call."""


class StateStore(Face):
    """A state store for threads. `connect` and `spawn` return it at work; leave it with `close` or `with`.

    Any method may be called from any thread. Writes return at once; when the outbox is full they wait for room under
    `when_full="block"`, up to `block_seconds`, and raise `OutboxFull`.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended = False
        """The loop is ending or gone: what is given to it now would never be done."""
        self._starting = threading.Lock()
        core.revive = self._revive
        core.on_fork = self._forget_thread

    @classmethod
    def connect(cls, path: str | os.PathLike[str], **options: Unpack[OptionFields]) -> Self:
        """A store on a daemon that somebody else runs."""
        store = cls(Core(os.fspath(path), _lingering(Options(**options))))
        store.start()
        return store

    @classmethod
    def spawn(
        cls,
        backend: str = "sqlite",
        *,
        data: str | os.PathLike[str] | None = None,
        socket: str | os.PathLike[str] | None = None,
        command: Sequence[str] | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        log: Log | None = None,
        start_seconds: float = 10.0,
        stop_seconds: float = 10.0,
        **options: Unpack[OptionFields],
    ) -> Self:
        """A store on a daemon of its own, which ends with this process."""
        daemon = Daemon(
            backend=backend, data=data, socket=socket, command=command, args=args, env=env, log=log,
            start_seconds=start_seconds, stop_seconds=stop_seconds,
        )  # fmt: skip
        store = cls(Core(daemon.socket, _lingering(Options(**options)), daemon))
        store.start()
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def flush(self, timeout: float | None = None) -> Counters:
        """Return once every write made before is acknowledged (or rejected). Raises `FlushTimeout`."""
        return self._run(self._core.flush(timeout))

    def room(self, timeout: float | None = None) -> None:
        """Return once the outbox has room; raises `OutboxFull` after `timeout` (else `block_seconds`)."""
        self._run(self._core.room(timeout))

    def call(self, op: str, /, *, timeout: float | None = None, **fields: Any) -> dict[str, Any]:
        """Ask the daemon, with every write applied that was made before. Raises the `StateError` it answers."""
        return self._run(self._core.call(op, fields, timeout))

    def fetch(self, id: str, /, *, kind: str = "job", timeout: float | None = None) -> Record | None:
        """As `get`, but asks the daemon where the cache cannot tell."""
        try:
            return self.get(id, kind)
        except NotCached:
            return self._run(self._core.fetch(id, kind, timeout))

    def txn(self, ops: Sequence[Mapping[str, Any]], *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Several creates, updates and deletes, all or nothing; returns what each made."""
        results: list[dict[str, Any]] = self.call("txn", ops=ops, timeout=timeout)["results"]
        return results

    def history(
        self, id: str, /, *, kind: str = "job", after: str | None = None, limit: int | None = None
    ) -> list[Event]:
        """What happened to a record, oldest first."""
        return self._run(history(self._core, id, kind, after=after, limit=limit))

    def stats(
        self, *, kind: str = "job", filter: Mapping[str, Any] | None = None, by: str = "status"
    ) -> dict[str, Any]:
        """Counts by a field, and how long records waited and ran."""
        return self.call("stats", kind=kind, by=by, filter=dict(filter or {}))

    def until(self, condition: Callable[[], object], timeout: float | None = None) -> None:
        """Return once a condition on the cache holds; asked whenever the cache has heard of something.

        `state.until(lambda: "job-1" in state)`. Raises `TimeoutError`, or what the condition raises.
        """
        self._run(self._core.until(condition, timeout))

    # --- watches and leases ----------------------------------------------------------------------------------------

    def watch(
        self, kind: str = "job", filter: Mapping[str, Any] | None = None, after: str | None = None
    ) -> BlockingWatch:
        """Events of a kind, from now on, or behind a cursor: each once, in order, over every reconnect.

        Raises `Gone` where the log no longer reaches back so far, or goes on elsewhere.
        """
        return BlockingWatch(self, watch_request(kind, filter, after))

    def lock(
        self,
        name: str,
        *,
        ttl: float = TTL_SECONDS,
        wait: float | None = None,
        hold: float = 0.0,
        info: Any = None,
        holder: str | None = None,
        on_lost: OnLost | None = None,
    ) -> BlockingLock:
        """One holder at a time. Waits for it up to `wait` seconds (None: for ever), then raises `LeaseHeld`."""
        return BlockingLock(self, name, ttl=ttl, wait=wait, hold=hold, info=info, holder=holder, on_lost=on_lost)

    def elect(
        self,
        name: str,
        *,
        ttl: float = TTL_SECONDS,
        hold: float = 0.0,
        holder: str | None = None,
        on_elected: Callable[[], object] | None = None,
        on_lost: OnLost | None = None,
    ) -> BlockingElection:
        """Stand for leadership while the block lasts, again after every loss."""
        return BlockingElection(self, name, ttl=ttl, hold=hold, holder=holder, on_elected=on_elected, on_lost=on_lost)

    def worker(
        self,
        id: str,
        fields: Mapping[str, Any] | None = None,
        /,
        *,
        status: str = "running",
        ttl: float = TTL_SECONDS,
        wait: float | None = REGISTER_SECONDS,
        on_lost: OnLost | None = None,
    ) -> BlockingWorker:
        """Be a worker of this name: its record, its heartbeat, its routines' state."""
        return BlockingWorker(self, id, fields or {}, status=status, ttl=ttl, wait=wait, on_lost=on_lost)

    def queue(
        self,
        kind: str = "job",
        filter: Mapping[str, Any] | None = None,
        *,
        ttl: float = TTL_SECONDS,
        holder: str | None = None,
        on_lost: OnLost | None = None,
    ) -> BlockingQueue:
        """The ready jobs of a kind that match a filter, to be claimed one by one."""
        return BlockingQueue(self, kind, filter, ttl=ttl, holder=holder, on_lost=on_lost)

    def job_context(self, id: str, *, kind: str = "job") -> BlockingJobContext:
        """Make this the current job: `with state.job_context("job-1") as job:`"""
        return BlockingJobContext(self, id, kind=kind)

    def _tell(self, callback: Callable[[], object]) -> None:
        self._core.safely(callback)

    def close(self, timeout: float | None = None) -> CloseReport:
        """Flush within the deadline, end, and tell what was left. Never hangs."""
        report = self._core.report
        if report is not None:
            return report
        try:
            report = self._run(self._core.close(timeout))
        except Closed:
            report = self._core.report  # another thread closed it meanwhile, and its report is ours
            if report is None:
                raise
        self._stop_thread()
        return report

    # --- the thread ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; `connect` and `spawn` have done that already."""
        if self._thread is not None:
            return
        self._start_thread()
        try:
            self._run(self._core.start())
        except BaseException:
            self._stop_thread()
            raise
        _close_at_exit(self)

    def _start_thread(self) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run_loop, args=(loop,), name="statesvc-client", daemon=True)
        self._loop, self._thread = loop, thread
        thread.start()

    def _forget_thread(self) -> None:
        """In a forked child there is no thread; the first use makes one."""
        self._loop = self._thread = None
        self._ended = False
        self._starting = threading.Lock()

    def _revive(self) -> None:
        with self._starting:
            if self._loop is None:
                self._start_thread()
                _close_at_exit(self)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._core.attach)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work on the store's loop; given up here, it is given up there."""
        if self._thread is not None and threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "a callback of the store called a method that waits for the store (flush, room, call, fetch, close): "
                "both run on one thread, so it would wait for ever. Do it on a thread of your own"
            )
        if self._loop is None:
            self._revive()
        doing = self._submit(work)
        try:
            return doing.result()
        except CancelledError:
            raise Closed("the store was closed while this waited") from None
        except BaseException:
            doing.cancel()  # nothing, unless it was Ctrl-C that ended the waiting
            raise

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._starting:
            if self._ended or self._loop is None:
                work.close()
                raise Closed("the store was closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _stop_thread(self) -> None:
        """End the loop and its thread; whoever still waits for something on it is told."""
        loop, thread = self._loop, self._thread
        with self._starting:
            if self._ended or loop is None or thread is None:
                return
            self._ended = True
            loop.call_soon_threadsafe(loop.stop)
        thread.join(5)


def _lingering(options: Options) -> Options:
    return replace(options, linger_seconds=LINGER_SECONDS)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_end_what_is_left())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _end_what_is_left() -> None:
    """Cancel every other task of the loop: a thread may wait for it, and would do so for ever.

    One that was cancelled before is letting go of what it had (Ctrl-C while the store began): it is left to end that.
    """
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        if not task.cancelling():
            task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _close_at_exit(store: StateStore) -> None:
    """A program that just ends still gets its last writes out, within `close_seconds`."""
    pid = os.getpid()
    seen = weakref.ref(store)

    def close() -> None:
        store = seen()
        if store is not None and os.getpid() == pid:
            store.close()

    atexit.register(close)
