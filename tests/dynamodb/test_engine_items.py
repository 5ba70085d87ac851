"""What is stored: items people can read, everything lossless, Joblet's own items, time to go, and what is too large."""

from __future__ import annotations

import random
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from statesvc.backends.dynamodb.layout import LEAST_MOMENT, MOST_MOMENT, moment_text
from statesvc.backends.dynamodb.tables import Wanted, definition
from statesvc.backends.port import Event, Keys, Query, Row, Write
from statesvc_client.errors import BadRequest, TooLarge, Unavailable
from tests.dynamodb.asking import make_table
from tests.dynamodb.engines import Place, binary, in_haste, place_at, whole_log
from tests.dynamodb.servers import Tables
from tests.engines.rows import after, born, buried, commit, fill, hidden, row

A = ("job", "a")
DAY = 86_400
SECOND = 1_000_000_000


def job(name: str, body: bytes, **keys: Any) -> Row:
    return Row("job", name, f"uid-{name}", 1, Keys(**{"created": 1, "updated": 1, **keys}), body)


# --- for people ------------------------------------------------------------------------------------------------------


async def test_a_job_has_the_attributes_joblet_gives_its_own(place: Place):
    created = 1_761_436_800 * SECOND + 5
    body = (
        b'{"uuid":"a","status":"FAILED","command":"echo hi","exitCode":-1,"nodeId":"n1","big":1e400,'
        b'"deep":[{"x":12345678901234567890123456789012345678901234567890}]}'
    )
    stored = job("a", body, created=created, updated=created + 1, completed=created + 2, status="FAILED", node="n1")
    async with place.opened() as engine:
        await fill(engine, [stored])
        item = await place.job("a")
        assert {name: next(iter(item[name].values())) for name in (
            "jobId", "jobStatus", "command", "createdAt", "updatedAt", "completedAt", "exitCode", "nodeId", "record",
        )} == {
            "jobId": "a", "jobStatus": "FAILED", "command": "echo hi", "createdAt": "2025-10-26T00:00:00.000000005Z",
            "updatedAt": "2025-10-26T00:00:00.000000006Z", "completedAt": "2025-10-26T00:00:00.000000007Z",
            "exitCode": "-1", "nodeId": "n1", "record": body.decode(),
        }  # fmt: skip
        assert await engine.get([A]) == [stored]


@pytest.mark.parametrize(
    "body",
    [
        b'{"exitCode":' + b"9" * 60 + b"}",
        b'{"exitCode":"no","command":["a"]}',
        b'{"exitCode":1.5,"command":""}',
        b'{"command":"' + b"x" * 5000 + b'"}',
        b'{"command":"\xff"}',
        b"not json",
        b"",
        '{"text":"ü😀\\u0000"}'.encode(),
    ],
)
async def test_any_record_is_kept_as_it_is_though_joblets_attributes_cannot_show_it(place: Place, body: bytes):
    async with place.opened() as engine:
        await fill(engine, [job("a", body)])
        assert await engine.get([A]) == [job("a", body)]
        assert "exitCode" not in await place.job("a")
        assert [entry.row for entry in await whole_log(engine)] == [job("a", body)]


def test_times_as_text_sort_as_the_times_do():
    moments = sorted(
        {
            LEAST_MOMENT,
            MOST_MOMENT,
            -1,
            0,
            1,
            SECOND,
            -SECOND,
            10**18,
            *random.Random(1).sample(range(-(10**18), 10**18), 50),
        }
    )
    texts = [moment_text(moment) for moment in moments]
    assert texts == sorted(texts)
    assert {len(text) for text in texts} == {30}
    assert texts[0].startswith("1677-09-21T00:12:43.145224192Z")
    assert texts[-1].startswith("2262-04-11T23:47:16.854775807Z")


# --- large ones ------------------------------------------------------------------------------------------------------


def noise(count: int) -> bytes:
    """JSON that hardly gets smaller."""
    return msgspec.json.encode({"x": random.Random(count).randbytes(count).hex()})


