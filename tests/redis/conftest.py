"""Links for tests: each is closed at the end, whatever became of it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from statesvc.backends.redis.access import access_of
from statesvc.backends.redis.link import Link
from statesvc.config.model import assemble
from statesvc_client.errors import Unavailable
from tests.redis.servers import Server, shared_server

LinkTo = Callable[..., Link]

CALL_SECONDS = 30.0
"""What a call may take."""

FAILING_SECONDS = 3.0
"""What a call may take that fails, where the test is about the reason. Every attempt has half of it, and a machine that
stands still for that long would make another reason of it: no answer in time."""


async def once_it_works(call: Callable[[], Awaitable[list[Any]]]) -> list[Any]:
    """What a call gives, once the server can be used again."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.02)


@pytest.fixture
def namespace() -> str:
    """A name nobody else uses on a shared server."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def server() -> Server:
    """A server that other tests use as well: leave it as it is."""
    return shared_server()


@pytest.fixture
async def link_to() -> AsyncIterator[LinkTo]:
    """Makes links from settings by dotted name; `seconds` is what a call may take."""
    links: list[Link] = []

    def make(settings: dict[str, Any], seconds: float = CALL_SECONDS, namespace: str = "t") -> Link:
        values = settings | {"storage.redis.timeout_seconds": seconds}
        link = Link(access_of(assemble(values).storage.redis), namespace)
        links.append(link)
        return link

    yield make
    for link in links:
        await link.close()
