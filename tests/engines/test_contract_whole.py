"""The contract of what concerns a store as a whole: cutting the log, dumping, loading, checking, repairing.

compact     small steps; cuts what is older or more than is to be kept, oldest first; records stay
dump        every row there is, tombstones included, at one place in the log while others go on writing
load        replaces everything under a new epoch with an empty log, wholly or not at all
repair      leaves a healthy store as it is
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import pytest

from statesvc.backends.port import Engine, Event, LogKept, Query, Row, Write
from statesvc_client.errors import Gone
from tests.engines.addresses import Bench
from tests.engines.rows import after, buried, commit, fill, hidden, pieces, removed, row

EVERYTHING = LogKept(since=0, most_bytes=1 << 40)
NOTHING = LogKept(since=1 << 62, most_bytes=1 << 40)

STEPS = 1000
"""More steps than any test's log can need."""


async def compacted(engine: Engine, keep: LogKept) -> None:
    for _ in range(STEPS):
        if not await engine.compact(keep):
            return
    raise AssertionError("compacting never ends")


async def timed(engine: Engine, name: str, times: Iterable[int]) -> list[Row]:
    """A record that changed at these times, each time in a commit of its own."""
    rows: list[Row] = []
    for at in times:
        step = after(rows[-1]) if rows else Write(row(name), None, Event("created", at))
        write = Write(step.row, step.expects, Event("updated", at))
        assert await commit(engine, [(write,)]) == ["applied"]
        rows.append(write.row)
    return rows


# --- cutting the log -------------------------------------------------------------------------------------------------


async def test_a_log_that_is_to_be_kept_is_kept(bench: Bench):
    await timed(bench.engine, "a", range(1, 8))
    before = await bench.engine.read_log("", 100)
    await compacted(bench.engine, EVERYTHING)
    assert await bench.engine.read_log("", 100) == before
    assert len(await bench.engine.history(("job", "a"), "", 100)) == 7


async def test_entries_that_are_too_old_are_cut_and_the_others_stay(bench: Bench):
    rows = await timed(bench.engine, "a", range(1, 11))
    log = await bench.engine.read_log("", 100)
    await compacted(bench.engine, LogKept(since=6, most_bytes=1 << 40))
    left = await bench.engine.read_log("", 100)
    assert left == log[5:]
    assert await bench.engine.history(("job", "a"), "", 100) == left
    assert await bench.engine.history(("job", "a"), log[1].cursor, 100) == left
    assert await bench.engine.get([("job", "a")]) == [rows[-1]]
    for entry in log[:4]:
        with pytest.raises(Gone):
            await bench.engine.read_log(entry.cursor, 10)
    assert await bench.engine.read_log(log[4].cursor, 100) == left


async def test_a_log_that_is_too_large_loses_its_oldest_entries(bench: Bench):
    await timed(bench.engine, "a", range(1, 41))
    before = await bench.engine.read_log("", 100)
    await compacted(bench.engine, LogKept(since=0, most_bytes=600))
    left = await bench.engine.read_log("", 100)
    assert len(left) < len(before)
    assert left == before[len(before) - len(left) :]
    with pytest.raises(Gone):
        await bench.engine.read_log(before[0].cursor, 10)


async def test_a_log_that_may_go_as_a_whole_goes_on(bench: Bench):
    """An engine may hold on to its newest commit."""
    rows = await timed(bench.engine, "a", range(1, 6))
    await compacted(bench.engine, NOTHING)
    end = await bench.engine.position()
    left = await bench.engine.read_log("", 10)
    assert [entry.row for entry in left] in ([], rows[-1:])
    assert await bench.engine.history(("job", "a"), "", 10) == left
    assert await bench.engine.read_log(end, 10) == []
    step = after(rows[-1])
    assert await commit(bench.engine, [(step,)]) == ["applied"]
    assert [entry.row for entry in await bench.engine.read_log(end, 10)] == [step.row]
    assert (await bench.engine.read_log("", 10))[len(left) :] == await bench.engine.read_log(end, 10)
    assert await bench.engine.history(("job", "a"), "", 10) == await bench.engine.read_log("", 10)


