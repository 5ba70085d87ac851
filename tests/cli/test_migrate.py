"""migrate: from a running daemon or a folder to another engine, cut short and gone on with, and handed over."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from statesvc.cli.session import Session
from statesvc_client.errors import Unavailable
from tests.cli.running import (
    Answer,
    Home,
    ended,
    eventually,
    heed_interrupts,
    line_of,
    plain_environment,
    run,
    started,
)
from tests.cli.test_snapshots import everything_from
from tests.users import not_root

FROZEN = (
    "statesvc: the source is frozen: go on with the same command, or take that back with --thaw-source "
    "instead of --cut-over"
)
HANDING_OVER = "statesvc: the source is frozen, and the target takes over or has done so: go on with the same command"


@pytest.fixture
def there(tmp_path) -> Home:
    """Where a store is moved to."""
    (tmp_path / "there").mkdir(mode=0o700)
    return Home(tmp_path / "there")


@pytest.fixture(params=["memory", "sqlite"])
def serving(request, home) -> Iterator[Home]:
    with home.daemon("--backend", request.param):
        yield home


def migrate(source: str, target: Home, *words: str) -> Answer:
    return run("migrate", "--from", source, "--to", f"sqlite:{target.data}", *words)


def socket_of(home: Home) -> str:
    return f"unix:{home.socket}"


def fill(home: Home, count: int) -> None:
    with Session(home.socket, timeout=30) as session:
        for begin in range(0, count, 500):
            jobs = [{"uuid": f"job-{n}", "status": "QUEUED", "n": n} for n in range(begin, min(count, begin + 500))]
            session.ask("sync", jobs=jobs)


def jobs_of(home: Home) -> dict[str, dict[str, Any]]:
    return {job["uuid"]: job for job in home.ask("list", "--all").records}


@contextmanager
def light_writes(home: Home) -> Iterator[list[str]]:
    """Somebody goes on writing until a freeze stops it; every write that was acknowledged is noted."""
    done, stop = [], threading.Event()

    def write() -> None:
        with Session(home.socket, timeout=30) as session:
            for number in range(1_000_000):
                try:
                    session.ask("update", jobId=f"job-{number % 50}", inc={"writes": 1})
                    session.ask("create", job={"uuid": f"late-{number}"})
                except Unavailable:
                    return
                done.append(f"late-{number}")
                if stop.wait(0.002):
                    return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


# --- moving --------------------------------------------------------------------------------------------------------


def test_a_running_daemon_is_moved_while_it_serves(serving, there):
    fill(serving, 300)
    with light_writes(serving) as done:
        eventually(lambda: len(done) > 5)
        first = migrate(socket_of(serving), there)
        assert first.code == 0, first.err
        assert (first.record["complete"], first.record["sourceFrozen"]) == (False, False)
        assert "this is not the cut-over" in first.record["next"]
        so_far = len(done)
        eventually(lambda: len(done) > so_far + 5)
        report = migrate(socket_of(serving), there, "--cut-over", "-o", "json")
    assert report.code == 0, report.err
    told = report.record
    assert (told["complete"], told["equal"], told["sourceFrozen"]) == (True, True, True)
    assert told["whole"]["source"] == told["whole"]["target"]
    assert report.err == ""
    assert serving.ask("create", "too-late").code == 5
    before = jobs_of(serving)
    assert set(done) <= set(before)
    with there.daemon():
        assert jobs_of(there) == before
        assert there.ask("create", "new").code == 0
        assert there.ask("check").record["problems"] == []


def test_a_folder_nobody_serves_is_moved_and_left_frozen(home, there):
    with home.daemon():
        fill(home, 50)
        before = jobs_of(home)
    report = migrate(f"sqlite:{home.data}", there, "--cut-over")
    assert report.code == 0, report.err
    assert report.record["kinds"]["job"]["target"]["rows"] == 50
    with there.daemon():
        assert jobs_of(there) == before
    with home.daemon():
        assert home.ask("create", "x").code == 5


def test_a_folder_that_is_served_is_read_through_the_daemon_of_its_configuration(home, there, tmp_path):
    file = tmp_path / "source.yml"
    file.write_text(f"state:\n  backend: sqlite\n  data: {home.data}\n  socket: {home.socket}\n")
    with home.daemon():
        fill(home, 20)
        assert migrate(str(file), there).record["whole"]["target"]["rows"] == 20
        by_flag = migrate(f"sqlite:{home.data}", there, "--socket", str(home.socket))
        assert by_flag.code == 0, by_flag.err
        unnamed = migrate(f"sqlite:{home.data}", there)
        assert unnamed.code == 2
        assert "give --socket" in unnamed.err
    # What the daemon handed out before is now read from the files.
    assert migrate(str(file), there, "--cut-over").record["complete"]


def test_a_daemon_of_another_store_is_not_taken_for_the_source(home, there, tmp_path, served):
    with home.daemon():
        fill(home, 3)
        wrong = migrate(f"sqlite:{home.data}", there, "--socket", str(served))
    assert wrong.code == 2
    assert "serves another store" in wrong.err
    assert not there.data.exists()


def test_a_write_is_applied_once_across_the_move(serving, there):
    with Session(serving.socket, timeout=30, client="agent") as session:
        session.ask("create", job={"uuid": "job-1", "n": 0}, seq=1, floor=1)
        session.ask("update", jobId="job-1", inc={"n": 1}, seq=2, floor=1)
    assert migrate(socket_of(serving), there, "--cut-over").code == 0
    with there.daemon(), Session(there.socket, timeout=30, client="agent") as session:
        again = session.ask("update", jobId="job-1", inc={"n": 1}, seq=2, floor=2, again=True)
        assert again["duplicate"] is True
        assert session.ask("update", jobId="job-1", inc={"n": 1}, seq=3, floor=3)["job"]["n"] == 2


def test_a_lease_and_its_token_go_along(serving, there):
    fill(serving, 3)
    lock = serving.ask("claim", "leader", "--kind", "lock", "--ttl", "60").record["lease"]
    job = serving.ask("claim", "--ttl", "60").record
    assert migrate(socket_of(serving), there, "--cut-over").code == 0
    with there.daemon():
        assert there.ask("renew", "leader", "--kind", "lock", "--token", str(lock["token"])).code == 0
        assert (
            there.ask("release", job["uuid"], "--token", str(job["lease"]["token"]), "--status", "COMPLETED").code == 0
        )
        assert there.ask("release", "leader", "--kind", "lock", "--token", str(lock["token"])).code == 0
        again = there.ask("claim", "leader", "--kind", "lock").record["lease"]
        assert again["token"] > lock["token"]


def test_a_deleted_record_stays_deleted(serving, there):
    fill(serving, 2)
    serving.ask("delete", "job-1")
    report = migrate(socket_of(serving), there, "--cut-over").record
    assert report["whole"]["target"]["rows"] == 2
    with there.daemon():
        assert there.ask("update", "job-1", "--status", "RUNNING").code == 3


# --- cut short -----------------------------------------------------------------------------------------------------


HALTING = """
import asyncio
from statesvc.cli import main
from statesvc.moving.migration import Migration
from statesvc.moving.target import Target

