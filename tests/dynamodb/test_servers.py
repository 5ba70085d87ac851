"""The servers the other tests stand on: moto's answers, kept quickly; the rules moto lacks; one request at a time."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest

from statesvc.backends.dynamodb.calls import Calls, Cancelled, ConditionFailed, Failed, InvalidRequest
from statesvc.backends.dynamodb.faults import InUse
from statesvc.backends.dynamodb.tables import Wanted, definition
from statesvc.config.model import Dynamodb
from tests.dynamodb import servers
from tests.dynamodb.asking import calling, get, make_table, put, until
from tests.dynamodb.engines import place_at, whole_log
from tests.dynamodb.servers import ROOT, Moto, Program, Tables, TroubledEndpoint
from tests.engines.rows import after, fill, hidden, removed, row

pytestmark = pytest.mark.skipif(servers.elsewhere() is not None, reason="these are about the servers the tests start")


@pytest.fixture
async def calls(endpoint: str) -> AsyncIterator[Calls]:
    async with calling(endpoint) as made:
        yield made


@pytest.fixture(scope="module")
def own_server() -> Iterator[Moto]:
    with servers.moto() as server:
        yield server


# --- moto as it is, and moto as we keep it ----------------------------------------------------------------------------

KEYS = [f"k{n}" for n in range(6)]
SORTS = [f"s{n}" for n in range(5)]


def a_key(chance: random.Random) -> dict[str, Any]:
    return {"pk": {"S": chance.choice(KEYS)}, "sk": {"S": chance.choice(SORTS)}}


def an_item(chance: random.Random) -> dict[str, Any]:
    item = a_key(chance)
    if chance.random() < 0.7:
        item["jobStatus"] = {"S": chance.choice(["RUNNING", "DONE"])}
    if chance.random() < 0.7:
        item["createdAt"] = {"S": f"2025-{chance.randrange(4)}"}
    if chance.random() < 0.3:
        item |= {"walk": {"S": "w"}, "walkAt": {"S": str(chance.randrange(9))}, "keys": {"B": b"\x00\xff"}}
    item["n"] = {"N": str(chance.randrange(3))}
    item["deep"] = {"M": {"list": {"L": [{"N": "1.5"}, {"BOOL": True}, {"NULL": True}]}}}
    return item


def a_condition(chance: random.Random) -> dict[str, Any]:
    return chance.choice(
        [
            {},
            {"ConditionExpression": "attribute_not_exists(pk)"},
            {"ConditionExpression": "attribute_exists(pk)", "ReturnValuesOnConditionCheckFailure": "ALL_OLD"},
            {
                "ConditionExpression": "attribute_not_exists(#n) OR (#n = :n AND attribute_exists(pk))",
                "ExpressionAttributeNames": {"#n": "n"},
                "ExpressionAttributeValues": {":n": {"N": "1"}},
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            },
        ]
    )


def a_request(chance: random.Random, table: str) -> tuple[str, dict[str, Any]]:
    named = {"TableName": table}
    match chance.randrange(8):
        case 0 | 1:
            return "PutItem", {**named, "Item": an_item(chance), **a_condition(chance)}
        case 2:
            return "DeleteItem", {**named, "Key": a_key(chance), **a_condition(chance)}
        case 3:
            add = {"UpdateExpression": "ADD #c :one", "ExpressionAttributeNames": {"#c": "count"}}
            return "UpdateItem", {
                **named,
                "Key": a_key(chance),
                **add,
                "ExpressionAttributeValues": {":one": {"N": "1"}},
            }
        case 4:
            return "GetItem", {**named, "Key": a_key(chance), "ConsistentRead": True}
        case 5:
            keys = {(each["pk"]["S"], each["sk"]["S"]): each for each in (a_key(chance) for _ in range(4))}
            return "BatchGetItem", {"RequestItems": {table: {"Keys": list(keys.values())}}}
        case _:
            items = {(each["pk"]["S"], each["sk"]["S"]): each for each in (an_item(chance) for _ in range(3))}
            return "TransactWriteItems", {
                "TransactItems": [{"Put": {**named, "Item": item, **a_condition(chance)}} for item in items.values()]
            }


def walks(table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every way through the table, and through its indexes."""
    for forward in (True, False):
        asked = {"TableName": table, "ScanIndexForward": forward, "Limit": 3}
        for key in KEYS[:2]:
            value = {":pk": {"S": key}}
            yield "Query", {**asked, "KeyConditionExpression": "pk = :pk", "ExpressionAttributeValues": value}
            for comparison in ("sk > :a", "sk <= :a", "sk < :a", "sk = :a", "begins_with(sk, :a)"):
                given = {**value, ":a": {"S": "s2"}}
                expression = f"pk = :pk AND {comparison}"
                yield "Query", {**asked, "KeyConditionExpression": expression, "ExpressionAttributeValues": given}
        for status in ("RUNNING", "DONE"):
            yield (
                "Query",
                {
                    **asked,
                    "IndexName": "status-createdAt-index",
                    "KeyConditionExpression": "jobStatus = :s AND createdAt BETWEEN :a AND :b",
                    "ExpressionAttributeValues": {
                        ":s": {"S": status},
                        ":a": {"S": "2025-1"},
                        ":b": {"S": "2025-2"},
                    },
                },
            )
        yield (
            "Query",
            {
                **asked,
                "IndexName": "walk-index",
                "KeyConditionExpression": "walk = :w",
                "ExpressionAttributeValues": {":w": {"S": "w"}},
            },
        )
    yield "Scan", {"TableName": table, "Limit": 4}
    yield (
        "Scan",
        {
            "TableName": table,
            "FilterExpression": "attribute_exists(jobStatus) AND contains(jobStatus, :r)",
            "ExpressionAttributeValues": {":r": {"S": "RUN"}},
            "ProjectionExpression": "pk, sk, #n, deep",
            "ExpressionAttributeNames": {"#n": "n"},
        },
    )