async def test_hidden_writes_that_were_cut_take_no_cursor_with_them(bench: Bench):
    rows = await timed(bench.engine, "a", range(1, 4))
    end = await bench.engine.position()
    for token in range(5):
        assert await commit(bench.engine, [(hidden(rows[-1], token=token),)]) == ["applied"]
    await compacted(bench.engine, NOTHING)
    assert await bench.engine.read_log(end, 10) == []


async def test_a_cut_log_is_as_cut_after_reopening(bench: Bench):
    rows = await timed(bench.engine, "a", range(1, 11))
    log = await bench.engine.read_log("", 100)
    await compacted(bench.engine, LogKept(since=6, most_bytes=1 << 40))
    engine = await bench.reopened()
    if bench.address.keeps:
        assert await engine.get([("job", "a")]) == [rows[-1]]
        assert await engine.read_log("", 100) == log[5:]
        assert await engine.history(("job", "a"), "", 100) == log[5:]
        with pytest.raises(Gone):
            await engine.read_log(log[0].cursor, 10)


# --- dumping ---------------------------------------------------------------------------------------------------------


async def dumped(engine: Engine) -> list[Row]:
    rows = [each async for some in (await engine.dump()).rows for each in some]
    assert len({each.key for each in rows}) == len(rows)
    return rows


async def test_a_dump_is_every_row_tombstones_and_hidden_writes_included(bench: Bench):
    rows = await fill(bench.engine, [row(f"job-{number:02}", kind="ab"[number % 2]) for number in range(23)])
    gone, quiet = buried(rows[3]), hidden(rows[5], token=9)
    await commit(bench.engine, [(gone,), (quiet,), (removed(rows[7]),)])
    for step in (gone, quiet, removed(rows[7])):
        await commit(bench.engine, [(step,)])
    expected = {each.key: each for each in rows} | {gone.row.key: gone.row, quiet.row.key: quiet.row}
    del expected[rows[7].key]
    assert {each.key: each for each in await dumped(bench.engine)} == expected


async def test_a_dump_says_how_many_rows_there_will_be(bench: Bench):
    await fill(bench.engine, [row(f"job-{number:02}") for number in range(7)])
    dump = await bench.engine.dump()
    assert dump.total == 7
    assert len([each async for some in dump.rows for each in some]) == 7


async def test_an_empty_store_has_an_empty_dump(bench: Bench):
    assert await dumped(bench.engine) == []


async def test_a_dump_and_the_log_behind_its_cursor_lead_to_the_present(bench: Bench):
    """Writers go on while the dump is read."""
    rows = await fill(bench.engine, [row(f"job-{number:03}") for number in range(60)])
    dump = await bench.engine.dump()
    found: dict[object, Row] = {}
    newest = {each.key: each for each in rows}
    step = 0
    async for some in dump.rows:
        found.update((each.key, each) for each in some)
        for each in rows[step : step + 7]:
            write = after(newest[each.key])
            assert await commit(bench.engine, [(write,)]) == ["applied"]
            newest[each.key] = write.row
        step += 7
    await fill(bench.engine, [row("late")])
    if bench.address.exact_dump:
        assert found == {each.key: each for each in rows}
    assert all(found[each.key].revision >= each.revision for each in rows)
    for entry in await bench.engine.read_log(dump.cursor, 1000):
        if entry.row.key not in found or found[entry.row.key].revision < entry.row.revision:
            found[entry.row.key] = entry.row
    assert found == newest | {("job", "late"): row("late")}


async def test_a_dump_that_nobody_reads_to_its_end_holds_nothing_up(bench: Bench):
    await fill(bench.engine, [row(f"job-{number:03}") for number in range(30)])
    dump = await bench.engine.dump()
    async for _ in dump.rows:
        break
    await dump.rows.aclose()  # type: ignore[attr-defined]
    await fill(bench.engine, [row("late")])
    assert len(await dumped(bench.engine)) == 31


# --- loading ---------------------------------------------------------------------------------------------------------


