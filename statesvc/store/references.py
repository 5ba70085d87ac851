"""References between records: what a record names, and what must be true of it.

Owns which fields of which kinds refer to others. Must not know how records are found: what a reference leads to comes
in as a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from statesvc_client.wire import Fields, printable

from ..backends.port import Key, Row
from . import queueing
from .consistency import record_of
from .deduplication import GUARD
from .ending import is_blocked
from .writes import living

Judge = Callable[[Row | None], str | None]


class Reference(NamedTuple):
    """One record naming another."""

    to: Key
    wrong: Judge
    """From what it leads to, tombstones included, to what is wrong about that, to be read behind the record's name."""
    is_note: bool = False
    """What is wrong may well be meant so."""


def references(row: Row, record: Fields) -> Iterator[Reference]:
    """What a living record names."""
    yield from _OF_KIND.get(row.kind, _owner)(record)
    if is_blocked(row):
        yield from _dependencies(row.kind, record)


def _volume(record: Fields) -> Iterator[Reference]:
    yield from _owner(record)
    name = record.get("volume")
    if isinstance(name, str):
        yield Reference(("volume", name), lambda row: _missing(row, "volume", name))


def _network(record: Fields) -> Iterator[Reference]:
    yield from _owner(record)
    name = record.get("network")
    if isinstance(name, str):
        yield Reference(
            ("network", name), lambda row: _missing(row, "network", name) or _outside(row, name, record.get("address"))
        )


def _missing(row: Row | None, kind: str, name: str) -> str | None:
    if living(row) is not None:
        return None
    fate = "is not there" if row is None else "was deleted"
    return f"names {kind} {printable(name)}, which {fate}: remove it, or bring back the {kind}"


def _outside(row: Row | None, name: str, address: object) -> str | None:
    """Whether an address is one of the network it names."""
    network = None if row is None else record_of(row)
    cidr = None if network is None else network.get("cidr")
    if not isinstance(cidr, str):
        return None
    import ipaddress  # a daemon that is never checked starts without it

    try:
        inside = ipaddress.ip_address(str(address)) in ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        inside = False
    return (
        None if inside else f"has an address that is not in {cidr}, the range of network {printable(name)}: remove it"
    )


def _owner(record: Fields) -> Iterator[Reference]:
    """An owner that is gone is what the sweep looks for; one that was never there keeps its records for ever."""
    owner = _owner_of(record)
    if owner is not None:
        text = f"is owned by {_shown(owner)}, which is not there, or no longer known"
        yield Reference(owner, lambda row: text if row is None else None, is_note=True)


def _owner_of(record: Fields) -> Key | None:
    owner = record.get("owner")
    kind, _, name = owner.partition("/") if isinstance(owner, str) else ("", "", "")
    return (kind, name) if kind and name else None


def _shown(key: Key) -> str:
    return printable(" ".join(key), 128)


def _holder(record: Fields) -> Iterator[Reference]:
    """Who has a `dedupeKey`. One that ended is the sweep's."""
    holder = _owner_of(record)
    if holder is not None:
        text = f"keeps a dedupeKey for {_shown(holder)}, which is not there"
        yield Reference(holder, lambda row: text if row is None else None)


def _dependencies(kind: str, record: Fields) -> Iterator[Reference]:
    """Of a record that still waits for them: they may come later. What became of those it no longer needs does not
    matter."""
    for name in queueing.dependencies(record):
        text = f"waits for {_shown((kind, name))}, which is not there: create it, or cancel what waits"
        yield Reference((kind, name), lambda row, text=text: text if row is None else None, is_note=True)  # type: ignore[misc]


_OF_KIND: dict[str, Callable[[Fields], Iterator[Reference]]] = {
    "mount": _volume,
    "ip": _network,
    GUARD.name: _holder,
}
"""What records of a kind name besides those they depend on; all others at most an owner."""
