"""The link: keeps one connection for writes, sends what waits, notes what is decided, comes back after every failure.

Owns reconnecting, the window and the order of decisions. Must not know the agent's calls, the cache or processes.

There is one way to recover. Whatever goes wrong (connection lost, silence, a write the daemon could not take for now):
the connection ends, the link waits with full jitter, and everything undecided is sent again from the oldest on, marked
`again`. The daemon tells apart what it has already applied.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from .backoff import Backoff
from .connection import Asking, Connection, PeerCheck, anybody
from .desk import Desk
from .errors import Internal, StateError
from .greeting import decoded, error_of, greet
from .options import Options
from .wire import Limits, Received
from .writes import Write

log = logging.getLogger("statesvc_client")

EAGER_SECONDS = 0.01
"""Between tries while a daemon is known to be starting."""

LOOKS = 4
"""How often, within the time a silence may last, the link looks whether anything was heard."""


class Events(NamedTuple):
    """Whom the link tells."""

    connected: Callable[[Received], None]
    refused: Callable[[], None]
    rejected: Callable[[Write, StateError], None]


class Silence:
    """How long the other side has owed an answer, counted in looks: no clock that ran on while our own loop stood still
    is held against it, and a connection on which nothing was asked is not silent."""

    def __init__(self) -> None:
        self._heard: float | None = None
        self._looks = 0

    def is_too_long(self, heard: float, *, owed: bool) -> bool:
        """At each look: when something was last heard, and whether an answer is owed now. True once it was owed, and
        nothing heard, from one look to the next, `LOOKS` times in a row."""
        self._looks = self._looks + 1 if owed and heard == self._heard else 0
        self._heard = heard if owed else None
        return self._looks >= LOOKS


class Link:
    """The connection that carries the outbox."""

    def __init__(
        self, path: str, desk: Desk, options: Options, events: Events, check_peer: PeerCheck = anybody
    ) -> None:
        self._path = path
        self._check_peer = check_peer
        self._desk = desk
        self._options = options
        self._events = events
        self._backoff = Backoff(options.backoff_base, options.backoff_cap)
        self._connection: Connection | None = None
        self._limits = Limits()
        self._decisions: deque[tuple[int, StateError | None]] = deque()
        self._deciding = False
        self._pumping = False
        self._doze: asyncio.TimerHandle | None = None
        self._careful_upto = 0
        """Up to this seq writes are sent one by one: one of them drew an answer that does not say whom it concerns."""
        self._unknown: tuple[int, int] = (0, 0)
        """A seq that was tried and answered `unknown`, and how often in a row."""
        self._greeting_again = False
        """What our last hello was told may not be true any more."""
        self._eager_until = 0.0
        self._nudge = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.refused: StateError | None = None
        """Why the daemon would not talk to us, when it said so."""
        self.problem: Exception | None = None
        """What the last try to connect ended with."""

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    # --- the life of the link --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, serve, and again, until cancelled."""
        try:
            while True:
                await self._one_session()
                await self._pause()
        finally:
            self._end_session()

    async def _one_session(self) -> None:
        try:
            connection = await self._connect()
            if connection is not None:
                await self._serve(connection)
        except Exception:  # a bug of ours must not leave the outbox without its sender
            log.exception("the link to %s failed; connecting anew", self._path)

    async def _connect(self) -> Connection | None:
        self._greeting_again = False
        asking = Asking(self._path, self._check_peer)
        try:
            async with asyncio.timeout(self._options.answer_seconds):
                welcome = await greet(asking, self._options, self._desk.client, "last", self._options.answer_seconds)
        except (OSError, TimeoutError, StateError) as problem:
            asking.close()
            self._note_failure(problem)
            return None
        except BaseException:
            asking.close()
            raise
        self.refused = self.problem = None
        self._limits = welcome.limits or Limits()
        connection = asking.release()
        if connection is not None:
            self._events.connected(welcome)
        return connection

    def _note_failure(self, problem: Exception) -> None:
        self.problem = problem
        if isinstance(problem, StateError) and not problem.retryable:
            if self.refused is None:
                log.error("the daemon on %s refuses us: %s", self._path, problem)
            self.refused = problem
            self._events.refused()
        else:
            log.debug("no daemon on %s yet: %s", self._path, problem)

    async def _serve(self, connection: Connection) -> None:
        """Send and listen until the connection ends."""
        connection.on_lines = self._take_lines
        connection.on_writable = self._pump
        self._desk.rewind()
        self._connection = connection
        if not self._desk.outbox.queued:
            self._backoff.reset()
        if self._greeting_again:
            self._give_up()
        self._pump()
        try:
            await self._watch_for_silence(connection)
        finally:
            self._end_session()

    async def _watch_for_silence(self, connection: Connection) -> None:
        patience, silence = self._options.answer_seconds, Silence()
        while not connection.lost.done():
            await asyncio.wait([connection.lost], timeout=patience / LOOKS)
            if silence.is_too_long(connection.heard, owed=self._desk.outbox.in_flight > 0):
                log.warning("the daemon has been silent for %g s with writes in flight; connecting anew", patience)
                connection.abort()

    def _end_session(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        while self._decisions:  # what was heard counts, though nobody is there any more
            self._decide_some()
        self._desk.rewind()

    async def _pause(self) -> None:
        self._nudge.clear()
        wait = self._backoff.next()
        if self._loop.time() < self._eager_until:
            wait = EAGER_SECONDS
        try:
            async with asyncio.timeout(wait):
                await self._nudge.wait()
        except TimeoutError:
            pass

    def expect_daemon(self, seconds: float) -> None:
        """A daemon is being started: look for it often."""
        self._eager_until = self._loop.time() + seconds
        self._nudge.set()

    def greet_again(self) -> None:
        """The store may have begun another life without ending our connection: only another hello can say."""
        self._greeting_again = True
        self._give_up()

    def abandon_in_child(self) -> None:
        if self._connection is not None:
            self._connection.abandon_in_child()

    # --- out -------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is something to send."""
        self._pump()

    def _pump(self) -> None:
        """Send a slice of what waits, and plan the next one: others get their turn in between."""
        connection = self._connection
        if connection is None or self._pumping or not connection.writable:
            return
        window = 1 if self._careful_upto >= self._desk.outbox.floor else self._limits.requests_in_flight
        taken = self._desk.take(self._limits, window, may_sleep=not self._options.linger_seconds)
        if taken is not None:
            for write, problem in taken.unfit:
                self._reject(write, problem)
            connection.send(taken.data)
            self._pumping = True
            self._loop.call_soon(self._pump_again)
        elif self._options.linger_seconds and self._doze is None and not self._desk.asleep:
            self._doze = self._loop.call_later(self._options.linger_seconds, self._fall_asleep)

    def _pump_again(self) -> None:
        self._pumping = False
        self._pump()

    def _fall_asleep(self) -> None:
        """Nothing came for a while: from now on a write has to wake the sender."""
        self._doze = None
        self._desk.fall_asleep()
        self._pump()

    # --- in --------------------------------------------------------------------------------------------------------

    def _take_lines(self, lines: list[bytes]) -> None:
        try:
            for line in lines:
                if self._connection is None:
                    break  # given up: what stands behind a failure was said before the other side knew
                self._take(decoded(line))
        except StateError as problem:
            log.warning("%s; connecting anew", problem)
            self._give_up()
        if self._decisions and not self._deciding:
            self._deciding = True
            self._loop.call_soon(self._decide_in_turn)

    def _take(self, reply: Received) -> None:
        if reply.acked is not None:
            if self._decisions and self._decisions[-1][1] is None:
                self._decisions.pop()  # the next run holds the one before
            self._decisions.append((reply.acked, None))
        elif not reply.success:
            self._take_failure(reply)

    def _take_failure(self, reply: Received) -> None:
        error = error_of(reply)
        seq = reply.seq
        if seq is None:
            write = self._desk.only_in_flight()
            if write is None or error.retryable:
                self._careful_upto = max(self._careful_upto, 0 if error.retryable else self._desk.outbox.last_seq)
                self._give_up()
                return
            seq = write.seq
        if error.stops_the_writer():
            self._stopped(seq, error)
        else:
            self._decisions.append((seq, error))

    def _stopped(self, seq: int, error: StateError) -> None:
        """The daemon takes nothing more on this connection until the write comes again."""
        if self._connection is None:
            return
        log.warning("write %d: %s (%s, %s)", seq, error, error.code, error.outcome)
        times = self._times_unknown(seq, error)
        if times > (self._options.unknown_tries if error.retryable else 1):
            self._decisions.append((seq, error))
        self._give_up()

    def _times_unknown(self, seq: int, error: StateError) -> int:
        """How often in a row it was tried and nobody knows what became of it. A daemon that could not take it for now
        did not try: however long that lasts, it is no reason to give a write up."""
        tried = error.outcome == "unknown" and (isinstance(error, Internal) or not error.retryable)
        before = self._unknown[1] if self._unknown[0] == seq else 0
        self._unknown = (seq, before + 1 if tried else 0)
        return self._unknown[1]

    def _give_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.on_lines = lambda _: None
            connection.abort()

    def _decide_in_turn(self) -> None:
        self._deciding = False
        if not self._decisions:
            return
        self._decide_some()
        if self._decisions:
            self._deciding = True
            self._loop.call_soon(self._decide_in_turn)
        self._pump()

    def _decide_some(self) -> None:
        """Note one slice of decisions, in the order they came."""
        upto, error = self._decisions[0]
        if error is None:
            if not self._desk.acknowledged(upto):
                self._decisions.popleft()
            self._backoff.reset()
            return
        self._decisions.popleft()
        write = self._desk.find(upto)
        if write is not None:
            self._reject(write, error)

    def _reject(self, write: Write, error: StateError) -> None:
        self._desk.reject(write, error)
        self._events.rejected(write, error)
