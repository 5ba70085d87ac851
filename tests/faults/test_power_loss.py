"""The power is lost anywhere in what the store writes: nothing acknowledged is lost, nothing is refused.

The program beside this, `python -m tests.faults.power`, does the same with as many states as one has time for.
"""

from __future__ import annotations

import random
import shutil
from collections import deque

import pytest

from statesvc.backends.sqlite.paths import Paths
from statesvc.backends.sqlite.salvaging import salvage
from tests.faults import program
from tests.faults.power.campaign import Share, Tally, points, run
from tests.faults.power.disk import ALL, NOTHING, AnyLoss, Disk
from tests.faults.power.judging import lay_out
from tests.faults.power.operations import ROOT, Naming, Phase, Recording, Sync, Truncate, Write, read_image
from tests.faults.power.recordings import Left, record, record_after_failed_sync, record_again
from tests.faults.power.tracing import NotExact, Tracer, run_traced

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed"),
]

STATES = 150

WAL_HEADER_BYTES = 32

MET = {
    "phases": {"open", "work", "burst", "purge", "idle", "compact", "snapshot", "restore", "close", "forever"},
    "places": {
        *("log.db-wal", "state.db-wal", "log.db", "state.db", "watermark", "state.watermark", "incoming", "snapshots"),
        *("rename watermark", "rename state.watermark", "rename incoming", "rename log.db", "rename state.db"),
        *("unlink log.db-wal", "link snapshots", "mkdir incoming", "unsynced", "unlink unsynced"),
    },
    "faults": {"dropped", "torn", "reordered", "zero-filled", "stale blocks", "truncate undone", "create undone"},
}
"""A commit, checkpoints of both files, watermarks, cutting and shrinking, snapshots and restores: all are cut off."""


@pytest.fixture
def scratch():
    with program.scratch(in_memory=True) as folder:
        yield folder


def attacked(scratch, *recordings: Recording, states: int = STATES, most_problems: int = 10) -> Tally:
    return run(recordings, Share(states, "1", scratch / "work", scratch / "kept", most_problems=most_problems))


def test_every_state_a_power_loss_leaves_is_opened_with_all_that_was_promised(scratch):
    lives = [
        record(scratch, name, level, "1") for name, level in (("life", "disk"), ("kills", "disk"), ("kills", "os"))
    ]
    tally = attacked(scratch, *lives)
    assert tally.problems == []
    assert tally.counts["states"] >= STATES
    assert tally.counts["inside a commit"] > 10
    assert tally.counts["of a second loss"] > 10
    assert MET["phases"] <= tally.phases.keys()
    assert MET["places"] <= tally.places.keys()
    assert MET["faults"] <= tally.faults.keys()


def test_what_a_failed_sync_left_out_is_not_trusted_by_the_next_start(scratch):
    """What it reads in a WAL is lost with the power, until it has written it again."""
    life = record_after_failed_sync(scratch, "1")
    assert len(life.before["state.db-wal"] or b"") <= WAL_HEADER_BYTES, "nothing was left out"
    assert attacked(scratch, life).problems == []


def salvaged(scratch, life: Recording) -> Left:
    """The store that a life left in good order, with the new state of a repair in its place that went no further."""
    point = deque(points(life), maxlen=1)[0]
    lay_out(point.disk.everything(), scratch / "salvaged")
    paths = Paths.below(scratch / "salvaged")
    assert "were written into a new file" in salvage(paths, "FULL", "as if it were damaged")
    return Left(life.name, life.durability, read_image(paths.folder), tuple(point.said))


def opening_of(recording: Recording) -> Recording:
    """Only what is done until the store is open."""
    _, end, *_ = (number for number, each in enumerate(recording.operations) if isinstance(each, Phase))
    return recording._replace(operations=recording.operations[:end])


def test_a_power_loss_in_the_first_start_behind_a_repair_leaves_all_that_was_promised(scratch):
    """What the kept log has is replayed then, over what it has led to already."""
    left = salvaged(scratch, record(scratch, "kills", "disk", "1"))
    (start,) = record_again(scratch, [left], "1")
    tally = attacked(scratch, opening_of(start), states=2 * STATES)
    assert tally.problems == []
    assert {"state.db-wal", "rename state.watermark"} <= tally.places.keys()
    assert "torn" in tally.faults


# --- bugs that it has to see ---------------------------------------------------------------------------------------


def without_syncs(recording: Recording, *names: str) -> Recording:
    """As if the store had not synced these files."""
    operations = [
        each._replace(covers=0) if isinstance(each, Sync) and recording.files[each.file] in names else each
        for each in recording.operations
    ]
    return recording._replace(operations=operations)


