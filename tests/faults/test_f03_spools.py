"""F3, the client's spool: every bit flipped and every cut. What comes back is a beginning of what waited, whole and in
order; the rest is refused by name or told with its length; and nothing is applied twice because of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from statesvc_client import writes
from statesvc_client.adapter_errors import SpoolCorrupt
from statesvc_client.desk import Desk
from statesvc_client.options import Options
from statesvc_client.spool import MAGIC, MARK, Found, Spool
from tests.client.test_spool import numbered, reopened, spooled
from tests.daemon.harness import serving


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def contents(path: Path) -> Iterator[bytes]:
    """Spools that end in each sort of record there is."""
    spool = spooled(path, 1, 2, 3, 4, 5)
    yield path.read_bytes()
    spool.merge(4, 5, writes.update("job", "j", {"n": 5, "m": 1}, None).frame())
    yield path.read_bytes()
    spool.decided_one(numbered(3))
    yield path.read_bytes()
    spool.decided_upto(1, [numbered(1)])
    yield path.read_bytes()
    spool.close()


def places(whole: bytes) -> list[int]:
    """Where its records begin, and where the last one ends."""
    found = [place for place in range(len(MAGIC), len(whole)) if whole.startswith(MARK, place)]
    return [*found, len(whole)]


def loaded(path: Path, content: bytes) -> Found | str:
    path.write_bytes(content)
    try:
        return reopened(path)
    except SpoolCorrupt as corrupt:
        assert path.read_bytes() == content, "left as it is"
        return str(corrupt)


def what_waits(found: Found) -> list[tuple[int, bytes]]:
    return [(write.seq, write.frame()) for write in found.waiting]


def test_a_flip_of_any_bit_is_refused_by_its_place_or_told_as_a_torn_end_of_its_length(path):
    *others, all_sorts = list(contents(path))
    for whole in (*others, all_sorts):
        last = places(whole)[-2]
        without = loaded(path, whole[:last])
        assert isinstance(without, Found)
        for bit in range(0 if whole is all_sorts else last * 8, len(whole) * 8):
            flipped = bytearray(whole)
            flipped[bit >> 3] ^= 1 << (bit & 7)
            found = loaded(path, bytes(flipped))
            if bit >> 3 < last:
                assert isinstance(found, str), bit
                assert str(path) in found
            else:
                assert isinstance(found, Found), bit
                assert what_waits(found) == what_waits(without)
                assert found.torn_bytes == len(whole) - last


def test_a_cut_at_any_length_leaves_whole_records_and_tells_the_rest(path):
    """Between two records nobody can tell it from a spool that never had more."""
    (*_, whole) = contents(path)
    begins = places(whole)
    for length in range(1, len(whole)):
        begin = max((place for place in begins if place <= length), default=0)
        kept = loaded(path, whole[:begin])
        found = loaded(path, whole[:length])
        assert isinstance(found, Found)
        assert isinstance(kept, Found)
        assert what_waits(found) == what_waits(kept)
        assert found.torn_bytes == length - begin


def test_zeros_in_the_middle_are_refused_and_at_the_end_they_are_told(path):
    (whole, *_) = list(contents(path))
    begins = places(whole)
    for begin, end in pairwise(begins[:-1]):
        assert isinstance(loaded(path, whole[:begin] + bytes(end - begin) + whole[end:]), str)
    found = loaded(path, whole + bytes(100))
    assert isinstance(found, Found)
    assert found.torn_bytes == 100
    assert len(found.waiting) == 5


def test_the_application_hears_of_a_torn_end_and_of_its_length(path, caplog):
    spooled(path, 1, 2).close()
    whole = path.read_bytes()
    last = places(whole)[-2]
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    desk = Desk(Options(spool=path))
    with caplog.at_level(logging.WARNING, "statesvc_client"):
        desk.open_spool()
    assert [write.seq for write in desk.outbox.waiting()] == [1]
    assert f"{len(whole) - last} bytes were cut off" in caplog.text
    desk.close()


def test_a_damaged_spool_is_refused_where_the_application_opens_it(path):
    spooled(path, 1, 2).close()
    whole = bytearray(path.read_bytes())
    whole[places(bytes(whole))[1] + 20] ^= 1
    path.write_bytes(whole)
    with pytest.raises(SpoolCorrupt, match="damaged at byte"):
        Desk(Options(spool=path)).open_spool()


def test_a_lost_note_that_a_write_was_decided_has_it_sent_again_and_not_applied_again(folder):
    """A flip in the last note makes the next run send what the daemon was allowed to forget."""
    with serving(folder) as daemon, daemon.connect() as client:
        client.hello("c")
        client.ask("create", job={"uuid": "j", "status": "PENDING", "n": 0}, seq=1, floor=1)
        for seq in (2, 3, 4):
            assert client.ask("update", jobId="j", inc={"n": 1}, seq=seq, floor=seq)["success"]
        with daemon.connect() as again:
            again.hello("c")
            for seq in (2, 3, 4):
                reply = again.ask("update", jobId="j", inc={"n": 1}, seq=seq, floor=2, again=True)
                assert reply.get("duplicate") or reply["outcome"] in ("not_applied", "unknown"), reply
                if not reply["success"]:
                    break
        with daemon.connect() as reader:
            assert reader.ask("get", jobId="j")["job"]["n"] == 3


def test_a_spool_of_nothing_but_its_beginning_is_an_empty_one(path):
    for length in range(len(MAGIC)):
        path.unlink(missing_ok=True)
        path.touch(0o600)
        path.write_bytes(MAGIC[:length])
        spool = Spool(str(path))
        assert spool.load() == Found(None, [], 1, length)
        spool.close()
