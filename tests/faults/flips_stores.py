"""F3: small stores to be damaged bit by bit, made by a real daemon and copied at moments of its life.

Owns what is in them, where their parts lie, and that they can be put back quickly. Must not know what damage leads to.

Few pages, and something of everything: records with labels, node and owner, marks of clients, a history, an event, a
tombstone, a lease, a queue, a kind without rules, an index that was made when it was asked for.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

from tests.daemon.harness import Client, Daemon, until
from tests.daemon.stores import fill, is_at_rest
from tests.sqlite.filling import compact, opened

Moment = Literal["closed", "idle", "busy", "cut"]
MOMENTS: tuple[Moment, ...] = get_args(Moment)
"""Closed; killed after a second of idleness; killed right behind an acknowledgement; idle, its log having been cut, so
that the state cannot be made again from it."""

CLIENT = "flipper"
"""Whose writes they are; it sends one of them again later."""

RESENT = {"op": "update", "jobId": "one", "job": {"step": 1}, "seq": 3, "floor": 3}
"""A write that every one of these stores has taken."""

_FIRST = {"uuid": "one", "status": "PENDING", "labels": {"of": "a"}, "nodeId": "n1", "owner": "me", "priority": 5}
_LATER = {"uuid": "later", "status": "SCHEDULED", "scheduledAt": "2100-01-01T00:00:00Z"}

WRITES: tuple[dict[str, Any], ...] = (
    {"op": "create", "job": _FIRST, "seq": 1, "floor": 1},
    {"op": "create", "job": {"uuid": "two", "status": "QUEUED", "labels": {"of": "b"}}, "seq": 2, "floor": 2},
    RESENT,
    {"op": "create", "job": {"uuid": "gone", "status": "PENDING"}, "seq": 4, "floor": 4},
    {"op": "delete", "jobId": "gone", "seq": 5, "floor": 5},
    {"op": "create", "job": _LATER, "seq": 6, "floor": 6},
    {"op": "claim", "kind": "lock", "id": "held", "holder": "me", "ttl": 86_400, "seq": 7, "floor": 7},
    {"op": "create", "kind": "kv", "record": {"id": "k", "value": [1, 2]}, "seq": 8, "floor": 8},
    {"op": "emit", "jobId": "one", "event": {"type": "note", "message": "hi", "data": {"n": 1}}, "seq": 9, "floor": 9},
)

LAST_WRITES = tuple({"op": "update", "jobId": name, "inc": {"last": 1}} for name in ("one", "two", "one", "two"))
"""What a store that is idle or busy has in its WALs, each in a commit of its own."""


NEVER_IDLE = {"storage__sqlite__idle_seconds": 60, "storage__sqlite__apply_seconds": 60}
"""So that a slow machine does not make a busy store an idle one: nothing is marked or applied before the kill."""


def make(folder: Path) -> dict[Moment, Path]:
    """The store at each moment."""
    stores: dict[Moment, Path] = {moment: folder / moment for moment in MOMENTS}
    with Daemon(folder) as daemon:
        _fill(daemon.serving())
        assert daemon.stop() == 0
        _copy(daemon.data, stores["closed"])
        _write_on(daemon.serving())
        until(lambda: _is_idle(daemon.data, len(WRITES) + len(LAST_WRITES)), "an idle store to come to rest")
        daemon.kill()
        _copy(daemon.data, stores["idle"])
        asyncio.run(_cut_log(daemon.data))
        _write_on(daemon.serving(), seq=20)
        until(lambda: _is_idle(daemon.data, len(WRITES) + 2 * len(LAST_WRITES)), "an idle store to come to rest")
        daemon.kill()
        _copy(daemon.data, stores["cut"])
    _copy(stores["closed"], folder / "busy-data")
    with Daemon(folder, data=folder / "busy-data", settings=NEVER_IDLE) as daemon:
        _write_on(daemon.serving())
        daemon.kill()
        _copy(daemon.data, stores["busy"])
    return stores


MANY = 150
LARGE = {"op": "create", "kind": "kv", "record": {"id": "large", "value": os.urandom(10 * 1024).hex()}}
"""A record that fills several pages, however it is packed."""


def make_large(folder: Path) -> Path:
    """A store, closed, of so much that its trees have inner pages, and with a record that no page can hold."""
    with Daemon(folder) as daemon:
        _fill(daemon.serving())
        fill(daemon, 0, MANY)
        with daemon.connect() as client:
            _ask(client, LARGE)
        assert daemon.stop() == 0
        return daemon.data


def _is_idle(data: Path, position: int) -> bool:
    """The log has come to rest there, and the state has followed."""
    return is_at_rest(data, position) and (data / "state.db-wal").stat().st_size > 0


async def _cut_log(data: Path) -> None:
    async with opened(data) as engine:
        await compact(engine)


def _fill(daemon: Daemon) -> None:
    with daemon.connect() as client:
        assert client.hello(CLIENT)["success"]
        for write in WRITES:
            _ask(client, write)
        _ask(client, {"op": "list", "sortBy": "priority"})


def _write_on(daemon: Daemon, seq: int = 10) -> None:
    with daemon.connect() as client:
        assert client.hello(CLIENT)["success"]
        for number, write in enumerate(LAST_WRITES, seq):
            _ask(client, {**write, "seq": number, "floor": number})


def _ask(client: Client, request: dict[str, Any]) -> None:
    client.send(request)
    reply = client.reply()
    assert reply["success"], reply


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("lock"))


# --- where things lie ----------------------------------------------------------------------------------------------

PAGE = 4096
WAL_HEADER = 32
FRAME_HEADER = 24


class Frame(NamedTuple):
    """A page in a WAL."""

    place: int
    """Of its first byte in the file."""
    ends_commit: bool


def frames(wal: bytes) -> list[Frame]:
    """The frames of a WAL, leftovers of an earlier one left out."""
    salts = wal[16:24]
    places = range(WAL_HEADER, len(wal) - FRAME_HEADER - PAGE + 1, FRAME_HEADER + PAGE)
    return [
        Frame(place, struct.unpack_from(">I", wal, place + 4)[0] != 0)
        for place in places
        if wal[place + 8 : place + 16] == salts
    ]


def last_commit(wal: bytes) -> range:
    """The bytes of the newest commit in a WAL."""
    found = frames(wal)
    begin = WAL_HEADER
    for frame in found[:-1]:
        if frame.ends_commit:
            begin = frame.place + FRAME_HEADER + PAGE
    return range(begin, found[-1].place + FRAME_HEADER + PAGE)


# --- a store that is damaged and put back --------------------------------------------------------------------------


class Bench:
    """A copy of a store in a folder of its own, put back after each trial by writing only what has changed."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = folder
        self.whole = {name: (source / name).read_bytes() for name, _ in files_of(source)}
        folder.mkdir(parents=True, mode=0o700)
        self.put_back()

    def flip(self, name: str, bit: int) -> None:
        """Bit 0 is the lowest of the first byte."""
        if name.endswith("-shm"):
            self.put(name, self.whole[name])
        with open(self.folder / name, "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), bytes([self.whole[name][bit >> 3] ^ 1 << (bit & 7)]), bit >> 3)

    def put(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def put_back(self) -> None:
        """All but SQLite's own index into a WAL: whoever opens a file first makes it anew."""
        for entry in list(os.scandir(self.folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry)
            elif entry.name not in self.whole or entry.name.endswith("-shm"):
                os.unlink(entry)
        for name, content in self.whole.items():
            if name.endswith("-shm"):
                continue
            path = self.folder / name
            if not path.exists() or path.read_bytes() != content:
                path.unlink(missing_ok=True)
                path.touch(0o600)
                path.write_bytes(content)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def files_of(store: Path) -> Iterator[tuple[str, int]]:
    """The files of a store that has no daemon, with their lengths."""
    for file in sorted(store.iterdir()):
        if file.name != "lock" and file.stat().st_size:
            yield file.name, file.stat().st_size
