"""The link to the one master of a namespace: calls with a deadline and an exactly known fate.

Owns what is tried again and when, the connections in use, and the bound on what waits. Must not know keys or scripts.

    ask      reads: tried again until they are answered or the time is over
    change   writes: tried again only while surely nothing of them was applied
    block    a blocking read, on a connection of its own

Reads share one connection, writes another. A server that is not usable is looked for again after a pause that grows,
by one attempt at a time however many callers wait, and not at all while nobody does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis.exceptions import RedisError

from statesvc_client.errors import Busy, StateError, Unavailable

from ... import logs
from .access import Access
from .channel import Channel, Pace, jittered
from .facts import OLDEST_SERVED, Facts
from .faults import ELSEWHERE, IDENTITY, LATER, LOST, NOT_NOW, Refused, Trouble, as_error, broken, trouble_of, words
from .lane import Batch, Lane
from .opening import Ask, Command, Opener, Wire, pack
from .places import Cluster, Fixed, Places, Sentinel

__all__ = ["LOST", "Ask", "Command", "Facts", "Greet", "Link", "Refused", "as_error"]

log = logs.get(__name__)

Greet = Callable[[Facts, Ask], Awaitable[None]]
"""Is called with every new connection before it is used, and asks on it through what it is given: the link's own calls
wait for it. Raises a `StateError` when the server, or what is on it, must not be used."""

WAITING_CALLS = 16_384
WAITING_BYTES = 64 * 1024 * 1024
"""What may wait for the server at once: some tens of megabytes, whatever hangs."""

FIRST_WAIT_SECONDS = 0.01
LONGEST_WAIT_SECONDS = 0.5
"""Before the same server is asked again for what it could not do at that moment."""

KEPT_FOR_THE_ANSWER = 0.1
"""The last part of a call's time, in which a write that had to wait is not sent any more: its answer might come too
late, and what is surely not applied would become unknown."""

BLOCKING_CONNECTIONS = 8

RECHECK_SECONDS = 2.0
"""How often Sentinel is asked whether the master is still the one we talk to: one that was cut off never says so."""

UNSEALED_CONNECTIONS = 64

# Commands that change nothing: that one of them was answered does not mean that something was applied.
_HARMLESS = frozenset({"WAIT", "WAITAOF", "PING"})


def sends_until(until: float) -> float:
    """When a write that had to wait is sent at the latest, if it has from now until then."""
    now = asyncio.get_running_loop().time()
    return until - KEPT_FOR_THE_ANSWER * (until - now)


class _Call:
    """One call's time, and the pauses it has made."""

    def __init__(self, seconds: float, until: float | None = None, *, writing: bool = False) -> None:
        self.now = asyncio.get_running_loop().time
        self._start = self.now()
        self.until = self._start + seconds if until is None else until
        self.waits_until = sends_until(self.until) if writing else self.until
        """For a connection, or for a better moment."""
        self._pauses = 0

    def pause(self) -> float:
        self._pauses += 1
        return jittered(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, self._pauses)

    def spent(self) -> float:
        return self.now() - self._start


