"""Each engine as the one that is moved from, and as the one that is moved to."""

from __future__ import annotations

from pathlib import Path

import pytest

from statesvc.backends.port import Engine
from statesvc.moving import holdings
from statesvc.store import administration
from tests.engines.addresses import EVERY, USUAL
from tests.moving.stores import Place


@pytest.fixture(autouse=True)
def no_other_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else has to hear of a freeze here."""

    async def at_once(_: Engine, **__: bool) -> None:
        pass

    for module in (administration, holdings):
        monkeypatch.setattr(module, "until_heeded", at_once)


KEPT = [name for name in USUAL if EVERY[name].keeps]
"""What is gone when it is closed can only be moved through its daemon: see tests/cli."""


def place(name: str, folder: Path) -> Place:
    folder.mkdir()
    return Place(EVERY[name].make(folder))


@pytest.fixture(params=KEPT)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place(request.param, tmp_path / "source")


@pytest.fixture(params=KEPT)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place(request.param, tmp_path / "target")


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    """A quick store, where the engine is not in question."""
    return place("sqlite", tmp_path / "folder")


@pytest.fixture
def other(tmp_path: Path) -> Place:
    return place("sqlite", tmp_path / "other")
