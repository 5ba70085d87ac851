"""An endpoint for every test, tables of its own for each, and credentials nobody has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.dynamodb import servers
from tests.dynamodb.engines import Place, place_at


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in servers.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def endpoint() -> str:
    return servers.endpoint()


@pytest.fixture
def tables() -> servers.Tables:
    return servers.own_tables()


@pytest.fixture
async def place(endpoint: str, tables: servers.Tables) -> AsyncIterator[Place]:
    """Where engines are opened, its tables made."""
    async with place_at(endpoint, tables) as made:
        await made.make()
        yield made


@pytest.fixture
def troubled(endpoint: str) -> Iterator[servers.TroubledEndpoint]:
    """The endpoint behind a proxy that makes trouble when it is told to."""
    with servers.TroubledEndpoint(endpoint) as proxy:
        yield proxy
