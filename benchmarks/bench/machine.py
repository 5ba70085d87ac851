"""What a number depends on besides the program: cores, versions, where the files are. No names of hosts, no paths."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib import metadata
from pathlib import Path
from typing import Any

from .world import World, has_redis

DISTRIBUTIONS = ("statesvc", "uvloop", "msgspec", "apsw", "redis", "hiredis")


def facts(world: World) -> dict[str, Any]:
    """In the order in which they are shown."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "processor": _processor(),
        "memoryMB": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10**6,
        "system": f"{platform.system()} {platform.machine()}",
        "fileSystem": _file_system(world.folder),
        "python": platform.python_version(),
        "sqlite3": sqlite3.sqlite_version,
        "redisServer": _redis_server(world),
        **{name: _version(name) for name in DISTRIBUTIONS},
    }


def _version(name: str) -> str:
    if name == "statesvc":
        from statesvc_client._version import __version__

        return __version__
    return metadata.version(name)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _file_system(folder: Path) -> str:
    """The kind of the longest mount above a folder; on tmpfs nothing is durable, and nothing waits for a disk."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(len(at), kind) for at, kind in mounts if folder.resolve().is_relative_to(at)]
    return max(above)[1] if above else "unknown"


def _redis_server(world: World) -> str:
    if not has_redis():
        return "none found"
    from .redis_peer import RedisPeer

    with world.redis() as server:
        peer = RedisPeer(server.socket_path)
        try:
            return peer.about()
        finally:
            peer.close()
