"""A store moved to another engine: everything arrives, however often it was cut short, and only once it may."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from statesvc import failpoints
from statesvc.backends.dynamodb import whole as loads
from statesvc.backends.epoch_names import token_floor
from statesvc.backends.port import Engine, Keys, LogKept, Row
from statesvc.moving import holdings, migration
from statesvc.moving import target as targets
from statesvc.moving.fingerprints import fingerprint
from statesvc.moving.holdings import Holding
from statesvc.moving.migration import Differs
from statesvc.store import administration, own
from statesvc.store.kinds import Kinds
from statesvc_client.errors import Conflict, TooLarge
from tests.engines.rows import buried, commit, hidden, removed, row
from tests.engines.weak import WeakEngine, WeakStorage
from tests.moving.conftest import place
from tests.moving.stores import Place, moved, put, rows_of

MANY = 60


def record(id: str, *, kind: str = "job", revision: int = 1, token: int = 0, **fields: Any) -> Row:
    """A row with a body of some length, as a daemon would have made it."""
    body = {"id": id, "uid": f"uid-{id}", "revision": revision, "pad": "x" * 50, **fields}
    labels = (("", "leased"),) if "lease" in fields else (("team", "a"),)
    keys = Keys(created=revision, updated=revision, status="RUNNING", node="n1", priority=5, labels=labels)
    return Row(kind, id, f"uid-{id}", revision, keys, msgspec.json.encode(body), b"\x92\x90\x90", token=token)


def leased(id: str, beat: int, **fields: Any) -> Row:
    lease = {"holder": "w", "token": 3, "ttl": 30.0, "beat": beat}
    return record(id, token=3, lease=lease, expiresAt=f"2026-01-01T00:00:{beat:02}Z", **fields)


async def fill(source: Place) -> dict[tuple[str, str], Row]:
    """Records of several kinds, some changed, a tombstone, a lease."""
    async with source.open() as engine:
        await put(engine, *(record(f"job-{number}") for number in range(MANY)))
        await put(engine, *(record(f"job-{number}", revision=2, new=True) for number in range(0, MANY, 7)))
        await put(engine, record("k", kind="kv", value=1.0), leased("held", 4), row("gone", kind="_dedupe"))
        (gone,) = await engine.get([("_dedupe", "gone")])
        assert gone is not None
        await commit(engine, [(buried(gone),)])
        return await rows_of(engine)


async def test_everything_arrives_as_it_was(source: Place, target: Place):
    before = await fill(source)
    report = await moved(source, target)
    assert (report.complete, report.equal, report.source_frozen, report.differing) == (True, True, True, 0)
    assert not report.target_frozen
    assert {kind: sides["target"].rows for kind, sides in report.kinds.items()} == {
        "_dedupe": 1,
        "job": MANY + 1,
        "kv": 1,
    }
    assert report.whole["source"] == report.whole["target"]
    assert await target.rows() == before == await source.rows()
    async with target.open() as engine:
        assert await engine.check() == []


async def test_what_is_written_meanwhile_arrives_too(source: Place, target: Place):
    await fill(source)
    done = asyncio.Event()

    async def write_on(engine: Engine) -> None:
        for number in range(40):
            await put(engine, record(f"job-{number % 10}", revision=3 + number // 10), record(f"late-{number}"))
            await asyncio.sleep(0)
        done.set()

    if source.make().immediate:
        # One process alone has its data: what is written there is written by the daemon, see tests/cli.
        async with source.open() as engine:
            await write_on(engine)
        writing = None
    else:
        writer = source.make()
        await writer.open()
        writing = asyncio.create_task(write_on(writer))
    first = await moved(source, target, cut_over=False)
    assert (first.complete, first.source_frozen, first.target_frozen) == (False, False, True)
    await done.wait()
    if writing is not None:
        await writing
        await writer.close()
    report = await moved(source, target)
    assert report.complete
    assert await target.rows() == await source.rows()
    assert len(await target.rows()) == MANY + 3 + 40


async def test_what_nobody_was_told_of_is_found_by_comparing(source: Place, target: Place):
    await fill(source)
    await moved(source, target, cut_over=False)
    async with source.open() as engine:
        promoted, gone = await engine.get([("job", "job-1"), ("_dedupe", "gone")])
        assert promoted is not None
        assert gone is not None
        await commit(engine, [(hidden(promoted, ready="5"),), (removed(gone),)])
    report = await moved(source, target)
    assert (report.written, report.removed, report.followed, report.differing) == (1, 1, 0, 0)
    rows = await target.rows()
    assert rows["job", "job-1"].keys.ready == "5"
    assert ("_dedupe", "gone") not in rows
    assert rows == await source.rows()


async def test_a_target_is_frozen_until_the_move_is_complete(folder: Place, target: Place):
    await fill(folder)
    await moved(folder, target, cut_over=False)
    held = await target.holding()
    assert await held.is_frozen()
    await held.close()
    await moved(folder, target)
    held = await target.holding()
    assert not await held.is_frozen()
    await held.close()
    frozen = await folder.holding()
    assert await frozen.is_frozen()
    await frozen.close()


async def test_a_target_that_somebody_thawed_is_frozen_again(folder: Place, other: Place):
    await fill(folder)
    await moved(folder, other, cut_over=False)
    held = await other.holding()
    await held.thaw()
    await held.close()
    await moved(folder, other, cut_over=False)
    held = await other.holding()
    assert await held.is_frozen()
    await held.close()


async def test_a_move_goes_on_wherever_it_was_cut_short(folder: Place, target: Place, monkeypatch):
    """Cancelled at every step in turn, both ends closed; the next run writes only what is missing."""
    monkeypatch.setattr(targets, "BATCH_ROWS", 10)
    before = await fill(folder)
    written = 0
    for steps in range(1, 60):
        report = await run_for(folder, target, steps)
        if report is not None:
            break
    assert report is not None, "it never came to an end"
    assert report.complete
    written += report.written
    assert await target.rows() == before
    assert written < len(before), "what was there already was written again"


async def run_for(source: Place, target: Place, steps: int) -> migration.Report | None:
    """Let a move tell of so many steps, then end it there; None when it did not get to its end."""
    task: asyncio.Task[migration.Report]
    told = 0

    def tell(_what: str, _done: int, _total: int) -> None:
        nonlocal told
        told += 1
        if told >= steps:
            task.cancel()

    task = asyncio.create_task(moved(source, target, tell=tell))
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def test_a_log_that_was_cut_is_made_up_for_by_comparing(folder: Place, other: Place, monkeypatch):
    await fill(folder)
    await moved(folder, other, cut_over=False)
    async with folder.open() as engine:
        await put(engine, record("job-1", revision=9), record("new"))
        while await engine.compact(LogKept(2**62, 0)):
            pass
    report = await moved(folder, other)
    assert report.complete
    assert await other.rows() == await folder.rows()


# --- what is kept, and what is not ---------------------------------------------------------------------------------


def test_a_beat_is_no_difference_and_a_token_is():
    assert fingerprint(leased("held", 4)) == fingerprint(leased("held", 9))
    assert fingerprint(leased("held", 4)) != fingerprint(replace(leased("held", 4), token=4))
    for name, value in {"uid": "x", "revision": 5, "marks": b"", "deleted": 3, "kind": "kv", "id": "y"}.items():
        assert fingerprint(replace(leased("held", 4), **{name: value})) != fingerprint(leased("held", 4)), name
    assert fingerprint(leased("held", 4, more=1)) != fingerprint(leased("held", 4))
    plain = record("plain", expiresAt="2026-01-01T00:00:00Z")
    assert fingerprint(plain) != fingerprint(record("plain", expiresAt="2026-01-01T00:00:01Z"))


async def test_tokens_never_come_again(folder: Place, other: Place):
    async with folder.open() as engine:
        await put(engine, record("a", kind="lock", token=7))
    held = await folder.holding()
    await own.keep(held.store, own.row(held.store, own.TOKENS, token=900))
    await held.close()
    report = await moved(folder, other)
    assert report.token_floor == 900
    held = await other.holding()
    assert held.store.token_floor == 900
    await held.close()
    assert (await other.rows())["lock", "a"].token == 7


async def test_what_the_source_gave_out_before_it_lost_something_does_not_come_again_either(
    tmp_path: Path, other: Place
):
    source = place("redis", tmp_path / "source")
    async with source.open() as engine:
        await engine.load(_page(record("a")))
        floor = token_floor(engine.epoch)
    assert floor > 0
    assert (await moved(source, other)).token_floor == floor
    held = await other.holding()
    assert held.store.token_floor >= floor
    await held.close()


async def test_a_higher_floor_of_the_target_is_kept(folder: Place, other: Place):
    held = await other.holding()
    await own.keep(held.store, own.row(held.store, own.TOKENS, token=5000))
    await held.close()
    await fill(folder)
    assert (await moved(folder, other)).token_floor == 5000


async def test_who_sweeps_a_store_is_its_own_affair(folder: Place, other: Place):
    mine, theirs = (record("_sweeper", kind="lock", by=name) for name in ("source", "target"))
    async with folder.open() as engine:
        await put(engine, mine, record("a"))
    async with other.open() as engine:
        await put(engine, theirs)
    assert (await moved(folder, other)).complete
    async with other.open() as engine:
        assert (await engine.get([mine.key]))[0] == theirs


async def test_a_record_that_no_daemon_has_written_yet_can_be_changed_where_it_goes(folder: Place, target: Place):
    """Revision 0: it came into its store by another hand."""
    found = record("found", revision=0)
    async with folder.open() as engine:
        await put(engine, found)
    assert (await moved(folder, target)).complete
    assert await target.rows() == {found.key: found}
    async with target.open() as engine:
        await put(engine, record("found", revision=1))
    assert (await target.rows())[found.key].revision == 1


async def test_a_record_that_the_target_cannot_hold_ends_the_move_with_its_name(folder: Place, tmp_path):
    """Nothing is cut short: what was moved stays, the record is named, the target is not opened."""
    narrow = place("dynamodb", tmp_path / "narrow")
    large = record("large", noise=os.urandom(400_000).hex())
    async with folder.open() as engine:
        await put(engine, record("small"), large)
    with pytest.raises(TooLarge, match=r"job large .*takes \d+ bytes"):
        await moved(folder, narrow)
    held = await narrow.holding()
    assert await held.is_frozen()
    await held.close()
    async with folder.open() as engine:
        await put(engine, record("large", revision=2))
    assert (await moved(folder, narrow)).complete


async def test_a_write_that_came_late_is_not_left_behind(folder: Place, other: Place, monkeypatch):
    """A commit that was under way when the source was frozen ends after both sides were compared."""
    await fill(folder)
    compare = migration.Migration._compare
    late = [record("late"), record("late", revision=2)]

    async def and_late(self: migration.Migration, what: str) -> migration.Compared:
        compared = await compare(self, what)
        if what == "verifying" and late:
            await put(self._source._engine, late.pop(0))  # type: ignore[attr-defined]
        return compared

    monkeypatch.setattr(migration.Migration, "_compare", and_late)
    assert (await moved(folder, other)).complete
    assert (await other.rows())["job", "late"].revision == 2


@pytest.fixture
def shared() -> Place:
    """A store that several daemons reach."""
    storage = WeakStorage(unknown=0)
    return Place(lambda: WeakEngine(storage))


async def thawed(there: Place) -> None:
    """An admin thaws it, at a daemon of its own."""
    held = await there.holding()
    await held.thaw()
    await held.close()


async def test_a_source_that_was_thawed_since_it_was_opened_is_frozen_all_the_same(shared: Place, other: Place):
    await fill(shared)
    before = await shared.holding()
    await before.freeze()
    await before.close()
    assert (await moved_while(shared, other, "copying", lambda: thawed(shared))).complete
    held = await shared.holding()
    assert await held.is_frozen()
    await held.close()


async def test_a_target_does_not_take_over_from_a_source_that_was_thawed_meanwhile(shared: Place, other: Place):
    await fill(shared)
    with pytest.raises(Conflict, match="the source was thawed while it was moved"):
        await moved_while(shared, other, "verifying", lambda: thawed(shared))
    held = await other.holding()
    assert await held.is_frozen()
    await held.close()
    async with shared.open() as engine:
        await put(engine, record("job-1", revision=50))
    assert (await moved(shared, other)).complete
    assert (await other.rows())["job", "job-1"].revision == 50


async def moved_while(
    source: Place, target: Place, step: str, happens: Callable[[], Awaitable[None]], **options: Any
) -> migration.Report:
    """A cut-over, with something that happens once both sides were compared."""
    compare = migration.Migration._compare

    async def and_then(self: migration.Migration, what: str) -> migration.Compared:
        compared = await compare(self, what)
        if what == step:
            await happens()
        return compared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration.Migration, "_compare", and_then)
        return await moved(source, target, **options)


async def test_what_the_target_would_forget_is_left_out_and_counted(folder: Place, other: Place):
    await fill(folder)
    report = await moved(folder, other, left_out=lambda row: row.id in {"job-1", "job-2"})
    assert (report.complete, report.left_out) == (True, 2)
    rows = await other.rows()
    assert set(await folder.rows()) - set(rows) == {("job", "job-1"), ("job", "job-2")}


# --- whose target it is --------------------------------------------------------------------------------------------


async def test_a_target_with_records_of_its_own_is_refused_and_left_as_it_is(folder: Place, target: Place):
    await fill(folder)
    async with target.open() as engine:
        await put(engine, record("own"))
    with pytest.raises(Conflict, match="holds records of its own: choose an empty one, or give --replace"):
        await moved(folder, target)
    assert list(await target.rows()) == [("job", "own")]
    held = await target.holding()
    assert not await held.is_frozen()
    await held.close()


async def test_a_target_can_be_replaced(folder: Place, target: Place):
    before = await fill(folder)
    async with target.open() as engine:
        await put(engine, record("own", token=77))
        epoch = engine.epoch
    report = await moved(folder, target, replace=True)
    assert report.complete
    assert report.token_floor == 77
    assert await target.rows() == before
    async with target.open() as engine:
        assert engine.epoch != epoch


async def test_replace_that_was_cut_short_while_it_emptied_the_target_can_be_given_again(
    folder: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On DynamoDB that is where there is no way back, and whoever comes next has to finish it."""
    before = await fill(folder)
    target = place("dynamodb", tmp_path / "target")
    async with target.open() as engine:
        await put(engine, record("own"))

    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(loads.Whole, "_put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            await moved(folder, target, replace=True)
    monkeypatch.setattr(loads, "ABANDONED_SECONDS", 0.1)
    monkeypatch.setattr(holdings, "PAUSE_SECONDS", 0.01)
    said: list[str] = []
    await (await Holding(target.make(), Kinds(), tmp_path).open(said.append)).close()
    assert len(said) == 1
    assert "is being replaced: waiting for it" in said[0]
    assert (await moved(folder, target, replace=True)).complete
    assert await target.rows() == before


async def test_replace_given_again_goes_on_with_what_is_there(folder: Place, other: Place):
    await fill(folder)
    async with other.open() as engine:
        await put(engine, record("own"))
    await moved(folder, other, cut_over=False, replace=True)
    report = await moved(folder, other, replace=True)
    assert (report.complete, report.written) == (True, 0)


async def test_part_of_another_store_is_refused(folder: Place, other: Place, tmp_path):
    third = place("sqlite", tmp_path / "third")
    await fill(folder)
    async with third.open() as engine:
        await put(engine, record("x"))
    await moved(folder, other, cut_over=False)
    with pytest.raises(Conflict, match="holds part of another sqlite store"):
        await moved(third, other)
    assert (await moved(third, other, replace=True)).complete
    assert list(await other.rows()) == [("job", "x")]
    with pytest.raises(Conflict, match="holds another sqlite store"):
        await moved(folder, other)


async def test_a_target_that_is_not_complete_is_no_source(folder: Place, other: Place, tmp_path):
    await fill(folder)
    await moved(folder, other, cut_over=False)
    with pytest.raises(Conflict, match="itself the target of a move that is not complete"):
        await moved(other, place("sqlite", tmp_path / "third"))


async def test_a_store_is_not_moved_into_itself():
    storage = WeakStorage()
    there = Place(lambda: WeakEngine(storage))
    await fill(there)
    with pytest.raises(Conflict, match="source and target are the same store"):
        await moved(there, there)


async def test_a_completed_move_is_told_again_and_the_target_is_left_alone(folder: Place, other: Place):
    await fill(folder)
    first = await moved(folder, other)
    async with other.open() as engine:
        await put(engine, record("job-1", revision=50))
    again = await moved(folder, other)
    assert (again.already, again.target_frozen) == (True, False)
    assert (again.whole, again.complete) == (first.whole, True)
    assert (await other.rows())["job", "job-1"].revision == 50


async def test_a_source_that_went_on_after_its_move_is_not_called_moved(folder: Place, other: Place):
    await fill(folder)
    await moved(folder, other)
    async with folder.open() as engine:
        await put(engine, record("job-1", revision=50))
    with pytest.raises(Conflict, match="the source was written to since: give --replace"):
        await moved(folder, other)
    report = await moved(folder, other, replace=True)
    assert (report.complete, report.already) == (True, False)
    assert (await other.rows())["job", "job-1"].revision == 50


@pytest.fixture
def killed_before_the_end(monkeypatch: pytest.MonkeyPatch) -> Callable[[Place, Place], Awaitable[None]]:
    """A cut-over that ends when everything is moved and verified."""

    def reach(point: str) -> None:
        if point == "migrate.complete":
            raise KeyboardInterrupt

    async def cut_over(source: Place, target: Place) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "armed", True)
            patch.setattr(failpoints, "reach", reach)
            with pytest.raises(KeyboardInterrupt):
                await moved(source, target)

    return cut_over