class Link:
    """Calls to the one master of a namespace, wherever it is at the moment."""

    def __init__(self, access: Access, namespace: str) -> None:
        self.greet: Greet = _no_greeting
        self._access = access
        self._namespace = namespace
        self._opener = Opener(access, f"statesvc:{namespace}")
        self._places: Places = Sentinel(self._opener, access) if access.sentinel_master else Fixed(access.endpoints)
        self._facts: Facts | None = None
        self.servers = 0
        """How many have answered, one after the other. While it stays the same, all calls go to the same one."""
        self._pace = Pace()
        self._lanes: set[Lane] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._unsealed: dict[int, str] = {}
        self._away = False
        self._closed = False
        self._calls = 0
        self._bytes = 0
        self._reads = Channel(self._reach, self._pace)
        self._writes = Channel(self._reach, self._pace)
        self._blocking: list[Channel] = []
        self._blocking_idle: list[Channel] = []
        self._rechecking: asyncio.Task[None] | None = None

    @property
    def facts(self) -> Facts:
        """What the server said of itself on the newest connection."""
        if self._facts is None:
            raise Unavailable(f"redis at {self.server} has not been reached yet")
        return self._facts

    @property
    def server(self) -> str:
        """The address of the server in use, or where it is looked for."""
        return self._facts.address if self._facts is not None else ", ".join(map(str, self._access.endpoints))

    async def open(self) -> None:
        """Find the master and get to know it, in time. Raises `Unavailable`, or what the greeting raised."""
        self._closed = False
        await self.ask(("PING",))
        if isinstance(self._places, Sentinel) and self._rechecking is None:
            self._rechecking = asyncio.get_running_loop().create_task(self._recheck(self._places))

    async def close(self) -> None:
        """Let go of everything. Calls under way learn what is known of them; no new ones are taken."""
        self._closed = True
        if self._rechecking is not None:
            self._rechecking.cancel()
            await asyncio.wait({self._rechecking})
            self._rechecking = None
        for channel in (self._reads, self._writes, *self._blocking):
            await channel.close()
        for lane in tuple(self._lanes):
            lane.retired = True
            lane.end(Trouble(f"redis at {self.server}: the link was closed"))
        if self._ending:
            await asyncio.wait(self._ending)

    # --- calls -----------------------------------------------------------------------------------------------------

    async def ask(self, *commands: Command) -> list[Any]:
        """Replies to reads: values, or `Refused` where the server said no for good. Raises `Unavailable` or `Busy`."""
        with self._room_for(commands) as packed:
            call = _Call(self._access.timeout_seconds)
            while True:
                lane = await self._lane(self._reads, call)
                # Half of the time for one try: a connection that hangs must leave time for another.
                batch = Batch(packed, min(call.until, call.now() + self._access.timeout_seconds / 2))
                await lane.run(batch)
                refusal = _first(batch.replies, NOT_NOW)
                if batch.whole and refusal is None:
                    self._pace.worked(lane)
                    return batch.replies
                await self._before_another_try(lane, call, refusal, batch.trouble)

    async def change(self, *commands: Command, until: float | None = None) -> list[Any]:
        """What became of writes: a value, `Refused` (surely not applied) or `LOST` (may have been) for each.

        Raises `Unavailable` or `Busy` when surely nothing of them was applied, in time. `until` is a time of the loop's
        clock, for calls that share their time with others: nothing is sent from then on.
        """
        with self._room_for(commands) as packed:
            call = _Call(self._access.timeout_seconds, until, writing=True)
            while True:
                lane = await self._lane(self._writes, call)
                batch = Batch(packed, call.until)
                await lane.run(batch)
                refusal = _all_refused(commands, batch)
                if batch.sent and refusal is None:
                    self._learn(lane, batch)
                    return batch.fates()
                await self._before_another_try(lane, call, refusal, batch.trouble, writing=True)

    async def block(self, command: Command, seconds: float) -> Any:
        """The reply to a read that waits in the server for up to `seconds`; None when the time is over.

        A connection lost meanwhile is made again and the command sent again. Raises `Unavailable` when the server
        cannot be reached in a call's time, or the error that a refusal stands for.
        """
        with self._room_for((command,)) as packed:
            channel = self._blocking_channel()
            try:
                return await self._block(channel, packed, asyncio.get_running_loop().time() + seconds)
            finally:
                self._blocking_idle.append(channel)

    async def _block(self, channel: Channel, packed: list[bytes], end: float) -> Any:
        while True:
            call = _Call(self._access.timeout_seconds)
            lane = await self._lane(channel, call)
            batch = Batch(packed, max(end, call.now()) + self._access.timeout_seconds)
            try:
                await lane.run(batch)
            except asyncio.CancelledError:
                lane.retired = True
                lane.end(Trouble(f"redis at {lane.server}: nobody waits for it any more"))
                raise
            [reply] = batch.fates()
            if reply is not LOST and not _is(reply, NOT_NOW):
                self._pace.worked(lane)
                if isinstance(reply, Refused):
                    raise as_error(reply, lane.server)
                return reply
            if call.now() >= end:
                return None
            again = _Call(self._access.timeout_seconds)
            await self._before_another_try(lane, again, None if reply is LOST else reply, batch.trouble)

    def _blocking_channel(self) -> Channel:
        if self._blocking_idle:
            return self._blocking_idle.pop()
        if len(self._blocking) >= BLOCKING_CONNECTIONS:
            raise Busy(f"redis at {self.server}: {BLOCKING_CONNECTIONS} calls wait for news already")
        channel = Channel(self._reach, self._pace)
        self._blocking.append(channel)
        return channel

    @contextmanager
    def _room_for(self, commands: Sequence[Command]) -> Iterator[list[bytes]]:
        packed = pack(commands)
        size = sum(map(len, packed))
        # A call alone always has room, however large it is: it could never be made otherwise.
        if self._calls >= WAITING_CALLS or (self._calls and self._bytes + size > WAITING_BYTES):
            raise Busy(f"redis at {self.server}: {self._calls} calls of {self._bytes} bytes wait for it already")
        self._calls += 1
        self._bytes += size
        try:
            yield packed
        finally:
            self._calls -= 1
            self._bytes -= size

    async def _lane(self, channel: Channel, call: _Call) -> Lane:
        if self._closed:
            raise Unavailable(f"redis at {self.server}: the link is closed")
        lane = await channel.lane(call.waits_until)
        if isinstance(lane, Trouble):
            raise self._error(lane, call)
        return lane

    async def _before_another_try(
        self, lane: Lane, call: _Call, refusal: Refused | None, trouble: Trouble | None, *, writing: bool = False
    ) -> None:
        """Return when it makes sense to try again; raise when there is no time left for it."""
        if refusal is not None:
            trouble = trouble_of(refusal, lane.server)
            if refusal.code in ELSEWHERE:
                self._doubt(lane, trouble, writing=writing)
        pause = call.pause() if _is(refusal, LATER) else 0.0
        if call.now() + pause >= call.waits_until:
            raise self._error(trouble, call)
        await asyncio.sleep(pause)

    def _learn(self, lane: Lane, batch: Batch) -> None:
        """What the fates of writes tell of the server, for the calls that come."""
        if not batch.whole:
            self._seal_later(lane)
        elsewhere = _first(batch.replies, ELSEWHERE)
        if elsewhere is not None:
            self._doubt(lane, trouble_of(elsewhere, lane.server), writing=True)
        elif batch.whole:
            self._pace.worked(lane, writing=True)

    def _error(self, trouble: Trouble | None, call: _Call) -> StateError:
        if trouble is None:
            return Unavailable(f"redis at {self.server}: no answer in {call.spent():.1f} s")
        if trouble.error is not None:
            return type(trouble.error)(trouble.error.text, outcome="not_applied")
        return Unavailable(trouble.reason if trouble.lasting else f"{trouble.reason}; tried for {call.spent():.1f} s")

    # --- connections -----------------------------------------------------------------------------------------------

    async def _reach(self) -> Lane:
        """One attempt. That no new connection can be made does not speak against those there are."""
        try:
            lane = await self._reached()
        except Trouble as trouble:
            self._failed(trouble)
            if trouble.elsewhere:
                self._retire_all()
            if not self._away:
                self._away = True
                log.warning("redis_away", reason=trouble.reason)
            raise
        if self._away:
            self._away = False
            log.info("redis_back", server=lane.server, version=lane.facts.own_version)
        return lane

    async def _reached(self) -> Lane:
        wire, facts = await self._met()
        try:
            await self._seal(wire, facts)
            await self._greeted(wire, facts)
            await self._seal(wire, facts)
        except BaseException:
            await wire.close()
            raise
        if self._facts is not None and self._facts.address != facts.address:
            log.info("redis_master_changed", was=self._facts.address, now=facts.address)
        if self._facts is None or (self._facts.run_id, self._facts.replid) != (facts.run_id, facts.replid):
            self.servers += 1
        self._facts = facts
        for lane in tuple(self._lanes):
            if lane.facts.run_id != facts.run_id:
                lane.retire()
        lane = Lane(wire, facts, self._ended)
        self._lanes.add(lane)
        return lane

    async def _met(self) -> tuple[Wire, Facts]:
        """A connection to the master. A node of a Cluster is found to be one here, and then its map is asked."""
        wire, facts = await self._meet()
        if not facts.cluster or isinstance(self._places, Cluster):
            return wire, facts
        await wire.close()
        self._places = Cluster(self._opener, self._access, self._namespace)
        return await self._meet()

    async def _meet(self) -> tuple[Wire, Facts]:
        wire = await self._opener.open(await self._places.master(), self._access.identity)
        try:
            facts = await self._opener.meet(wire)
            if not facts.cluster or isinstance(self._places, Cluster):
                _must_serve(facts)
        except BaseException:
            await wire.close()
            raise
        return wire, facts

    async def _greeted(self, wire: Wire, facts: Facts) -> None:
        async def ask(*commands: Command) -> list[Any]:
            replies = await wire.exchange(*commands)
            refusal = _first(replies, NOT_NOW)
            if refusal is not None:
                raise trouble_of(refusal, wire.server)
            return replies

        try:
            async with asyncio.timeout(self._access.timeout_seconds):
                await self.greet(facts, ask)
        except (RedisError, OSError) as error:
            raise broken(error, wire.server, doing="asked for the namespace") from None
        except StateError as error:
            raise Trouble(error.text, lasting=True, error=error) from None

    def _ended(self, lane: Lane, trouble: Trouble) -> None:
        """A connection is no more. Unless we gave it up ourselves, the others are not to be trusted either."""
        self._lanes.discard(lane)
        ending = asyncio.get_running_loop().create_task(lane.closed())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        if not lane.retired:
            self._look_again(trouble)

    def _doubt(self, lane: Lane, trouble: Trouble, *, writing: bool = False) -> None:
        """What came back on a connection says that its server is not the one. Only the first to meet it counts."""
        if lane.usable:
            self._look_again(trouble, writing=writing)

    def _look_again(self, trouble: Trouble, *, writing: bool = False) -> None:
        """From here on every call goes over a new connection, to wherever the master is then."""
        self._failed(trouble, writing=writing)
        self._retire_all()

    def _failed(self, trouble: Trouble, *, writing: bool = False) -> None:
        self._pace.failed(trouble, writing=writing)
        self._places.doubt()
        if isinstance(self._places, Cluster) and trouble.reply is not None and trouble.reply.code == "MOVED":
            self._places.follow(trouble.reply)

    def _retire_all(self) -> None:
        for lane in tuple(self._lanes):
            lane.retire()

    async def _recheck(self, sentinel: Sentinel) -> None:
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            if self._lanes and await sentinel.has_moved():
                self._look_again(Trouble(f"redis at {self.server}: sentinel names another master now"))

    # --- what was sent and never answered --------------------------------------------------------------------------

    def _seal_later(self, lane: Lane) -> None:
        """Writes of this connection may still wait in the server, unread, and be applied at any time.

        Whoever reads back to learn their fate must not read before that. So everything from here on goes over new
        connections, and the first thing that is done on one is to end the old one inside the server.
        """
        if lane.facts.client_id is not None and len(self._unsealed) < UNSEALED_CONNECTIONS:
            self._unsealed[lane.facts.client_id] = lane.facts.run_id
        self._retire_all()

    async def _seal(self, wire: Wire, facts: Facts) -> None:
        while self._unsealed:
            here = [number for number, run_id in self._unsealed.items() if run_id == facts.run_id]
            self._unsealed = dict.fromkeys(here, facts.run_id)  # a server that is no more applies nothing
            if not here:
                return
            try:
                async with asyncio.timeout(self._access.connect_seconds):
                    replies = await wire.exchange(*(("CLIENT", "KILL", "ID", number) for number in here))
            except (RedisError, OSError) as error:
                raise broken(error, wire.server, doing="asked to end an old connection") from None
            denied = _first(replies, IDENTITY)
            if denied is not None:
                log.warning("redis_cannot_end_connections", server=wire.server, reason=words(denied))
            for number in here:
                self._unsealed.pop(number, None)