async def test_large_records_are_compressed_and_come_back_as_they_were(place: Place):
    plain = b'{"x":"' + b"a" * 3_000_000 + b'"}'
    dense = noise(300_000)
    async with place.opened() as engine:
        rows = await fill(engine, [job("a", plain), job("b", dense), job("c", b'{"x":"' + b"a" * 30_000 + b'"}')])
        assert [set(await place.job(each.id)) & {"record", "recordZ"} for each in rows] == [
            {"recordZ"},
            {"recordZ"},
            {"record"},
        ]
        assert await engine.get([each.key for each in rows]) == rows
        step = Write(
            msgspec.structs.replace(rows[1], revision=2, body=noise(310_000)), rows[1].stamp, Event("updated", 2)
        )
        assert await engine.commit([(step,)]) == ["applied"]
        log = {(entry.row.id, entry.row.revision): entry.row for entry in await whole_log(engine)}
        assert log == {(each.id, each.revision): each for each in [*rows, step.row]}
        assert [entry.row for entry in await engine.history(("job", "b"), "", 10)] == [rows[1], step.row]
    async with place.opened() as again:
        assert {(entry.row.id, entry.row.revision): entry.row for entry in await whole_log(again)} == log
        assert await again.check() == []


async def test_a_record_no_item_can_hold_is_refused_by_its_size_and_nothing_is_stored(place: Place):
    async with place.opened() as engine:
        large = (Write(job("a", noise(420_000)), None, Event("created", 1)),)
        refused, other = await engine.commit([large, born("b")])
        assert isinstance(refused, TooLarge)
        assert re.match(r"job a takes \d+ bytes when compressed; DynamoDB holds 409600", refused.text)
        assert (refused.outcome, other) == ("not_applied", "applied")
        assert await engine.get([A]) == [None]
        assert [entry.row.id for entry in await whole_log(engine)] == ["b"]
        await fill(engine, [job("a", noise(350_000))])


async def test_large_records_together_make_several_slots_or_are_refused(place: Place):
    async with place.opened() as engine:
        some = [job(f"job-{number}", noise(200_000 + number)) for number in range(5)]
        assert await engine.commit([tuple(Write(each, None, Event("created", 1)) for each in some)]) == ["applied"]
        for limit in (1, 2, 100):
            assert [entry.row for entry in await whole_log(engine, "", limit)] == some
        many = [job(f"more-{number}", noise(300_000 + number)) for number in range(9)]
        (refused,) = await engine.commit([tuple(Write(each, None, Event("created", 1)) for each in many)])
        assert isinstance(refused, TooLarge)
        assert "DynamoDB takes 4000000 in one transaction" in refused.text
        assert await engine.get([each.key for each in many]) == [None] * 9
        assert await engine.commit([(Write(each, None, Event("created", 1)),) for each in many]) == ["applied"] * 9
        assert len(await whole_log(engine)) == 14
    async with place.opened() as again:
        assert len(await whole_log(again)) == 14
        assert await again.check() == []


async def test_a_place_inside_a_slot_of_several_items_is_good_for_every_daemon(place: Place):
    some = [job(f"job-{number}", noise(200_000 + number)) for number in range(5)]
    async with place.opened() as engine, place.opened() as other:
        await fill(engine, [row("before")])
        assert await engine.commit([tuple(Write(each, None, Event("created", 1)) for each in some)]) == ["applied"]
        await fill(engine, [row("after")])
        log = await whole_log(engine)
        rows = [entry.row for entry in log]
        async with place.opened() as started:
            for reader in (engine, other, started):
                for index, entry in enumerate(log):
                    assert [each.row for each in await whole_log(reader, entry.cursor, 2)] == rows[index + 1 :]
                for each in some:
                    (entry,) = await reader.history(each.key, "", 10)
                    assert entry.row == each
                    assert await reader.history(each.key, entry.cursor, 10) == []


