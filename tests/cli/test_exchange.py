"""export and import: what leaves one daemon arrives in another."""

from __future__ import annotations

import json
import os
import stat

import pytest

from statesvc.cli import exchange
from tests.cli.running import Home, run

TIMES = {
    "createdAt": "2026-01-01T00:00:00Z",
    "startedAt": "2026-01-01T00:00:05Z",
    "completedAt": "2026-01-01T00:01:00Z",
}


@pytest.fixture
def source(home):
    """A daemon with records of several kinds."""
    with home.daemon("--backend", "memory"):
        home.ask("create", "done", "--status", "COMPLETED", *(f"{name}={at}" for name, at in TIMES.items()))
        home.ask("create", "run", "--status", "RUNNING", 'secretEnvironment={"KEY": "hunter2"}', "text=häß😀")
        home.ask("create", "setting", "--kind", "kv", 'value={"a": [1, 2.5, null]}')
        home.ask("claim", "leader", "--kind", "lock")
        yield home


@pytest.fixture
def target(tmp_path):
    """A daemon with nothing in it."""
    folder = tmp_path / "target"
    folder.mkdir(mode=0o700)
    home = Home(folder)
    with home.daemon("--backend", "memory"):
        yield home


def test_everything_is_exported_a_line_a_record(source):
    answer = source.ask("export")
    assert answer.code == 0
    assert answer.err == "exported 4 records\n"
    named = [(line["kind"], line["record"].get("uuid", line["record"].get("id"))) for line in answer.records]
    assert named == [("job", "done"), ("job", "run"), ("kv", "setting"), ("lock", "leader")]
    assert [line["kind"] for line in source.ask("export", "--kind", "kv", "--kind", "lock").records] == ["kv", "lock"]


def test_many_records_are_exported_page_by_page(source):
    records = [{"uuid": f"many-{number:05}", "status": "PENDING"} for number in range(2500)]
    source.ask("sync", "-", stdin=json.dumps(records))
    exported = [line["record"]["uuid"] for line in source.ask("export", "--kind", "job").records]
    assert exported == sorted([*(record["uuid"] for record in records), "done", "run"])


def test_secrets_leave_only_when_asked_for_and_then_in_a_file_of_ones_own(source, tmp_path):
    assert "hunter2" not in source.ask("export").out
    file = tmp_path / "all.jsonl"
    assert source.ask("export", "--secrets", "-o", str(file)).code == 0
    assert "hunter2" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.glob("all*")] == ["all.jsonl"]


def test_an_export_that_fails_leaves_the_earlier_file_as_it_was(tmp_path):
    file = tmp_path / "all.jsonl"
    file.write_text("earlier\n")
    assert run("export", "-o", str(file), "--socket", str(tmp_path / "none.sock")).code == 5
    assert file.read_text() == "earlier\n"
    assert [path.name for path in tmp_path.glob("all*")] == ["all.jsonl"]


