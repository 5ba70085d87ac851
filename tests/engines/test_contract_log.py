"""The contract of the log: cursors, waiting for more, and the history of one record.

cursors     opaque text; "" is the place before the oldest entry; a stranger's is refused, one of a longer log gone
log_grew    returns at once when there is something to read, at the next commit, or when the time is over
history     what the log tells of one record, oldest first, page by page, everything committed before the call
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from statesvc.backends.port import Cursor, Engine, Event, Key, LogEntry, Write
from statesvc_client.errors import BadRequest, Gone
from tests.engines.addresses import Bench
from tests.engines.rows import after, born, buried, by_record, commit, fill, row

LONG = 60.0
"""Seconds no test waits for: it ends earlier, or it has found a fault."""

A: Key = ("job", "a")


async def told(engine: Engine, key: Key = A, cursor: Cursor = "", limit: int = 1000) -> list[tuple[Event, object]]:
    return [(entry.event, entry.row) for entry in await engine.history(key, cursor, limit)]


async def grown(engine: Engine, name: str, revisions: int) -> list[Write]:
    """A record's writes, each committed on its own."""
    writes = list(born(name))
    for _ in range(revisions - 1):
        writes.append(after(writes[-1].row))
    for write in writes:
        assert await commit(engine, [(write,)]) == ["applied"]
    return writes


# --- cursors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", ["x", "-1", " 1", "1.5", "\uff11", "1" * 40, "a1.b2", "a1.b2.c3.d4", "\x00"])
async def test_a_cursor_that_is_none_is_refused_by_name(bench: Bench, cursor: Cursor):
    await fill(bench.engine, [row("a")])
    with pytest.raises(BadRequest, match="cursor"):
        await bench.engine.read_log(cursor, 10)
    with pytest.raises(BadRequest, match="cursor"):
        await bench.engine.history(A, cursor, 10)
    with pytest.raises(BadRequest, match="cursor"):
        await bench.engine.log_grew(cursor, 0.001)


async def test_a_cursor_of_a_log_that_had_more_is_gone(bench: Bench, tmp_path: Path):
    other = bench.address.make(tmp_path / "other")()
    await other.open()
    try:
        await fill(other, [row(f"job-{number}") for number in range(50)])
        beyond = await other.position()
    finally:
        await other.close()
    await fill(bench.engine, [row("a")])
    with pytest.raises(Gone):
        await bench.engine.read_log(beyond, 10)
    await asyncio.wait_for(bench.engine.log_grew(beyond, LONG), LONG)


async def test_every_entry_carries_the_cursor_to_read_on_from(bench: Bench):
    await fill(bench.engine, [row(f"job-{number}") for number in range(12)])
    whole = await bench.engine.read_log("", 100)
    for place, entry in enumerate(whole):
        rest = await bench.engine.read_log(entry.cursor, 100)
        assert {each.row.id for each in rest} == {each.row.id for each in whole[place + 1 :]}


async def test_the_position_is_the_cursor_of_the_newest_entry(bench: Bench):
    await fill(bench.engine, [row("a"), row("b")])
    assert await bench.engine.position() == (await bench.engine.read_log("", 10))[-1].cursor


