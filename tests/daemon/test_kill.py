"""The daemon is killed at any moment, again and again: what it acknowledged is there, once, and whole."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import threading
from pathlib import Path

import pytest

from statesvc.backends.sqlite import SqliteEngine
from tests.daemon.harness import Client, Daemon
from tests.daemon.load import COUNTERS, Writer

ROUNDS = int(os.environ.get("STATESVC_TEST_KILL_ROUNDS", "12"))
"""`STATESVC_TEST_KILL_ROUNDS=100` is the long way."""

ROUND_SECONDS = 5
"""What a round may take on a loaded machine, to scale the test's own deadline."""


def inconsistencies(data: Path, copy: Path) -> list[str]:
    """What a store's own check finds after replay, in a copy, so that the daemon starts from what the kill left."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data, copy)

    async def check() -> list[str]:
        engine = SqliteEngine(copy)
        await engine.open()
        try:
            return [*await engine.check(), *await revisions_out_of_order(engine)]
        finally:
            await engine.close()

    return asyncio.run(check())


async def revisions_out_of_order(engine: SqliteEngine) -> list[str]:
    """Entries of the log that do not follow the one before them of the same record."""
    newest: dict[tuple[str, str], tuple[str, int]] = {}
    found: list[str] = []
    for _, _, row in await engine.read_log("", 10_000_000):
        before = newest.get(row.key)
        follows = row.revision == 1 if before is None or before[0] != row.uid else row.revision == before[1] + 1
        if not follows:
            found.append(f"{row.key}: {before} is followed by {row.stamp}")
        newest[row.key] = row.stamp
    return found


def total_of(client: Client, name: str) -> int:
    reply = client.ask("get", jobId=name)
    return int(reply["job"]["total"]) if reply["success"] else 0


@pytest.mark.slow
@pytest.mark.timeout(60 + ROUNDS * ROUND_SECONDS)
def test_nothing_acknowledged_is_lost_and_nothing_is_applied_twice_over_many_kills(folder, tmp_path, capsys):
    chance = random.Random(6)
    daemon = Daemon(folder)
    writers = [Writer(daemon.socket, f"w{number}", ack="last" if number % 2 else "each") for number in range(4)]
    for round_ in range(ROUNDS):
        daemon.serving()
        with daemon, daemon.connect() as client:
            assert [problem for writer in writers for problem in writer.missing_or_torn(client)] == [], (
                f"round {round_}"
            )
            totals = [total_of(client, name) for name in COUNTERS]
            for name, total in zip(COUNTERS, totals, strict=True):
                tallies = [writer.tallies[name] for writer in writers]
                assert sum(tally.acked for tally in tallies) <= total <= sum(tally.sent for tally in tallies)
            kill_under_load(daemon, writers, chance.randrange(1, 600))
        assert inconsistencies(daemon.data, tmp_path / "copy") == [], f"round {round_}"
        assert [problem for writer in writers for problem in writer.problems] == []

    with daemon.serving(), daemon.connect() as client:
        for writer in writers:
            writer.finish()
        assert [problem for writer in writers for problem in writer.missing_or_torn(client)] == []
        for name in COUNTERS:
            assert total_of(client, name) == sum(writer.tallies[name].sent for writer in writers)
        assert [problem for writer in writers for problem in writer.problems] == []
        assert daemon.stop() == 0
    acknowledged, resent = sum(w.acknowledged for w in writers), sum(w.resent for w in writers)
    with capsys.disabled():
        print(
            f"\n{ROUNDS} kills: {acknowledged} writes acknowledged, {resent} sent again, "
            f"{sum(w.duplicates for w in writers)} of them known as duplicates (half of the writers are told so)"
        )


def kill_under_load(daemon: Daemon, writers: list[Writer], goal: int) -> None:
    """Let every writer write; when one has come to its goal, the daemon is in the middle of it: kill it."""
    threads = [threading.Thread(target=writer.write_until_cut_off, args=(goal,)) for writer in writers]
    for thread in threads:
        thread.start()
    writers[0].reached.wait()
    daemon.kill()
    for thread in threads:
        thread.join()


def test_the_wal_of_a_killed_daemon_is_enough_to_bring_everything_back(folder):
    with Daemon(folder).serving() as daemon, daemon.connect() as client:
        client.hello("w")
        client.send(*({"op": "create", "job": {"uuid": f"job-{n}"}, "seq": n + 1} for n in range(500)))
        assert all(client.reply()["success"] for _ in range(500))
        daemon.kill()
        with daemon.serving().connect() as again:
            again.hello()
            seen: set[str] = set()
            cursor = None
            while True:
                page = again.ask("list", limit=100, **({"cursor": cursor} if cursor else {}))
                seen |= {job["uuid"] for job in page["jobs"]}
                if (cursor := page.get("nextCursor")) is None:
                    break
            assert seen == {f"job-{n}" for n in range(500)}
