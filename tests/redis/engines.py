"""Redis engines for tests, on any server; each is closed at the end of its block.

Owns the making of them. Must not know what is tested.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from statesvc.backends import make
from statesvc.backends.redis.engine import RedisEngine
from statesvc.config.model import assemble


def engine_on(server: Any, namespace: str, **values: Any) -> RedisEngine:
    """An engine that is not open yet; `values` are further settings of storage.redis."""
    settings = server.settings(namespace=namespace, **{"timeout_seconds": 30.0, **values})
    engine = make(assemble({"backend": "redis", **settings}))
    assert isinstance(engine, RedisEngine)
    return engine


@asynccontextmanager
async def opened(server: Any, namespace: str, **values: Any) -> AsyncIterator[RedisEngine]:
    engine = engine_on(server, namespace, **values)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()
