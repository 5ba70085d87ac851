"""How fast a fleet of workers empties a queue, some of them dying with leases held; and that nothing goes wrong.

    python benchmarks/workers.py [--jobs 20000] [--workers 32] [--deaths 200] [--backend sqlite]

Every job must end, no job may be held by two live tokens, and the order must follow the priority.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "client")]

from tests.daemon.fleet import Fleet  # noqa: E402 - found only now
from tests.daemon.harness import serving  # noqa: E402


async def emptied(fleet: Fleet) -> tuple[float, float]:
    began = time.perf_counter()
    await fleet.fill()
    filled = time.perf_counter()
    await fleet.work()
    return filled - began, time.perf_counter() - filled


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--deaths", type=int, default=200)
    parser.add_argument("--backend", default="sqlite", choices=["memory", "sqlite"])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), "--backend", asked.backend) as daemon:
        fleet = Fleet(daemon.socket, asked.jobs, asked.workers, deaths=asked.deaths)
        filling, working = asyncio.run(emptied(fleet))
    faults = fleet.faults()
    print(f"{asked.backend}: {asked.jobs} jobs created in {filling:.1f} s, run to their end in {working:.1f} s")
    print(f"{asked.jobs / working:.0f} jobs/s over {asked.workers} connections; {fleet.died} workers died")
    print(f"faults: {len(faults)}; out of order: {fleet.out_of_order()}")
    print("\n".join(faults[:20]))
    return 1 if faults or fleet.out_of_order() else 0


if __name__ == "__main__":
    sys.exit(main())
