"""An endpoint for every test, tables of its own for each, and credentials nobody has."""

from __future__ import annotations

import pytest

from tests.dynamodb import servers


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
