"""Who is at the other end of a Unix socket, and whether that one may talk to us.

Owns the reading of SO_PEERCRED and the rule of access. Does not know what the peer asks for.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple, Protocol

ROOT = 0

# struct ucred: pid, uid, gid. The ids are unsigned.
_UCRED = struct.Struct("iII")
_SO_PEERGROUPS = 59

# Bytes Python hands to getsockopt at most: room for 256 supplementary groups.
_MAX_OPTION_BYTES = 1024

# The kernel's default for ids that cannot be expressed here (another user namespace, 32 to 16 bit).
_DEFAULT_OVERFLOW_ID = 65534


class HasSocketOptions(Protocol):
    """A socket, or what asyncio and uvloop give out as the socket of a transport."""

    def getsockopt(self, level: int, option: int, buflen: int, /) -> bytes: ...


class Peer(NamedTuple):
    """The process that connected, as the kernel saw it at that moment."""

    pid: int
    uid: int
    gids: frozenset[int]


class Access:
    """The uids and gids that may connect. The overflow ids stand for anybody, so they never count."""

    __slots__ = ("gids", "uids")

    def __init__(self, uids: Iterable[int], gids: Iterable[int] = ()) -> None:
        self.uids = frozenset(uids) - {_overflow_id("overflowuid"), _DEFAULT_OVERFLOW_ID}
        self.gids = frozenset(gids) - {_overflow_id("overflowgid"), _DEFAULT_OVERFLOW_ID}

    def allows(self, peer: Peer) -> bool:
        if peer.uid in (_overflow_id("overflowuid"), _DEFAULT_OVERFLOW_ID):
            return False
        return peer.uid in self.uids or not self.gids.isdisjoint(peer.gids)

    def __repr__(self) -> str:
        return f"Access(uids={sorted(self.uids)}, gids={sorted(self.gids)})"


def peer_credentials(connection: HasSocketOptions) -> Peer:
    """The peer of a connected Unix socket. OSError when the socket is none or is already gone."""
    pid, uid, gid = _UCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size),
    )
    return Peer(pid, uid, frozenset({gid, *_supplementary_groups(connection)}))


def _supplementary_groups(connection: HasSocketOptions) -> tuple[int, ...]:
    """The peer's other groups; none where the kernel cannot tell or there are too many: no access by them."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_OPTION_BYTES)
    except OSError as error:
        if error.errno in (errno.ERANGE, errno.ENOPROTOOPT, errno.ENODATA, errno.EINVAL):
            return ()
        raise
    return struct.unpack(f"{len(raw) // 4}I", raw)


_overflow_ids: dict[str, int] = {}


def _overflow_id(name: str) -> int:
    if name not in _overflow_ids:
        _overflow_ids[name] = _read_overflow_id(name)
    return _overflow_ids[name]


def _read_overflow_id(name: str) -> int:
    try:
        with open(f"/proc/sys/kernel/{name}", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return _DEFAULT_OVERFLOW_ID
