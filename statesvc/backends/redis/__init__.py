"""Redis and Valkey: one master keeps a namespace, many daemons share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .engine import RedisEngine

if TYPE_CHECKING:
    from ...config import Settings


def from_settings(settings: Settings) -> RedisEngine:
    from .access import access_of

    given = settings.storage.redis
    return RedisEngine(
        access_of(given),
        given.namespace,
        wait_replicas=given.wait_replicas,
        wait_seconds=given.wait_seconds,
        durability=given.durability,
    )