async def test_loading_replaces_everything_under_a_new_epoch(bench: Bench):
    old = await fill(bench.engine, [row("old", labels=(("x", "y"),)), row("both")])
    epoch = bench.engine.epoch
    fresh = [row("both", uid="loaded", revision=7, labels=(("z", "1"),)), row("kv-1", kind="kv"), row("t", deleted=5)]
    await bench.engine.load(pieces(*fresh))
    assert bench.engine.epoch != epoch
    assert await bench.engine.get([old[0].key, *(each.key for each in fresh)]) == [None, *fresh]
    await bench.caught_up()
    assert await bench.engine.query(Query(kind="job", limit=9)) == fresh[:1]
    assert await bench.engine.query(Query(kind="job", limit=9, sort="deleted")) == fresh[2:]
    assert await bench.engine.query(Query(kind="job", limit=9, term=("label:x", "y"))) == []
    assert await bench.engine.query(Query(kind="job", limit=9, term=("label:z", "1"))) == fresh[:1]
    assert await bench.engine.kinds() == ["job", "kv"]


async def test_a_loaded_store_begins_with_an_empty_log(bench: Bench):
    await fill(bench.engine, [row("a")])
    (loaded,) = [row("a", revision=5)]
    await bench.engine.load(pieces(loaded))
    start = await bench.engine.position()
    assert await bench.engine.read_log("", 10) == await bench.engine.history(("job", "a"), "", 10) == []
    step = after(loaded)
    assert await commit(bench.engine, [(step,)]) == ["applied"]
    assert [entry.row for entry in await bench.engine.read_log(start, 10)] == [step.row]
    assert [entry.row for entry in await bench.engine.history(("job", "a"), "", 10)] == [step.row]


async def test_a_load_that_breaks_off_changes_nothing(bench: Bench):
    rows = await fill(bench.engine, [row("a"), row("b")])
    before = (bench.engine.epoch, await bench.engine.position())

    async def broken() -> AsyncIterator[list[Row]]:
        yield [row("x")]
        raise RuntimeError("the file ends here")

    with pytest.raises(RuntimeError, match="ends here"):
        await bench.engine.load(broken())
    assert (bench.engine.epoch, await bench.engine.position()) == before
    assert await bench.engine.get([("job", "x"), *(each.key for each in rows)]) == [None, *rows]
    assert len(await bench.engine.read_log("", 10)) == 2
    assert await commit(bench.engine, [(after(rows[0]),)]) == ["applied"]


async def test_a_store_loaded_with_nothing_is_empty(bench: Bench):
    await fill(bench.engine, [row("a")])
    await bench.engine.load(pieces())
    assert await bench.engine.get([("job", "a")]) == [None]
    assert await bench.engine.kinds() == []
    await fill(bench.engine, [row("a")])


async def test_what_was_loaded_is_there_after_reopening(bench: Bench):
    await fill(bench.engine, [row("old")])
    fresh = [row(f"job-{number:02}", labels=(("n", str(number % 2)),)) for number in range(10)]
    await bench.engine.load(pieces(*fresh))
    step = after(fresh[0])
    await commit(bench.engine, [(step,)])
    epoch = bench.engine.epoch
    engine = await bench.reopened()
    if bench.address.keeps:
        assert engine.epoch == epoch
        assert await engine.get([("job", "old"), *(each.key for each in fresh)]) == [None, step.row, *fresh[1:]]
        assert [entry.row for entry in await engine.read_log("", 10)] == [step.row]


# --- checking --------------------------------------------------------------------------------------------------------


async def test_repairing_a_healthy_store_leaves_it_as_it_is(bench: Bench):
    rows = await fill(bench.engine, [row(f"job-{number}", labels=(("n", "1"),)) for number in range(5)])
    await commit(bench.engine, [(hidden(rows[0], token=3),)])
    await bench.caught_up()
    whole = Query(kind="job", limit=9, term=("label:n", "1"))
    before = await bench.engine.query(whole)
    await bench.engine.repair()
    assert await bench.engine.query(whole) == before
    assert len(await bench.engine.history(rows[1].key, "", 9)) == 1
    assert await bench.engine.check() == []


async def test_measures_are_numbers_with_names_for_people(bench: Bench):
    await fill(bench.engine, [row("a")])
    measures = bench.engine.measures()
    assert measures
    assert all(name.isidentifier() and name[0].islower() and "_" not in name for name in measures)
    assert all(figure >= 0 for figure in measures.values())
