"""What a process takes, read from /proc: memory, descriptors, threads, processor time.

Owns the reading. Must not know what the process does, nor what it may take.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

MIB = 1024 * 1024


class Taken(NamedTuple):
    """What a process holds at a moment."""

    rss: float
    """MiB that are resident: what is judged."""
    anonymous: float
    """MiB of it that are no file's: what a leak would grow."""
    descriptors: int
    threads: int
    cpu: float
    """Seconds of processor time since it began."""


def taken(pid: int) -> Taken:
    process = Path(f"/proc/{pid}")
    memory = _table(process / "smaps_rollup")
    ticks = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
    return Taken(
        rss=int(memory["Rss"].split()[0]) / 1024,
        anonymous=int(memory["Anonymous"].split()[0]) / 1024,
        descriptors=len(os.listdir(process / "fd")),
        threads=int(_table(process / "status")["Threads"]),
        cpu=sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
    )


def sockets(pid: int) -> int:
    """Sockets it has open: connections, and those it listens at. An engine opens files whenever it needs them."""
    return sum(_is_socket(Path(entry.path)) for entry in os.scandir(f"/proc/{pid}/fd"))


def _is_socket(descriptor: Path) -> bool:
    try:
        return os.readlink(descriptor).startswith("socket:")
    except FileNotFoundError:  # closed since
        return False


def folder_bytes(folder: Path) -> int:
    """Of all files below it; those that go meanwhile count as gone."""
    sizes = 0
    for path in folder.rglob("*"):
        try:
            sizes += path.stat().st_size
        except FileNotFoundError:
            pass
    return sizes


def _table(path: Path) -> dict[str, str]:
    """Lines of `name: value`."""
    lines = (line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
    return {name: value.strip() for name, value in lines}
