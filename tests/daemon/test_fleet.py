"""Many workers on one queue, some of them dying: every job runs to its end, once, in order (see fleet.py)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.daemon.fleet import Fleet, Line
from tests.daemon.harness import serving


async def run(fleet: Fleet) -> dict[str, int]:
    await fleet.fill()
    await fleet.work()
    line = await Line.open(fleet.path, "auditor")
    counts: dict[str, int] = (await line.ok(op="stats"))["counts"]
    line.drop()
    return counts


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_every_job_ends_once_though_workers_die_with_leases_held(folder: Path, backend: str):
    with serving(folder, backend=backend) as daemon:
        fleet = Fleet(daemon.socket, jobs=1000, workers=16, ttl=1.0, deaths=25)
        counts = asyncio.run(run(fleet))
    assert fleet.died > 0
    assert fleet.faults() == []
    assert fleet.out_of_order() == 0
    assert counts == {"COMPLETED": 1000}
