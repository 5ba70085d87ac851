"""What all tests share: a folder short enough for Unix sockets, hypothesis without clocks, servers left as found."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import leftovers
from tests.engines.addresses import IS_LONG

# A loaded machine is not a failure: no deadline per example. The same examples each time: no flickering gate.
settings.register_profile("statesvc", deadline=None, derandomize=True)
settings.load_profile("statesvc")


@pytest.fixture(autouse=True)
def _nothing_is_left_on_a_server() -> Iterator[None]:
    """What a test made on a server of a shared engine goes with it, after its daemons have ended."""
    yield
    leftovers.tidy()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only the long form runs."""
    left_out = [] if IS_LONG else [item for item in items if item.get_closest_marker("long")]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish() -> None:
    leftovers.end()


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder with a short path, mode 0700: tmp_path can outgrow the 107 bytes of a socket's name."""
    folder = Path(tempfile.mkdtemp(prefix="statesvc-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
