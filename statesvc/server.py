"""The life of the daemon: locks, socket, engine, ready, serve, drain, close.

Owns the order of start and stop and the process-wide timers. Must not know requests or records.

The socket is up before the engine is: a ping is answered at once, everything else waits a moment for the engine, or is
told `unavailable` while it stays away. Nothing falls back to another engine.

The first signal, or the end of the parent, drains, each step within a deadline. A second signal ends the process at
once, whatever it is doing: a store survives that, as it survives a kill.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from statesvc_client import __version__, wire
from statesvc_client.errors import Busy, Denied, StateError, Unavailable

from . import backends, failpoints, logs
from .answers import NOT_INTRODUCED
from .backends.port import DataCorrupt, Engine, EngineBroken, Unit
from .config import identities
from .config.model import DAY_SECONDS
from .connection import Bounds, Connection
from .dispatch import Dispatcher
from .handlers.administering import AdministrationHandlers
from .handlers.following import Watching
from .process.acceptor import Acceptor
from .process.descriptors import room_for
from .process.listener import Listener, listen, listen_on_inherited
from .process.memory import give_free_pages_back, give_large_blocks_back
from .process.notify import Notifier, activated_socket, watchdog_interval
from .process.parent import check_watchable, watch_parent
from .process.peers import Access, Peer, peer_credentials
from .store.administration import Administration
from .store.adopting import adopted
from .store.allocation import Pools
from .store.claims import Claims
from .store.duties import Duties
from .store.health import Facts, Health, space_of
from .store.heeding import Heeding
from .store.kinds import Kinds
from .store.leases import Leases
from .store.listing import Paging
from .store.retention import Kept, Retention
from .store.store import Store
from .store.writes import Caller

if TYPE_CHECKING:
    from .config import Settings

log = logs.get(__name__)

EXIT_DRAINED = 0
EXIT_CORRUPT = 65
EXIT_NO_ENGINE = 69
EXIT_IO = 74

SWEEP_SECONDS = 1.0
"""How often stuck connections are looked for."""

TRIM_SECONDS = 10.0
"""How often memory that lies free between what is used goes back to the system: a burst is not held against us for
long, and looking costs a fifth of a millisecond."""

DENIED_SECONDS = 60.0
"""How often a uid that is refused again and again is told of: it costs others neither time nor a full log."""

RETRY_SECONDS = 1.0
"""Pause between two tries to open an engine that is away."""

CLOSE_SECONDS = 10.0
"""What closing the engine may take at least, however short the drain: given up, the next start has to replay."""

THREADS_SECONDS = 1.0
"""What threads may take to end after the engine was closed: what they do is of no use to anybody any more."""

AN_ADMIN = Caller(admin=True)
"""Who connects with the rights of one, until it says more of itself; one value for all of them."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""What tells the daemon to end."""

COLLECTOR = (50_000, 20, 50)
"""When cycles are looked for. The hot path makes none; to look after every 700 objects costs a part of it."""

Announce = Callable[[str], None]
"""Is told where the daemon listens, as soon as it does."""


def run(settings: Settings, *, parent_fd: int | None = None, announce: Announce | None = None) -> int:
    """Serve until told to stop; returns the exit code."""
    import uvloop

    if parent_fd is not None:
        check_watchable(parent_fd)
    gc.set_threshold(*COLLECTOR)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        threads = ThreadPoolExecutor(thread_name_prefix="statesvc")
        runner.get_loop().set_default_executor(threads)
        server = Server(settings, backends.make(settings))
        # All in one run: a signal that comes between two is taken by neither.
        exit_code, has_ended = runner.run(_from_start_to_end(server, threads, parent_fd, announce))
        if not has_ended:
            # A thread is stuck, with a disk that does not answer or in a long replay: a proper exit would wait for it.
            logs.finish()
            os._exit(exit_code)
        return exit_code


