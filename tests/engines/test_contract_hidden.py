"""The contract of writes that nobody is told of, and of rows that vanish.

hidden      a write without an event replaces the row under the same condition as any other; neither the log nor
            history ever shows it, and no cursor is moved by it
removed     a row that says so is gone for good: from `get`, from every walk, from its kind, with its history; the
            record can be made again as if it had never been
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statesvc.backends.port import REMOVED, Event, Key, Query, Row, Write
from tests.engines.addresses import Bench
from tests.engines.rows import after, born, buried, commit, fill, hidden, removed, row

A: Key = ("job", "a")


async def applied(bench: Bench, *writes: Write) -> None:
    """One after the other, each in a commit of its own."""
    for write in writes:
        assert await commit(bench.engine, [(write,)]) == ["applied"]


async def history(bench: Bench, key: Key = A) -> list[Row]:
    return [entry.row for entry in await bench.engine.history(key, "", 100)]


# --- hidden ----------------------------------------------------------------------------------------------------------


async def test_a_hidden_write_replaces_the_row_and_tells_nobody(bench: Bench):
    (a,) = await fill(bench.engine, [row("a")])
    before = await bench.engine.position()
    step = hidden(a, body=b'{"beat":2}', token=7, marks=b"more")
    await applied(bench, step)
    assert await bench.engine.get([A]) == [step.row]
    assert (step.row.stamp, step.row.token) == (a.stamp, 7)
    assert await bench.engine.position() == before
    assert await bench.engine.read_log(before, 10) == []
    assert [entry.row for entry in await bench.engine.read_log("", 10)] == [a]
    assert await history(bench) == [a]


async def test_a_hidden_write_is_as_conditional_as_any_other(bench: Bench):
    (a,) = await fill(bench.engine, [row("a")])
    step = after(a)
    await applied(bench, step)
    assert await commit(bench.engine, [(hidden(a, token=9),)]) == ["conflict"]
    assert await commit(bench.engine, [(hidden(row("x")),)]) == ["conflict"]
    assert await bench.engine.get([A, ("job", "x")]) == [step.row, None]


async def test_a_hidden_write_moves_the_row_in_every_index(bench: Bench):
    (a,) = await fill(bench.engine, [row("a", status="QUEUED", ready="5", labels=(("x", "y"),))])
    step = hidden(a, status="RUNNING", ready=None, due=9, labels=(("", "leased"),))
    await applied(bench, step)
    await bench.caught_up()
    for query, held in (
        (Query(kind="job", limit=9, term=("status", "QUEUED")), False),
        (Query(kind="job", limit=9, term=("status", "RUNNING")), True),
        (Query(kind="job", limit=9, term=("label:x", "y")), False),
        (Query(kind="job", limit=9, term=("label:", "leased")), True),
        (Query(kind="job", limit=9, sort="ready"), False),
        (Query(kind="job", limit=9, sort="due"), True),
    ):
        assert await bench.engine.query(query) == ([step.row] if held else []), query


async def test_hidden_and_told_writes_mix_in_one_unit_and_in_one_batch(bench: Bench):
    a, b = await fill(bench.engine, [row("a"), row("b")])
    quiet, loud = hidden(a, token=1), after(b)
    follows = after(quiet.row)
    results = await commit(bench.engine, [(quiet, loud), (follows,), (hidden(loud.row, token=4),)])
    if bench.address.sure:
        assert results == ["applied"] * 3
        assert [each.revision for each in await bench.engine.get([A, ("job", "b")]) if each] == [2, 2]
    await commit(bench.engine, [(quiet, loud)])
    await commit(bench.engine, [(follows,)])
    assert await history(bench) == [a, follows.row]
    assert await history(bench, ("job", "b")) == [b, loud.row]
    assert len(await bench.engine.read_log("", 100)) == 4


async def test_a_record_may_be_made_hidden(bench: Bench):
    await applied(bench, Write(row("a"), None, None))
    assert await bench.engine.get([A]) == [row("a")]
    assert await bench.engine.read_log("", 10) == []
    assert await history(bench) == []
    step = after(row("a"))
    await applied(bench, step)
    assert await history(bench) == [step.row]


async def test_a_hidden_write_does_not_end_a_wait_for_the_log_again_and_again(bench: Bench):
    (a,) = await fill(bench.engine, [row("a")])
    cursor = await bench.engine.position()
    await applied(bench, hidden(a, token=1), hidden(a, token=2))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bench.engine.log_grew(cursor, 60), 0.05)
    step = after(a)
    waiting = asyncio.create_task(bench.engine.log_grew(cursor, 60))
    await asyncio.sleep(0)
    await applied(bench, step)
    await asyncio.wait_for(waiting, 30)
    assert [entry.row for entry in await bench.engine.read_log(cursor, 10)] == [step.row]


async def test_cursors_around_hidden_writes_stay_good(bench: Bench):
    (a,) = await fill(bench.engine, [row("a")])
    cursors = [await bench.engine.position()]
    last = a
    for number in range(6):
        quiet = hidden(last, token=number)
        step = after(quiet.row)
        await applied(bench, quiet, step, hidden(step.row, token=100 + number))
        cursors.append(await bench.engine.position())
        last = step.row
    for place, cursor in enumerate(cursors):
        behind = [entry.row.revision for entry in await bench.engine.read_log(cursor, 100)]
        assert behind == list(range(place + 2, 8))
        assert [entry.row.revision for entry in await bench.engine.history(A, cursor, 100)] == behind


async def test_hidden_writes_are_there_after_reopening_where_anything_is(bench: Bench):
    a, b = await fill(bench.engine, [row("a"), row("b")])
    step = hidden(a, token=5, labels=(("", "leased"),))
    await applied(bench, step)
    cursor = await bench.engine.position()
    engine = await bench.reopened()
    if bench.address.keeps:
        await bench.caught_up()
        assert await engine.get([A, b.key]) == [step.row, b]
        assert await engine.query(Query(kind="job", limit=9, term=("label:", "leased"))) == [step.row]
        assert await engine.position() == cursor
        assert await engine.read_log(cursor, 10) == []
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.log_grew(cursor, 60), 0.05)


# --- removed ---------------------------------------------------------------------------------------------------------


async def test_a_removed_row_is_gone_from_everywhere(bench: Bench):
    keys: dict[str, Any] = {
        "status": "DONE",
        "node": "n",
        "owner": "o",
        "ready": "1",
        "due": 2,
        "labels": (("x", "y"),),
    }
    (a,) = await fill(bench.engine, [row("a", **keys)])
    (b,) = await fill(bench.engine, [row("b", kind="kv", deleted=4)])
    await bench.caught_up()
    await bench.engine.query(Query(kind="job", limit=9))
    await applied(bench, removed(a), removed(b))
    await bench.caught_up()
    assert await bench.engine.get([A, b.key]) == [None, None]
    assert await bench.engine.kinds() == []
    assert await history(bench) == await history(bench, b.key) == []
    for query in (
        *[Query(kind="job", limit=9, sort=sort) for sort in ("created", "id", "status", "ready", "due", "deleted")],
        Query(kind="kv", limit=9, sort="deleted"),
        *[
            Query(kind="job", limit=9, term=term)
            for term in (("status", "DONE"), ("node", "n"), ("owner", "o"), ("label:x", "y"))
        ],
    ):
        assert await bench.engine.query(query) == [], query


async def test_a_removal_is_as_conditional_as_any_other_write(bench: Bench):
    (a,) = await fill(bench.engine, [row("a")])
    step = after(a)
    await applied(bench, step)
    assert await commit(bench.engine, [(removed(a),)]) == ["conflict"]
    assert await bench.engine.get([A]) == [step.row]
    await applied(bench, removed(step.row))
    assert await commit(bench.engine, [(removed(row("x")),)]) == ["conflict"]
    late = after(step.row)
    assert await commit(bench.engine, [(late,)]) == ["conflict"]


async def test_a_removed_record_is_made_again_as_if_it_had_never_been(bench: Bench):
    (a,) = await fill(bench.engine, [row("a", labels=(("old", "1"),))])
    gone = buried(a)
    await applied(bench, gone, removed(gone.row))
    anew = Write(row("a", uid="new", labels=(("new", "1"),)), None, Event("created", 9))
    await applied(bench, anew)
    await bench.caught_up()
    assert await bench.engine.get([A]) == [anew.row]
    assert await history(bench) == [anew.row]
    assert await bench.engine.query(Query(kind="job", limit=9, term=("label:old", "1"))) == []
    assert await bench.engine.query(Query(kind="job", limit=9, term=("label:new", "1"))) == [anew.row]
    assert await bench.engine.query(Query(kind="job", limit=9)) == [anew.row]
    assert await bench.engine.query(Query(kind="job", limit=9, sort="deleted")) == []


async def test_a_removal_and_a_new_life_may_share_a_batch(bench: Bench):
    (a,) = await fill(bench.engine, [row("a", labels=(("x", "y"),))])
    anew = Write(row("a", uid="new", status="NEW"), None, Event("created", 9))
    steps = [(removed(a),), (anew,), (after(anew.row),), (removed(after(anew.row).row),), born("a", uid="third")]
    results = await commit(bench.engine, steps)
    assert results == ["applied"] * 5 or not bench.address.sure
    for step in steps:
        await commit(bench.engine, [step])
    await bench.caught_up()
    third = row("a", uid="third")
    assert await bench.engine.get([A]) == [third]
    assert await history(bench) == [third]
    assert await bench.engine.query(Query(kind="job", limit=9, term=("label:x", "y"))) == []
    assert await bench.engine.query(Query(kind="job", limit=9)) == [third]


async def test_a_record_made_and_removed_in_one_batch_leaves_nothing(bench: Bench):
    steps = [born("a", labels=(("x", "y"),)), (removed(row("a")),)]
    await commit(bench.engine, steps)
    for step in steps:
        await commit(bench.engine, [step])
    if await bench.engine.get([A]) != [None]:  # sent again after an answer that was not sure
        await applied(bench, removed(row("a")))
    await bench.caught_up()
    assert await bench.engine.get([A]) == [None]
    assert await bench.engine.query(Query(kind="job", limit=9)) == []
    assert await bench.engine.kinds() == []
    assert await history(bench) == []


async def test_a_removal_in_a_refused_unit_removes_nothing(bench: Bench):
    a, _ = await fill(bench.engine, [row("a"), row("b")])
    assert await commit(bench.engine, [(removed(a), *born("b", uid="late"))]) == ["conflict"]
    assert await bench.engine.get([A]) == [a]
    assert await history(bench) == [a]


async def test_what_the_log_told_of_a_removed_record_it_still_tells(bench: Bench):
    (a,) = await fill(bench.engine, [row("a")])
    gone = buried(a)
    await applied(bench, gone, removed(gone.row))
    assert [entry.row for entry in await bench.engine.read_log("", 10)] == [a, gone.row]


async def test_a_removal_with_an_event_is_told_and_leaves_no_history(bench: Bench):
    (a,) = await fill(bench.engine, [row("a")])
    write = removed(a)
    await applied(bench, Write(write.row, write.expects, Event("purged", 9)))
    assert await bench.engine.get([A]) == [None]
    assert await history(bench) == []
    assert [(entry.event.type, entry.row.deleted) for entry in await bench.engine.read_log("", 10)] == [
        ("created", 0),
        ("purged", REMOVED),
    ]


async def test_removed_records_stay_gone_after_reopening(bench: Bench):
    a, b, c = await fill(bench.engine, [row("a"), row("b"), row("c", kind="kv")])
    anew = Write(row("b", uid="new"), None, Event("created", 9))
    await applied(bench, removed(a), removed(b), anew, removed(c))
    engine = await bench.reopened()
    if bench.address.keeps:
        assert await engine.get([A, b.key, c.key]) == [None, anew.row, None]
        assert await history(bench) == []
        assert await history(bench, b.key) == [anew.row]
        assert await engine.kinds() == ["job"]


# --- kinds -----------------------------------------------------------------------------------------------------------


async def test_kinds_are_named_sorted_tombstones_included(bench: Bench):
    assert await bench.engine.kinds() == []
    rows = await fill(bench.engine, [row("x", kind=kind, uid=kind) for kind in ("job", "kv", "a", "_x", "é", "ip")])
    await applied(bench, buried(rows[2]))
    assert await bench.engine.kinds() == ["_x", "a", "ip", "job", "kv", "é"]
    await applied(bench, removed(rows[0]))
    assert await bench.engine.kinds() == ["_x", "a", "ip", "kv", "é"]