done = {place}

async def and_halt(self, *args, **kwargs):
    await done(self, *args, **kwargs)
    print("halted", flush=True)
    await asyncio.sleep(600)

{place} = and_halt
main()
"""
"""migrate, which does one thing and then nothing more until it is ended."""


@contextmanager
def halted(place: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HALTING.format(place=place), "migrate", *words]
    with subprocess.Popen(
        command, env=plain_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - no threads here
    ) as process:  # fmt: skip
        try:
            assert line_of(process) == "halted\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("place", ["Target.freeze", "Target.put", "Migration._follow"])
def test_a_move_that_was_killed_goes_on(place, home, there):
    with home.daemon():
        fill(home, 600)
        with halted(place, "--from", socket_of(home), "--to", f"sqlite:{there.data}") as moving:
            os.kill(moving.pid, signal.SIGKILL)
            moving.wait()
        with light_writes(home) as done:
            eventually(lambda: len(done) > 3)
            report = migrate(socket_of(home), there, "--cut-over")
        assert report.code == 0, report.err
        before = jobs_of(home)
    with there.daemon():
        assert jobs_of(there) == before


@pytest.mark.parametrize("place", ["Migration._settled", "Target.hand_over"])
def test_a_cut_over_that_was_killed_goes_on(place, home, there):
    with home.daemon():
        fill(home, 100)
        with halted(place, "--from", socket_of(home), "--to", f"sqlite:{there.data}", "--cut-over") as moving:
            os.kill(moving.pid, signal.SIGKILL)
            moving.wait()
        report = migrate(socket_of(home), there, "--cut-over")
        assert report.code == 0, report.err
        assert report.record["complete"]
        before = jobs_of(home)
    with there.daemon():
        assert jobs_of(there) == before
        assert there.ask("create", "new").code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_cut_over_says_how_to_go_on_and_that_the_source_is_frozen(number, home, there):
    with home.daemon():
        fill(home, 100)
        words = ("--from", socket_of(home), "--to", f"sqlite:{there.data}", "--cut-over", "-o", "json")
        with halted("Migration._settled", *words) as moving:
            moving.send_signal(number)
            answer = ended(moving)
        assert answer.code == 130
        assert answer.err.splitlines() == ["statesvc: interrupted; the same command goes on from here", FROZEN]
        assert home.ask("create", "y").code == 5
        undone = run("migrate", "--from", socket_of(home), "--to", f"sqlite:{there.data}", "--thaw-source")
        assert undone.record["sourceFrozen"] is False
        assert home.ask("create", "y").code == 0
        assert migrate(socket_of(home), there, "--cut-over").record["complete"]


def test_a_cut_over_that_was_interrupted_when_the_target_took_over_does_not_offer_to_take_it_back(home, there):
    with home.daemon():
        fill(home, 10)
        words = ("--from", socket_of(home), "--to", f"sqlite:{there.data}", "--cut-over")
        with halted("Target.hand_over", *words) as moving:
            moving.send_signal(signal.SIGINT)
            answer = ended(moving)
        assert answer.err.splitlines() == ["statesvc: interrupted; the same command goes on from here", HANDING_OVER]
        assert migrate(socket_of(home), there, "--cut-over").record["already"]


def test_a_target_does_not_take_over_from_a_daemon_that_was_told_to_thaw_meanwhile(serving, there):
    fill(serving, 10)
    words = ("migrate", "--from", socket_of(serving), "--to", f"sqlite:{there.data}", "--cut-over")
    environment = {**plain_environment(), "STATESVC_FAILPOINTS": "migrate.complete=stop"}
    with started(*words, env=environment) as moving:
        os.waitid(os.P_PID, moving.pid, os.WSTOPPED)
        assert serving.ask("thaw").code == 0
        moving.send_signal(signal.SIGCONT)
        answer = ended(moving)
    assert answer.code == 4
    assert "the source was thawed while it was moved" in answer.err
    assert FROZEN not in answer.err
    assert serving.ask("create", "late").code == 0
    assert migrate(socket_of(serving), there, "--cut-over").record["complete"]
    with there.daemon():
        assert "late" in jobs_of(there)


def test_an_interrupted_copy_leaves_the_source_open(home, there):
    with home.daemon():
        fill(home, 100)
        with halted("Migration._copy", "--from", socket_of(home), "--to", f"sqlite:{there.data}") as moving:
            moving.send_signal(signal.SIGINT)
            answer = ended(moving)
        assert (answer.code, answer.err) == (130, "statesvc: interrupted; the same command goes on from here\n")
        assert home.ask("create", "y").code == 0


def test_a_cut_over_may_leave_the_source_open(serving, there):
    fill(serving, 3)
    report = migrate(socket_of(serving), there, "--cut-over", "--thaw-source").record
    assert (report["complete"], report["sourceFrozen"]) == (True, False)
    assert serving.ask("create", "x").code == 0
    again = migrate(socket_of(serving), there, "--cut-over")
    assert again.code == 4
    assert "the source was written to since" in again.err


# --- refused -------------------------------------------------------------------------------------------------------


def test_a_target_with_records_of_its_own_is_refused(serving, there):
    with there.daemon():
        there.ask("create", "own")
    refused = migrate(socket_of(serving), there)
    assert refused.code == 4
    assert "choose an empty one, or give --replace" in refused.err
    assert migrate(socket_of(serving), there, "--replace", "--cut-over").record["complete"]


def test_a_target_that_a_daemon_has_is_refused(serving, there):
    with there.daemon():
        assert migrate(socket_of(serving), there).code == 75


@pytest.mark.parametrize("target", ["unix:/tmp/x.sock", "memory.yml"])
def test_a_daemon_is_no_target(serving, tmp_path, target):
    (tmp_path / "memory.yml").write_text("state:\n  backend: memory\n")
    answer = run(
        "migrate", "--from", socket_of(serving), "--to", str(tmp_path / target) if ".yml" in target else target
    )
    assert answer.code == 2
    assert "name the engine, not a daemon" in answer.err


def test_a_source_that_this_user_may_not_look_into_is_named(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o000)
    with not_root():
        answer = run("migrate", "--from", f"sqlite:{tmp_path / 'closed'}", "--to", f"sqlite:{tmp_path / 'to'}")
    assert answer.code == 2
    assert "may not be looked into" in answer.err


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("sqlite:{folder}/none", 2, "holds no store"),
        ("unix:{folder}/none.sock", 5, "is the daemon running?"),
        ("{folder}/none.yml", 2, "no such file, and no address"),
        ("Redis://:hunter2@localhost", 2, "Error: ...@localhost: no such file, and no address"),
        ("sqlite:", 2, "a path is missing"),
        ("redis://localhost:6379?colour=red", 2, "takes no 'colour'"),
        ("redis://localhost:6379?namespace={{}}", 78, "namespace"),
        ("redis://localhost:6379?password_file=%00", 78, "storage.redis.password_file"),
    ],
)
def test_a_source_that_is_none_is_named_and_no_target_is_made(tmp_path, there, source, code, words):
    answer = migrate(source.format(folder=tmp_path), there)
    assert answer.code == code
    assert words in answer.err
    assert not there.data.exists()
    assert not (tmp_path / "none").exists()


def test_a_password_in_an_address_is_not_shown(tmp_path):
    from statesvc.cli import ends

    end = ends.read("redis://agent:secret@localhost:6379?namespace=a")
    assert "secret" not in end.shown
    assert end.settings is not None
    assert end.settings.storage.redis.password is not None
    assert end.settings.storage.redis.password.reveal() == "secret"


def test_the_environment_of_one_daemon_does_not_configure_two(tmp_path, monkeypatch):
    from statesvc.cli import ends

    file = tmp_path / "a.yml"
    file.write_text("state:\n  backend: redis\n")
    monkeypatch.setenv("STATESVC_BACKEND", "memory")
    monkeypatch.setenv("STATESVC_STORAGE__REDIS__PASSWORD", "secret")
    settings = ends.read(str(file)).settings
    assert settings is not None
    assert settings.backend == "redis"
    assert settings.storage.redis.password is not None


# --- what is shown -------------------------------------------------------------------------------------------------


def test_people_get_a_table_of_counts_and_digests(serving, there):
    fill(serving, 3)
    lines = migrate(socket_of(serving), there, "--cut-over", "-o", "table").out.splitlines()
    assert lines[0].split("  ")[0] == "KIND"
    job = lines[1].split()
    assert job[:3] == ["job", "3", "3"]
    assert job[3] == job[4]
    assert "the target has taken over: the source is frozen" in lines[-1]


def test_a_target_that_was_frozen_since_it_took_over_is_left_so_and_said_to_be(home, there):
    with home.daemon():
        fill(home, 3)
    source = f"sqlite:{home.data}"
    assert migrate(source, there, "--cut-over").record["targetFrozen"] is False
    again = migrate(source, there, "--cut-over").record
    assert (again["targetFrozen"], again["next"]) == (False, "it was completed before; nothing was done")
    with there.daemon():
        assert there.ask("freeze").code == 0
    again = migrate(source, there, "--cut-over").record
    assert again["targetFrozen"] is True
    assert "the target is frozen: let it take writes with `statesvc thaw` there" in again["next"]
    with there.daemon():
        assert there.ask("create", "x").code == 5


def test_a_terminal_sees_how_far_it_is(home, there):
    parent, child = pty.openpty()
    with home.daemon():
        fill(home, 200)
        words = ("migrate", "--from", socket_of(home), "--to", f"sqlite:{there.data}")
        with started(*words, stderr=child) as moving:
            os.close(child)
            shown = everything_from(parent)
            assert ended(moving).code == 0
    assert b"copying  [##############################]  100%  200 of 200 rows, " in shown
    assert shown.endswith(b"\r\x1b[K")
