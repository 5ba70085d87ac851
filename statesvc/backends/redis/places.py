"""Where the master is: at a fixed address, where Sentinel says, or where a Cluster keeps the namespace's slot.

Owns the looking. Must not know what the master is wanted for, nor how often to look: whoever looks again does so after
a pause. An answer counts until somebody says that it was no good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from redis.crc import key_slot
from redis.exceptions import RedisError

from .access import Access, Address, Identity
from .faults import Refused, Trouble, broken, trouble_of
from .opening import Command, Opener

NODES_REMEMBERED = 64
"""Nodes of a Cluster that are asked for its map. A cluster may be larger; any of its nodes has the whole map."""


class Places(Protocol):
    """One way of finding the master."""

    async def master(self) -> Address:
        """Where it should be. Raises `Trouble` when nobody can tell."""

    def doubt(self) -> None:
        """The last answer was no good, or is no longer."""


class Fixed:
    """The address is in the settings. Of several the next is taken when one is no good."""

    def __init__(self, endpoints: tuple[Address, ...]) -> None:
        self._endpoints = list(endpoints)

    async def master(self) -> Address:
        return self._endpoints[0]

    def doubt(self) -> None:
        self._endpoints.append(self._endpoints.pop(0))


class _Asked:
    """Servers that can tell, asked one after the other; the one that told is asked first the next time."""

    def __init__(self, opener: Opener, identity: Identity, connect_seconds: float) -> None:
        self._opener = opener
        self._identity = identity
        self._seconds = connect_seconds

    async def ask(self, address: Address, *commands: Command) -> list[Any]:
        wire = await self._opener.open(address, self._identity)
        try:
            async with asyncio.timeout(self._seconds):
                return await wire.exchange(*commands)
        except (RedisError, OSError) as error:
            raise broken(error, wire.server, doing="asked for the master") from None
        finally:
            await wire.close()


class Sentinel:
    """Sentinels are asked in turn. One that named a master that was none is asked last the next time."""

    def __init__(self, opener: Opener, access: Access) -> None:
        self._asked = _Asked(opener, access.sentinel_identity, access.connect_seconds)
        self._sentinels = list(access.endpoints)
        self._name = access.sentinel_master
        self._found: Address | None = None

    async def master(self) -> Address:
        if self._found is None:
            self._found = await self._look()
        return self._found

    def doubt(self) -> None:
        if self._found is not None:
            self._sentinels.append(self._sentinels.pop(0))
        self._found = None

    async def has_moved(self) -> bool:
        """Whether Sentinel now names another master than the one it named last."""
        if self._found is None:
            return False
        try:
            return await self._look() != self._found
        except Trouble:
            return False

    async def _look(self) -> Address:
        troubles: list[Trouble] = []
        for sentinel in tuple(self._sentinels):
            try:
                address = await self._told_by(sentinel)
            except Trouble as trouble:
                troubles.append(trouble)
                continue
            self._sentinels.remove(sentinel)
            self._sentinels.insert(0, sentinel)
            return address
        reasons = "; ".join(dict.fromkeys(trouble.reason for trouble in troubles))
        lasting = all(trouble.lasting for trouble in troubles)
        raise Trouble(f"no sentinel tells where {self._name!r} is: {reasons}", lasting=lasting)

    async def _told_by(self, sentinel: Address) -> Address:
        [reply] = await self._asked.ask(sentinel, ("SENTINEL", "get-master-addr-by-name", self._name))
        if isinstance(reply, Refused):
            raise trouble_of(reply, str(sentinel), during="SENTINEL get-master-addr-by-name")
        if not isinstance(reply, list) or len(reply) != 2:
            raise Trouble(f"the sentinel at {sentinel} knows no master of that name (storage.redis.sentinel_master)")
        host, port = reply
        if not (isinstance(host, bytes) and isinstance(port, bytes) and port.isdigit()):
            raise Trouble(f"the sentinel at {sentinel} gave no address")
        return Address(host.decode("utf-8", "replace"), int(port))


class Range(NamedTuple):
    """Slots that lie together, and the nodes that have them: first the master."""

    first: int
    last: int
    nodes: tuple[Address | None, ...]


class Cluster:
    """Any node has the map of all slots; the namespace is where its one slot is."""

    def __init__(self, opener: Opener, access: Access, namespace: str) -> None:
        self._asked = _Asked(opener, access.identity, access.connect_seconds)
        self._given = access.endpoints
        self._nodes = list(access.endpoints)
        self.slot = key_slot(f"{{{namespace}}}".encode())
        self._found: Address | None = None
        self._doubted = access.endpoints[0]

    async def master(self) -> Address:
        if self._found is None:
            self._found = await self._look()
        return self._found

    def doubt(self) -> None:
        if self._found is None:
            return
        if self._found in self._nodes:  # what the others say counts for more now
            self._nodes.remove(self._found)
            self._nodes.append(self._found)
        self._doubted, self._found = self._found, None

    def follow(self, moved: Refused) -> None:
        """Go where the doubted node says the slot is now: MOVED <slot> <host>:<port>."""
        _, _, target = moved.text.partition(" ")
        host, _, port = target.rpartition(":")
        if port.isdecimal():
            self._found = _node([host.strip("[]").encode(), int(port)], self._doubted)

    async def _look(self) -> Address:
        troubles: list[Trouble] = []
        for node in tuple(self._nodes):
            try:
                slots = await self._map_of(node)
            except Trouble as trouble:
                troubles.append(trouble)
                continue
            self._remember(node, slots)
            address = next((part.nodes[0] for part in slots if part.first <= self.slot <= part.last), None)
            if address is not None:
                return address
            troubles.append(Trouble(f"redis at {node}: no node of the cluster serves slot {self.slot}"))
        reasons = "; ".join(dict.fromkeys(trouble.reason for trouble in troubles))
        lasting = all(trouble.lasting for trouble in troubles)
        raise Trouble(f"the cluster does not tell where slot {self.slot} is: {reasons}", lasting=lasting)

    async def _map_of(self, node: Address) -> list[Range]:
        [reply] = await self._asked.ask(node, ("CLUSTER", "SLOTS"))
        if isinstance(reply, Refused):
            raise trouble_of(reply, str(node), during="CLUSTER SLOTS")
        try:
            return [_range(entry, node) for entry in reply]
        except (TypeError, ValueError, IndexError):
            raise Trouble(f"redis at {node}: what it says of its cluster cannot be read") from None

    def _remember(self, asked: Address, slots: list[Range]) -> None:
        """The node that answered, those of the settings, which never go, and those it named."""
        known: Iterable[Address | None] = (asked, *self._given, *(node for part in slots for node in part.nodes))
        self._nodes = list(dict.fromkeys(node for node in known if node is not None))[:NODES_REMEMBERED]


def _range(entry: list[Any], asked: Address) -> Range:
    first, last, *nodes = entry
    return Range(int(first), int(last), tuple(_node(node, asked) for node in nodes))


def _node(node: list[Any], asked: Address) -> Address | None:
    """A node that does not know its own name is where we asked; one that is nowhere has no port."""
    host, port = node[0], int(node[1])
    if not port:
        return None
    name = host.decode("utf-8", "replace") if isinstance(host, bytes) else ""
    return Address(name if name and name != "?" else asked.host or "localhost", port)
