"""The spool: what waits comes back, damage is named, nobody else's file is touched."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statesvc_client import writes
from statesvc_client.adapter_errors import OutboxFull, SpoolBusy, SpoolCorrupt, SpoolFailed, SpoolUnsafe
from statesvc_client.desk import Desk
from statesvc_client.options import Options
from statesvc_client.spool import MARK, Spool
from statesvc_client.wire import Limits
from tests.client.conftest import plain_environment


def numbered(seq: int, id: str = "j") -> writes.Write:
    write = writes.update("job", id, {"n": seq}, None)
    write.seq = seq
    return write


def spooled(path: Path, *seqs: int) -> Spool:
    spool = Spool(str(path))
    assert spool.load().waiting == []
    spool.begin("client-1", [])
    for seq in seqs:
        spool.add(numbered(seq))
    return spool


def reopened(path: Path):
    spool = Spool(str(path))
    try:
        return spool.load()
    finally:
        spool.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def test_what_waits_comes_back_in_order_under_the_same_client(path):
    spooled(path, 1, 2, 3).close()
    found = reopened(path)
    assert found.client == "client-1"
    assert [(write.seq, write.fields, write.sent) for write in found.waiting] == [
        (1, {"n": 1}, True), (2, {"n": 2}, True), (3, {"n": 3}, True),
    ]  # fmt: skip
    assert found.next_seq > 1000, "numbers that a torn tail may have held are not used again"


def test_what_is_decided_does_not_come_back(path):
    spool = spooled(path, 1, 2, 3, 4)
    spool.decided_upto(2, [numbered(1), numbered(2)])
    spool.decided_one(numbered(4))
    spool.close()
    assert [write.seq for write in reopened(path).waiting] == [3]


def test_a_merged_write_comes_back_once(path):
    spool = spooled(path, 1, 2)
    spool.merge(1, 2, writes.update("job", "j", {"n": 2, "m": 1}, None).frame())
    spool.close()
    assert [(write.seq, write.fields) for write in reopened(path).waiting] == [(1, {"n": 2, "m": 1})]


def test_an_empty_spool_gives_a_new_client(path):
    spool = spooled(path, 1)
    spool.decided_upto(1, [numbered(1)])
    spool.close()
    assert reopened(path).client is None


def test_everything_decided_empties_the_file(path):
    spool = spooled(path, *range(1, 50))
    full = path.stat().st_size
    spool.decided_upto(49, [numbered(seq) for seq in range(1, 50)])
    assert spool.wants_compaction
    spool.compact([])
    assert path.stat().st_size < full / 10
    spool.add(numbered(50))
    spool.close()
    assert [write.seq for write in reopened(path).waiting] == [50]


def test_what_was_in_the_file_before_it_was_emptied_may_come_back_behind_what_is_new(path):
    """As a power loss leaves it between the first block's new content and the file's new length."""
    spool = spooled(path, *range(1, 200))
    before = path.read_bytes()
    spool.decided_upto(199, [numbered(seq) for seq in range(1, 200)])
    spool.compact([])
    spool.add(numbered(200))
    spool.close()
    block = path.read_bytes().ljust(4096, bytes(1))
    assert len(before) > len(block)
    path.write_bytes(block + before[len(block) :])
    found = reopened(path)
    assert [write.seq for write in found.waiting] == [200]
    assert found.torn_bytes > len(before) - len(block)


def test_damage_with_newer_records_behind_it_is_still_refused_in_a_file_that_was_emptied(path):
    spool = spooled(path, 1, 2)
    spool.decided_upto(2, [numbered(1), numbered(2)])
    spool.compact([])
    start = path.stat().st_size
    for seq in (3, 4):
        spool.add(numbered(seq))
    spool.close()
    damaged = bytearray(path.read_bytes())
    damaged[start + 20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(SpoolCorrupt, match="whole records follow"):
        reopened(path)


def test_a_rewritten_spool_keeps_what_waits_and_its_lock(path):
    spool = spooled(path, 1, 2, 3)
    spool.decided_one(numbered(1))
    spool.compact([numbered(2), numbered(3)])
    with pytest.raises(SpoolBusy):
        Spool(str(path))
    spool.add(numbered(4))
    spool.close()
    assert [write.seq for write in reopened(path).waiting] == [2, 3, 4]


def test_the_floor_follows_only_what_is_on_disk(path):
    spool = spooled(path, 1, 2)
    spool.decided_upto(1, [numbered(1)])
    assert spool.durable_floor < 2
    fd, floor = spool.begin_sync()
    os.fdatasync(fd)
    os.close(fd)
    spool.end_sync(floor)
    assert spool.durable_floor == 2
    spool.close()


# --- safety ----------------------------------------------------------------------------------------------------------


def test_the_file_is_private(path):
    old = os.umask(0)
    try:
        spooled(path, 1).close()
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_symlink_is_not_followed(path, tmp_path):
    target = tmp_path / "elsewhere"
    target.touch(0o600)
    path.symlink_to(target)
    with pytest.raises(SpoolUnsafe):
        Spool(str(path))
    assert target.read_bytes() == b""


def test_a_file_others_may_read_is_refused(path):
    path.touch()
    path.chmod(0o644)
    with pytest.raises(SpoolUnsafe, match="0644"):
        Spool(str(path))


def test_a_folder_and_a_pipe_are_refused(path, tmp_path):
    with pytest.raises(SpoolUnsafe):
        Spool(str(tmp_path))
    os.mkfifo(path, 0o600)
    with pytest.raises(SpoolUnsafe):
        Spool(str(path))


def test_two_processes_cannot_share_it(path):
    spool = spooled(path, 1)
    script = "import sys\nfrom statesvc_client.spool import Spool\nSpool(sys.argv[1])"
    other = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env=plain_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "SpoolBusy" in other.stderr
    spool.close()


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_torn_tail_is_cut_off_and_told(path):
    spooled(path, 1, 2, 3).close()
    whole = path.read_bytes()
    last = whole.rindex(MARK)
    for cut in range(last + 1, len(whole)):
        path.write_bytes(whole[:cut])
        found = reopened(path)
        assert [write.seq for write in found.waiting] == [1, 2]
        assert found.torn_bytes == cut - last


def test_every_flipped_byte_is_told_or_harmless(path):
    """Before the last record a flip is corruption, refused by name; in the last it reads as a torn tail."""
    spooled(path, 1, 2, 3).close()
    whole = path.read_bytes()
    last = whole.rindex(MARK)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x20
        path.write_bytes(damaged)
        if place < last:
            with pytest.raises(SpoolCorrupt):
                reopened(path)
            assert path.read_bytes() == bytes(damaged), "left as it is"
        else:
            found = reopened(path)
            assert [write.seq for write in found.waiting] == [1, 2]
            assert found.torn_bytes == len(whole) - last


def test_a_file_that_is_no_spool_is_left_alone(path):
    path.touch(0o600)
    path.write_text("my diary")
    with pytest.raises(SpoolCorrupt, match="does not begin like a spool"):
        reopened(path)
    assert path.read_text() == "my diary"


@given(st.binary(max_size=200))
def test_no_bytes_behind_a_spool_make_it_fail_otherwise(tmp_path_factory, tail):
    path = tmp_path_factory.mktemp("spool") / "spool"
    spooled(path, 1).close()
    with path.open("ab") as file:
        file.write(tail)
    try:
        assert [write.seq for write in reopened(path).waiting] == [1]
    except SpoolCorrupt:
        pass


# --- with the desk ---------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_refuses_the_write_and_nothing_else(path, monkeypatch):
    desk = Desk(Options(spool=path))
    desk.open_spool()
    desk.admit(numbered(0, "before"))
    monkeypatch.setattr(os, "write", no_space)
    with pytest.raises(SpoolFailed, match="No space"):
        desk.admit(numbered(0, "refused"))
    monkeypatch.undo()
    desk.admit(numbered(0, "after"))
    assert [write.id for write in desk.outbox.waiting()] == ["before", "after"]
    assert "refused" not in desk.views["job"]
    desk.close()
    assert [write.id for write in reopened(path).waiting] == ["before", "after"]


def test_a_merge_that_the_disk_refuses_keeps_the_order(path, monkeypatch):
    """What could not be merged stays where it is, and nothing that is made later gets before it."""
    desk = Desk(Options(spool=path, max_records=3, when_full="error"))
    for id, fields in (("x", {"a": 1}), ("x", {"a": 2}), ("y", {"b": 1})):
        desk.admit(writes.update("job", id, fields, None))
    with monkeypatch.context() as full:
        full.setattr(os, "write", no_space)
        with pytest.raises(SpoolFailed, match="No space"):
            desk.admit(writes.update("job", "z", {"c": 1}, None))
    for number in (3, 4):
        desk.admit(writes.update("job", "x", {"a": number}, None))
    assert [write.fields for write in desk.outbox.waiting()][-1] == {"a": 4}
    desk.close()
    assert [write.fields for write in reopened(path).waiting if write.id == "x"][-1] == {"a": 4}


def test_a_write_before_the_start_comes_behind_what_an_earlier_run_left_and_is_spooled(path):
    spooled(path, 1, 2).close()
    desk = Desk(Options(spool=path))
    desk.admit(update_of("early"))
    desk.open_spool()
    desk.admit(update_of("later"))
    waiting = desk.outbox.waiting()
    assert [write.id for write in waiting] == ["j", "j", "early", "later"]
    assert waiting[2].seq > 1000, "a number that the earlier run may have used is not used again"
    assert (desk.client, desk.counters().restored) == ("client-1", 2)
    desk.close()
    assert [write.id for write in reopened(path).waiting] == ["j", "j", "early", "later"]


def test_a_spool_that_was_not_opened_before_a_fork_is_the_childs(path):
    desk = Desk(Options(spool=path))
    desk.start_over_in_child()
    desk.admit(update_of("mine"))
    desk.close()
    assert [write.id for write in reopened(path).waiting] == ["mine"]


def test_a_spool_that_was_opened_before_a_fork_is_the_parents(path):
    desk = Desk(Options(spool=path))
    desk.open_spool()
    desk.start_over_in_child()
    desk.admit(update_of("mine"))
    assert desk.spool is None
    assert [write.id for write in desk.outbox.waiting()] == ["mine"]


def update_of(id: str) -> writes.Write:
    return writes.update("job", id, {"a": 1}, None)


def no_space(_fd: int, _data: bytes) -> int:
    raise OSError(28, "No space left on device")


def test_merging_in_a_full_outbox_is_spooled_too(path):
    desk = Desk(Options(spool=path, max_records=2, when_full="error"))
    desk.open_spool()
    for _ in range(5):
        desk.admit(writes.update("job", "j", {}, writes.More(inc={"n": 1})))
    desk.admit(writes.update("job", "k", {"a": 1}, None))
    with pytest.raises(OutboxFull):
        desk.admit(writes.create("job", {"uuid": "l"}))
    desk.close()
    waiting = reopened(path).waiting
    assert sum(write.more.inc["n"] for write in waiting if write.id == "j" and write.more) == 5
    assert len(waiting) == 2


def test_every_sort_of_write_waits_in_the_spool(path):
    desk = Desk(Options(spool=path))
    desk.open_spool()
    made = [
        writes.update("job", "j", {"a": 1}, writes.More(token=3)),
        writes.emit("job", "j", {"type": "note", "data": 1}),
        writes.cancel("job", "k"),
        writes.retry("job", "l"),
        writes.release("job", "j", {"exitCode": 0}, writes.More(token=3, status="COMPLETED")),
    ]
    for write in made:
        desk.admit(write)
    desk.close()
    waiting = reopened(path).waiting
    assert [write.frame() for write in waiting] == [write.frame() for write in made]
    assert all(write.sent for write in waiting), "they may have been: the daemon is to look for them"


def failing_sync(_fd):
    raise OSError(5, "Input/output error")


def test_a_write_that_cannot_be_synced_is_not_taken_and_the_file_is_not_trusted_again(path, monkeypatch):
    spool = Spool(str(path), sync_each=True)
    spool.load()
    spool.begin("client-1", [])
    spool.add(numbered(1))
    size = path.stat().st_size
    monkeypatch.setattr(os, "fdatasync", failing_sync)
    with pytest.raises(SpoolFailed, match="Input/output error"):
        spool.add(numbered(2))
    assert path.stat().st_size == size
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    with pytest.raises(SpoolFailed, match="not trusted"):
        spool.add(numbered(3))
    assert synced == []
    assert not spool.wants_sync
    spool.compact([numbered(1)])
    spool.add(numbered(4))
    assert len(synced) == 1, "a new file is a new chance"
    spool.close()
    assert [write.seq for write in reopened(path).waiting] == [1, 4]


def test_with_the_desk_a_failed_sync_refuses_one_write_and_the_next_gets_a_new_file(path, monkeypatch):
    desk = Desk(Options(spool=path, spool_sync=True))
    desk.open_spool()
    desk.admit(numbered(0, "before"))
    monkeypatch.setattr(os, "fdatasync", failing_sync)
    with pytest.raises(SpoolFailed):
        desk.admit(numbered(0, "refused"))
    monkeypatch.undo()
    desk.admit(numbered(0, "after"))
    desk.close()
    assert [write.id for write in reopened(path).waiting] == ["before", "after"]


def test_a_failing_sync_does_not_disturb_the_acknowledging(path, monkeypatch):
    desk = Desk(Options(spool=path, spool_sync=True))
    desk.open_spool()
    desk.admit(numbered(0, "j"))
    desk.take(Limits(), 10, may_sleep=False)
    monkeypatch.setattr(os, "fdatasync", failing_sync)
    desk.acknowledged(1)
    assert desk.counters().acked == 1
    desk.close()


def test_a_folder_that_cannot_be_synced_leaves_the_new_file_in_use(path, monkeypatch):
    spool = spooled(path, 1)

    def no_folder(_path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("statesvc_client.spool._sync_folder", no_folder)
    with pytest.raises(SpoolFailed):
        spool.compact([numbered(1)])
    spool.add(numbered(2))
    spool.close()
    assert [write.seq for write in reopened(path).waiting] == [1, 2]


def test_the_bytes_that_wait_are_counted_as_they_come_and_go(path):
    spool = spooled(path, 1, 2, 3, 4)
    spool.merge(1, 2, numbered(1).frame())
    spool.decided_upto(1, [numbered(1)])
    spool.decided_one(numbered(4))
    assert spool._live_bytes == sum(spool._live.values()) > 0
    spool.compact([numbered(3)])
    assert spool._live_bytes == sum(spool._live.values()) > 0
    spool.compact([])
    assert spool._live_bytes == 0
    spool.close()