async def test_more_labels_than_a_transaction_holds_are_all_found(place: Place):
    labels = tuple((f"name-{number:03}", "x" * number) for number in range(250))
    async with place.opened() as engine:
        (a,) = await fill(engine, [row("a", labels=labels)])
        for name, value in labels[::40]:
            assert await engine.query(Query(kind="job", limit=9, term=(f"label:{name}", value))) == [a]
        step = after(a, labels=labels[:2])
        assert await engine.commit([(step,)]) == ["applied"]
        assert await engine.query(Query(kind="job", limit=9, term=(f"label:{labels[1][0]}", labels[1][1]))) == [
            step.row
        ]
        for name, value in labels[2::40]:
            assert await engine.query(Query(kind="job", limit=9, term=(f"label:{name}", value))) == []
        assert await engine.check() == []


@pytest.mark.parametrize("name", ["x" * 256, "😀" * 256, "a#b", "#", "r#job#x"])
async def test_ids_of_any_form_are_found_by_every_walk(place: Place, name: str):
    async with place.opened() as engine:
        keys: dict[str, Any] = {
            "status": "S",
            "node": "n",
            "owner": "o",
            "labels": (("l#=", "v" * 3000),),
            "ready": "1",
            "due": 3,
        }
        for kind in ("job", "kv"):
            (stored,) = await fill(engine, [row(name, kind=kind, **keys)])
            for query in (
                *[Query(kind=kind, limit=9, sort=sort) for sort in ("created", "id", "ready", "due", "status")],
                *[
                    Query(kind=kind, limit=9, term=term)
                    for term in (("status", "S"), ("node", "n"), ("owner", "o"), ("label:l#=", "v" * 3000))
                ],
            ):
                assert await engine.query(query) == [stored], query
        assert await engine.check() == []


async def test_an_id_that_is_too_long_is_refused_and_nobodys(place: Place):
    async with place.opened() as engine:
        (refused,) = await engine.commit([born("x" * 2000)])
        assert isinstance(refused, BadRequest)
        assert "2000 bytes long; DynamoDB takes 1024" in refused.text
        assert await engine.get([("job", "x" * 2000), ("job", "")]) == [None, None]


# --- time to go ------------------------------------------------------------------------------------------------------


async def test_only_finished_jobs_are_given_a_time_to_go(place: Place):
    now = int(time.time())
    async with place.opened(ttl_days=3) as engine:
        await fill(engine, [
            row("done", completed=now * SECOND), row("long-done", completed=5), row("running"),
            row("ahead", completed=(now + 9 * DAY) * SECOND), row("done", kind="kv", completed=now * SECOND),
            row("gone", completed=5, deleted=6),
        ])  # fmt: skip
        at = {
            each["jobId"]["S"]: int(each["expiresAt"]["N"]) if "expiresAt" in each else 0
            for each in await place.items(place.tables.jobs)
        }
        assert now + 3 * DAY <= at.pop("done") <= now + 3 * DAY + 60
        # Counted from when it was written, or it would be gone before anybody read it.
        assert now + 3 * DAY <= at.pop("long-done") <= now + 3 * DAY + 60
        # And from no later: whoever said when it ended has a wrong clock.
        assert now + 3 * DAY <= at.pop("ahead") <= now + 3 * DAY + 60
        assert at == {"running": 0, "gone": 0}


@pytest.mark.parametrize("options", [{"ttl_enabled": False}, {"ttl_days": 0}, {"ttl_attribute": "goesAt"}])
async def test_how_long_jobs_are_kept_is_configured(place: Place, options: dict[str, Any]):
    async with place.opened(**options) as engine:
        await fill(engine, [row("a", completed=5)])
        item = await place.job("a")
        assert "expiresAt" not in item
        assert ("goesAt" in item) == ("ttl_attribute" in options)


