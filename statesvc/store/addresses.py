"""Addresses of a network: which may be given out, which are, and which is the lowest free one.

Owns the arithmetic of CIDRs and the search for a free address. Must not know records, engines or who asks. An address
is a number here; those of IPv6 lie behind all of IPv4, so that one number never means two addresses.
"""

from __future__ import annotations

import heapq
import ipaddress
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from statesvc_client.errors import BadRequest
from statesvc_client.wire import Fields, printable

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_BEHIND_V4 = 1 << 128

MOST_RESERVED = 4096
"""Entries of `reserved`: reading them takes some tens of milliseconds, in which nobody else is served."""

STRIDE = 1024
"""Addresses looked at in one step: some tens of microseconds."""


def number_of(address: _Address) -> int:
    return int(address) if address.version == 4 else int(address) + _BEHIND_V4


def text_of(number: int) -> str:
    """The address as everybody writes it."""
    if number < _BEHIND_V4:
        return str(ipaddress.IPv4Address(number))
    return str(ipaddress.IPv6Address(number - _BEHIND_V4))


def read_number(text: str) -> int | None:
    """The address a text stands for, if it is one, written as everybody writes it."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return number_of(address) if str(address) == text else None


def read_loosely(text: str) -> int | None:
    """The address that people mean by a text, however they write it, also with the network's length behind it."""
    try:
        return number_of(ipaddress.ip_interface(text).ip)
    except ValueError:
        return None


# --- what may be given out -----------------------------------------------------------------------------------------


class Pool(NamedTuple):
    """The addresses of a network that may be given out: a range, and the ranges in it that are closed."""

    first: int
    last: int
    closed: tuple[tuple[int, int], ...]
    """Sorted, with something between any two, ends included."""

    @property
    def size(self) -> int:
        return self.last - self.first + 1 - sum(high - low + 1 for low, high in self.closed)

    def open_from(self, number: int) -> int:
        """The lowest address at or above this one that is not closed; it may lie behind the last."""
        number = max(number, self.first)
        place = bisect_right(self.closed, number, key=_low)
        return max(number, self.closed[place - 1][1] + 1) if place else number

    def has(self, number: int) -> bool:
        return self.first <= number <= self.last and self.open_from(number) == number


def _low(closed: tuple[int, int]) -> int:
    return closed[0]


def read_pool(name: str, network: Fields) -> Pool:
    """The pool a network's record describes."""
    given = network.get("cidr")
    if given is None:
        raise BadRequest(f"network {printable(name)} has no cidr to allocate from")
    within = _network(name, "cidr", given)
    first, last = number_of(within[0]), number_of(within[-1])
    closed = [(number, number) for number in _ends(within, first, last)]
    if network.get("gateway") not in (None, ""):
        closed.append(_range(_network(name, "gateway", network["gateway"], single=True)))
    closed += [_closed(name, each) for each in _reserved(name, network.get("reserved"))]
    return Pool(first, last, _apart(closed, first, last))


def _reserved(name: str, given: Any) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise BadRequest(f"network {printable(name)}: reserved must be a list of addresses and CIDRs")
    if len(given) > MOST_RESERVED:
        why = f"reserved has {len(given)} entries; the limit is {MOST_RESERVED}: put neighbours together as CIDRs"
        raise BadRequest(f"network {printable(name)}: {why}")
    return given


def _ends(within: _Network, first: int, last: int) -> tuple[int, ...]:
    """Addresses that are no host's: the network's own, and in IPv4 the broadcast address. The smallest networks have
    neither (RFC 3021, RFC 6164)."""
    if within.num_addresses <= 2:
        return ()
    return (first, last) if within.version == 4 else (first,)


def _closed(name: str, given: Any) -> tuple[int, int]:
    """One entry of `reserved`; mostly an address, which is read several times as fast as a CIDR."""
    number = read_number(given) if isinstance(given, str) else None
    return _range(_network(name, "reserved", given)) if number is None else (number, number)


def _range(network: _Network) -> tuple[int, int]:
    return number_of(network.network_address), number_of(network.broadcast_address)


