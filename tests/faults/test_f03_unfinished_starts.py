"""F3: who goes on without the damaged part of a log is told so, also if the start that left it out did not come to its
end.

Nothing but the damage tells that something is missing, and a start writes over it.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.daemon.harness import Daemon, refused
from tests.sqlite.filling import crashed, create, flip, opened

CORRUPT = 65
NEWEST = "told-4"


@pytest.fixture
async def epoch(folder: Path) -> str:
    """Of a store that was killed, with a flipped bit in the middle of its log's WAL. A start that syncs refuses it."""
    async with opened(folder / "store", durability="disk", apply_seconds=60, idle_seconds=60) as engine:
        await create(engine, ["kept"])
        engine._files.state.settle()
        for number in range(5):
            await create(engine, [f"told-{number}"])
        left = crashed(folder / "store", folder / "data")
        wal = left / "log.db-wal"
        flip(wal, wal.stat().st_size // 2)
        (left / "log.db-shm").unlink()
        return engine.epoch


def assert_told(folder: Path, before: str) -> None:
    with Daemon(folder).serving() as daemon, daemon.connect() as client:
        assert client.hello()["epoch"] != before
        assert client.ask("get", jobId=NEWEST)["code"] == "not_found"
        assert daemon.stop() == 0


def test_a_start_that_syncs_refuses_it_and_says_how_to_go_on(folder, epoch):
    code, said = refused(folder)
    assert code == CORRUPT
    assert "starting once with durability os" in said


def test_the_start_that_leaves_it_out_fails_for_another_reason(folder, epoch):
    state = folder / "data" / "state.db"
    state.write_bytes(state.read_bytes()[:8192])
    code, said = refused(folder, "--durability", "os")
    assert code == CORRUPT
    assert "remove state.db" in said
    for path in state.parent.glob("state.*"):
        path.unlink()
    assert_told(folder, epoch)


@pytest.mark.parametrize("point", ["checkpoint.before", "checkpoint.after", "replace.inside"])
def test_the_start_that_leaves_it_out_is_killed(folder, epoch, point):
    code, said = refused(folder, "--durability", "os", settings={"failpoints": f"{point}=kill"})
    assert code == -signal.SIGKILL, said
    if point == "replace.inside":  # before anything was left out
        assert refused(folder)[0] == CORRUPT
        with Daemon(folder, "--durability", "os").serving() as daemon:
            assert daemon.stop() == 0
    assert_told(folder, epoch)