async def answer(calls: Calls, operation: str, request: dict[str, Any]) -> Any:
    """What is said, as far as it matters: errors by what they carry, pages put together."""
    try:
        if operation in {"Query", "Scan"}:
            return await every_page(calls, operation, request)
        reply = await calls.call(operation, request)
    except ConditionFailed as failed:
        return "condition", failed.item
    except Cancelled as cancelled:
        return cancelled.reasons
    except InvalidRequest as refused:
        return refused.code
    kept = {name: reply[name] for name in ("Item", "Responses", "Attributes") if name in reply}
    return kept if kept != {"Item": {}} else {}


async def every_page(calls: Calls, operation: str, request: dict[str, Any]) -> list[Any]:
    items: list[Any] = []
    for _ in range(100):
        reply = await calls.call(operation, request)
        items += reply["Items"]
        if "LastEvaluatedKey" not in reply:
            return items
        request = {**request, "ExclusiveStartKey": reply["LastEvaluatedKey"]}
    raise AssertionError("the pages never end")


@pytest.fixture(scope="module")
def whole_server() -> Iterator[Moto]:
    with servers.moto(whole=True) as server:
        yield server


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_answered_is_what_moto_answers(
    calls: Calls, whole_server: Moto, tables: Tables, seed: int
) -> None:
    chance = random.Random(seed)
    async with calling(whole_server.url) as whole:
        asked = definition(Wanted.of(Dynamodb(table_name=tables.jobs)), tables.companion)
        for each in (calls, whole):
            with suppress(InUse):  # made by a try whose answer took too long
                await each.call("CreateTable", asked)
        for _ in range(80):
            operation, request = a_request(chance, tables.companion)
            ours, theirs = [await answer(each, operation, request) for each in (calls, whole)]
            assert ours == theirs, (operation, request)
        for operation, request in walks(tables.companion):
            ours, theirs = [await answer(each, operation, request) for each in (calls, whole)]
            if operation == "Scan":
                ours, theirs = [sorted(each, key=str) for each in (ours, theirs)]
            assert ours == theirs, (operation, request)


# --- what moto lacks --------------------------------------------------------------------------------------------------


