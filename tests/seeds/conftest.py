"""A daemon on a real socket for each engine that ships, for the tests of what the seed systems need."""

from __future__ import annotations

from pathlib import Path

import pytest

from statesvc.backends.port import Engine
from tests.engines.addresses import ADDRESSES, QUICK
from tests.socket.conftest import client, daemon, joblet, no_other_daemons, start

__all__ = ["client", "daemon", "engine", "joblet", "no_other_daemons", "start"]


@pytest.fixture(params=[name for name in ADDRESSES if name in QUICK])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """Each engine, not open yet: the daemon does that."""
    return ADDRESSES[request.param].make(tmp_path)()
