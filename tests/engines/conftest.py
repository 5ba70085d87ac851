"""Each engine on its bench; after every test its own check must find nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from statesvc.backends import REGISTRY
from tests.engines.addresses import EVERY, Bench


@pytest.fixture(params=[*REGISTRY, "cluster", "weak"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """One engine, open. A registered engine that has no address fails here, test by test."""
    name = request.param
    assert name in EVERY, f"engine {name} is registered and has no address in tests/engines/addresses.py"
    address = EVERY[name]
    make = address.make(tmp_path)
    bench = Bench(name, address, make(), make)
    await bench.engine.open()
    try:
        yield bench
        assert await bench.engine.check() == []
    finally:
        await bench.engine.close()