async def test_a_transaction_is_undone_as_a_whole(calls: Calls, tables: Tables) -> None:
    asked = definition(Wanted.of(Dynamodb(table_name=tables.jobs)), tables.companion)
    await calls.call("CreateTable", asked)

    def at(sort: str) -> dict[str, Any]:
        return {"pk": {"S": "a"}, "sk": {"S": sort}}

    named = {"TableName": tables.companion}
    for sort in ("1", "2", "4"):
        await calls.call("PutItem", {**named, "Item": {**at(sort), "walk": {"S": "w"}, "walkAt": {"S": sort}}})
    before = await every_page(calls, "Scan", named)
    walk = {
        **named,
        "IndexName": "walk-index",
        "KeyConditionExpression": "walk = :w",
        "ExpressionAttributeValues": {":w": {"S": "w"}},
    }
    walked = await every_page(calls, "Query", walk)
    with pytest.raises(Cancelled) as caught:
        await calls.call(
            "TransactWriteItems",
            {
                "TransactItems": [
                    {"Delete": {**named, "Key": at("1")}},
                    {
                        "Update": {
                            **named,
                            "Key": at("2"),
                            "UpdateExpression": "SET walkAt = :x",
                            "ExpressionAttributeValues": {":x": {"S": "9"}},
                        }
                    },
                    {"Put": {**named, "Item": {**at("3"), "walk": {"S": "w"}, "walkAt": {"S": "3"}}}},
                    {
                        "ConditionCheck": {
                            **named,
                            "Key": at("4"),
                            "ConditionExpression": "attribute_not_exists(pk)",
                        }
                    },
                ]
            },
        )
    assert [reason.code for reason in caught.value.reasons] == ["None", "None", "None", "ConditionalCheckFailed"]
    assert await every_page(calls, "Scan", named) == before
    assert await every_page(calls, "Query", walk) == walked


async def test_a_token_with_another_request_is_refused(calls: Calls, tables: Tables) -> None:
    await make_table(calls, tables.jobs)
    asked = {"ClientRequestToken": "t", "TransactItems": [{"Put": put(tables.jobs, "a")}]}
    await calls.call("TransactWriteItems", asked)
    await calls.call("TransactWriteItems", asked)
    with pytest.raises(InvalidRequest) as caught:
        await calls.call("TransactWriteItems", {**asked, "TransactItems": [{"Put": put(tables.jobs, "b")}]})
    assert caught.value.code == "IdempotentParameterMismatchException"