async def test_readers_at_different_places_see_every_entry_once(bench: Bench):
    """Ten readers follow while a writer goes on; each sees all, and each record in its order."""
    writes = 40

    async def follow(limit: int) -> list[LogEntry]:
        read: list[LogEntry] = []
        cursor = ""
        while len(read) < writes:
            await bench.engine.log_grew(cursor, LONG)
            page = await bench.engine.read_log(cursor, limit)
            read += page
            cursor = page[-1].cursor if page else cursor
        return read

    readers = [asyncio.create_task(follow(limit)) for limit in range(1, 11)]
    for name in "abcd":
        await grown(bench.engine, name, writes // 4)
    for read in await asyncio.wait_for(asyncio.gather(*readers), LONG):
        assert {key: len(events) for key, events in by_record(read).items()} == dict.fromkeys(
            [("job", name) for name in "abcd"], writes // 4
        )
        for name in "abcd":
            revisions = [entry.row.revision for entry in read if entry.row.id == name]
            assert revisions == list(range(1, writes // 4 + 1))


# --- waiting ---------------------------------------------------------------------------------------------------------


async def test_waiting_ends_at_once_when_there_is_something_to_read(bench: Bench):
    before = await bench.engine.position()
    await fill(bench.engine, [row("a")])
    for cursor in ("", before):
        await asyncio.wait_for(bench.engine.log_grew(cursor, LONG), LONG / 2)


async def test_waiting_ends_when_the_time_is_over(bench: Bench):
    for cursor in ("", await bench.engine.position()):
        await asyncio.wait_for(bench.engine.log_grew(cursor, 0.001), LONG)
    await fill(bench.engine, [row("a")])
    await asyncio.wait_for(bench.engine.log_grew(await bench.engine.position(), 0.001), LONG)


async def test_a_commit_wakes_everybody_who_waits(bench: Bench):
    await fill(bench.engine, [row("a")])
    cursor = await bench.engine.position()
    waiting = [asyncio.create_task(bench.engine.log_grew(cursor, LONG)) for _ in range(300)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    await fill(bench.engine, [row("b")])
    await asyncio.wait_for(asyncio.gather(*waiting), LONG / 2)


async def test_a_wait_that_is_given_up_leaves_the_others_waiting(bench: Bench):
    cursor = await bench.engine.position()
    one, two = (asyncio.create_task(bench.engine.log_grew(cursor, LONG)) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    await asyncio.gather(one, return_exceptions=True)
    assert not two.done()
    await fill(bench.engine, [row("a")])
    await asyncio.wait_for(two, LONG / 2)


# --- history ---------------------------------------------------------------------------------------------------------


async def test_the_history_of_a_record_is_what_the_log_tells_of_it(bench: Bench):
    writes = await grown(bench.engine, "a", 4)
    await grown(bench.engine, "b", 3)
    gone = buried(writes[-1].row)
    await commit(bench.engine, [(gone,)])
    assert await told(bench.engine) == [(write.event, write.row) for write in [*writes, gone]]
    assert await told(bench.engine) == by_record(await bench.engine.read_log("", 100))[A]


async def test_a_record_nobody_wrote_has_no_history(bench: Bench):
    await fill(bench.engine, [row("a")])
    assert await bench.engine.history(("job", "x"), "", 10) == []
    assert await bench.engine.history(("kv", "a"), "", 10) == []


async def test_history_is_read_page_by_page(bench: Bench):
    writes = await grown(bench.engine, "a", 11)
    for limit in (1, 3, 11, 12):
        read: list[LogEntry] = []
        cursor = ""
        while page := await bench.engine.history(A, cursor, limit):
            assert len(page) <= limit
            read += page
            cursor = page[-1].cursor
        assert [entry.row for entry in read] == [write.row for write in writes]


async def test_history_and_log_share_their_cursors(bench: Bench):
    writes = await grown(bench.engine, "a", 5)
    await grown(bench.engine, "b", 2)
    middle = (await bench.engine.history(A, "", 3))[-1].cursor
    behind = by_record(await bench.engine.read_log(middle, 100))
    assert [each for _, each in behind[A]] == [write.row for write in writes[3:]]
    logged = [entry for entry in await bench.engine.read_log("", 100) if entry.row.key == A]
    assert await told(bench.engine, A, logged[1].cursor) == [(write.event, write.row) for write in writes[2:]]


async def test_history_goes_on_through_a_delete_and_a_new_life(bench: Bench):
    (write,) = await grown(bench.engine, "a", 1)
    gone = buried(write.row)
    again = Write(row("a", uid="new"), gone.row.stamp, Event("created", 9))
    for step in (gone, again):
        assert await commit(bench.engine, [(step,)]) == ["applied"]
    assert await told(bench.engine) == [(each.event, each.row) for each in (write, gone, again)]


async def test_history_sees_everything_committed_before_the_call(bench: Bench):
    write = born("a")[0]
    await commit(bench.engine, [(write,)])
    for revision in range(2, 30):
        write = after(write.row)
        await commit(bench.engine, [(write,)])
        assert len(await bench.engine.history(A, "", 100)) == revision


async def test_a_refused_write_has_no_place_in_history(bench: Bench):
    (write,) = await grown(bench.engine, "a", 1)
    assert await commit(bench.engine, [born("a", uid="late")]) == ["conflict"]
    assert await told(bench.engine) == [(write.event, write.row)]


async def test_what_a_client_told_is_kept_as_it_was_given(bench: Bench):
    event = Event("progress", 5, None, None, None, "half way ü", b'{"percent":50}')
    (write,) = await grown(bench.engine, "a", 1)
    step = Write(row("a", revision=2), write.row.stamp, event)
    await commit(bench.engine, [(step,)])
    assert (await bench.engine.history(A, "", 10))[-1].event == event


async def test_several_writes_of_one_record_in_one_batch_are_all_in_its_history(bench: Bench):
    writes = list(born("a"))
    for _ in range(5):
        writes.append(after(writes[-1].row))
    await commit(bench.engine, [(write,) for write in writes])
    for write in writes:
        await commit(bench.engine, [(write,)])
    assert await told(bench.engine) == [(write.event, write.row) for write in writes]


async def test_history_is_there_after_reopening_where_anything_is(bench: Bench):
    writes = await grown(bench.engine, "a", 6)
    await grown(bench.engine, "b", 2)
    before = await bench.engine.history(A, "", 100)
    engine = await bench.reopened()
    assert await engine.history(A, "", 100) == (before if bench.address.keeps else [])
    if bench.address.keeps:
        step = after(writes[-1].row)
        await commit(engine, [(step,)])
        assert await told(engine, A, before[-1].cursor) == [(step.event, step.row)]
