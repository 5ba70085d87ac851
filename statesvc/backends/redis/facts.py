"""What a server says of itself when it is met: who it is, what it runs, how it keeps its data.

Owns the reading of INFO and CONFIG GET. Must not know connections, or what follows from an answer.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

OLDEST_SERVED = (6, 2)
"""ZRANGE ... BYLEX REV LIMIT and explicit stream ids as they are used here came with Redis 6.2."""


class Facts(Struct, frozen=True, kw_only=True):
    """One server at one moment. None: it did not tell, because it may not or cannot."""

    address: str
    version: str
    """The Redis it is compatible with; Valkey says 7.2.4 here."""
    is_valkey: bool = False
    own_version: str = ""
    """What people call its version: for Valkey its own."""
    run_id: str = ""
    replid: str = ""
    replid2: str = ""
    """The replication id it had before it was promoted; 40 zeros when there was none."""
    second_offset: int = -1
    role: str = "master"
    replicas: int = 0
    """How many replicas are connected."""
    cluster: bool = False
    loading: bool = False
    aof: bool | None = None
    fsync: str | None = None
    maxmemory_policy: str | None = None
    used_memory: int | None = None
    client_id: int | None = None
    """The server's number for the connection these were read on."""

    @property
    def too_old(self) -> bool:
        return _numbers(self.version) < OLDEST_SERVED


def read_info(text: bytes) -> dict[str, str]:
    """The lines of INFO by name."""
    lines = text.decode("utf-8", "replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


def facts_of(address: str, info: dict[str, str], config: dict[str, str], client_id: int | None) -> Facts:
    """What INFO, and CONFIG GET as far as it was allowed, tell of a server."""
    return Facts(
        address=address,
        version=info.get("redis_version", "0"),
        is_valkey="valkey_version" in info,
        own_version=info.get("valkey_version", info.get("redis_version", "")),
        run_id=info.get("run_id", ""),
        replid=info.get("master_replid", ""),
        replid2=info.get("master_replid2", ""),
        second_offset=_number(info.get("second_repl_offset")) or -1,
        role=info.get("role", "master"),
        replicas=_number(info.get("connected_slaves")) or 0,
        cluster=info.get("cluster_enabled") == "1" or info.get("redis_mode") == "cluster",
        loading=info.get("loading") == "1" or info.get("async_loading") == "1",
        aof=_flag(config.get("appendonly"), info.get("aof_enabled")),
        fsync=config.get("appendfsync"),
        maxmemory_policy=config.get("maxmemory-policy", info.get("maxmemory_policy")),
        used_memory=_number(info.get("used_memory")),
        client_id=client_id,
    )


def read_config(reply: Any) -> dict[str, str]:
    """The answer to CONFIG GET; empty when the server would not tell."""
    if not isinstance(reply, list):
        return {}
    texts = [item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in reply]
    return dict(zip(texts[::2], texts[1::2], strict=False))


def _flag(configured: str | None, reported: str | None) -> bool | None:
    if configured is not None:
        return configured == "yes"
    return None if reported is None else reported == "1"


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    parts = (part for part in version.split("."))
    return tuple(int(part) if part.isdigit() else 0 for part in parts)
