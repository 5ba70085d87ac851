"""From engine to engine and back, under light writes, killed on the way: what was acknowledged is there, once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.daemon.harness import ROOT, environment

RECORDS = 1_000


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_store_goes_round_all_engines_and_loses_nothing():
    """The program itself looks whether every acknowledged write is there; see benchmarks/migrate.py."""
    command = [sys.executable, str(ROOT / "benchmarks" / "migrate.py"), "--records", str(RECORDS), "-o", "json"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    legs = json.loads(done.stdout.splitlines()[-1])
    assert [leg["leg"] for leg in legs] == ["sqlite -> redis", "redis -> dynamodb", "dynamodb -> sqlite"]
    assert all(leg["rows"] >= RECORDS for leg in legs)
    # So few records may be copied before anybody sees how far it is; the slowest leg is always caught on its way.
    assert max(leg["killedAtPercent"] for leg in legs) >= 40
