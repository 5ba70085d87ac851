"""The core: one store's life on one event loop. Both faces, asyncio and blocking, are thin wrappers around it.

Owns start, flush, call, close and what a fork leaves behind. Must not know whose loop it runs on, nor what leases and
queues are made of these.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from . import calls
from .adapter_errors import Closed, FlushTimeout
from .calls import Calls
from .connection import PeerCheck, anybody
from .desk import Counters, Desk
from .errors import LeaseLost, StateError, Unavailable
from .feed import Feeds
from .learning import Learner
from .lease import Lease
from .link import Events, Link
from .options import Options, RejectedCallback
from .process import Daemon
from .renewing import Renewer
from .spool_sync import SpoolSync
from .threads import on_a_thread
from .waits import Waits
from .wire import Received
from .writes import Write

log = logging.getLogger("statesvc_client")

SOCKET_PATH_BYTES = 107
"""What the kernel's sockaddr_un holds, without the closing zero."""


class CloseReport(Struct, frozen=True):
    """What leaving left behind."""

    unflushed: int
    """Writes not acknowledged."""
    spooled: bool
    """They wait in the spool and will be sent by the next run."""
    counters: Counters

    @property
    def clean(self) -> bool:
        return self.unflushed == 0


class Core:
    """Outbox, cache, connections and perhaps a daemon, together."""

    def __init__(self, path: str, options: Options, daemon: Daemon | None = None) -> None:
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
            raise ValueError(f"a socket's path holds {SOCKET_PATH_BYTES} bytes at most; this one is longer: {path}")
        self.path = path
        self.options = options
        self.daemon = daemon
        self.desk = Desk(options)
        self.desk.on_progress = self._progress
        self.on_rejected: list[RejectedCallback] = [] if options.on_rejected is None else [options.on_rejected]
        self.epoch: str | None = None
        self.welcome: Received | None = None
        self.report: CloseReport | None = None
        self.revive: Callable[[], None] = self._attach_if_possible
        """What to do about a write when nothing runs yet: after a fork."""
        self.on_fork: Callable[[], None] = lambda: None
        self._started = False
        self._reset()
        _cores.add(self)

    def _reset(self) -> None:
        """As before the first start; a forked child begins here."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None
        self._sending: asyncio.Task[None] | None = None
        self._calls: Calls | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.feeds = Feeds(self.path, self.options, self._check_peer)
        self._connected = False
        self._closing: asyncio.Future[CloseReport] | None = None
        self.waits = Waits(self.desk)
        self._spool_sync = SpoolSync(self.desk)
        self._learner = Learner(self.desk, self.options, self.call, self.spawn_task, self.feeds.follow)
        self._learner.on_news = self.waits.news
        self._learner.on_listed_again = self._greet_again
        self.renewer = Renewer(self.path, self.options, self._check_peer)

    @property
    def _check_peer(self) -> PeerCheck:
        return anybody if self.daemon is None else self.daemon.check_is_ours

    @property
    def is_connected(self) -> bool:
        return self._link is not None and self._link.is_connected

    # --- start -----------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Begin on the running loop: from here on what waits is sent. A second call does nothing."""
        if self.loop is not None:
            return
        self.loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._calls = Calls(self.path, self.options, self._check_peer)
        events = Events(self._on_connected, self._ready.set, self._on_rejected)
        self._link = Link(self.path, self.desk, self.options, events, self._check_peer)
        self.desk.own_thread = threading.get_ident()
        self.desk.wake = self._wake
        self._sending = self.spawn_task(self._link.run())

    def _attach_if_possible(self) -> None:
        try:
            self.attach()
        except RuntimeError:  # no loop is running here; the next write, flush or call will try again
            self.desk.fall_asleep()

    async def begin(self) -> None:
        """Be at work: started, or attached to the loop of a forked child."""
        if self.desk.closed:
            raise Closed("the store was closed")
        if self._started:
            self._check_loop()
            self.attach()
            await self._send_on()
        else:
            await self.start()

    async def _send_on(self) -> None:
        """A program that ends cancels all its tasks, ours among them; what is said in leaving is sent all the same."""
        link, sending = self._link, self._sending
        if link is None or sending is None or not (sending.done() or sending.cancelling()):
            return
        while sending.cancelling() and not sending.done():  # noqa: ASYNC110 - nobody is told when it is taken back
            await asyncio.sleep(0)  # its end, or a deadline of its own: either comes out in its next turn
        if sending.done() and self._sending is sending and not self.desk.closed:
            self._sending = self.spawn_task(link.run())

    def _check_loop(self) -> None:
        """Futures and connections belong to the loop the store began on; on another nobody would ever wake us."""
        if self.loop is None or self.loop is asyncio.get_running_loop():
            return
        if self.loop.is_closed():
            raise Closed("the event loop this store ran on was closed: close() the store and make a new one")
        raise Closed("this store runs on another event loop: use it there, or make one of its own for this loop")

    async def start(self) -> None:
        """Take the spool, start the daemon if it is ours, connect, warm the cache; within the deadlines."""
        if self.desk.closed:
            raise Closed("the store was closed; make a new one")
        if self._started:
            return
        self._started = True
        try:
            self.desk.open_spool()
            self.attach()
            await self._until_serving()
            if self.options.warm and self._connected:
                await self._learner.until_warm()
        except BaseException:
            await self._tear_down()
            raise

    async def _until_serving(self) -> None:
        daemon = self.daemon
        seconds = self.options.connect_seconds
        if daemon is not None:
            seconds = daemon.start_seconds
            daemon.on_start = self._expect_daemon
            daemon.start()
        connected = await self._until_connected(seconds)
        if daemon is not None and not connected:
            raise daemon.failure or daemon.did_not_serve(self._link.problem if self._link is not None else None)
        if not connected and self._link is not None:
            self._check_may_go_on(self._link, seconds)

    def _check_may_go_on(self, link: Link, seconds: float) -> None:
        """The daemon is not there. Being refused is final; being early is not."""
        if link.refused is not None:
            raise link.refused
        if self.options.require_connection:
            raise Unavailable(f"no daemon answered on {self.path} within {seconds:g} s: {link.problem}")
        log.warning("no daemon on %s yet (%s); writes wait until there is one", self.path, link.problem)

    async def _until_connected(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._ready.wait()
        except TimeoutError:
            pass
        return self._connected

    def _expect_daemon(self) -> None:
        """Told by the daemon's thread: it was started, or will never be."""
        loop, link, daemon = self.loop, self._link, self.daemon
        if loop is None or link is None or daemon is None or loop.is_closed():
            return
        if daemon.failure is not None:
            loop.call_soon_threadsafe(self._ready.set)
        else:
            loop.call_soon_threadsafe(link.expect_daemon, daemon.start_seconds)

    def spawn_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the state store failed", exc_info=task.exception())

    def _wake(self) -> None:
        """Called by whichever thread made a write while the sender slept."""
        loop, link = self.loop, self._link
        if loop is None or link is None:
            self.revive()
            return
        try:
            if threading.get_ident() == self.desk.own_thread:
                loop.call_soon(link.wake)
            else:
                loop.call_soon_threadsafe(link.wake)
        except RuntimeError:  # the loop was closed without closing the store; flush and close will say so
            pass

    def _greet_again(self) -> None:
        """A restore keeps connections: whether there is a new epoch is told to who says hello."""
        if self._link is not None:
            self._link.greet_again()

    # --- what the link tells ---------------------------------------------------------------------------------------

    def _on_connected(self, welcome: Received) -> None:
        self._connected = True
        self.welcome = welcome
        self.desk.tally.connects += 1
        if self.daemon is not None:
            self.daemon.served()
        before, self.epoch = self.epoch, welcome.epoch
        if before is not None and welcome.epoch is not None and before != welcome.epoch:
            self._on_new_epoch(before, welcome.epoch)
        self._learner.connected()
        self._ready.set()

    def _on_new_epoch(self, before: str, now: str) -> None:
        log.warning("the daemon's state has a new epoch (%s, was %s): acknowledged writes may be lost", now, before)
        self.desk.tally.epochs += 1
        self.renewer.lose_all(before, now)
        self._learner.start_over()
        if self.options.on_epoch is not None:
            self.safely(self.options.on_epoch, before, now)

    def _on_rejected(self, write: Write, error: StateError) -> None:
        log.warning("%s of %s %s was rejected: %s (%s)", write.op, write.kind, write.id, error, error.outcome)
        if isinstance(error, LeaseLost) and write.more is not None and write.more.token is not None:
            self.renewer.lose(write.kind, write.id, write.more.token, str(error))
        for callback in self.on_rejected:
            self.safely(callback, write, error)
        self._learner.fetch_wanted()

    def safely(self, callback: Callable[..., object], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception:
            log.exception("a callback of the state store failed")

    def _progress(self) -> None:
        """Something was decided: let those go who waited for it."""
        self.waits.progress()
        self._learner.fetch_wanted()
        sync = self._spool_sync.due()
        if sync is not None:
            self.spawn_task(sync)

    # --- flush, call, follow ---------------------------------------------------------------------------------------

    async def flush(self, timeout: float | None) -> Counters:
        """Return once every write made before is decided. Raises `FlushTimeout`."""
        await self.until_decided(self.desk.outbox.last_seq, timeout)
        return self.desk.counters()

    async def until_decided(self, seq: int, timeout: float | None) -> None:
        await self.begin()
        if seq >= self.desk.outbox.floor:
            if self._link is not None:
                self._link.wake()
            await self.waits.until_decided(seq, timeout)

    async def room(self, timeout: float | None) -> None:
        """Return once the outbox has room. Raises `OutboxFull`."""
        await self.begin()
        if not self.desk.has_room():
            await self.waits.until_room(self.options.block_seconds if timeout is None else timeout)

    async def until(self, condition: Callable[[], object], timeout: float | None) -> None:
        """Return once a condition on the cache holds. Raises `TimeoutError`."""
        await self.begin()
        await self.waits.until_true(condition, timeout)

    async def call(
        self, op: str, fields: dict[str, Any], timeout: float | None, under: Lease | None = None
    ) -> dict[str, Any]:
        """Ask the daemon; it answers with every write applied that was made before."""
        message = calls.spelled(op, fields)
        seconds = self.options.call_seconds if timeout is None else timeout
        deadline = asyncio.get_running_loop().time() + seconds + (message.get("wait") or 0.0)
        try:
            await self.flush(seconds)
        except FlushTimeout as late:
            raise Unavailable(f"{op}: {late}") from None
        return await self.ask(message, deadline, under)

    async def ask(self, message: dict[str, Any], deadline: float, under: Lease | None = None) -> dict[str, Any]:
        """Ask the daemon at once, whatever waits in the outbox; under a lease only in its epoch."""
        await self.begin()
        if self._calls is None:
            raise Closed("the store was closed")
        reply = await self._learner.learn_from(message, self._calls.ask(message, deadline, under))
        self.waits.news()
        return reply

    async def fetch(self, id: str, kind: str, timeout: float | None) -> dict[str, Any] | None:
        return await self._learner.fetch(id, kind, timeout)

    # --- close -----------------------------------------------------------------------------------------------------

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Flush within the deadline, then let go of everything. A second call returns the first report."""
        if self.report is not None:
            return self.report
        if self.loop is not None and self.loop.is_closed():
            return self._close_without_loop()
        self._check_loop()
        if self._closing is not None:  # shielded: who gives up waiting does not end the others' waiting
            return await asyncio.shield(self._closing)
        closing = self._closing = asyncio.get_running_loop().create_future()
        try:
            return await self._close(self.options.close_seconds if timeout is None else timeout)
        finally:
            self._tell_other_closers(closing)

    def _tell_other_closers(self, closing: asyncio.Future[CloseReport]) -> None:
        """What there is to tell, also when the one who closes was cancelled on the way: the others were not."""
        if self.report is not None:
            closing.set_result(self.report)
        else:
            closing.cancel()
            self._closing = None  # the next may try again

    async def _close(self, seconds: float) -> CloseReport:
        try:
            if self._started and not self.desk.closed:
                await self.flush(seconds)
        except FlushTimeout as late:
            log.warning("leaving: %s", late)
        finally:  # also when the one who leaves is cancelled
            report = await self._let_go()
        return report

    def _close_without_loop(self) -> CloseReport:
        """The loop was closed first. Its tasks cannot be awaited any more, only what they held be let go."""
        report = self._take_stock()
        self._abandon_connections()
        self.renewer.close()
        if self.daemon is not None:
            self.daemon.stop()
        _cores.discard(self)
        self.report = report
        self._tell_what_is_left(report)
        return report

    async def _let_go(self) -> CloseReport:
        report = self._take_stock()
        try:
            await self._tear_down()
        finally:  # what was counted is true, and told once, also when the one who leaves is cancelled here
            self.report = report
            self._tell_what_is_left(report)
        return report

    def _take_stock(self) -> CloseReport:
        """Take nothing more, and count what is left."""
        had_spool = self.desk.spool is not None
        counters = self.desk.counters()
        left = self.desk.close()
        return CloseReport(len(left), had_spool and bool(left), counters)

    def _tell_what_is_left(self, report: CloseReport) -> None:
        if report.clean:
            return
        where = "; they wait in the spool" if report.spooled else ""
        log.error("%d writes were not acknowledged%s", report.unflushed, where)
        if self.options.on_unflushed is not None:
            self.safely(self.options.on_unflushed, report)

    async def _tear_down(self) -> None:
        try:
            await self._end_work()
        finally:  # also when whoever waits for this is cancelled once more
            self.renewer.close()
            self.desk.close()
            self.waits.close()
            if self.daemon is not None:
                await on_a_thread(self.daemon.stop)
            _cores.discard(self)

    async def _end_work(self) -> None:
        """End the tasks, and then the calls, also when whoever waits for this is cancelled in between."""
        self._sending = None  # it was meant to end: nobody who still waits for the store begins it again
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            if self._calls is not None:
                await self._calls.close()

    # --- fork ------------------------------------------------------------------------------------------------------

    def start_over_in_child(self) -> None:
        """In a forked child: another client, another connection, an empty outbox. The parent's are not touched."""
        self._abandon_connections()
        if self.daemon is not None:
            self.daemon.abandon_in_child()
        # Kept, not collected: their end would reach into the parent's loop and the descriptors closed above.
        _abandoned.append((self.loop, self._link, self._calls, self.feeds, self._tasks, self.waits))
        self.renewer.abandon_in_child()
        self.daemon = None
        self.desk.start_over_in_child()
        self._reset()
        self.on_fork()

    def _abandon_connections(self) -> None:
        """Give up the descriptors without the loop they belong to."""
        if self._link is not None:
            self._link.abandon_in_child()
        if self._calls is not None:
            self._calls.abandon_in_child()
        self.feeds.abandon_in_child()


_cores: weakref.WeakSet[Core] = weakref.WeakSet()
_abandoned: list[Any] = []


def _after_fork_in_child() -> None:
    for core in list(_cores):
        core.start_over_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