async def test_a_cut_over_that_was_killed_before_its_end_is_made_up_for(
    folder: Place, target: Place, killed_before_the_end
):
    await fill(folder)
    await killed_before_the_end(folder, target)
    held = await target.holding()
    assert await held.is_frozen()
    await held.close()
    report = await moved(folder, target)
    assert (report.complete, report.already) == (True, False)
    held = await target.holding()
    assert not await held.is_frozen()
    await held.close()


@pytest.mark.parametrize("cut_over", [False, True])
async def test_a_cut_over_that_was_killed_before_its_end_can_be_taken_back(
    folder: Place, other: Place, killed_before_the_end, cut_over: bool
):
    """The source is thawed and written to: no later run hands over what is old by then."""
    await fill(folder)
    await killed_before_the_end(folder, other)
    await thawed(folder)
    async with folder.open() as engine:
        await put(engine, record("job-1", revision=50))
    assert (await moved(folder, other, cut_over=cut_over)).complete == cut_over
    for place_, is_frozen in ((folder, cut_over), (other, not cut_over)):
        held = await place_.holding()
        assert await held.is_frozen() == is_frozen
        await held.close()
    assert (await other.rows())["job", "job-1"].revision == 50


async def test_a_freeze_that_an_admin_ordered_after_the_move_is_left_alone(folder: Place, other: Place, monkeypatch):
    """Also where the run that completed it was cut short while daemons heard of the thaw."""
    await fill(folder)

    async def interrupted(_: Engine, *, under_way: bool = True) -> None:
        if not under_way:
            raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        for module in (administration, holdings):
            patch.setattr(module, "until_heeded", interrupted)
        with pytest.raises(asyncio.CancelledError):
            await moved(folder, other)
    held = await other.holding()
    assert not await held.is_frozen()
    await held.freeze()
    await held.close()
    report = await moved(folder, other)
    assert (report.already, report.target_frozen) == (True, True)
    held = await other.holding()
    assert await held.is_frozen()
    await held.close()


