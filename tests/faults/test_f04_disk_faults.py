"""F4: the disk is full, or fails: a write is refused or unknown, never acknowledged and lost."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from statesvc.store.places import PART
from tests.daemon import stores
from tests.daemon.harness import Client, Daemon, Reply, environment, refused, serving, until
from tests.faults.disk import (
    SYNCS,
    Load,
    failing,
    failing_for_a_while,
    failing_from_now,
    fill_up,
    mounted,
    synced_again,
    under_faults,
    use_up_files,
    was_injected,
    written_before_the_first_sync,
)
from tests.faults.program import scratch
from tests.sqlite.filling import change

IO_FAILURE = 74
NO_ENGINE = 69

LOG = ("log.db", "log.db-wal")
STATE = ("state.db", "state.db-wal")
BEING_MADE = ("log.db.new", "state.db.new")
SOON_IDLE = {"storage__sqlite__idle_seconds": 0.05}
NEVER_IDLE = {"storage__sqlite__idle_seconds": 600}
WRITES_OF_A_NEW_STORE = 6
"""As many syncs of the thread that commits as there are while the files are made."""

needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")


# --- a full disk ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(folder) -> Iterator[Path]:
    """A file system of two megabytes."""
    with mounted(folder / "disk", 2) as place:
        yield place


def create(client: Client, name: str, seq: int | None = None, **more: Any) -> Reply:
    job = {"uuid": name, "status": "PENDING", "labels": {"of": "disk"}, "pad": "x" * 2000}
    return client.ask("create", job=job, **({} if seq is None else {"seq": seq}), **more)


def names(client: Client, **filter: Any) -> set[str]:
    reply = client.ask("list", limit=1000, **({"filter": filter} if filter else {}))
    assert reply["success"], reply
    return {job["uuid"] for job in reply["jobs"]}


def test_a_full_disk_refuses_writes_serves_reads_and_recovers_without_a_restart(folder, small_disk):
    with serving(folder, data=small_disk / "data") as daemon, daemon.connect() as client:
        client.hello("w")
        taken = {f"job-{number}" for number in range(20)}
        assert all(create(client, name, seq + 1)["success"] for seq, name in enumerate(sorted(taken)))
        ballast = fill_up(small_disk)

        seq = 20
        while True:  # what is left in the file's own pages may take a few more
            seq += 1
            reply = create(client, f"late-{seq}", seq)
            if not reply["success"]:
                break
            taken.add(f"late-{seq}")
        assert (reply["code"], reply["outcome"], reply["seq"]) == ("no_space", "not_applied", seq)
        behind = create(client, f"late-{seq + 1}", seq + 1)
        assert (behind["code"], behind["outcome"]) == ("unavailable", "not_applied")

        with daemon.connect() as reader:
            reader.hello()
            assert names(reader) == taken
            assert names(reader, status="PENDING") == taken
            assert names(reader, labels={"of": "disk"}) == taken
            assert reader.ask("get", jobId="job-3")["job"]["pad"] == "x" * 2000
            assert reader.ask("get", jobId=f"late-{seq}")["code"] == "not_found"

        ballast.unlink()
        until(lambda: create(client, f"late-{seq}", seq, again=True)["success"], "the space to be noticed")
        assert create(client, f"late-{seq + 1}", seq + 1, again=True)["success"]
        taken |= {f"late-{seq}", f"late-{seq + 1}"}
        assert names(client) == taken
        assert daemon.stop() == 0

    with serving(folder, data=small_disk / "data") as daemon, daemon.connect() as client:
        client.hello()
        assert names(client) == taken


def test_what_a_full_disk_refused_is_never_served_nor_written_over_what_comes_next(folder, small_disk):
    """Also when a renewal came in between, whose beat is kept in memory over the newest there is."""
    with serving(folder, data=small_disk / "data") as daemon, daemon.connect() as one, daemon.connect() as other:
        one.hello("one")
        other.hello("other")
        (lock,) = one.ask("claim", kind="lock", id="l", holder="one", ttl=60)["records"]
        ballast = fill_up(small_disk)
        one.send(
            {"op": "update", "kind": "lock", "id": "l", "record": {"x": "refused", "pad": "p" * 100_000}},
            {"op": "renew", "kind": "lock", "id": "l", "token": lock["lease"]["token"]},
        )
        assert {(reply["code"], reply["outcome"]) for reply in (one.reply(), one.reply())} == {
            ("no_space", "not_applied")
        }
        ballast.unlink()
        assert other.ask("update", kind="lock", id="l", record={"x": "taken"})["record"]["revision"] == 2
        assert other.ask("get", kind="lock", id="l")["record"]["x"] == "taken"
        assert other.ask("update", kind="lock", id="l", record={"y": 1})["record"]["x"] == "taken"


def test_a_store_killed_on_a_full_disk_has_all_that_was_acknowledged(folder, small_disk):
    with serving(folder, data=small_disk / "data") as daemon, daemon.connect() as client:
        client.hello()
        taken = {name for name in (f"job-{number}" for number in range(20)) if create(client, name)["success"]}
        ballast = fill_up(small_disk)
        for number in range(100):
            if create(client, f"late-{number}")["success"]:
                taken.add(f"late-{number}")
        daemon.kill()
        ballast.unlink()
        with daemon.serving().connect() as again:
            again.hello()
            assert names(again) == taken


def test_an_engine_that_has_no_space_to_open_is_waited_for(folder, small_disk):
    (small_disk / "data").mkdir(mode=0o700)
    (small_disk / "data" / "lock").write_text("1234567")
    ballast = fill_up(small_disk)
    with waited_for(Daemon(folder, data=small_disk / "data"), ballast, "job-1"):
        pass


@contextmanager
def waited_for(daemon: Daemon, ballast: Path, name: str) -> Iterator[Client]:
    """Start on a full disk; with the ballast gone the store opens, and takes a job of this name."""
    with daemon.start():
        daemon.wait_for_ping()
        with daemon.connect() as client:
            reply = create(client, name)
            assert (reply["code"], reply["outcome"]) == ("unavailable", "not_applied")
            assert "disk is full" in reply["error"]
            subprocess.run(["rm", "-r", str(ballast)], check=True)
            until(lambda: create(client, name)["success"], "the engine to open")
            yield client
        assert daemon.events("engine_unavailable")
        assert daemon.stop() == 0


@pytest.mark.parametrize("take_all", [fill_up, use_up_files])
def test_a_store_that_was_closed_is_waited_for_on_a_disk_that_is_full_since(folder, take_all):
    """Nothing is to be written but what SQLite makes beside a file for as long as it is open."""
    with mounted(folder / "disk", 2, files=100) as small_disk:
        with serving(folder, data=small_disk / "data") as daemon, daemon.connect() as client:
            assert create(client, "job-1")["success"]
            assert daemon.stop() == 0
        ballast = take_all(small_disk)
        with waited_for(Daemon(folder, data=small_disk / "data"), ballast, "job-2") as client:
            assert client.ask("get", jobId="job-1")["success"]


def test_an_engine_that_is_required_ends_the_daemon_when_it_cannot_be_opened(folder, small_disk):
    (small_disk / "data").mkdir(mode=0o700)
    (small_disk / "data" / "lock").write_text("1234567")
    fill_up(small_disk)
    code, said = refused(folder, "--require-backend", data=small_disk / "data")
    assert code == NO_ENGINE
    assert '"event": "engine_unavailable"' in said
    assert "disk is full" in said


def test_a_file_size_limit_ends_the_daemon_and_loses_nothing(folder):
    limited = ["sh", "-c", 'ulimit -f 600; exec "$@"', "sh"]
    with Daemon(folder, under=limited).serving() as daemon, daemon.connect() as client:
        client.hello("w")
        acknowledged = _write_until_refused(client)
        assert daemon.exit_code() == IO_FAILURE
    assert_acknowledged_are_there(folder, acknowledged)


def _write_until_refused(client: Client) -> set[str]:
    """Create records until one is not acknowledged, which must be told as unknown; then nothing may be any more."""
    acknowledged: set[str] = set()
    for number in range(10_000):
        reply = create(client, f"job-{number}", number + 1)
        if not reply["success"]:
            assert reply["outcome"] == "unknown", reply
            break
        acknowledged.add(f"job-{number}")
    return acknowledged


def assert_acknowledged_are_there(folder: Path, acknowledged: set[str]) -> None:
    with serving(folder) as daemon, daemon.connect() as client:
        assert stores.everything(client).keys() >= acknowledged
        assert daemon.stop() == 0


def test_many_clients_on_a_full_disk_are_refused_and_all_go_on_when_there_is_space(folder, small_disk):
    with serving(folder, data=small_disk / "data") as daemon:
        load = Load(daemon)
        load.write(30)
        assert load.refusals == []
        ballast = fill_up(small_disk)
        load.write(3000)
        first = {client.name: client.refusals[0] for client in load.clients}
        assert {(reply["code"], reply["outcome"]) for reply in first.values()} == {("no_space", "not_applied")}
        assert {reply["outcome"] for reply in load.refusals} == {"not_applied"}
        assert [client.after_refusal for client in load.clients] == [0, 0, 0]
        assert load.wrong(daemon) == [], "and what was taken can be read"
        ballast.unlink()
        load.persist()
        load.write(30)
        assert load.wrong(daemon) == []
        assert daemon.stop() == 0


def test_a_snapshot_that_does_not_fit_is_refused_by_name_and_leaves_nothing(folder):
    with (
        mounted(folder / "disk", 4) as place,
        serving(folder, data=place / "data") as daemon,
        daemon.connect() as client,
    ):
        taken = {name for name in (f"job-{number}" for number in range(60)) if create_incompressible(client, name)}
        assert len(taken) == 60
        assert client.ask("snapshot", path="small.snapshot")["success"]
        kept = sorted(daemon.data.rglob("*snapshot*"))
        ballast = fill_up(place)
        reply = client.ask("snapshot", path="late.snapshot")
        assert (reply["success"], reply["code"]) == (False, "no_space")
        assert sorted(daemon.data.rglob("*snapshot*")) == kept, "half a file was left"
        assert names(client) == taken
        ballast.unlink()
        until(lambda: create(client, "later")["success"], "the space to be noticed")
        assert client.ask("snapshot", path="late.snapshot")["success"]
        assert daemon.stop() == 0


def create_incompressible(client: Client, name: str) -> bool:
    return bool(client.ask("create", job={"uuid": name, "pad": secrets.token_hex(3000)})["success"])


def test_a_log_that_cannot_be_cut_for_want_of_space_is_cut_later_and_nothing_is_lost(folder, small_disk):
    settings = {"retention__log_seconds": 0.01}
    with serving(folder, data=small_disk / "data", settings=settings) as daemon, daemon.connect() as client:
        load = Load(daemon)
        load.write(100)
        ballast = fill_up(small_disk)
        reply = client.ask("sweep")
        assert reply["success"] or reply["code"] == "no_space", reply
        assert load.wrong(daemon) == []
        ballast.unlink()
        load.persist()
        assert client.ask("sweep")["success"]
        load.write(10)
        assert load.wrong(daemon) == []
        daemon.kill()
        daemon.serving()
        assert load.wrong(daemon) == []


# --- a disk that fails ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept() -> Iterator[Path]:
    """The files of a store with a record, closed: what is synced from there on is what the test does."""
    with scratch() as place:
        with serving(place) as daemon, daemon.connect() as client:
            assert create(client, "first")["success"]
            assert daemon.stop() == 0
        yield daemon.data


@pytest.fixture
def prepared(folder, kept) -> Path:
    shutil.copytree(kept, folder / "data")
    return folder


def assert_some_are_unknown_and_then_none_is_applied(load: Load) -> None:
    """Who wrote what failed hears that it is unknown; who wrote what was to follow it, that it was not applied."""
    outcomes = [[reply["outcome"] for reply in client.refusals] for client in load.clients]
    assert any(heard[:1] == ["unknown"] for heard in outcomes), outcomes
    assert all(heard == sorted(heard, reverse=True) for heard in outcomes), "unknown after not_applied"
    if len(load.clients) == 1:
        assert outcomes[0][0] == "unknown", "it wrote all there was"
    assert [client.after_refusal for client in load.clients] == [0] * len(load.clients), "acknowledged after a failure"


@needs_strace
@pytest.mark.parametrize(
    ("clients", "fault"),
    [
        pytest.param(1, f"{SYNCS}:error=EIO:when=3", id="log-sync-early"),
        pytest.param(3, f"{SYNCS}:error=EIO:when=25", id="log-sync-late"),
        pytest.param(1, f"{SYNCS}:error=ENOSPC:when=12", id="log-sync-no-space"),
    ],
)
def test_a_failed_sync_of_the_log_is_unknown_ends_the_daemon_and_is_never_tried_again(prepared, clients, fault):
    with failing(prepared, LOG, fault).serving() as daemon:
        load = Load(daemon, clients)
        load.write(2000)
        assert daemon.exit_code() == IO_FAILURE
        assert daemon.events("engine_broken")
    assert_some_are_unknown_and_then_none_is_applied(load)
    assert synced_again(prepared) == []
    load.assert_each_write_comes_out_once(prepared)


@needs_strace
def test_an_event_whose_sync_failed_is_unknown_though_nothing_is_read_behind_it(prepared):
    """Its reply names the place behind it, which nobody can look for in a store that failed."""
    with failing(prepared, LOG, f"{SYNCS}:error=EIO:when=3").serving() as daemon, daemon.connect() as client:
        replies = (client.ask("emit", jobId="first", event={"type": "note"}) for _ in range(100))
        refusal = next(reply for reply in replies if not reply["success"])
        assert (refusal["code"], refusal["outcome"]) == ("internal", "unknown")
        assert daemon.exit_code() == IO_FAILURE
    assert synced_again(prepared) == []


@needs_strace
@pytest.mark.slow
def test_whichever_sync_of_a_new_store_fails_the_daemon_ends_and_has_acknowledged_nothing_behind_it(folder):
    """From the first file that is made to the first writes, one sync of a thread after the other."""
    for nth in count(1):
        place = folder / f"{nth}"
        place.mkdir(mode=0o700)
        fault = f"{SYNCS}:error=EIO:when={nth}"
        with failing(place, (*BEING_MADE, *LOG, *STATE), fault, settings=NEVER_IDLE).start() as daemon:
            load = Load(daemon, clients=1)
            write_one_by_one(load, daemon, WRITES_OF_A_NEW_STORE)
            if not was_injected(place):
                break
            assert daemon.exit_code() == IO_FAILURE
            assert daemon.events("engine_broken")
        assert load.clients[0].after_refusal == 0
        assert synced_again(place) == []
        load.assert_each_write_comes_out_once(place)
    assert nth > WRITES_OF_A_NEW_STORE


def write_one_by_one(load: Load, daemon: Daemon, most: int) -> None:
    """Each a commit of its own, until there are enough of them or the daemon has ended."""
    (client,) = load.clients

    def is_over() -> bool:
        client.write(0 if client.undecided else 1)
        return daemon.has_ended or (client.sent == most and not client.undecided)

    until(is_over, "some writes, or the end")


@needs_strace
@pytest.mark.slow
def test_whichever_sync_of_a_restore_fails_it_is_refused_and_the_old_store_stands(prepared):
    with serving(prepared) as daemon, daemon.connect() as client:
        assert client.ask("snapshot", path="kept.snapshot")["success"]
        assert create(client, "second")["success"]
        assert daemon.stop() == 0
    for nth in count(1):
        coming = tuple(f"incoming/{file}" for file in (*BEING_MADE, *LOG, *STATE))
        with failing(prepared, coming, f"{SYNCS}:error=EIO:when={nth}").serving() as daemon, daemon.connect() as client:
            reply = client.ask("restore", path="kept.snapshot")
            if reply["success"]:
                break
            assert reply["code"] == "internal"
            assert synced_again(prepared) == []
            assert names(client) == {"first", "second"}
            assert create(client, f"after-{nth}")["success"]
            assert client.ask("delete", jobId=f"after-{nth}")["success"]
            assert daemon.stop() == 0
    assert not was_injected(prepared)
    assert nth > 6, "both files, and their WALs"


@needs_strace
def test_a_snapshot_that_cannot_be_synced_is_refused_and_leaves_nothing(prepared):
    part = f".late.snapshot{PART}"
    with failing(prepared, (part,), f"{SYNCS}:error=EIO:when=1").serving() as daemon, daemon.connect() as client:
        reply = client.ask("snapshot", path="late.snapshot")
        assert (reply["success"], reply["code"]) == (False, "internal"), reply
        assert was_injected(prepared)
        assert sorted(daemon.data.rglob("*snapshot*")) == []
        assert client.ask("snapshot", path="late.snapshot")["success"]
        assert daemon.stop() == 0


@needs_strace
@pytest.mark.parametrize(
    ("clients", "fault"),
    [
        pytest.param(1, "pwrite64:error=EIO:when=20", id="page"),
        pytest.param(3, "pwrite64:error=EIO:when=21", id="header"),
        pytest.param(1, "pwrite64:error=EFBIG:when=40", id="too-long"),
    ],
)
def test_a_failed_write_to_the_log_is_unknown_and_ends_the_daemon(prepared, clients, fault):
    with failing(prepared, ("log.db-wal",), fault).serving() as daemon:
        load = Load(daemon, clients)
        load.write(2000)
        assert daemon.exit_code() == IO_FAILURE
        assert daemon.events("engine_broken")
    assert_some_are_unknown_and_then_none_is_applied(load)
    load.assert_each_write_comes_out_once(prepared)


@needs_strace
def test_a_failed_write_to_the_state_ends_the_daemon_and_every_write_comes_out_once(prepared):
    with failing(prepared, STATE, "pwrite64:error=EIO:when=4").serving() as daemon:
        load = Load(daemon)
        load.write(2000)
        assert daemon.exit_code() == IO_FAILURE
        assert daemon.events("engine_broken")
    assert [client.after_refusal for client in load.clients] == [0, 0, 0]
    load.assert_each_write_comes_out_once(prepared)


@needs_strace
def test_a_wal_of_the_state_whose_sync_failed_is_written_anew_before_it_is_synced_again(prepared):
    """The log is cut up to where the state is on the disk. A second sync would say so of what the first one lost."""
    cutting = {"retention__log_seconds": 0.01}
    with serving(prepared, settings=cutting) as daemon, daemon.connect() as client:
        load = Load(daemon)
        load.write(50)
        assert names(client), "and all of it is applied by now"
        with failing_from_now(daemon, STATE, f"{SYNCS}:error=EIO:when=1"):
            assert not client.ask("sweep")["success"]
            assert daemon.exit_code() == IO_FAILURE
        assert "state.db-wal cannot be synced" in daemon.events("engine_broken")[0]["why"]
    assert synced_again(prepared) == []
    length = (daemon.data / "state.db-wal").stat().st_size
    assert length
    with failing(prepared, ("state.db-wal",), settings=cutting).serving() as daemon, daemon.connect() as client:
        assert client.ask("sweep")["success"]
        daemon.kill()
    assert written_before_the_first_sync(prepared) >= length
    load.assert_each_write_comes_out_once(prepared)


@needs_strace
def test_a_write_to_the_log_that_finds_no_space_is_not_applied_and_the_daemon_goes_on(prepared):
    with failing(prepared, ("log.db-wal",), "pwrite64:error=ENOSPC:when=30..60").serving() as daemon:
        load = Load(daemon)
        load.write(100)
        assert {"no_space", "unavailable"} >= {reply["code"] for reply in load.refusals}
        assert "no_space" in {reply["code"] for reply in load.refusals}
        assert {reply["outcome"] for reply in load.refusals} == {"not_applied"}
        assert load.wrong(daemon) == [], "and none of them was"
        load.persist()
        load.write(20)
        assert load.wrong(daemon) == []
        assert daemon.stop() == 0
    load.assert_each_write_comes_out_once(prepared)


@needs_strace
def test_a_state_that_finds_no_space_lags_behind_a_log_that_takes_everything(prepared):
    with failing(prepared, ("state.db-wal",), "pwrite64:error=ENOSPC:when=1..3").serving() as daemon:
        load = Load(daemon)
        load.write(50)
        until(lambda: daemon.events("disk_full"), "the state to find no space")
        assert load.refusals == []
        assert load.wrong(daemon) == []
        load.write(50)
        assert load.wrong(daemon) == []
        assert daemon.stop() == 0
    load.assert_each_write_comes_out_once(prepared)


@needs_strace
def test_a_state_whose_wal_has_no_space_for_a_longer_index_lags_behind_as_well(prepared):
    large = {f"large-{number}" for number in range(4)}
    with serving(prepared, settings=NEVER_IDLE) as daemon, daemon.connect() as client:
        with failing_for_a_while(daemon, ("state.db-shm",), "pwrite64:error=ENOSPC"):
            for name in large:  # together more pages than an index has room for at first
                assert client.ask("create", job={"uuid": name, "pad": "x" * 6_000_000})["success"]
            assert client.ask("snapshot", path="a.snapshot")["code"] == "no_space"
            assert all(client.ask("get", jobId=name)["success"] for name in large)
        until(lambda: client.ask("snapshot", path="a.snapshot")["success"], "the state to catch up")
        assert daemon.stop() == 0
    assert was_injected(prepared)
    with serving(prepared) as daemon, daemon.connect() as client:
        assert all(client.ask("get", jobId=name)["success"] for name in large)


@needs_strace
@pytest.mark.parametrize(
    ("files", "fault"),
    [
        pytest.param(("log.db",), f"{SYNCS}:error=EIO:when=1", id="sync"),
        pytest.param(("log.db",), "pwrite64:error=EIO:when=1", id="write"),
    ],
)
def test_a_checkpoint_of_the_idle_log_that_fails_ends_the_daemon(prepared, files, fault):
    with failing(prepared, files, fault, settings=SOON_IDLE).serving() as daemon:
        load = Load(daemon)
        load.write(5)
        assert daemon.exit_code() == IO_FAILURE
    if "sync" in fault:
        assert synced_again(prepared) == []
    load.assert_each_write_comes_out_once(prepared)


@needs_strace
@pytest.mark.parametrize("mark", ["watermark.new", "state.watermark.new"])
@pytest.mark.parametrize("fault", [f"{SYNCS}:error=EIO:when=1", "write:error=ENOSPC:when=1", "write:error=EIO:when=1"])
def test_a_watermark_that_cannot_be_written_costs_nobody_a_write(prepared, mark, fault):
    with failing(prepared, (mark,), fault, settings=SOON_IDLE).serving() as daemon:
        load = Load(daemon)
        load.write(10)
        if mark == "watermark.new":
            until(lambda: daemon.events("watermark_not_written"), "the watermark to fail")
            assert not (daemon.data / mark).exists(), "a file whose sync failed must not be synced again"
        load.write(10)
        assert load.refusals == []
        assert load.wrong(daemon) == []
        assert daemon.stop() == 0
    assert was_injected(prepared)
    load.assert_each_write_comes_out_once(prepared)


@needs_strace
@pytest.mark.parametrize("files", [LOG, STATE])
def test_a_store_that_cannot_be_synced_when_it_is_closed_says_so_and_has_everything(folder, files):
    with serving(folder, settings={"storage__sqlite__idle_seconds": 60}) as daemon:
        load = Load(daemon)
        load.write(20)
        with failing_from_now(daemon, files, f"{SYNCS}:error=EIO:when=1+"):
            daemon.signal(signal.SIGTERM)
            assert daemon.exit_code() == 0, "everything acknowledged is on the disk already"
        assert daemon.events("closing_failed")
    assert synced_again(folder) == []
    load.assert_each_write_comes_out_once(folder)


@needs_strace
def test_a_sync_that_fails_in_a_repair_ends_it_and_is_never_tried_again(prepared):
    change(prepared / "data" / "log.db", "DROP INDEX batch_back")
    repair = [sys.executable, "-m", "statesvc", "check", "--repair", "--offline", "--data", str(prepared / "data")]
    # SQLite's own syncs are these: the first is that of the index as it is made.
    failing_once = under_faults(prepared, LOG, "fdatasync:error=EIO:when=1")
    options: dict[str, Any] = {"env": environment(), "capture_output": True, "text": True, "timeout": 60}
    ended = subprocess.run([*failing_once, *repair], check=False, **options)
    assert ended.returncode == IO_FAILURE
    (said,) = ended.stderr.splitlines()
    assert "disk I/O error" in said
    assert synced_again(prepared) == []
    done = subprocess.run(repair, check=True, **options)
    assert json.loads(done.stdout)["problems"] == []
