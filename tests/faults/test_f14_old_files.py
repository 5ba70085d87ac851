"""F14: old files, old clients: every released format opens and shows what was in it, newer ones are refused untouched.

What is kept lies in tests/testdata, each made once by the version that wrote it: stores by make_store.py, snapshots and
spools by make_kept_files.py, and client-protocol-N.jsonl is what a client of protocol N says, with what it relies on in
the answers. Stores of a newer format: test_f03_damaged_files.py.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from statesvc.backends.sqlite.log import FORMAT as LOG_FORMAT
from statesvc.backends.sqlite.state import FORMAT as STATE_FORMAT
from statesvc.store import snapshots
from statesvc_client import wire
from statesvc_client.adapter_errors import SpoolCorrupt
from statesvc_client.blocking import StateStore
from tests.daemon.harness import serving
from tests.testdata.make_kept_files import KEPT, SPOOL_VERSION, reread

STORES = sorted(KEPT.glob("store-format-*"))
SNAPSHOTS = sorted(KEPT.glob("snapshot-format-*"))
SPOOLS = sorted(KEPT.glob("spool-format-*"))
PROTOCOLS = sorted(KEPT.glob("client-protocol-*.jsonl"))


def expected(kept: Path, name: str = "records.json") -> list[dict[str, Any]]:
    return json.loads((kept / name).read_text())


def copied(kept: Path, target: Path) -> Path:
    """What is kept stays as it was left; git knows no private files."""
    shutil.copytree(kept, target)
    target.chmod(0o700)
    for file in target.iterdir():
        file.chmod(0o600)
    return target


@pytest.mark.parametrize(
    ("kept", "newest"),
    [
        (STORES, max(LOG_FORMAT.newest, STATE_FORMAT.newest)),
        (SNAPSHOTS, snapshots.VERSION),
        (SPOOLS, SPOOL_VERSION),
        (PROTOCOLS, wire.PROTOCOL),
    ],
    ids=["stores", "snapshots", "spools", "protocols"],
)
def test_of_every_version_there_ever_was_something_is_kept(kept: list[Path], newest: int):
    """Changed a format? Make a kept one of it (see above), and leave the others where they are."""
    versions = {int(re.findall(r"\d+", path.name)[0]) for path in kept}
    assert versions == set(range(1, newest + 1))


# --- stores --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", STORES, ids=lambda path: path.name)
def test_a_daemon_serves_a_kept_store_goes_on_with_it_and_finds_it_again(folder, kept):
    copied(kept, folder / "data")
    for number in (1, 2):
        with serving(folder) as daemon, daemon.connect() as client:
            assert [shown(client, record) for record in expected(kept)] == expected(kept)
            assert client.ask("get", jobId="job-4")["code"] == "not_found"
            assert unknown_problems(client) == []
            assert client.ask("create", job={"uuid": f"new-{number}"})["success"]
            assert client.ask("get", jobId="new-1")["success"]
            assert daemon.stop() == 0


def unknown_problems(client: Any) -> list[str]:
    """What a check finds, but for the label that make_store.py hung on a volume by hand."""
    found = client.ask("check").get("problems", [])
    return [each for each in found if not re.match(r"volume vol-1 is indexed otherwise .* by labels$", each)]


def shown(client: Any, record: dict[str, Any]) -> dict[str, Any]:
    if "uuid" in record:
        return client.ask("get", jobId=record["uuid"])["job"]
    return client.ask("get", kind="volume", id=record["id"])["record"]


# --- snapshots -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", SNAPSHOTS, ids=lambda path: path.name)
def test_a_kept_snapshot_is_restored(folder, kept):
    with serving(folder) as daemon, daemon.connect() as client:
        copied(kept, daemon.data / "snapshots")
        assert client.ask("create", job={"uuid": "of-before"})["success"]
        restored = client.ask("restore", path="snapshots/kept")
        assert restored["success"], restored
        assert [without_lease(shown(client, record)) for record in expected(kept)] == expected(kept)
        assert client.ask("get", jobId="of-before")["code"] == "not_found"
        assert unknown_problems(client) == []


def without_lease(record: dict[str, Any]) -> dict[str, Any]:
    """A restored record is what it was; only its lease may have begun anew."""
    return {name: value for name, value in record.items() if name != "lease"}


def test_a_newer_snapshot_is_refused_and_nothing_is_touched(folder):
    with serving(folder) as daemon, daemon.connect() as client:
        file = copied(SNAPSHOTS[-1], daemon.data / "snapshots") / "kept"
        newer = b"%s %d\n" % (snapshots.FORMAT.encode(), snapshots.VERSION + 1)
        file.write_bytes(newer + file.read_bytes().split(b"\n", 1)[1])
        before = file.read_bytes()
        assert client.ask("create", job={"uuid": "of-before"})["success"]
        refused = client.ask("restore", path="snapshots/kept")
        assert (refused["code"], "use a newer one" in refused["error"]) == ("bad_request", True), refused
        assert client.ask("get", jobId="of-before")["success"]
        assert file.read_bytes() == before


# --- spools --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", SPOOLS, ids=lambda path: path.name)
def test_a_kept_spool_is_read_as_it_was_written(tmp_path, kept):
    found = reread(copied(kept, tmp_path / "spool") / "spool")
    assert (found.client, found.torn_bytes) == ("client-1", 0)
    waiting = [{"seq": write.seq, **json.loads(write.frame())} for write in found.waiting]
    assert waiting == expected(kept, "writes.json")


@pytest.mark.parametrize("kept", SPOOLS, ids=lambda path: path.name)
def test_what_waits_in_a_kept_spool_arrives(folder, kept):
    path = copied(kept, folder / "spool") / "spool"
    with serving(folder) as daemon:
        with StateStore.connect(daemon.socket, spool=str(path)) as state:
            state.flush()
        with daemon.connect() as client:
            job = client.ask("get", jobId="job-2")["job"]
            assert (job["status"], job["step"], job["twin"], job["big"]) == ("RUNNING", 2, 1, 2**53)
            assert client.ask("get", jobId="job-1")["code"] == "not_found", "it had been decided"
            assert client.ask("get", kind="volume", id="vol-1")["code"] == "not_found", "made, and deleted"
            told = client.ask("history", jobId="job-2")["events"]
            assert [event["type"] for event in told] == ["created", "updated", "note"]


def test_a_newer_spool_is_refused_and_left_untouched(tmp_path):
    path = copied(SPOOLS[-1], tmp_path / "spool") / "spool"
    newer = b"statesvc-spool %d\n" % (SPOOL_VERSION + 1) + path.read_bytes().split(b"\n", 1)[1]
    path.write_bytes(newer)
    with pytest.raises(SpoolCorrupt, match=f"version {SPOOL_VERSION + 1}.*newer"):
        reread(path)
    assert path.read_bytes() == newer


# --- clients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", PROTOCOLS, ids=lambda path: path.stem)
@pytest.mark.parametrize("extra", [{}, {"fromTheFuture": {"a": [1]}, "x-trace": "t"}], ids=["as it is", "unknown keys"])
def test_a_client_of_every_protocol_is_understood_and_told_what_it_relies_on(folder, kept, extra):
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    with serving(folder) as daemon, daemon.connect() as client:
        for line in lines:
            client.send({**line["send"], **extra})
            reply = client.reply()
            assert contains(reply, line["expect"]), (line, reply)


def contains(reply: Any, expect: Any) -> bool:
    if isinstance(expect, dict):
        return isinstance(reply, dict) and all(contains(reply.get(name), value) for name, value in expect.items())
    return bool(reply == expect)


@pytest.mark.parametrize("protocol", [0, wire.PROTOCOL + 1])
def test_a_protocol_that_is_not_spoken_is_named_and_the_connection_stays_usable(folder, protocol):
    with serving(folder, backend="memory") as daemon, daemon.connect() as client:
        refused = client.ask("hello", client="c", protocol=protocol)
        assert refused["code"] == "bad_request"
        assert f"protocol {protocol} is not spoken here; known: {wire.PROTOCOL}" in refused["error"]
        assert client.ask("hello", client="c", protocol=wire.PROTOCOL)["success"]


def test_a_client_that_names_no_protocol_or_says_no_hello_is_served(folder):
    with serving(folder, backend="memory") as daemon, daemon.connect() as silent, daemon.connect() as client:
        assert client.ask("hello", client="c")["protocol"] == 1
        assert silent.ask("create", job={"Uuid": "job-1", "Status": "RUNNING", "NodeId": "n"})["success"]
        whole = silent.ask("update", job={"Uuid": "job-1", "Status": "COMPLETED"})
        assert whole["success"]
        assert silent.ask("create", job={"uuid": "job-1"})["error"] == "CREATE_ERROR: job already exists"
        assert client.ask("get", jobId="job-1")["job"]["status"] == "COMPLETED"
