"""Following the log: which events pass a filter, what they look like, and who has fallen behind."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from msgspec.structs import replace

from statesvc.backends.memory import MemoryEngine
from statesvc.backends.port import Engine, Event, Keys, LogEntry, Row
from statesvc.store import queries, telling
from statesvc.store.following import Bookmark, Feed, Sieve, Tally, read_bookmark
from statesvc.store.kinds import Kinds
from statesvc.store.queries import read_filter
from statesvc.store.store import Store
from statesvc.store.telling import Teller
from statesvc.store.writes import Caller
from statesvc_client import wire
from statesvc_client.errors import BadRequest, Gone, StateError, Unavailable
from tests.engines.addresses import EVERY
from tests.engines.rows import born, commit
from tests.engines.weak import WeakEngine, WeakStorage

JOB = Kinds()["job"]
EPOCH = "0123456789abcdef"
CLIENT = Caller(said_hello=True)
FRAME = 1024 * 1024


def entry(
    cursor: str = "1", id: str = "a", body: bytes = b'{"uuid":"a"}', revision: int = 1, **of_event: Any
) -> LogEntry:
    row = Row("job", id, f"uid-{id}", revision, Keys(created=1, updated=1), body)
    return LogEntry(cursor, Event(**{"type": "updated", "at": 1_000_000_001, **of_event}), row)


# --- cursors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", ["0", "17", "a3.b7.c0", "1-0/2"])
def test_a_cursor_is_read_as_it_was_told(cursor: str):
    bookmark = Bookmark(EPOCH, cursor)
    assert read_bookmark(bookmark.text, EPOCH) == bookmark


def test_the_oldest_kept_is_before_everything():
    assert read_bookmark("0", EPOCH) == Bookmark(EPOCH, "")
    assert Bookmark(EPOCH, "").text == "0"


def test_a_cursor_of_another_epoch_is_gone_and_says_what_to_do():
    with pytest.raises(Gone, match="list again, then watch from asOf"):
        read_bookmark(f"{EPOCH[::-1]}.5", EPOCH)


@given(st.text(max_size=40))
def test_whatever_else_is_sent_as_a_cursor_is_refused(text: str):
    if text != "0":
        with pytest.raises((BadRequest, Gone)):
            read_bookmark(text, EPOCH)


# --- filters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [{"": "x"}, {"team": 1}])
def test_a_deletion_is_told_where_the_record_may_have_matched_and_nobody_knows(labels: dict[str, Any]):
    gone = entry(body=b"", revision=2, type="deleted")
    gone = gone._replace(row=replace(gone.row, deleted=1))
    assert Sieve(JOB, read_filter({"labels": labels})).verdict(gone) == "told"


STATES = ("PENDING", "QUEUED", "RUNNING", "STOPPING")
NODES = ("n1", "n2", None)
FILTERS: list[dict[str, Any]] = [
    {"status": "RUNNING"},
    {"statuses": ["PENDING", "STOPPING"]},
    {"nodeId": "n1"},
    {"owner": "worker/1"},
    {"labels": {"team": "x"}},
    {"ids": ["a"]},
    {"prefix": "b"},
    {"regex": "^[ab]$"},
    {"status": "QUEUED", "nodeId": "n1"},
    {"nodeId": "n2", "labels": {"team": "x"}},
    {"createdAfter": "2020-01-01T00:00:00Z", "status": "PENDING"},
    {"createdBefore": "2020-01-01T00:00:00Z"},
]

changes = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.one_of(
            st.just("delete"),
            st.just("emit"),
            st.fixed_dictionaries(
                {},
                optional={
                    "status": st.sampled_from(STATES),
                    "nodeId": st.sampled_from(NODES),
                    "owner": st.sampled_from(["worker/1", None]),
                    "labels": st.sampled_from([{"team": "x"}, {"team": "y"}, {"team": None}]),
                    "n": st.integers(0, 3),
                },
            ),
        ),
    ),
    max_size=40,
)


async def made(store: Store, id: str, change: Any) -> None:
    """Do it, if the rules allow it."""
    request: Any
    if change == "delete":
        request = wire.Delete(job_id=id)
    elif change == "emit":
        request = wire.Emit(job_id=id, event=wire.Told("step"))
    else:
        request = wire.Update(job_id=id, job=change, upsert=True)
    try:
        decided = store.write_now(request, CLIENT)
    except StateError:
        return
    if decided.after is not None:
        await decided.after.wait()


@given(changes)
async def test_whoever_follows_through_a_filter_knows_what_a_list_would_show(steps: list[tuple[str, Any]]):
    """A set kept by the events alone is, after every change, the set of records that match."""
    store = Store(MemoryEngine())
    store.start()
    for id, change in steps:
        await made(store, id, change)
    log = await store.engine.read_log("", 1000)
    await store.stop()
    for filter_ in FILTERS:
        wanted = read_filter(filter_)
        sieve, tests = Sieve(JOB, wanted), queries.tests(wanted, JOB, queries.wanted_statuses(wanted, JOB))
        if wanted.ids is not None:
            tests.append(lambda row, _, ids=wanted.ids: row.id in ids)  # type: ignore[misc]
        known: set[str] = set()
        living: dict[str, Row] = {}
        for each in log:
            verdict = sieve.verdict(each)
            before = set(known)
            if verdict == "told" and not each.row.deleted:
                known.add(each.row.id)
            elif verdict is not None:
                known.discard(each.row.id)
                assert before != known, "told of the end of what was not known"
            living[each.row.id] = each.row
            assert known == {id for id, row in living.items() if not row.deleted and queries.passes(row, tests)}, (
                filter_
            )


def test_a_filter_on_what_only_the_record_tells_counts_as_matched_before():
    sieve = Sieve(JOB, read_filter({"where": {"x": 1}}))
    assert sieve.verdict(entry(body=b'{"x":1}')) == "told"
    assert sieve.verdict(entry(body=b'{"x":2}', revision=2)) == "left"
    assert sieve.verdict(entry(body=b'{"x":2}', revision=1)) is None
    assert sieve.verdict(entry(body=b'{"x":2}', revision=2, type="my own")) is None


def test_a_time_that_a_change_moves_counts_as_matched_before():
    sieve = Sieve(JOB, read_filter({"updatedBefore": "1960-01-01T00:00:00Z", "status": "RUNNING"}))
    assert sieve.verdict(entry(revision=2, before="RUNNING", after="FAILED")) == "left"
    assert sieve.verdict(entry(revision=2, before="QUEUED", after="FAILED")) is None


def test_events_of_other_kinds_never_pass():
    other = entry()._replace(row=Row("kv", "a", "u", 1, Keys(created=1, updated=1), b"{}"))
    assert Sieve(JOB, read_filter({})).verdict(other) is None
    assert Sieve(JOB, read_filter({"prefix": "a"})).verdict(other) is None


# --- what an event looks like --------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_id", ["w", 7, 'a "b" \\ \u2603'])
@pytest.mark.parametrize("cursor", ["17", "a3.b7.c0"])
def test_a_spliced_line_is_the_line_the_wire_describes(request_id: Any, cursor: str):
    teller = Teller(FRAME)
    for each in (
        entry(cursor),
        entry(cursor, revision=2, before="QUEUED", after="RUNNING", type="status"),
        entry(cursor, revision=3, id='"\u2603"', type="my own", message="m\n", data=b'{"x":[1]}'),
        LogEntry(cursor, Event("deleted", 5, "FAILED"), Row("job", "a", "u", 3, Keys(1, 1), b"", deleted=5)),
    ):
        event = teller.happening(each, f"{EPOCH}.{cursor}")
        line = telling.head(request_id, EPOCH) + teller.rest(each, EPOCH)
        assert line == wire.encode_line(wire.EventLine(request_id=request_id, event=event))
        assert wire.decode_reply(line).event is not None
        left = telling.head(request_id, EPOCH) + teller.rest_of_left(each)
        told = wire.decode_reply(left).event
        assert told is not None
        assert (told.type, told.record, told.data) == ("left", UNSET, UNSET)


def test_an_event_is_encoded_once_for_all_who_read_it():
    teller = Teller(FRAME)
    assert teller.rest(entry("1"), EPOCH) is teller.rest(entry("1"), EPOCH)


def test_where_a_log_has_several_parts_an_entry_has_many_cursors_and_a_cursor_many_entries():
    teller = Teller(FRAME)
    first, second = teller.rest(entry("a1.b2"), EPOCH), teller.rest(entry("a12.b1"), EPOCH)
    assert (first[:6], second[:7], first[5:]) == (b'a1.b2"', b'a12.b1"', second[6:])
    assert teller.rest(entry("a1.b1", id="x"), EPOCH) != teller.rest(entry("a1.b1", id="y"), EPOCH)


def test_a_revision_that_is_made_again_in_another_epoch_is_another():
    teller = Teller(FRAME)
    assert b"one" in teller.rest(entry(body=b'{"x":"one"}'), EPOCH)
    assert b"two" in teller.rest(entry(body=b'{"x":"two"}'), EPOCH[::-1])


def test_what_is_kept_of_encoded_events_is_bounded():
    teller = Teller(FRAME)
    body = b'{"x":"%s"}' % (b"y" * 10_000)
    for number in range(2000):
        teller.rest(entry(id=str(number), body=body), EPOCH)
    kept = sum(len(told.rest) for told in itertools.chain(teller._young.values(), teller._old.values()))
    assert kept < 2 * telling.GENERATION_BYTES + 20_000


def test_an_event_fits_a_frame_whatever_was_said():
    teller = Teller(64 * 1024)
    record = b'{"x":"%s"}' % (b"y" * 40_000)
    fits = teller.happening(entry(body=record, type="my own", data=b'"%s"' % (b"z" * 1000)), "c")
    assert isinstance(fits.record, Raw)
    large = teller.happening(entry(body=record, type="my own", data=b'"%s"' % (b"z" * 40_000)), "c")
    assert (large.record, isinstance(large.data, Raw)) == (UNSET, True)
    dense = teller.happening(entry(body=record, type="my own", message="z" * 40_000), "c")
    assert (dense.record, dense.message) == (UNSET, "z" * 40_000)
    larger = teller.happening(entry(body=record, type="my own", message="\x00" * 40_000), "c")
    assert (isinstance(larger.record, Raw), larger.message) == (True, None)
    for event in (fits, large, dense, larger):
        line = wire.encode_line(wire.EventLine(request_id="\x00" * 256, event=event))
        assert len(line) <= 64 * 1024


def test_a_status_that_is_a_novel_is_not_told_twice_more():
    told = Teller(FRAME).happening(entry(before="x" * 1000, after="y"), "c")
    assert (told.from_, told.to) == (None, "y")


def test_secrets_are_left_out():
    told = Teller(FRAME).happening(entry(body=b'{"uuid":"a","secretEnvironment":{"K":"hush"}}'), "c")
    assert bytes(told.record) == b'{"uuid":"a"}'  # type: ignore[arg-type]


# --- reading on ----------------------------------------------------------------------------------------------------


async def test_a_cursor_that_an_engine_takes_for_one_of_its_new_log_is_gone_all_the_same():
    storage = WeakStorage(seed=1, unknown=0.0)
    store = Store(WeakEngine(storage))
    feed = Feed(store)
    bookmark = await feed.begin(None)
    storage.replace({})
    with pytest.raises(Gone, match="epoch"):
        await feed.read(bookmark)
    with pytest.raises(Gone):
        await feed.begin(bookmark.text)


async def _grow_until(engine: Engine, alarm: asyncio.Future[None], grown: int) -> int:
    """Add to the log, one entry at a time, until the alarm is raised; how many there are then."""
    while not alarm.done() and grown < 20_000:
        await commit(engine, [born(f"j{grown}")])
        grown += 1
        await asyncio.sleep(0.001)
    assert alarm.done()
    return grown


@pytest.mark.parametrize("name", list(EVERY))
async def test_the_alarm_is_raised_once_the_log_grew_by_more_than_that(name: str, tmp_path: Any):
    engine = EVERY[name].make(tmp_path)()
    await engine.open()
    try:
        await commit(engine, [born("before")])
        tally = Tally(engine)
        alarm, later = tally.alarm(5), tally.alarm(9)
        grown = await _grow_until(engine, alarm, 0)
        assert grown > 5
        assert await _grow_until(engine, later, grown) > 9
        for each in (alarm, later):
            tally.forget(each)
        assert tally._counting is None
    finally:
        await engine.close()


async def test_counting_goes_on_after_the_engine_was_away(monkeypatch: pytest.MonkeyPatch):
    engine = MemoryEngine()
    calls = 0
    real = engine.read_log

    async def flaky(*args: Any) -> list[LogEntry]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Unavailable("away")
        return await real(*args)

    monkeypatch.setattr(engine, "read_log", flaky)
    tally = Tally(engine)
    alarm = tally.alarm(2)
    assert await _grow_until(engine, alarm, 0) > 2
    tally.forget(alarm)
