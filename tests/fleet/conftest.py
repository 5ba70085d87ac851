"""Daemons that share a store, for the scenarios of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.harness import Daemon
from tests.fleet.daemons import fleet
from tests.fleet.places import PLACES, Place


@pytest.fixture(params=["redis", "dynamodb"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A store that several daemons may share."""
    with PLACES[request.param]() as place:
        yield place


@pytest.fixture
def pair(socket_folder: Path, place: Place) -> Iterator[list[Daemon]]:
    """Two daemons on one namespace."""
    with fleet(socket_folder, place.backend, place.values, 2, env=place.env) as daemons:
        yield daemons
