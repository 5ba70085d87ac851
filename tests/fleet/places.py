"""Stores a fleet shares, which can be taken away, made to hang, and brought back.

Owns what going away means for each of them. Must not know daemons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from tests.dynamodb import servers as dynamodb
from tests.fleet.daemons import a_namespace, dynamodb_values
from tests.fleet.proxies import Proxy
from tests.redis import servers as redis

TIMEOUT_SECONDS = 2.0
"""What a request may take in these tests when the store does not answer."""

SLOW_SECONDS = 0.1
"""What each way to a slow store takes: many times what it usually does, and far below what it may."""


@dataclass
class Place:
    """One store, its settings, and how to disturb it."""

    backend: str
    values: dict[str, Any]
    go_away: Callable[[], object]
    come_back: Callable[[], object]
    hang: Callable[[], object]
    resume: Callable[[], object]
    slow: Callable[[], object] | None = None
    """Everything takes its time, and is answered; until `resume`."""
    env: dict[str, str] = field(default_factory=dict)


@contextmanager
def on_redis() -> Iterator[Place]:
    """A server that keeps everything: it is killed, and hangs because it is stopped."""
    with redis.Server(appendonly="yes", appendfsync="always") as server:
        values = server.settings(namespace=a_namespace(), timeout_seconds=TIMEOUT_SECONDS)
        yield Place("redis", values, server.kill, server.start, server.pause, server.resume)


@contextmanager
def on_redis_behind_a_proxy() -> Iterator[Place]:
    """A server that is well, behind a network that is not: answers get lost."""
    with redis.Server(appendonly="yes", appendfsync="always") as server, Proxy(server.port) as proxy:
        values = server.settings(namespace=a_namespace(), endpoint=proxy.address, timeout_seconds=TIMEOUT_SECONDS)

        def resume() -> None:
            proxy.calm()
            proxy.cut()  # a reply that was swallowed leaves its connection out of step

        yield Place(
            "redis", values, proxy.go_away, proxy.come_back, proxy.swallow, resume, partial(proxy.slow, SLOW_SECONDS)
        )


@contextmanager
def on_dynamodb() -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in dynamodb.environment().items():
            patch.setenv(name, value)
        values = dynamodb_values(dynamodb.endpoint(), timeout_seconds=TIMEOUT_SECONDS)
        with dynamodb.TroubledEndpoint(dynamodb.endpoint()) as proxy:
            values["storage.dynamodb.endpoint"] = proxy.url

            def hang() -> None:
                proxy.shares.hang, proxy.shares.hang_after = 0.5, 0.5

            def slow() -> None:
                proxy.shares.slow = 1.0

            env = dict(dynamodb.environment())
            yield Place("dynamodb", values, proxy.go_away, proxy.come_back, hang, proxy.calm, slow, env)


PLACES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "redis": on_redis,
    "proxied redis": on_redis_behind_a_proxy,
    "dynamodb": on_dynamodb,
}