def test_a_pipe_is_written_to_and_stays_one(source, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert source.ask("export", "-o", str(pipe)).code == 0
        assert len(os.read(reader, 65_536).splitlines()) == 4
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_device_is_written_to_through_a_link_too(source, tmp_path):
    link = tmp_path / "nowhere"
    link.symlink_to(os.devnull)
    assert source.ask("export", "-o", str(link)).code == 0
    assert link.is_char_device()


@pytest.mark.parametrize("is_there", [True, False])
def test_what_a_link_points_to_is_replaced_and_the_link_stays(source, tmp_path, is_there):
    file, link = tmp_path / "there.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(file.name)
    if is_there:
        file.write_text("earlier\n")
    assert source.ask("export", "-o", str(link)).code == 0
    assert link.is_symlink()
    assert len(file.read_text().splitlines()) == 4


def test_a_file_that_was_replaced_is_on_the_disk_under_its_name(tmp_path, monkeypatch):
    file = tmp_path / "all.jsonl"
    synced: list[bool] = []
    fsync = os.fsync

    def and_note(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            synced.append(file.exists())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", and_note)
    with exchange._written(str(file), False) as out:
        out.write(b"{}\n")
    assert synced == [True]


def test_what_was_exported_arrives_elsewhere_with_its_times_and_again_changes_nothing(source, target, tmp_path):
    file = tmp_path / "all.jsonl"
    source.ask("export", "--secrets", "-o", str(file))
    first = target.ask("import", str(file))
    assert (first.code, first.err) == (0, "")
    each = {"records": 1, "applied": 1, "unchanged": 0, "rejected": 0}
    assert first.record == {"job": {**each, "records": 2, "applied": 2}, "kv": each, "lock": each}
    done = target.ask("get", "done").record
    assert {name: done[name] for name in TIMES} == TIMES
    run_ = target.ask("get", "run", "--show-secrets").record
    assert (run_["text"], run_["secretEnvironment"]) == ("häß😀", {"KEY": "hunter2"})
    assert target.ask("get", "setting", "--kind", "kv").record["value"] == {"a": [1, 2.5, None]}
    assert "lease" not in target.ask("get", "leader", "--kind", "lock").record
    again = target.ask("import", "-", stdin=file.read_text())
    assert {kind: (told["applied"], told["unchanged"]) for kind, told in again.record.items()} == {
        "job": (0, 2),
        "kv": (0, 1),
        "lock": (0, 1),
    }


def test_what_the_daemon_knows_better_is_rejected_and_named(source):
    exported = source.ask("export", "--kind", "job").out
    source.ask("update", "run", "--status", "COMPLETED")
    answer = source.ask("import", "-", "-o", "table", stdin=exported)
    assert answer.code == 4
    assert answer.err.startswith("job run: conflict: ")
    assert [line.split() for line in answer.out.splitlines()] == [
        ["KIND", "RECORDS", "APPLIED", "UNCHANGED", "REJECTED"],
        ["job", "2", "0", "1", "1"],
    ]
    assert source.ask("get", "run").record["status"] == "COMPLETED"


def test_a_record_that_comes_twice_is_brought_forward_twice(target):
    lines = [{"kind": "kv", "record": {"id": "a", "value": number}} for number in (1, 2)]
    answer = target.ask("import", "-", stdin="\n".join(map(json.dumps, lines)))
    assert answer.record["kv"]["applied"] == 2
    assert target.ask("get", "a", "--kind", "kv").record["value"] == 2


def test_large_records_go_in_frames_that_the_daemon_takes(home, tmp_path):
    lines = [{"kind": "kv", "record": {"id": f"a-{number}", "value": "x" * 20_000}} for number in range(20)]
    config = tmp_path / "c.yml"
    config.write_text("state: {limits: {frame_bytes: 65536, record_bytes: 32768}}\n")
    with home.daemon("--backend", "memory", "--config", str(config)):
        answer = home.ask("import", "-", stdin="\n".join(map(json.dumps, lines)))
    assert (answer.code, answer.record["kv"]["applied"]) == (0, 20)


def test_a_dry_run_counts_and_asks_nobody(tmp_path):
    lines = '{"kind": "job", "record": {"uuid": "a"}}\n\n{"kind": "kv", "record": {"id": "b"}}\n'
    words = ["import", "-", "--dry-run", "--socket", str(tmp_path / "none.sock")]
    answer = run(*words, stdin=lines)
    assert (answer.code, answer.record) == (0, {"job": {"records": 1}, "kv": {"records": 1}})
    assert run(*words, "-o", "table", stdin=lines).out.splitlines()[0].split() == ["KIND", "RECORDS"]


@pytest.mark.parametrize("line", ["{broken", "[]", '{"uuid": "a"}', '{"kind": 1, "record": {}}', '{"kind": "kv"}'])
def test_a_line_that_no_export_makes_is_a_wrong_usage_and_named(tmp_path, line):
    good = '{"kind": "kv", "record": {"id": "a"}}\n'
    answer = run("import", "-", "--dry-run", "--socket", str(tmp_path / "none.sock"), stdin=good + line)
    assert answer.code == 2
    assert "line 2: " in answer.err
