"""A stranger who wants in: looks, connects, opens and squats as fast as it can while daemons start and stop beside it.

Owns what another user of the machine can try on the paths of a daemon. Must not know how a daemon is started, nor judge
what it found: that is told as JSON when its standard input ends. How often it has looked, and met a socket, can be seen
at any moment in memory that it shares with who started it. Run as root; it becomes the stranger it is told to be.

    python -m tests.faults.raced_starts_stranger '{"uid": .., "gid": .., "sockets": [..], "private": [..], ..}'
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import select
import socket
import stat
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

LOOKS_BETWEEN_ROUNDS = 64
"""How often it tries the socket, whose gaps are the shortest, before it tries everything else."""


@dataclass(frozen=True)
class Orders:
    """Who to be, and what to try."""

    uid: int
    gid: int
    sockets: list[str]
    """Names a listening socket may have, however briefly."""
    private: list[str]
    """Files and folders it must not be able to open."""
    closed: list[str]
    """Folders in which it must not be able to make anything."""
    squats: list[str] = field(default_factory=list)
    """Names in a folder open to all, to be taken before the daemon has them."""
    bait: str = ""
    """What a squatted name leads to, as a symbolic link."""
    seed: int = 0
    tally: int = -1
    """The descriptor of memory to count in."""


class Counted(NamedTuple):
    """How far a stranger has come."""

    looks: int
    met: int
    """Sockets, of somebody else."""


class Tally:
    """Counts in memory that two processes share: nobody has to ask, and nobody is held up by being asked."""

    def __init__(self, descriptor: int) -> None:
        self._numbers = memoryview(mmap.mmap(descriptor, mmap.PAGESIZE)).cast("Q")

    def set(self, counted: Counted) -> None:
        self._numbers[0], self._numbers[1] = counted

    def get(self) -> Counted:
        return Counted(self._numbers[0], self._numbers[1])


@dataclass
class Found:
    """What became of it."""

    looks: int = 0
    connects: Counter[str] = field(default_factory=Counter)
    """How attempts to connect ended; the name of an error, or `connected`."""
    modes: Counter[str] = field(default_factory=Counter)
    """`name kind mode gid` of everything seen that is not our own."""
    opened: Counter[str] = field(default_factory=Counter)
    """What could be opened or made and must not have been."""
    squatted: int = 0
    touched: Counter[str] = field(default_factory=Counter)
    """Squats of ours that somebody changed or took away."""


class Stranger:
    """One process of another user."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._random = random.Random(orders.seed)
        self._mine: set[str] = set()
        """Names we have taken; what they say to us says nothing about the daemon."""
        self._tally = Tally(orders.tally)
        self._met = 0
        self.found = Found()

    def look(self) -> None:
        """Try the socket under each of its names."""
        for name in self._orders.sockets:
            self._connect(name)
            self._see(name)
        self.found.looks += 1
        self._tally.set(Counted(self.found.looks, self._met))

    def look_around(self) -> None:
        """Try everything else."""
        for name in self._orders.private:
            self._open(name)
            self._see(name)
        for folder in self._orders.closed:
            self._make(f"{folder}/stranger")

    def _connect(self, name: str) -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.setblocking(False)
            code = sock.connect_ex(name)
        how = errno.errorcode[code] if code else "connected"
        if name not in self._mine:
            self.found.connects[how] += 1
            self._met += how != "ENOENT"

    def _see(self, name: str) -> None:
        try:
            there = os.lstat(name)
        except OSError:
            return
        if there.st_uid != self._orders.uid:
            kind = _KINDS.get(stat.S_IFMT(there.st_mode), "other")
            mode = stat.S_IMODE(there.st_mode)
            self.found.modes[f"{os.path.basename(name)} {kind} {mode:04o} {there.st_gid}"] += 1

    def _open(self, name: str) -> None:
        for how, flags in (("reading", os.O_RDONLY), ("writing", os.O_RDWR)):
            try:
                fd = os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
            except OSError:
                continue
            if os.fstat(fd).st_uid != self._orders.uid:
                self.found.opened[f"{name} for {how}"] += 1
            os.close(fd)

    def _make(self, name: str) -> None:
        try:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o666))
        except OSError:
            return
        self.found.opened[f"{name} made"] += 1
        os.unlink(name)

    def squat(self) -> None:
        """Take a name for a moment, and see whether it is still ours when we leave it."""
        name = self._random.choice(self._orders.squats)
        make = self._random.choice([_a_file, _a_link, _a_folder, _a_pipe])
        try:
            make(name, self._orders.bait)
        except OSError:
            return  # the daemon has it
        mine = os.lstat(name)
        self._mine.add(name)
        self.found.squatted += 1
        for _ in range(self._random.randrange(LOOKS_BETWEEN_ROUNDS)):
            self.look()
        self._mine.remove(name)
        try:
            same = os.path.samestat(os.lstat(name), mine) and os.lstat(name).st_mtime_ns == mine.st_mtime_ns
            (os.rmdir if stat.S_ISDIR(mine.st_mode) else os.unlink)(name)
        except OSError:
            same = False
        self.found.touched[name] += not same

    def loiter(self) -> None:
        """Until nobody holds our standard input any more."""
        while not select.select([sys.stdin], [], [], 0)[0]:
            for _ in range(LOOKS_BETWEEN_ROUNDS):
                self.look()
            self.look_around()
            if self._orders.squats:
                self.squat()


_KINDS = {stat.S_IFSOCK: "socket", stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


def _a_file(name: str, _bait: str) -> None:
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


def _a_link(name: str, bait: str) -> None:
    os.symlink(bait, name)


def _a_folder(name: str, _bait: str) -> None:
    os.mkdir(name, 0o777)


def _a_pipe(name: str, _bait: str) -> None:
    os.mkfifo(name, 0o666)


def main() -> None:
    orders = Orders(**json.loads(sys.argv[1]))
    os.setgroups([])
    os.setgid(orders.gid)
    os.setuid(orders.uid)
    os.umask(0)
    stranger = Stranger(orders)
    print("looking", flush=True)
    stranger.loiter()
    print(json.dumps(vars(stranger.found)), flush=True)


if __name__ == "__main__":
    main()