async def test_two_moves_into_one_target_notice_each_other(folder: Place, other: Place):
    await fill(folder)
    held = await other.holding()
    one, two = targets.Target(held), targets.Target(held)
    marker = one.new_marker("sqlite", "e")
    await one.mark(marker)
    seen = await two.marker()
    assert seen is not None
    await two.mark(seen)
    with pytest.raises(Conflict, match="another migrate writes to the same target"):
        await one.mark(marker)
    await held.close()


async def test_of_two_moves_that_begin_at_once_the_later_leaves_the_target_frozen(shared: Place, monkeypatch):
    await fill(shared)
    storage = WeakStorage(unknown=0)
    target = Place(lambda: WeakEngine(storage))
    freeze = targets.Target.freeze

    async def overtaken(self: targets.Target) -> None:
        monkeypatch.setattr(targets.Target, "freeze", freeze)
        await moved(shared, target, cut_over=False)
        await freeze(self)

    monkeypatch.setattr(targets.Target, "freeze", overtaken)
    with pytest.raises(Conflict, match="another migrate writes to the same target"):
        await moved(shared, target)
    held = await target.holding()
    assert await held.is_frozen()
    await held.close()
    assert (await moved(shared, target)).complete


@pytest.mark.parametrize(
    ("step", "key"), [("forward", ("job", "job-1")), ("put", ("job", "job-2")), ("remove", ("_dedupe", "gone"))]
)
async def test_a_run_that_stood_still_while_another_completed_the_move_writes_nothing_more(
    shared: Place, monkeypatch, step: str, key: tuple[str, str]
):
    await fill(shared)
    storage = WeakStorage(unknown=0)
    target = Place(lambda: WeakEngine(storage))
    await moved(shared, target, cut_over=False)
    async with shared.open() as engine:
        promoted, gone = await engine.get([("job", "job-2"), ("_dedupe", "gone")])
        assert promoted is not None
        assert gone is not None
        await commit(engine, [(hidden(promoted, ready="5"),), (removed(gone),)])
        await put(engine, record("job-1", revision=3))
    written = record(key[1], kind=key[0], revision=50)
    goes_on = getattr(targets.Target, step)

    async def stand_still(self: targets.Target, *args: Any, **options: Any) -> Any:
        if args[0]:
            monkeypatch.setattr(targets.Target, step, goes_on)
            assert (await moved(shared, target)).complete
            async with target.open() as daemon:
                await put(daemon, written)
        return await goes_on(self, *args, **options)

    monkeypatch.setattr(targets.Target, step, stand_still)
    with pytest.raises(Conflict, match="another migrate writes to the same target"):
        await moved(shared, target, cut_over=False)
    assert (await target.rows())[key] == written
    assert (await moved(shared, target)).already