@pytest.mark.parametrize(("size", "fits"), [(409_000, True), (409_700, False)])
async def test_an_item_holds_400_kib(calls: Calls, tables: Tables, size: int, fits: bool) -> None:
    await make_table(calls, tables.jobs)
    asked = {"TableName": tables.jobs, "Item": {"jobId": {"S": "a"}, "b": {"B": b"\x00" * size}}}
    if fits:
        await calls.call("PutItem", asked)
        item = (await calls.call("GetItem", get(tables.jobs, "a")))["Item"]
        assert len(item["b"]["B"]) == 4 * ((size + 2) // 3)
    else:
        with pytest.raises(InvalidRequest):
            await calls.call("PutItem", asked)


async def test_too_much_at_once_is_refused(calls: Calls, tables: Tables) -> None:
    await make_table(calls, tables.jobs)
    large = [{"TableName": tables.jobs, "Item": {"jobId": {"S": str(n)}, "t": {"S": "x" * 400_000}}} for n in range(11)]
    with pytest.raises(InvalidRequest):
        await calls.call("TransactWriteItems", {"TransactItems": [{"Put": each} for each in large]})
    many = [{"PutRequest": {"Item": {"jobId": {"S": str(n)}}}} for n in range(26)]
    with pytest.raises(InvalidRequest):
        await calls.call("BatchWriteItem", {"RequestItems": {tables.jobs: many}})
    for actions, fits in ((100, True), (101, False)):
        puts = [{"Put": {"TableName": tables.jobs, "Item": {"jobId": {"S": str(n)}}}} for n in range(actions)]
        if fits:
            await calls.call("TransactWriteItems", {"TransactItems": puts})
        else:
            with pytest.raises(InvalidRequest):
                await calls.call("TransactWriteItems", {"TransactItems": puts})


async def test_an_index_may_lag_behind_its_table(own_server: Moto, tables: Tables) -> None:
    walk = {
        "TableName": tables.companion,
        "IndexName": "walk-index",
        "KeyConditionExpression": "walk = :w",
        "ExpressionAttributeValues": {":w": {"S": "w"}},
    }
    item = {"pk": {"S": "a"}, "sk": {"S": "-"}, "walk": {"S": "w"}, "walkAt": {"S": "1"}}
    async with calling(own_server.url) as calls:
        await calls.call("CreateTable", definition(Wanted.of(Dynamodb(table_name=tables.jobs)), tables.companion))
        own_server.settings(index_lag=3600.0)
        await calls.call("PutItem", {"TableName": tables.companion, "Item": item})
        assert (await calls.call("Query", walk))["Items"] == []
        own_server.settings()
        key = {"pk": {"S": "a"}, "sk": {"S": "-"}}
        assert (await calls.call("GetItem", {"TableName": tables.companion, "Key": key}))["Item"] == item


async def test_adding_is_never_lost_however_many_ask_at_once(endpoint: str, tables: Tables) -> None:
    async with calling(endpoint, connections=32) as calls:
        await make_table(calls, tables.jobs)
        add = {
            "TableName": tables.jobs,
            "Key": {"jobId": {"S": "counter"}},
            "UpdateExpression": "ADD #n :one",
            "ExpressionAttributeNames": {"#n": "n"},
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
        await asyncio.gather(*(calls.call("UpdateItem", add) for _ in range(640)))
        assert (await calls.call("GetItem", get(tables.jobs, "counter")))["Item"]["n"] == {"N": "640"}


# --- trouble ----------------------------------------------------------------------------------------------------------


async def test_a_batch_is_done_in_part_and_the_rest_comes_back(endpoint: str, tables: Tables) -> None:
    with TroubledEndpoint(endpoint) as trouble:
        async with calling(trouble.url) as calls:
            await make_table(calls, tables.jobs)
            left = [{"PutRequest": {"Item": {"jobId": {"S": str(n)}}}} for n in range(4)]
            trouble.next("partial")
            reply = await calls.call("BatchWriteItem", {"RequestItems": {tables.jobs: left}})
            assert reply["UnprocessedItems"] == {tables.jobs: left[2:]}
            await calls.call("BatchWriteItem", {"RequestItems": reply["UnprocessedItems"]})
            keys = [{"jobId": {"S": str(n)}} for n in range(4)]
            trouble.next("partial")
            asked = {tables.jobs: {"Keys": keys, "ConsistentRead": True}}
            reply = await calls.call("BatchGetItem", {"RequestItems": asked})
            assert reply["Responses"] == {tables.jobs: keys[:2]}
            assert reply["UnprocessedKeys"] == {tables.jobs: {"Keys": keys[2:], "ConsistentRead": True}}


async def test_the_same_seed_makes_the_same_trouble(endpoint: str, tables: Tables) -> None:
    told = []
    for _ in range(2):
        with TroubledEndpoint(endpoint, seed=7, throttle=0.3, lose=0.1) as trouble:
            async with calling(trouble.url) as calls:
                for _ in range(20):
                    with pytest.raises(Failed):
                        await calls.call("GetItem", get(tables.jobs, "none"))
            told.append(list(trouble.calls))
    assert told[0] == told[1]
    assert {call.fault for call in told[0]} == {None, "throttle", "lose"}


# --- ending -----------------------------------------------------------------------------------------------------------

STARTER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tests.dynamodb.servers import Moto
server = Moto()
print(server.pid, flush=True)
sys.stdin.readline()
"""


async def test_the_endpoint_for_measuring_keeps_single_records_as_dynamodb_does(tables: Tables) -> None:
    """What is measured against it is what a daemon does: nothing of it may be refused, lost or answered otherwise."""
    program = Program("tests.dynamodb.canned")
    try:
        async with place_at(program.url, tables) as place, place.opened() as engine, place.opened() as other:
            rows = await fill(engine, [row(f"job-{n}", labels=(("x", "y"),)) for n in range(30)])
            assert await other.get([each.key for each in rows]) == rows
            step, quiet = after(rows[0]), hidden(rows[1], token=3)
            assert await other.commit([(step,), (quiet,)]) == ["applied"] * 2
            assert await engine.commit([(after(rows[0]),), (removed(rows[2]),)]) == ["conflict", "applied"]
            assert await engine.get([each.key for each in rows[:3]]) == [step.row, quiet.row, None]
            assert [entry.row for entry in await whole_log(engine)] == [*rows, step.row]
    finally:
        program.end()


async def test_a_server_ends_with_whoever_started_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, str(ROOT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        os.kill(pid, 0)
        starter.send_signal(signal.SIGKILL)
        starter.wait()

    def is_gone() -> bool:
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    await until(is_gone)