async def test_a_job_whose_time_has_come_counts_as_not_there(place: Place):
    async with place.opened() as engine:
        a, b = await fill(engine, [row("a", completed=5, labels=(("x", "y"),), status="DONE"), row("b")])
        await place.change(place.tables.jobs, {"jobId": {"S": "a"}}, expiresAt={"N": str(int(time.time()) - 5)})
        assert await engine.get([A, b.key]) == [None, b]
        for query in (
            Query(kind="job", limit=9),
            Query(kind="job", limit=9, sort="id"),
            Query(kind="job", limit=9, sort="completed", missing=True),
        ):
            assert await engine.query(query) == [b]
        for term in (("label:x", "y"), ("status", "DONE")):
            assert await engine.query(Query(kind="job", limit=9, term=term)) == []
        assert [each async for some in (await engine.dump()).rows for each in some] == [b]
        assert await engine.history(A, "", 10) == []
        assert await commit(engine, [(after(a),)]) == ["conflict"]
        anew = Write(row("a", uid="new"), None, Event("created", 9))
        assert await commit(engine, [(anew,)]) == ["applied"]
        assert await engine.get([A]) == [anew.row]
        assert [entry.row for entry in await engine.history(A, "", 10)] == [anew.row]
        assert await engine.check() == []


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets our time of day, by so many seconds from what it is; the service's stays."""
    real = time.time
    return lambda seconds: monkeypatch.setattr(time, "time", lambda: real() + seconds)


async def test_a_clock_far_ahead_lets_no_job_go_before_its_time(place: Place, jump: Callable[[int], None]):
    async with place.opened() as engine:
        a, b = await fill(engine, [row("a", completed=5), row("b", completed=5)])
        jump(3650 * DAY)
        assert await engine.get([A]) == [a]
        assert await commit(engine, [born("a", uid="another")]) == ["conflict"]
        changed = after(a, completed=5)
        assert await commit(engine, [(changed,)]) == ["applied"]
        async with place.opened() as late:
            assert await late.get([A]) == [changed.row]
            assert sorted([each.id async for some in (await late.dump()).rows for each in some]) == ["a", "b"]
            assert await commit(late, [(after(b),)]) == ["applied"]
            assert await late.check() == []


async def test_a_clock_far_behind_gives_no_job_less_time(place: Place, jump: Callable[[int], None]):
    now = int(time.time())
    async with place.opened(ttl_days=3) as engine, place.opened() as other:
        jump(-60 * DAY)
        (a,) = await fill(engine, [row("a", completed=(now - 60 * DAY) * SECOND)])
        assert int((await place.job("a"))["expiresAt"]["N"]) >= now + 3 * DAY - 60
        await in_haste(engine).load(_one_page([a]))
        assert int((await place.job("a"))["expiresAt"]["N"]) >= now + 3 * DAY - 60
        jump(0)
        assert await other.get([A]) == [a]


async def _one_page(rows: list[Row]) -> AsyncIterator[list[Row]]:
    yield rows


async def test_a_kind_of_which_everything_has_expired_is_not_there(place: Place):
    async with place.opened() as engine:
        await fill(engine, [row("a", completed=5)])
        assert await engine.kinds() == ["job"]
        await place.change(place.tables.jobs, {"jobId": {"S": "a"}}, expiresAt={"N": "1"})
        assert await engine.kinds() == []


# --- Joblet's table --------------------------------------------------------------------------------------------------

JOBLETS: list[dict[str, Any]] = [
    {"jobStatus": {"S": "RUNNING"}, "command": {"S": "echo"}, "createdAt": {"S": "2025-10-26T00:00:00Z"},
     "updatedAt": {"S": "2025-10-26T00:00:01Z"}, "nodeId": {"S": "n1"}},
    {"jobStatus": {"S": "COMPLETED"}, "exitCode": {"N": "0"}, "expiresAt": {"N": "99999999999"},
     "completedAt": {"S": "2025-10-26T00:00:02Z"}},
    {},
    {"jobStatus": {"S": ""}, "createdAt": {"S": "yesterday"},
     "odd": {"M": {"n": {"N": "12345678901234567890.5"}, "l": {"L": [{"NULL": True}, {"BOOL": True}]}}},
     "set": {"SS": ["b", "a"]}, "numbers": {"NS": ["1", "2"]}, "bytes": binary(b"\x00\xff"), "status": {"S": "odd"}},
    {"jobStatus": {"S": "FAILED"}, "expiresAt": {"N": "5"}},
]  # fmt: skip