def test_it_sees_the_loss_when_something_is_not_synced(scratch):
    life = record(scratch, "short", "disk", "2")
    planted = {
        "the commit": (["log.db-wal"], {"loss"}),
        "the watermark before its rename": (["watermark", "state.watermark"], {"watermark"}),
        "the folder": (["the folder"], {"loss", "refused", "snapshot"}),
        "a checkpoint of the log": (["log.db"], {"refused", "loss", "damaged"}),
        "a checkpoint of the state": (["state.db"], {"refused", "mixture", "damaged"}),
    }
    for what, (names, kinds) in planted.items():
        tally = attacked(scratch, without_syncs(life, *names), states=300, most_problems=1)
        assert kinds & tally.broken.keys(), f"{what} was not synced, and nobody noticed: {tally.figures()}"


def test_it_sees_the_loss_when_a_level_is_not_kept(scratch):
    """The engine itself, opened with `synchronous = OFF` and calling that `disk`."""
    tally = attacked(scratch, record(scratch, "short", "disk", "3", planted="off"), states=300, most_problems=1)
    assert tally.broken.keys() & {"loss", "refused", "mixture"}


# --- the model of a disk -------------------------------------------------------------------------------------------

FILE = 1


def disk_of(*operations) -> Disk:
    disk = Disk(Recording("", "disk", {}, {ROOT: "", FILE: "file"}, list(operations)))
    for operation in operations:
        disk.take(operation)
    return disk


NAMED = Naming("create", ((ROOT, "file", FILE),))


def left_by_chance(disk: Disk) -> list[bytes | None]:
    return [disk.left_by(AnyLoss(random.Random(seed), b"debris").loss()).get("file") for seed in range(300)]


def test_what_was_synced_survives_every_loss():
    disk = disk_of(NAMED, Write(FILE, 0, b"a" * 700), Sync(FILE, 2), Sync(ROOT, 2))
    assert {disk.left_by(NOTHING)["file"], disk.left_by(ALL)["file"], *left_by_chance(disk)} == {b"a" * 700}


def test_a_sync_covers_what_was_done_when_it_began():
    disk = disk_of(NAMED, Sync(ROOT, 1), Write(FILE, 0, b"a"), Write(FILE, 1, b"b"), Sync(FILE, 3))
    assert disk.left_by(NOTHING) == {"file": b"a"}


def test_a_name_is_safe_when_its_folder_was_synced():
    assert disk_of(NAMED, Write(FILE, 0, b"a"), Sync(FILE, 2)).left_by(NOTHING) == {}


def test_writes_are_lost_torn_and_reordered():
    whole = (b"a" * 1024, b"b" * 1024)
    disk = disk_of(NAMED, Write(FILE, 0, whole[0]), Sync(FILE, 2), Sync(ROOT, 2), Write(FILE, 0, whole[1]))
    disk.take(Write(FILE, 1024, b"c" * 512))
    left = left_by_chance(disk)
    assert {whole[0], whole[1], b"a" * 512 + b"b" * 512, whole[1] + b"c" * 512} <= set(left)
    assert any(each.startswith(whole[0]) and each.endswith(b"c" * 512) for each in left if each is not None)
    assert any(each[1024:] == bytes(512) for each in left if each is not None)


def test_a_file_that_was_not_cut_short_holds_nothing_that_was_written_since():
    disk = disk_of(NAMED, Write(FILE, 0, b"a" * 512), Sync(FILE, 2), Sync(ROOT, 2), Truncate(FILE, 0))
    disk.take(Write(FILE, 0, b"b" * 512))
    assert {b"a" * 512, b"", b"b" * 512} <= set(left_by_chance(disk))
    assert not any(b"a" in each and b"b" in each for each in left_by_chance(disk) if each is not None)


# --- the recorder --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import mmap; f = open(p, 'w+b'); f.truncate(9); mmap.mmap(f.fileno(), 9)",
        "import os; open(p, 'w').close(); os.truncate(p, 9)",
        "open(p, 'a').write('x')",
    ],
)
def test_what_it_does_not_understand_it_refuses_to_record(tmp_path, code):
    folder = tmp_path / "0" / "store"
    folder.mkdir(parents=True)
    run_traced(["-c", f"p = {str(folder / 'file')!r}; {code}"], tmp_path / "trace")
    with pytest.raises(NotExact):
        Tracer(tmp_path, {"0": {}}).read(tmp_path / "trace")