async def test_a_move_that_began_anew_is_not_taken_for_the_one_before(folder: Place, other: Place):
    """The revision of the marker, by which runs notice each other, goes on."""

    async def noted() -> int:
        async with other.open() as engine:
            (marker,) = await engine.get([targets.MARKER])
        return 0 if marker is None else marker.revision

    await fill(folder)
    await moved(folder, other)
    before = await noted()
    await moved(folder, other, cut_over=False, replace=True)
    assert await noted() > before


# --- verifying -----------------------------------------------------------------------------------------------------


async def test_a_target_that_does_not_keep_what_it_is_given_is_found_out(folder: Place, other: Place, monkeypatch):
    await fill(folder)
    make = other.make

    def forgetful() -> Engine:
        engine = make()
        dump = engine.dump

        async def without_one() -> object:
            whole = await dump()
            return whole._replace(rows=_without(whole.rows, "job-3"))

        engine.dump = without_one  # type: ignore[method-assign, assignment]
        return engine

    other.make = forgetful
    with pytest.raises(
        Differs, match="still differ in 1 records though the source is frozen:\njob job-3 is in the source alone"
    ):
        await moved(folder, other)
    other.make = make
    held = await other.holding()
    assert await held.is_frozen(), "a target that is not known to be the same takes no writes"
    await held.close()
    assert (await moved(folder, other)).complete


async def _page(*rows: Row) -> AsyncIterator[list[Row]]:
    yield list(rows)


async def _without(pages: AsyncIterator[list[Row]], id: str) -> AsyncIterator[list[Row]]:
    async with aclosing(pages) as open_pages:  # type: ignore[type-var]
        async for rows in open_pages:
            yield [row for row in rows if row.id != id]


async def test_rows_of_a_dump_that_come_twice_count_once(folder: Place, other: Place):
    before = await fill(folder)
    make = folder.make

    def repeating() -> Engine:
        engine = make()
        dump = engine.dump

        async def twice() -> object:
            whole = await dump()
            return whole._replace(rows=_twice(whole.rows))

        engine.dump = twice  # type: ignore[method-assign, assignment]
        return engine

    folder.make = repeating
    report = await moved(folder, other)
    assert report.whole["source"].rows == len(before)


async def _twice(pages: AsyncIterator[list[Row]]) -> AsyncIterator[list[Row]]:
    async with aclosing(pages) as open_pages:  # type: ignore[type-var]
        async for rows in open_pages:
            yield rows
            yield rows