def _network(name: str, field: str, given: Any, *, single: bool = False) -> _Network:
    """A CIDR, or an address, which is the CIDR of one; `single`: no other."""
    try:
        if not isinstance(given, str) or (single and "/" in given):
            raise TypeError
        # Hosts' bits may be set: many write the gateway's address with the length behind it.
        return ipaddress.ip_network(given, strict=False)
    except (TypeError, ValueError):
        shown = printable(given) if isinstance(given, str) else f"a {type(given).__name__}"
        wanted = "an address" if single else "a CIDR like 10.0.0.0/24"
        raise BadRequest(f"network {printable(name)}: {field} must be {wanted}, not {shown}") from None


def _apart(ranges: Iterable[tuple[int, int]], first: int, last: int) -> tuple[tuple[int, int], ...]:
    """The parts of the ranges inside first and last, sorted, those that touch made one."""
    apart: list[tuple[int, int]] = []
    for low, high in sorted((max(low, first), min(high, last)) for low, high in ranges):
        if low > high:
            continue
        if apart and low <= apart[-1][1] + 1:
            apart[-1] = (apart[-1][0], max(high, apart[-1][1]))
        else:
            apart.append((low, high))
    return tuple(apart)


# --- what is given out ---------------------------------------------------------------------------------------------


class Taken:
    """Which addresses are out and whose they are. Finding the lowest free one costs the same however many are out."""

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        """The owner of each address that is out, "" for one without."""
        self.ended: set[int] = set()
        """Addresses whose owner is thought to have ended."""
        self.named: Counter[int] = Counter()
        """How many records name an address beside the one it was given out with. Such an address is not free either."""
        self._of_owner: dict[str, set[int]] = {}
        self._pool = Pool(0, -1, ())
        self._frontier = 0
        """Of the pool, every open address below this one is out, or among the freed."""
        self._freed: list[int] = []
        """A heap; what is in it may be out again."""

    def __len__(self) -> int:
        return len(self.owners) + len(self.named)

    def is_out(self, number: int) -> bool:
        return number in self.owners or number in self.named

    def take(self, number: int, owner: str | None) -> None:
        self._disown(number)
        self.owners[number] = owner or ""
        if owner:
            self._of_owner.setdefault(owner, set()).add(number)

    def free(self, number: int) -> None:
        if number in self.owners:
            self._disown(number)
            del self.owners[number]
            self._came_free(number)

    def name(self, number: int) -> None:
        self.named[number] += 1

    def unname(self, number: int) -> None:
        self.named[number] -= 1
        if not self.named[number]:
            del self.named[number]
            self._came_free(number)

    def _came_free(self, number: int) -> None:
        if number < self._frontier:
            heapq.heappush(self._freed, number)

    def _disown(self, number: int) -> None:
        self.ended.discard(number)
        owner = self.owners.get(number)
        if owner:
            mine = self._of_owner[owner]
            mine.discard(number)
            if not mine:
                del self._of_owner[owner]

    def owner_ended(self, owner: str) -> None:
        self.ended |= self._of_owner.get(owner, frozenset())

    def follow(self, pool: Pool) -> bool:
        """Go by this pool; True while there is more to do before `lowest` is quick."""
        if pool != self._pool:
            self._pool, self._frontier, self._freed = pool, pool.first, []
        return self._advance(STRIDE)

    def lowest(self) -> int | None:
        """The lowest address that is open and not out."""
        while self._freed:
            number = self._freed[0]
            if not self.is_out(number) and self._pool.has(number):
                return number
            heapq.heappop(self._freed)
        while self._advance(STRIDE):
            pass
        return self._frontier if self._frontier <= self._pool.last else None

    def _advance(self, steps: int) -> bool:
        """Move the frontier on to an address that is not out; True when the steps did not suffice."""
        number = self._pool.open_from(self._frontier)
        while steps and number <= self._pool.last and self.is_out(number):
            steps -= 1
            number = self._pool.open_from(number + 1)
        self._frontier = number
        return number <= self._pool.last and self.is_out(number)