async def _from_start_to_end(
    server: Server, threads: ThreadPoolExecutor, parent_fd: int | None, announce: Announce | None
) -> tuple[int, bool]:
    """The exit code, and whether nothing is under way any more."""
    try:
        exit_code = await server.serve(parent_fd, announce)
    except BaseException:
        _heed_no_longer()  # whatever is stuck then, a signal ends it
        raise
    threads.shutdown(wait=False)
    has_ended = server.closed and await _threads_end_within(THREADS_SECONDS)
    if server.signalled:  # else the exit code says why it ended: a first signal that comes too late must not hide it
        _heed_no_longer()
        await asyncio.sleep(0)  # what came before that is heeded in this last turn of the loop
    return exit_code, has_ended


def _heed_no_longer() -> None:
    """From here on a signal ends the process by itself. The loop's handlers would take it, and tell nobody."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


class Server:
    """One daemon."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        limits = settings.limits
        self._settings = settings
        self._engine = engine
        self._limits = wire.Limits(
            **{name: getattr(limits, name) for name in wire.Limits.__struct_fields__}  # same names, same units
        )
        self._store = Store(
            engine,
            kinds=Kinds(settings.lifecycles),
            limits=self._limits,
        )
        self._bounds = Bounds(
            limits.frame_bytes,
            limits.requests_in_flight,
            limits.output_bytes,
            limits.partial_frame_seconds,
            limits.stalled_output_seconds,
        )
        self._access = Access(identities.allowed_uids(settings.access), identities.allowed_gids(settings.access))
        claims = Claims(self._store)
        kept = _kept(settings)
        self._upkeep = Duties(self._store, claims, Retention(self._store, kept))
        self._administration = Administration(self._store, settings.data)
        self._administration.restored.append(self._upkeep.start_over)
        self._heeding = Heeding(self._store)
        engine.adopt = partial(adopted, self._store)
        engine.began_anew = self._began_anew
        self._pools = Pools(self._store)
        self._health = Health(self._store, self._facts())
        self._duties_hear = self._store.commits.committed
        self._store.commits.committed = self._committed
        self._dispatcher = Dispatcher(
            self._store,
            self._limits,
            Paging(limits.list_default, limits.list_examined),
            self._ready,
            claims,
            AdministrationHandlers(self._store, self._administration, self._upkeep.sweep),
            self._pools,
            self._health,
            Watching(limits.watches, limits.watch_behind, limits.output_bytes),
        )
        self._admins = identities.admin_uids(settings.access)
        self._connections: set[Connection] = set()
        self.expected: set[_Doorkeeper] = set()
        """Those who were let in and cannot be spoken to yet."""
        self._denied: Counter[int] = Counter()
        """How often each uid was refused since that was last told."""
        self._most_clients = room_for(limits.clients)
        self._open = False
        self._opened = asyncio.Event()
        self._outcome_known = asyncio.Event()
        """The first try to open the engine has ended, well or badly."""
        self._why_not: StateError | None = None
        self._stop = asyncio.Event()
        self._signals = 0
        self._exit_code = EXIT_DRAINED
        self.closed = False
        """The engine was closed within its time: nothing of it is under way any more."""
        self._notifier = Notifier.from_environment()

    async def serve(self, parent_fd: int | None = None, announce: Announce | None = None) -> int:
        """Start, serve, drain, close."""
        self._engine.own()
        with self._listen() as listener:
            acceptor = Acceptor(listener.sock, self._welcome)
            self._heed_signals(listener, parent_fd)
            if announce is not None:
                announce(listener.path)
            # In a thread: loading the log library takes longer than answering the first ping should.
            await asyncio.to_thread(logs.configure, self._settings.log.level, self._settings.log.format)
            await asyncio.to_thread(give_large_blocks_back)
            if self._most_clients < self._settings.limits.clients:
                log.warning("fewer_clients", limit=self._most_clients, why="the limit on open files (LimitNOFILE)")
            if failpoints.armed:
                log.warning("failpoints_armed", variable=failpoints.VARIABLE)
            log.info("listening", socket=listener.path, version=__version__, pid=os.getpid())
            duties = self._take_up_duties()
            await self._stop.wait()
            _take_name_away(listener)
            await acceptor.close()
            await self._drain(duties)
        log.info("stopped", exit_code=self._exit_code)
        return self._exit_code

    # --- start -----------------------------------------------------------------------------------------------------

    def _listen(self) -> Listener:
        inherited = activated_socket()
        if inherited is not None:
            return listen_on_inherited(inherited)
        access = self._settings.access
        return listen(
            str(self._settings.socket), mode=identities.socket_mode(access), gid=identities.socket_gid(access)
        )

    def _welcome(self, connection: socket.socket) -> asyncio.Protocol | None:
        """Who answers a new connection; None after telling it why nobody does."""
        try:
            peer = self._admitted(connection)
        except StateError as refusal:
            reply = wire.Reply(request_id="", success=False, error=refusal.text, code=refusal.code)
            with suppress(OSError):  # gone already
                connection.send(wire.encode_line(reply))
            return None
        doorkeeper = _Doorkeeper(AN_ADMIN if peer.uid in self._admins else NOT_INTRODUCED, self)
        self.expected.add(doorkeeper)
        return doorkeeper

    def _admitted(self, connection: socket.socket) -> Peer:
        """Who is there, or why it cannot come in."""
        if len(self._connections) + len(self.expected) >= self._most_clients:
            raise Busy(f"{self._most_clients} clients are connected, which is the limit")
        try:
            peer = peer_credentials(connection)
        except OSError:
            raise Denied("the peer of this connection is not known: it is gone already") from None
        if not self._access.allows(peer):
            self._denied[peer.uid] += 1
            if self._denied[peer.uid] == 1:
                log.warning("peer_denied", uid=peer.uid, pid=peer.pid)
            raise Denied(f"uid {peer.uid} may not connect; see access.uids and access.gids of the configuration")
        return peer

    def connected(self, caller: Caller) -> Connection:
        connection = Connection(self._dispatcher, self._bounds, self._connections.discard, caller)
        self._connections.add(connection)
        return connection

    def _heed_signals(self, listener: Listener, parent_fd: int | None) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._heed, number, listener)
        if parent_fd is not None:
            watch_parent(loop, parent_fd, lambda: self._signalled("parent_gone"))

    @property
    def signalled(self) -> bool:
        """Whether a signal has told it to end."""
        return self._signals > 0

    def _heed(self, number: signal.Signals, listener: Listener) -> None:
        """The first signal drains. The second means now; the end of the parent is no signal and does not count."""
        self._signals += 1
        if self._signals > 1:
            log.warning("ending_at_once", reason=number.name, connections=len(self._connections))
            try:
                listener.remove_file()
            finally:
                _die_of(number)
        self._signalled(number.name)

    def _signalled(self, reason: str) -> None:
        """Drain; told again, nothing changes."""
        if not self._stop.is_set():
            log.info("draining", reason=reason, connections=len(self._connections))
            self._end()

    def _end(self) -> None:
        self._stop.set()
        self._dispatcher.serving = False
        self._outcome_known.set()  # who waits for the engine is told that it will not come

    def _take_up_duties(self) -> list[asyncio.Task[None]]:
        duties = [
            self._open_engine(),
            self._keep_up(),
            _regularly(SWEEP_SECONDS, "sweep", self._sweep),
            _regularly(DENIED_SECONDS, "tell_of_denied", self._tell_of_denied),
            _regularly(TRIM_SECONDS, "give_free_pages_back", partial(asyncio.to_thread, give_free_pages_back)),
        ]
        interval = watchdog_interval()
        if interval is not None:
            duties.append(_regularly(interval, "feed_watchdog", self._feed_watchdog))
        return [asyncio.create_task(duty) for duty in duties]

    # --- the engine ------------------------------------------------------------------------------------------------

    async def _open_engine(self) -> None:
        """Open the engine, again and again while it is away."""
        self._engine.on_broken(self._engine_broke)
        while not self._stop.is_set():
            if await self._is_decided():
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _is_decided(self) -> bool:
        """Try to open the engine; False when it is worth another try."""
        try:
            await self._engine.open()
            await self._administration.load()
            self._now_open()
        except (DataCorrupt, EngineBroken) as end:
            self._engine_broke(end)
        except StateError as away:
            if not self._settings.require_backend:
                self._not_yet(away)
                return False
            self._give_up(EXIT_NO_ENGINE, "engine_unavailable", away)
        except Exception as bug:  # noqa: BLE001 - whatever it is, a daemon without an engine must not linger
            self._give_up(EXIT_IO, "engine_broken", bug)
        return True

    def _now_open(self) -> None:
        self._store.start()
        self._open = True
        self._dispatcher.serving = not self._stop.is_set()
        self._opened.set()
        self._outcome_known.set()
        self._notifier.ready(f"serving {self._engine.name}")
        log.info("serving", backend=self._engine.name, durability=self._engine.durability, epoch=self._engine.epoch)

    def _not_yet(self, why: StateError) -> None:
        if self._why_not is None or self._why_not.text != why.text:
            log.warning("engine_unavailable", backend=self._engine.name, why=why.text)
        self._why_not = why
        self._outcome_known.set()
        # The supervisor may count us as started: the socket is up and says what is wrong.
        self._notifier.ready(f"waiting for {self._engine.name}: {why.text}")

    def _engine_broke(self, end: EngineBroken | DataCorrupt) -> None:
        if isinstance(end, DataCorrupt):
            self._give_up(EXIT_CORRUPT, "data_corrupt", end)
        else:
            self._give_up(EXIT_IO, "engine_broken", end)

    def _give_up(self, exit_code: int, event: str, why: Exception) -> None:
        log.error(event, why=str(why))
        self._exit_code = exit_code
        self._why_not = Unavailable(str(why))
        self._end()

    def _ready(self) -> Awaitable[None] | None:
        """None when requests can be served; else what to wait for, which raises when it takes too long."""
        if self._open and not self._stop.is_set():
            return None
        return self._wait_for_engine()

    async def _wait_for_engine(self) -> None:
        if not self._stop.is_set():
            try:
                await asyncio.wait_for(self._outcome_known.wait(), self._settings.limits.open_wait_seconds)
            except TimeoutError:
                raise Unavailable(f"the {self._engine.name} engine is still opening; try again") from None
        if self._open:
            return
        if self._why_not is None:
            raise Unavailable("the daemon is stopping")
        raise Unavailable(f"the {self._engine.name} engine is not available: {self._why_not.text}")

    def _facts(self) -> Facts:
        """What the checks of health need to know of the process."""
        settings = self._settings
        return Facts(
            why_not=self._why_not_served,
            space=lambda: space_of(settings.data),
            last_sweep=lambda: self._upkeep.last_run,
            measures=lambda: {"clients": len(self._connections)},
            wanted=settings.durability,
        )

    def _why_not_served(self) -> str | None:
        if self._stop.is_set():
            return "the daemon is stopping"
        if self._open:
            return None
        if self._why_not is None:
            return f"the {self._engine.name} engine is still opening"
        return f"the {self._engine.name} engine is not available: {self._why_not.text}"

    def _committed(self, units: list[Unit]) -> None:
        """Tell everybody who goes by what was committed."""
        self._duties_hear(units)
        self._pools.committed(units)
        self._health.committed()

    async def _keep_up(self) -> None:
        """Look after leases, queues and what is old, once there is something to look after."""
        await self._opened.wait()
        await asyncio.gather(self._upkeep.run(), self._upkeep.follow(), self._heeding.run())

    def _began_anew(self) -> None:
        """Acknowledged state may be lost. Nothing that was known holds, and every client is to hear of it before
        anything else: they are told by the hello they say next. What they wait for would be told of the new epoch as if
        it were the old one."""
        log.warning("epoch_changed", epoch=self._engine.epoch, connections=len(self._connections))
        self._store.leases = Leases(self._store.clock.steady)
        self._upkeep.start_over()
        for connection in list(self._connections):
            connection.abort()

    # --- while serving ---------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """End connections that hold resources and do not move; tell the supervisor what it did not take before."""
        self._notifier.ready_again()
        now = asyncio.get_running_loop().time()
        for connection in list(self._connections):
            why = connection.end_if_stuck(now)
            if why is not None:
                log.warning("connection_ended", why=why)

    async def _tell_of_denied(self) -> None:
        """Who was refused once has been told of; who went on is counted."""
        denied, self._denied = self._denied, Counter()
        for uid, times in denied.items():
            if times > 1:
                log.warning("peer_denied", uid=uid, again=times - 1)

    async def _feed_watchdog(self) -> None:
        """Tell the supervisor that the loop turns, and that a disk of our own lets it: what a restart may help.

        A shared engine is not asked. It may be away or stand still; that is no reason to end who waits for it.
        """
        if self._open and self._engine.immediate:
            with suppress(StateError):  # closed for a moment, or about to end us: an answer all the same
                await self._engine.ping()
        self._notifier.alive()

    # --- stop ------------------------------------------------------------------------------------------------------

    async def _drain(self, duties: list[asyncio.Task[None]]) -> None:
        """Answer what was read, commit it, close; each within its deadline."""
        self._notifier.stopping("draining")
        if failpoints.armed:
            failpoints.reach("drain.before")
        self._administration.give_up()
        for duty in duties:
            duty.cancel()
        await self._finish_connections(duties)
        if failpoints.armed:
            failpoints.reach("drain.answered")
        seconds = max(self._settings.drain_seconds, CLOSE_SECONDS)
        closing = asyncio.create_task(self._close())
        await asyncio.wait([closing], timeout=seconds)
        self.closed = closing.done()
        if self.closed:
            closing.result()
            return
        closing.cancel()
        log.error("not_closed_in_time", backend=self._engine.name, seconds=seconds)
        if self._open and self._exit_code == EXIT_DRAINED:
            self._exit_code = EXIT_IO

    async def _finish_connections(self, duties: list[asyncio.Task[None]]) -> None:
        finishing = [connection.finish() for connection in list(self._connections)]
        await asyncio.wait([*duties, *finishing], timeout=self._settings.drain_seconds)  # type: ignore[type-var]
        left = list(self._connections)
        if left:
            log.warning("connections_aborted", connections=len(left))
        for connection in left:
            connection.abort()

    async def _close(self) -> None:
        await self._administration.stop()
        if self._open:
            await self._upkeep.stop()
            await self._store.stop()
        await self._engine.close()