async def _no_greeting(_facts: Facts, _ask: Ask) -> None:
    return


def _must_serve(facts: Facts) -> None:
    """Raise unless the server is one that can be worked with now."""
    server = f"redis at {facts.address}"
    if facts.too_old:
        oldest = ".".join(map(str, OLDEST_SERVED))
        raise Trouble(f"{server} is version {facts.version}; {oldest} is the oldest that can be used", lasting=True)
    if facts.loading:
        raise Trouble(f"{server}: it is still loading its data", elsewhere=True)
    if facts.role != "master":
        raise Trouble(f"{server}: it is a replica, not a master", elsewhere=True)


def _is(reply: Any, codes: Collection[str]) -> bool:
    return isinstance(reply, Refused) and reply.code in codes


def _first(replies: Sequence[Any], codes: Collection[str]) -> Refused | None:
    return next((reply for reply in replies if isinstance(reply, Refused) and reply.code in codes), None)


def _all_refused(commands: Sequence[Command], batch: Batch) -> Refused | None:
    """The refusal of a batch of which surely nothing was applied; None when something was or may have been."""
    if not batch.whole:
        return None
    refusal = None
    for command, reply in zip(commands, batch.replies, strict=True):
        if _is(reply, NOT_NOW):
            refusal = refusal or reply
        elif command[0] not in _HARMLESS:
            return None
    return refusal
