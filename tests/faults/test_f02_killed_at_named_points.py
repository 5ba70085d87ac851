"""F2: the daemon is killed at named points, in system calls of a commit, and in migrations, snapshots and restores.

Each point has an outcome of its own: what was not written is not there, what was is there once, and nothing half done
passes for done.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statesvc import failpoints
from statesvc.store.snapshots import inspect
from tests.daemon.harness import Client, Daemon, Reply, environment, until
from tests.daemon.jobs import fill, finished, jobs_of, names
from tests.daemon.load import Writer, writing
from tests.faults.program import scratch
from tests.sqlite.filling import damage

JOBS = 1500
"""A snapshot of these has several blocks."""

FEW = 20
KILLED = -9

needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


def armed(folder: Path, point: str, action: str = "kill", **settings: object) -> Daemon:
    return Daemon(folder, settings={"failpoints": f"{point}={action}", **settings})


def create(client: Client, name: str, seq: int, **more: Any) -> Reply:
    return client.ask("create", job={"uuid": name}, seq=seq, **more)


def dies(daemon: Daemon) -> None:
    assert daemon.exit_code() == KILLED, daemon.stderr


def unanswered(client: Client, op: str, **fields: Any) -> None:
    """Ask what the daemon dies of."""
    client.send({"op": op, **fields})
    with pytest.raises(OSError):
        finished(client)


@pytest.fixture(scope="module")
def kept() -> Iterator[Path]:
    """The files of a store with a few records, closed."""
    with scratch() as place:
        with Daemon(place).serving() as daemon, daemon.connect() as client:
            fill(client, FEW)
            assert daemon.stop() == 0
        yield daemon.data


@pytest.fixture
def filled(folder, kept) -> Path:
    """Where a store with a few records lies, closed."""
    shutil.copytree(kept, folder / "data")
    return folder


def assert_whole(folder: Path, expected: set[str]) -> None:
    with Daemon(folder).serving() as daemon, daemon.connect() as client:
        assert jobs_of(client) == expected
        assert client.ask("check")["problems"] == []
        assert daemon.stop() == 0


# --- a commit --------------------------------------------------------------------------------------------------------

WRITTEN = {"commit.before": False, "commit.after": True, "reply.before": True}


@pytest.mark.parametrize("point", WRITTEN)
def test_a_write_cut_off_in_its_commit_has_happened_or_not_and_sending_it_again_tells(filled, point):
    with armed(filled, point, "kill@2").serving() as daemon, daemon.connect() as client:
        client.hello("w")
        assert create(client, "first", 1)["success"]
        unanswered(client, "create", job={"uuid": "second"}, seq=2)
        dies(daemon)
    with Daemon(filled).serving() as daemon, daemon.connect() as client:
        assert client.ask("get", jobId="first")["success"]
        assert client.ask("get", jobId="second")["success"] == WRITTEN[point]
        client.hello("w")
        reply = create(client, "second", 2, again=True)
        assert reply["success"]
        assert bool(reply.get("duplicate")) == WRITTEN[point]
        assert client.ask("get", jobId="second")["job"]["revision"] == 1


@needs_strace
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync"])
@pytest.mark.parametrize("when", [1, 3])
def test_a_write_cut_off_in_a_system_call_of_its_commit_is_there_wholly_or_not_at_all(filled, call, when):
    wal = filled / "data" / "log.db-wal"
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(wal), "-e", f"trace={call}"]
    daemon = Daemon(filled, under=[*strace, "-e", f"inject={call}:signal=KILL:when={when}"])
    writer = Writer(daemon.socket, "w", records=4)
    with daemon.serving():
        writer.write_until_cut_off(1000)
        daemon.exit_code()
    with Daemon(filled).serving() as daemon:
        writer.finish()
        with daemon.connect() as client:
            assert writer.missing_or_torn(client) == []
            assert client.ask("check")["problems"] == []
    assert writer.problems == []


# --- behind the commit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    ["apply.before", "apply.inside", "apply.after", "checkpoint.before", "checkpoint.after", "replace.inside"],
)
def test_what_was_acknowledged_outlives_a_kill_while_the_files_follow(filled, point):
    """The state follows within its bound and files are settled after a second of idleness: each comes by itself."""
    with armed(filled, point).serving() as daemon, daemon.connect() as client:
        client.hello("w")
        assert create(client, "last", 1)["success"]
        dies(daemon)
    assert_whole(filled, names(FEW) | {"last"})


def test_a_kill_while_the_front_of_the_log_is_taken_off_costs_no_record(filled):
    settings: dict[str, Any] = {"retention__log_seconds": 0.01, "retention__interval_seconds": 3600}
    with armed(filled, "compaction.inside", **settings).serving() as daemon, daemon.connect() as client:
        client.hello("w")
        assert create(client, "last", 1)["success"]
        unanswered(client, "sweep")
        dies(daemon)
    assert_whole(filled, names(FEW) | {"last"})


# --- the files themselves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2])
def test_a_store_cut_off_while_a_file_gets_its_format_is_made_again(folder, nth):
    """The first file is the log, the second the state."""
    with armed(folder, "format.inside", f"kill@{nth}").start() as daemon:
        dies(daemon)
    with Daemon(folder).serving() as daemon, daemon.connect() as client:
        client.hello("w")
        assert create(client, "first", 1)["success"]
        assert daemon.stop() == 0
    assert_whole(folder, {"first"})


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["drain.before", "drain.answered", "close.between"])
def test_what_was_acknowledged_outlives_a_kill_while_the_daemon_drains(filled, point):
    daemon = armed(filled, point)
    writer = Writer(daemon.socket, "w")
    with daemon.serving(), writing([writer], 100):
        daemon.signal(15)
        dies(daemon)
    with Daemon(filled).serving() as daemon:
        with daemon.connect() as client:
            assert writer.missing_or_torn(client) == []
        writer.finish()
        with daemon.connect() as client:
            assert writer.missing_or_torn(client) == []
            assert client.ask("check")["problems"] == []
    assert writer.problems == []


# --- snapshots -------------------------------------------------------------------------------------------------------


def snapshots(folder: Path) -> list[Path]:
    return list((folder / "data").rglob("*.snapshot"))


@pytest.mark.parametrize("point", ["snapshot.inside", "snapshot.whole"])
def test_a_kill_in_a_snapshot_leaves_nothing_that_passes_for_one_and_no_damage(folder, point):
    daemon = armed(folder, point)
    writers = [Writer(daemon.socket, f"w{number}") for number in range(2)]
    with daemon.serving(), daemon.connect() as client:
        fill(client, JOBS)
        with writing(writers, 200):
            unanswered(client, "snapshot")
            dies(daemon)
    assert snapshots(folder) == []
    (left,) = (folder / "data").rglob("*-part")
    with Daemon(folder).serving() as daemon, daemon.connect() as client:
        assert [problem for writer in writers for problem in writer.missing_or_torn(client)] == []
        assert client.ask("check")["problems"] == []
        done = client.ask("snapshot")["done"]
        assert inspect(daemon.data / done["path"]).footer.rows == done["rows"]
        assert done["kinds"]["job"] >= JOBS
        assert not left.exists(), "what the killed one left is in the way for ever"


@needs_strace
@pytest.mark.parametrize("call", ["linkat", "unlinkat"])
def test_a_kill_when_a_snapshot_is_given_its_name_leaves_none_or_a_whole_one(filled, call):
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
    with Daemon(filled, under=[*strace, "-e", f"inject={call}:signal=KILL:when=1"]).serving() as daemon:
        with daemon.connect() as client:
            unanswered(client, "snapshot", path="s.snapshot")
        daemon.exit_code()
    assert bool(snapshots(filled)) == (call == "unlinkat")
    for found in snapshots(filled):
        assert inspect(found).footer.rows == FEW
    with Daemon(filled).serving() as daemon, daemon.connect() as client:
        assert client.ask("check")["problems"] == []
        assert client.ask("snapshot")["success"]


# --- restores --------------------------------------------------------------------------------------------------------

TAKES_PLACE = {"restore.inside": False, "restore.complete": True, "restore.placing": True}


@pytest.fixture(scope="module")
def kept_with_snapshot(kept) -> Iterator[Path]:
    with scratch() as place:
        shutil.copytree(kept, place / "data")
        with Daemon(place).serving() as daemon, daemon.connect() as client:
            assert client.ask("snapshot", path="old.snapshot")["success"]
            client.hello("w")
            assert create(client, "late", 1)["success"]
            assert daemon.stop() == 0
        yield daemon.data


@pytest.fixture
def two_stores(folder, kept_with_snapshot) -> Path:
    """A store with a snapshot of before beside it."""
    shutil.copytree(kept_with_snapshot, folder / "data")
    return folder


def offline(folder: Path, *words: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """A verb on the files, while no daemon has them."""
    return subprocess.run(
        [sys.executable, "-m", "statesvc", *words, "--offline", "--data", str(folder / "data")],
        env=environment(**settings), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("point", "nth"), [*((point, 1) for point in TAKES_PLACE), ("restore.placing", 2)])
def test_a_kill_in_a_restore_leaves_the_old_store_or_the_new_one(two_stores, point, nth):
    with armed(two_stores, point, f"kill@{nth}").serving() as daemon, daemon.connect() as client:
        epoch = client.ask("health")["epoch"]
        unanswered(client, "restore", path="old.snapshot")
        dies(daemon)
    with Daemon(two_stores).serving() as daemon, daemon.connect() as client:
        assert jobs_of(client) == (names(FEW) if TAKES_PLACE[point] else names(FEW) | {"late"})
        assert (client.ask("health")["epoch"] != epoch) == TAKES_PLACE[point]
        assert client.ask("check")["problems"] == []
        assert bool(daemon.events("restore_finished")) == TAKES_PLACE[point]
        assert bool(daemon.events("unfinished_restore_removed")) != TAKES_PLACE[point]
        assert not (daemon.data / "incoming").exists()
        assert daemon.stop() == 0


@pytest.mark.parametrize("by_command", [True, False], ids=["the command again", "a start"])
def test_what_a_restore_without_a_daemon_leaves_that_was_killed_is_cleared_away_by_whoever_is_next(
    two_stores, by_command
):
    restore = ("snapshot", "restore", "old.snapshot")
    assert offline(two_stores, *restore, failpoints="restore.inside=kill").returncode == KILLED
    (left,) = (two_stores / "data").glob("restoring-*")
    left = left.rename(left.with_name("restoring-20260101T000000Z"))  # of another second than what comes next
    if by_command:
        assert offline(two_stores, *restore).returncode == 0
        assert not left.exists()
    with Daemon(two_stores).serving() as daemon, daemon.connect() as client:
        assert jobs_of(client) == (names(FEW) if by_command else names(FEW) | {"late"})
        assert [each["folder"] for each in daemon.events("unfinished_restore_removed")] == [str(left)] * (
            not by_command
        )
        assert not left.exists()
        assert daemon.stop() == 0


@pytest.mark.slow
def test_a_kill_at_any_moment_of_a_restore_leaves_the_old_store_or_the_new_one(folder, capsys):
    daemon = Daemon(folder)
    with daemon.serving().connect() as client:
        fill(client, JOBS)
        assert client.ask("snapshot", path="old.snapshot")["success"]
        client.send(*({"op": "create", "job": {"uuid": f"job-{n}"}} for n in range(JOBS, JOBS + 50)))
        assert all(client.reply()["success"] for _ in range(50))
        began = time.monotonic()
        assert client.ask("snapshot", path="new.snapshot")["success"]
        assert client.ask("restore", path="old.snapshot")["success"]
        took = time.monotonic() - began
    seen = []
    outcomes = {frozenset(names(count)): count for count in (JOBS, JOBS + 50)}
    with daemon:
        for round_ in range(8):
            client = daemon.connect()
            client.send({"op": "restore", "path": "new.snapshot" if round_ % 2 == 0 else "old.snapshot"})
            client.sock.settimeout(took * round_ / 8 or 0.001)
            try:
                client.reply()
            except TimeoutError:
                pass
            daemon.kill()
            client.close()
            with daemon.serving().connect() as client:
                seen.append(outcomes[frozenset(jobs_of(client))])
                assert client.ask("check")["problems"] == []
                assert not (daemon.data / "incoming").exists()
        assert daemon.stop() == 0
    with capsys.disabled():
        print(f"\n{len(seen)} kills during restores left the stores of {seen} jobs")


# --- repairs ---------------------------------------------------------------------------------------------------------


def told_of(client: Client) -> dict[str, Any]:
    """Every record, with its history."""
    client.hello()
    return {
        name: (client.ask("get", jobId=name)["job"], client.ask("history", jobId=name)["events"])
        for name in jobs_of(client)
    }


@pytest.fixture
def damaged(filled) -> tuple[Path, dict[str, Any]]:
    """A store whose log was cut, with a damaged page of records that the log has; and what was told of it before."""
    settings: dict[str, Any] = {"retention__log_seconds": 0.01, "retention__interval_seconds": 3600}
    with Daemon(filled, settings=settings).serving() as daemon, daemon.connect() as client:
        client.hello("w")
        assert create(client, "last", 1)["success"]
        assert client.ask("sweep")["success"]
        client.send(*({"op": "create", "job": {"uuid": f"new-{n}", "pad": "x" * 600}} for n in range(FEW)))
        assert all(client.reply()["success"] for _ in range(FEW))
        expected = told_of(client)
        assert daemon.stop() == 0
    assert expected["new-0"][1]
    damage(daemon.data / "state.db", "record", which=-1)
    return filled, expected


def repaired(folder: Path, **settings: object) -> subprocess.CompletedProcess[str]:
    return offline(folder, "check", "--repair", **settings)


@pytest.mark.parametrize("by_command", [True, False], ids=["the command again", "a start"])
@pytest.mark.parametrize(
    ("point", "nth"),
    [
        *(("restore.complete", 1), ("restore.placing", 1)),
        # The first is the copy of what can be read, the second what the kept log brings to it.
        *(("apply.before", 2), ("apply.inside", 2), ("apply.after", 2)),
    ],
)
def test_a_repair_that_was_killed_is_finished_by_whoever_opens_the_store_next(damaged, point, nth, by_command):
    folder, expected = damaged
    cut_off = repaired(folder, failpoints=f"{point}=kill@{nth}")
    assert cut_off.returncode == KILLED, cut_off.stderr
    if by_command:
        assert repaired(folder).returncode == 0
    with Daemon(folder).serving() as daemon, daemon.connect() as client:
        assert told_of(client) == expected
        assert client.ask("check")["problems"] == []
        assert daemon.stop() == 0


# --- moves to another store ------------------------------------------------------------------------------------------


@pytest.fixture
def there(tmp_path) -> Path:
    """Where a store is moved to."""
    (tmp_path / "there").mkdir(mode=0o700)
    return tmp_path / "there"


@pytest.fixture
def source(filled) -> Iterator[Daemon]:
    with Daemon(filled).serving() as daemon:
        yield daemon


def migrated(source: Daemon, there: Path, **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable, "-m", "statesvc", "migrate", "--cut-over",
            "--from", f"unix:{source.socket}", "--to", f"sqlite:{there / 'data'}",
        ],
        env=environment(**settings), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("point", ["migrate.inside", "migrate.frozen", "migrate.complete"])
def test_a_move_that_was_killed_goes_on_with_the_same_command_and_loses_nothing(source, there, point):
    cut_off = migrated(source, there, failpoints=f"{point}=kill")
    assert cut_off.returncode == KILLED, cut_off.stderr
    with source.connect() as client:
        frozen = client.ask("create", job={"uuid": "meanwhile"})
        assert frozen["success"] == (point == "migrate.inside"), "once frozen, nothing may be written past the move"
        expected = jobs_of(client)
    done = migrated(source, there)
    assert done.returncode == 0, done.stderr
    with Daemon(there).serving() as target, target.connect() as client:
        assert jobs_of(client) == expected
        assert client.ask("create", job={"uuid": "afterwards"})["success"], "the target was not handed over"
        assert client.ask("check")["problems"] == []


# --- the points themselves -------------------------------------------------------------------------------------------


def test_every_point_is_named_in_a_test_of_this_file():
    told = Path(__file__).read_text().split("# --- the points themselves")[0]
    assert [point for point in failpoints.POINTS if f'"{point}"' not in told] == []


def test_a_daemon_with_armed_points_says_so(folder):
    with armed(folder, "snapshot.whole").serving() as daemon:
        until(lambda: daemon.events("failpoints_armed"), "a warning")


@pytest.mark.parametrize("text", ["commit.somewhere=kill", "commit.after=explode", "commit.after=kill@x", "nonsense"])
def test_a_point_that_does_not_exist_is_refused(folder, text):
    with Daemon(folder, settings={"failpoints": text}).start() as daemon:
        assert daemon.exit_code() == 78
        assert f"STATESVC_FAILPOINTS: {text.partition('=')[0]}" in daemon.stderr


def test_a_daemon_that_was_made_to_stop_at_a_point_goes_on_when_it_is_told_to(folder):
    with armed(folder, "commit.before", "stop@1").serving() as daemon, daemon.connect() as client:
        client.hello("w")
        client.send({"op": "create", "job": {"uuid": "late"}, "seq": 1})
        until(lambda: Path(f"/proc/{daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", "a standstill")
        daemon.signal(18)
        assert client.reply()["success"]