@pytest.fixture(params=["jobId", "job_uuid"])
async def joblet(request: pytest.FixtureRequest, endpoint: str, tables: Tables) -> AsyncIterator[tuple[Place, str]]:
    """A table as Joblet made it: one key, no indexes, items of its own."""
    async with place_at(endpoint, tables) as made:
        await make_table(made.calls, tables.jobs, request.param)
        for number, item in enumerate(JOBLETS):
            await made.put(tables.jobs, {request.param: {"S": f"job-{number}"}, **item})
        await made.calls.call("CreateTable", definition(Wanted.of(made.options), tables.companion))
        yield made, request.param


async def test_a_table_of_joblets_opens_and_is_served_before_anything_is_made(joblet):
    place, _ = joblet
    names = [("job", f"job-{number}") for number in range(6)]
    async with place.opened() as engine:
        found = await engine.get(names)
        assert [None if each is None else (each.revision, each.uid) for each in found] == [
            *[(0, f"found-job-{number}") for number in range(4)], None, None,
        ]  # fmt: skip
        assert msgspec.json.decode(found[0].body) == {
            "uuid": "job-0", "status": "RUNNING", "command": "echo", "createdAt": "2025-10-26T00:00:00Z",
            "updatedAt": "2025-10-26T00:00:01Z", "nodeId": "n1",
        }  # fmt: skip
        assert msgspec.json.decode(found[1].body) == {
            "uuid": "job-1",
            "status": "COMPLETED",
            "exitCode": 0,
            "completedAt": "2025-10-26T00:00:02Z",
        }
        assert msgspec.json.decode(found[2].body) == {"uuid": "job-2"}
        assert b'"n":12345678901234567890.5,' in found[3].body
        rest = msgspec.json.decode(found[3].body)
        assert (rest["odd"]["l"], sorted(rest["set"]), rest["bytes"], rest["createdAt"]) == (
            [None, True],
            ["a", "b"],
            "AP8=",
            "yesterday",
        )
        listed = await engine.query(Query(kind="job", limit=9, sort="id", descending=False))
        assert listed == found[:4]
        assert await engine.query(Query(kind="job", limit=9, term=("status", "RUNNING"))) == [found[0]]
        assert await engine.count(Query(kind="job", limit=9)) == 4
        assert await engine.kinds() == ["job"]
        assert (await engine.dump()).total in (4, 5)
        assert await engine.check() == []


async def test_a_job_of_joblets_is_written_watched_and_removed_like_any_other(joblet):
    place, _ = joblet
    async with place.opened() as engine:
        cursor = await engine.position()
        (first,) = await engine.get([("job", "job-0")])
        assert await commit(engine, [born("job-0")]) == ["conflict"]
        step = Write(
            row("job-0", uid=first.uid, revision=1, status="STOPPED", labels=(("x", "y"),)),
            first.stamp,
            Event("updated", 2),
        )
        assert await engine.commit([(step,)]) == ["applied"]
        assert await engine.commit([(step,)]) == ["conflict"]
        assert [entry.row for entry in await whole_log(engine, cursor)] == [step.row]
        assert await engine.query(Query(kind="job", limit=9, term=("status", "STOPPED"))) == [step.row]
        assert await engine.query(Query(kind="job", limit=9, term=("label:x", "y"))) == [step.row]
        gone = buried(step.row)
        assert await engine.commit([(gone,)]) == ["applied"]
        assert [each.id for each in await engine.query(Query(kind="job", limit=9, sort="id", descending=False))] == [
            "job-1",
            "job-2",
            "job-3",
        ]
        assert [each.id for each in await engine.query(Query(kind="job", limit=9, sort="deleted"))] == ["job-0"]
        (second,) = await engine.get([("job", "job-1")])
        quiet = hidden(second, token=4)
        assert await engine.commit([(quiet,)]) == ["applied"]
        assert await engine.get([second.key]) == [quiet.row]
        follows = Write(row("job-1", uid=second.uid, revision=1), quiet.row.stamp, Event("updated", 3))
        assert await engine.commit([(follows,)]) == ["applied"]
        assert await engine.check() == []


