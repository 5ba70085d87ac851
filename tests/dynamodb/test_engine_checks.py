"""Checking finds what was damaged by another hand, and repairing mends what can be made again."""

from __future__ import annotations

import pytest

from statesvc.backends.dynamodb import hints
from statesvc.backends.dynamodb.layout import hint_key, slot_key
from statesvc.backends.port import Query
from statesvc_client.errors import Internal
from tests.dynamodb.engines import Place, binary
from tests.engines.rows import after, commit, fill, row

A = ("job", "a")
KEY = {"jobId": {"S": "a"}}


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({"walk": None}, "walk"),
        ({"walkAt": {"S": "2025-01-01T00:00:00.000000000Z#a"}}, "walkAt"),
        ({"jobStatus": {"S": "DONE"}}, "jobStatus"),
        ({"nodeId": None}, "nodeId"),
        ({"createdAt": {"S": "x"}, "readyOf": None}, "createdAt, readyOf"),
        ({"dueOf": {"S": "job#due"}, "dueAt": {"S": "x"}}, "dueOf, dueAt"),
    ],
)
async def test_attributes_that_lead_indexes_astray_are_found_and_mended(place: Place, attributes, named):
    async with place.opened() as engine:
        (a, _) = await fill(engine, [row("a", status="QUEUED", node="n", ready="1"), row("b")])
        await place.change(place.tables.jobs, KEY, **attributes)
        assert await engine.check() == [f"job a: {named} differ from its record: indexes lead astray"]
        assert await engine.get([A]) == [a]
        assert [text.startswith("job a: ") for text in await engine.repair()] == [True]
        assert await engine.check() == []
        assert await engine.query(Query(kind="job", limit=9, term=("status", "QUEUED"))) == [a]
        assert await engine.query(Query(kind="job", limit=9, term=("node", "n"))) == [a]
        assert await engine.query(Query(kind="job", limit=9, sort="ready")) == [a]
        # What was mended is written on as before.
        assert await commit(engine, [(after(a),)]) == ["applied"]
        assert len(await engine.history(A, "", 9)) == 2


async def test_a_hint_that_is_missing_is_found_and_made_again(place: Place):
    async with place.opened() as engine:
        (a,) = await fill(engine, [row("a", kind="kv", owner="o", labels=(("x", "y"),))])
        for trait in (("label:x", "y"), ("owner:", "o")):
            await place.calls.call("DeleteItem", {"TableName": place.tables.companion, "Key": hint_key(a, trait)})
        assert await engine.check() == [
            "kv a: nothing leads to it by label:x=y",
            "kv a: nothing leads to it by owner:=o",
        ]
        async with place.opened() as other:  # the one that wrote it remembers
            assert await other.query(Query(kind="kv", limit=9, term=("label:x", "y"))) == []
        await engine.repair()
        assert await engine.check() == []
        async with place.opened() as other:
            assert await other.query(Query(kind="kv", limit=9, term=("owner", "o"))) == [a]


async def test_a_hint_that_is_not_so_does_no_harm_and_is_taken_away(place: Place, monkeypatch: pytest.MonkeyPatch):
    planted = row("a", labels=(("x", "y"), ("other", "z")))
    query = Query(kind="job", limit=9, term=("label:x", "y"))

    async def plant() -> None:
        for label in planted.keys.labels:
            item = hint_key(planted, (f"label:{label[0]}", label[1])) | {"wid": {"S": "w"}}
            await place.put(place.tables.companion, item)

    async def left() -> int:
        return sum(item["pk"]["S"].startswith("x#") for item in await place.items(place.tables.companion))

    async with place.opened() as engine:
        await fill(engine, [row("a", labels=(("other", "z"),))])
        await plant()
        assert await engine.check() == []
        # A reader takes it away when it meets it again, long after.
        assert await engine.query(query) == await engine.query(query) == []
        assert await left() == 2
        monkeypatch.setattr(hints, "STALE_SECONDS", 0.0)
        assert await engine.query(query) == []
        assert await left() == 1
        await plant()
        await engine.repair()
        assert await left() == 1
        assert len(await engine.query(Query(kind="job", limit=9, term=("label:other", "z")))) == 1


async def test_items_that_cannot_be_read_are_named_and_not_served(place: Place):
    async with place.opened() as engine:
        await fill(engine, [row("a"), row("b"), row("c", kind="kv")])
        await place.change(place.tables.jobs, KEY, keys=binary(b"\xc1"))
        await place.change(
            place.tables.companion, {"pk": {"S": "r#kv#c"}, "sk": {"S": "-"}}, record=None, recordZ=binary(b"no")
        )
        assert await engine.check() == [
            "job a: its item cannot be read: delete it, or restore a snapshot",
            "kv c: its item cannot be read: delete it, or restore a snapshot",
        ]
        with pytest.raises(Internal, match="job a cannot be read"):
            await engine.get([A])
        assert await engine.get([("job", "b")]) == [row("b")]


async def test_a_slot_that_is_gone_or_cannot_be_read_is_named(place: Place):
    async with place.opened() as engine:
        await fill(engine, [row("a")])
        await fill(engine, [row("b")])
        await fill(engine, [row("c")])
        epoch = engine.epoch
    await place.calls.call("DeleteItem", {"TableName": place.tables.companion, "Key": slot_key(epoch, 1, 1)})
    await place.change(place.tables.companion, slot_key(epoch, 1, 2), e=binary(b"zno"))
    async with place.opened() as again:
        found = await again.check()
        assert "job a: the log does not tell of revision 1" in found
        assert "slot 2 of lane 1 of the log cannot be read" in found
        assert not any("job c" in text for text in found)


async def test_what_changes_while_it_is_looked_at_is_no_fault(place: Place):
    async with place.opened() as engine, place.opened() as other:
        (last,) = await fill(engine, [row("a", labels=(("n", "0"),), status="QUEUED")])
        for number in range(1, 10):
            step = after(last, labels=(("n", str(number)),), status=("QUEUED", "DONE")[number % 2])
            checking = engine.check()
            await other.get([A])
            assert await other.commit([(step,)]) == ["applied"]
            assert await checking == []
            last = step.row
