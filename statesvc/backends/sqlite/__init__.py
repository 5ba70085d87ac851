"""The embedded durable engine: log.db says what was committed, state.db what it led to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .engine import SqliteEngine

if TYPE_CHECKING:
    from ...config import Settings

__all__ = ["SqliteEngine", "from_settings"]


def from_settings(settings: Settings) -> SqliteEngine:
    options = settings.storage.sqlite
    return SqliteEngine(
        settings.data,
        durability=settings.durability,
        cache_bytes=options.cache_bytes,
        apply_entries=options.apply_entries,
        apply_seconds=options.apply_seconds,
        idle_seconds=options.idle_seconds,
    )