def _take_name_away(listener: Listener) -> None:
    """So that nobody new finds us. Where that cannot be, those who are here are answered all the same."""
    try:
        listener.remove_file()
    except OSError as problem:
        log.warning("socket_not_removed", socket=listener.path, why=problem.strerror)


def _kept(settings: Settings) -> Kept:
    """What is kept, and for how long. On an engine with days of its own for finished records the fewer count."""
    kept = Kept(**{name: getattr(settings.retention, name) for name in Kept._fields})
    storage = settings.storage
    days = {"redis": storage.redis.ttl_days, "dynamodb": storage.dynamodb.ttl_enabled and storage.dynamodb.ttl_days}
    seconds = (days.get(settings.backend) or 0) * DAY_SECONDS
    return kept._replace(terminal_seconds=min(kept.terminal_seconds, seconds)) if seconds else kept


async def _regularly(seconds: float, name: str, duty: Callable[[], Awaitable[None]]) -> None:
    """Do it every so often, for as long as the daemon serves. A failure is logged, and does not end the duty."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await duty()
        except Exception:  # whatever it is, the next turn may be better
            log.exception("duty_failed", duty=name)


async def _threads_end_within(seconds: float) -> bool:
    """Whether those end that a proper exit of the process waits for. On the loop, which still heeds a second signal."""
    deadline = time.monotonic() + seconds
    while any(not each.daemon and each is not threading.main_thread() for each in threading.enumerate()):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True


def _die_of(number: signal.Signals) -> NoReturn:
    """End as the signal ends a process that does not heed it, so that whoever waits for us sees why."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container outlives a signal it does not heed


class _Doorkeeper(asyncio.Protocol):
    """Makes a connection of one that came in, once it can be spoken to."""

    def __init__(self, caller: Caller, server: Server) -> None:
        self._caller = caller
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._server.expected.discard(self)
        connection = self._server.connected(self._caller)
        transport.set_protocol(connection)
        connection.connection_made(transport)

    def connection_lost(self, _: Exception | None) -> None:
        self._server.expected.discard(self)