async def test_what_joblet_changed_since_it_was_read_is_not_overwritten_once_it_is_ours(joblet):
    """Whoever puts an item of its own over ours begins a record of Joblet's again."""
    place, key = joblet
    async with place.opened() as engine:
        (first,) = await engine.get([("job", "job-0")])
        step = Write(row("job-0", uid=first.uid, revision=1), first.stamp, Event("updated", 2))
        assert await engine.commit([(step,)]) == ["applied"]
        await place.put(place.tables.jobs, {key: {"S": "job-0"}, "jobStatus": {"S": "FAILED"}})
        assert await commit(engine, [(after(step.row),)]) == ["conflict"]
        (again,) = await engine.get([("job", "job-0")])
        assert (again.revision, again.keys.status) == (0, "FAILED")


async def test_init_puts_joblets_items_into_the_indexes_and_a_running_daemon_notices(joblet):
    place, _ = joblet
    async with place.opened() as running:
        before = await running.query(Query(kind="job", limit=9, sort="id"))
        scans = running._calls.made["Scan"]
        await running.query(Query(kind="job", limit=9))
        assert running._calls.made["Scan"] > scans
        steps = await place.engine().prepare(dry_run=False)
        assert {step.state for step in steps} <= {"there", "made"}, steps
        await running.position()
        scans = running._calls.made["Scan"]
        after_init = await running.query(Query(kind="job", limit=9, sort="id"))
        assert [each.id for each in after_init] == [each.id for each in before]
        assert [each.id for each in await running.query(Query(kind="job", limit=9, term=("status", "RUNNING")))] == [
            "job-0"
        ]
        assert [each.id for each in await running.query(Query(kind="job", limit=9, term=("node", "n1")))] == ["job-0"]
        assert {each.id for each in await running.query(Query(kind="job", limit=9, term=("status", "")))} == {"job-2"}
        assert {each.id for each in await running.query(Query(kind="job", limit=9, term=("status", "odd")))} == {
            "job-3"
        }
        assert running._calls.made["Scan"] == scans
        assert await running.check() == []
    async with place.opened() as engine:
        (first,) = await engine.get([("job", "job-2")])
        step = Write(row("job-2", uid=first.uid, revision=1, status="DONE"), first.stamp, Event("updated", 2))
        assert await engine.commit([(step,)]) == ["applied"]
        assert await engine.query(Query(kind="job", limit=9, term=("status", "DONE"))) == [step.row]
        assert await engine.check() == []
    steps = await place.engine().prepare(dry_run=True)
    assert {step.state for step in steps} == {"there"}


async def test_tables_that_are_not_there_are_asked_for_by_name(endpoint: str, tables: Tables):
    async with place_at(endpoint, tables) as place:
        with pytest.raises(Unavailable, match=f"{tables.jobs}.*statesvc init"):
            await place.engine().open()
        steps = await place.engine().prepare(dry_run=True)
        assert {step.state for step in steps} == {"missing"}
        steps = await place.engine().prepare(dry_run=False)
        assert {step.state for step in steps} <= {"there", "made"}
        async with place.opened() as engine:
            await fill(engine, [row("a")])
            assert engine._calls.made["Scan"] == 0 or await engine.query(Query(kind="job", limit=2)) == [row("a")]
