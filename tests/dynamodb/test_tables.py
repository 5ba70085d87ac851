"""The two tables: made, completed, judged; and Joblet's own items in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from statesvc.backends.dynamodb import layout, preparing
from statesvc.backends.dynamodb.calls import Calls
from statesvc.backends.dynamodb.preparing import Preparation
from statesvc.backends.dynamodb.tables import Wanted, describe, inspect
from statesvc.backends.port import Step
from statesvc.config.model import Dynamodb
from statesvc_client.errors import Unavailable
from tests.dynamodb import servers
from tests.dynamodb.asking import ENDS_SECONDS, calling, make_table
from tests.dynamodb.servers import Moto, Tables, TroubledEndpoint

NAMES = {shape.name for shape in layout.INDEXES}


@pytest.fixture
async def calls(endpoint: str) -> AsyncIterator[Calls]:
    async with calling(endpoint) as made:
        yield made


@pytest.fixture(scope="module")
def own_server() -> Iterator[Moto]:
    with servers.moto() as server:
        yield server


@pytest.fixture
def wanted(tables: Tables) -> Wanted:
    return Wanted.of(Dynamodb(table_name=tables.jobs))


def complete(item: dict[str, Any]) -> dict[str, Any] | None:
    """A stand-in for the rules: every item is walked by when it was made."""
    made = item.get("createdAt", {"S": "2025-01-01"})
    return {"createdAt": made, "walk": {"S": "job#0"}, "walkAt": {"S": f"{made['S']}#{item['jobId']['S']}"}}


async def prepared(calls: Calls, wanted: Wanted, *, dry_run: bool = False) -> list[Step]:
    async with asyncio.timeout(ENDS_SECONDS):
        return await Preparation(calls, wanted, dry_run=dry_run).run(complete)


def states(steps: list[Step]) -> dict[str, str]:
    return {step.what: step.state for step in steps}


def step_of(steps: list[Step], what: str) -> Step:
    return next(step for step in steps if step.what == what)


async def put_items(calls: Calls, table: str, *items: dict[str, Any]) -> None:
    for item in items:
        await calls.call("PutItem", {"TableName": table, "Item": item})


async def items_of(calls: Calls, table: str) -> dict[str, dict[str, Any]]:
    reply = await calls.call("Scan", {"TableName": table, "ConsistentRead": True})
    return {item["jobId"]["S"]: item for item in reply["Items"]}


# --- from nothing -----------------------------------------------------------------------------------------------------


async def test_a_dry_run_says_what_is_missing_and_makes_nothing(calls: Calls, wanted: Wanted) -> None:
    steps = await prepared(calls, wanted, dry_run=True)
    assert states(steps) == {f"table {wanted.jobs}": "missing", f"table {wanted.companion}": "missing"}
    assert await describe(calls, wanted.jobs) is None


async def test_both_tables_are_made_with_everything(calls: Calls, wanted: Wanted) -> None:
    steps = await prepared(calls, wanted)
    assert {step.state for step in steps} == {"made", "there"}
    found = await inspect(calls, wanted)
    assert found.key == "jobId"
    assert found.indexes == {wanted.jobs: NAMES, wanted.companion: NAMES}
    assert found.lacking == ()
    told = await calls.call("DescribeTimeToLive", {"TableName": wanted.jobs})
    assert told["TimeToLiveDescription"] == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expiresAt"}


async def test_done_again_it_finds_everything_there(calls: Calls, wanted: Wanted) -> None:
    await prepared(calls, wanted)
    for dry_run in (True, False):
        steps = await prepared(calls, wanted, dry_run=dry_run)
        assert {step.state for step in steps} == {"there"}
        assert len(steps) == 2 + 2 * len(NAMES) + 2


async def test_the_capacity_is_the_configured_one(calls: Calls, tables: Tables) -> None:
    wanted = Wanted.of(Dynamodb(table_name=tables.jobs, read_capacity=7, write_capacity=9))
    await prepared(calls, wanted)
    for name in tables:
        told = (await calls.call("DescribeTable", {"TableName": name}))["Table"]
        for each in (told, *told["GlobalSecondaryIndexes"]):
            assert each["ProvisionedThroughput"]["ReadCapacityUnits"] == 7
            assert each["ProvisionedThroughput"]["WriteCapacityUnits"] == 9


@pytest.mark.parametrize("capacities", [(0, 0), (0, 5), (5, 0)])
async def test_no_capacity_is_on_demand(calls: Calls, tables: Tables, capacities: tuple[int, int]) -> None:
    read, write = capacities
    await prepared(calls, Wanted.of(Dynamodb(table_name=tables.jobs, read_capacity=read, write_capacity=write)))
    for name in tables:
        told = (await calls.call("DescribeTable", {"TableName": name}))["Table"]
        assert told["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


async def test_another_capacity_than_configured_is_pointed_out_and_left(calls: Calls, tables: Tables) -> None:
    await prepared(calls, Wanted.of(Dynamodb(table_name=tables.jobs, read_capacity=0, write_capacity=0)))
    steps = await prepared(calls, Wanted.of(Dynamodb(table_name=tables.jobs, read_capacity=5, write_capacity=5)))
    step = step_of(steps, f"table {tables.jobs}")
    assert step.state == "there"
    assert step.detail.startswith("key jobId, on demand; the configuration says capacity 5 to read, 5 to write")


async def test_the_companion_may_have_a_name_of_its_own(calls: Calls, tables: Tables) -> None:
    wanted = Wanted.of(Dynamodb(table_name=tables.jobs, companion_table=f"{tables.jobs}.other"))
    await prepared(calls, wanted)
    assert (await inspect(calls, wanted)).indexes.keys() == {tables.jobs, f"{tables.jobs}.other"}


async def test_two_at_a_time_make_one_store(calls: Calls, wanted: Wanted) -> None:
    both = await asyncio.gather(prepared(calls, wanted), prepared(calls, wanted))
    assert all(step.state in {"made", "there"} for steps in both for step in steps)
    assert (await inspect(calls, wanted)).lacking == ()


async def test_what_takes_its_time_is_waited_for(own_server: Moto, tables: Tables, monkeypatch) -> None:
    monkeypatch.setattr(preparing, "FIRST_LOOK", 0.001)
    own_server.settings(settling=2)
    wanted = Wanted.of(Dynamodb(table_name=tables.jobs))
    async with calling(own_server.url) as calls:
        await make_table(calls, tables.jobs)
        with pytest.raises(Unavailable, match="no table"):
            await inspect(calls, wanted)
        steps = await prepared(calls, wanted)
        assert {step.state for step in steps} == {"made", "there"}
        assert (await inspect(calls, wanted)).indexes[tables.jobs] == NAMES
    own_server.settings()


@pytest.mark.parametrize("seed", range(4))
async def test_lost_replies_and_throttling_do_not_stop_it(
    endpoint: str, calls: Calls, wanted: Wanted, seed: int
) -> None:
    await make_table(calls, wanted.jobs)
    await put_items(calls, wanted.jobs, *({"jobId": {"S": f"job-{n}"}} for n in range(20)))
    with TroubledEndpoint(endpoint, seed=seed, throttle=0.2, drop=0.2) as trouble:
        async with calling(trouble.url) as troubled:
            steps = await prepared(troubled, wanted)
        assert trouble.faults["drop"] > 0
    assert all(step.state in {"made", "there"} for step in steps), steps
    assert (await inspect(calls, wanted)).lacking == ()
    assert all("walk" in item for item in (await items_of(calls, wanted.jobs)).values())


# --- Joblet's own table -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["jobId", "job_uuid"])
async def test_joblets_table_is_known_by_either_key(calls: Calls, wanted: Wanted, key: str) -> None:
    await make_table(calls, wanted.jobs, key)
    await prepared(calls, wanted._replace(jobs=wanted.jobs + "-not-this", ttl_attribute=""))
    found = await inspect(calls, wanted)
    assert found.key == key
    assert found.indexes[wanted.jobs] == frozenset()
    assert found.indexes[wanted.companion] == NAMES
    assert len(found.lacking) == len(NAMES)
    assert f"index status-createdAt-index of {wanted.jobs}: it is not there" in found.lacking[0]


async def test_missing_indexes_are_added_one_by_one_and_the_items_given_keys(calls: Calls, wanted: Wanted) -> None:
    await make_table(calls, wanted.jobs)
    await put_items(
        calls,
        wanted.jobs,
        {"jobId": {"S": "old-1"}, "jobStatus": {"S": "RUNNING"}, "createdAt": {"S": "2025-10-26T00:00:00Z"}},
        {"jobId": {"S": "old-2"}, "priority": {"N": "1.50"}},
        {"jobId": {"S": "ours"}, "revision": {"N": "3"}},
    )
    dry = states(await prepared(calls, wanted, dry_run=True))
    assert dry[f"index walk-index of {wanted.jobs}"] == "missing"
    steps = await prepared(calls, wanted)
    done = states(steps)
    assert all(done[f"index {name} of {wanted.jobs}"] == "made" for name in NAMES)
    assert step_of(steps, f"index keys of the items in {wanted.jobs}") == Step(
        f"index keys of the items in {wanted.jobs}", "made", "2 items"
    )
    items = await items_of(calls, wanted.jobs)
    assert items["old-1"]["walkAt"] == {"S": "2025-10-26T00:00:00Z#old-1"}
    assert items["old-2"]["priority"] == {"N": "1.50"}
    assert "walk" not in items["ours"]
    walked = await calls.call(
        "Query",
        {
            "TableName": wanted.jobs,
            "IndexName": "walk-index",
            "KeyConditionExpression": "walk = :walk",
            "ExpressionAttributeValues": {":walk": {"S": "job#0"}},
        },
    )
    assert [item["jobId"]["S"] for item in walked["Items"]] == ["old-2", "old-1"]


async def test_a_dry_run_counts_the_items_without_keys(calls: Calls, wanted: Wanted) -> None:
    await make_table(calls, wanted.jobs)
    await put_items(calls, wanted.jobs, *({"jobId": {"S": f"old-{n}"}} for n in range(7)))
    steps = await prepared(calls, wanted, dry_run=True)
    step = step_of(steps, f"index keys of the items in {wanted.jobs}")
    assert (step.state, step.detail) == ("missing", "7 items of Joblet's have none")
    assert all("walk" not in item for item in (await items_of(calls, wanted.jobs)).values())


async def test_many_pages_of_items_are_gone_through_to_the_end(calls: Calls, wanted: Wanted) -> None:
    await make_table(calls, wanted.jobs)
    large = {"S": "x" * 100_000}
    await put_items(calls, wanted.jobs, *({"jobId": {"S": f"old-{n:02}"}, "command": large} for n in range(40)))
    steps = await prepared(calls, wanted)
    assert step_of(steps, f"index keys of the items in {wanted.jobs}").detail == "40 items"


async def test_an_item_that_changes_meanwhile_is_read_again(calls: Calls, wanted: Wanted) -> None:
    await make_table(calls, wanted.jobs)
    await put_items(calls, wanted.jobs, {"jobId": {"S": "old"}, "jobStatus": {"S": "PENDING"}})
    seen: list[str] = []
    loop = asyncio.get_running_loop()
    changing: list[asyncio.Task[None]] = []

    def meanwhile(item: dict[str, Any]) -> dict[str, Any] | None:
        seen.append(item["jobStatus"]["S"])
        return {**(complete(item) or {}), "walkAt": {"S": item["jobStatus"]["S"]}}

    class Racing(Preparation):
        async def _give(self, table, item, more) -> bool:
            if not changing:
                changed = {"jobId": {"S": "old"}, "jobStatus": {"S": "RUNNING"}}
                changing.append(loop.create_task(put_items(calls, wanted.jobs, changed)))
                await changing[0]
            return await super()._give(table, item, more)

    steps = await Racing(calls, wanted, dry_run=False).run(meanwhile)
    assert seen == ["PENDING", "RUNNING"]
    assert step_of(steps, f"index keys of the items in {wanted.jobs}").state == "made"
    assert (await items_of(calls, wanted.jobs))["old"]["walkAt"] == {"S": "RUNNING"}


async def test_items_that_can_be_given_no_keys_are_told(calls: Calls, wanted: Wanted) -> None:
    await make_table(calls, wanted.jobs)
    await put_items(calls, wanted.jobs, {"jobId": {"S": "fine"}}, {"jobId": {"S": "odd"}})
    preparation = Preparation(calls, wanted, dry_run=False)
    steps = await preparation.run(lambda item: None if item["jobId"]["S"] == "odd" else complete(item))
    step = step_of(steps, f"index keys of the items in {wanted.jobs}")
    assert step.state == "wrong"
    assert step.detail.startswith("1 items of Joblet's cannot be given any")
    assert not preparation.is_whole


# --- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ([("id", "S", "HASH")], r"id \(S\)"),
        ([("jobId", "N", "HASH")], r"jobId \(N\)"),
        ([("jobId", "S", "HASH"), ("createdAt", "S", "RANGE")], r"jobId \(S\) and createdAt \(S\)"),
    ],
)
async def test_a_table_with_another_key_is_refused_by_name(calls: Calls, wanted: Wanted, keys, shown: str) -> None:
    await make_table(
        calls,
        wanted.jobs,
        KeySchema=[{"AttributeName": name, "KeyType": kind} for name, _, kind in keys],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": type_} for name, type_, _ in keys],
    )
    steps = await prepared(calls, wanted)
    step = step_of(steps, f"table {wanted.jobs}")
    assert step.state == "wrong"
    words = rf"table '{wanted.jobs}' has the key {shown}: a table of jobs has the one key jobId or job_uuid, a text"
    with pytest.raises(Unavailable, match=words):
        await inspect(calls, wanted)


async def test_a_companion_with_another_key_is_refused_by_name(calls: Calls, wanted: Wanted) -> None:
    await make_table(calls, wanted.jobs)
    await make_table(calls, wanted.companion)
    assert states(await prepared(calls, wanted))[f"table {wanted.companion}"] == "wrong"
    with pytest.raises(
        Unavailable, match=rf"'{wanted.companion}' has the key jobId .S.: the companion has the keys pk"
    ):
        await inspect(calls, wanted)


async def test_a_missing_table_is_named_with_what_to_do(calls: Calls, wanted: Wanted) -> None:
    with pytest.raises(Unavailable, match=rf"no table '{wanted.jobs}': make it with `statesvc init`"):
        await inspect(calls, wanted)
    await make_table(calls, wanted.jobs)
    with pytest.raises(Unavailable, match=rf"no table '{wanted.companion}': make it"):
        await inspect(calls, wanted)


def an_index(name: str, hash_: str, range_: str | None = None, projection: str = "KEYS_ONLY") -> dict[str, Any]:
    keys = [{"AttributeName": hash_, "KeyType": "HASH"}]
    if range_ is not None:
        keys.append({"AttributeName": range_, "KeyType": "RANGE"})
    return {"IndexName": name, "KeySchema": keys, "Projection": {"ProjectionType": projection}}


def texts(*names: str, **others: str) -> list[dict[str, str]]:
    every = dict.fromkeys(names, "S") | others
    return [{"AttributeName": name, "AttributeType": type_} for name, type_ in every.items()]


@pytest.mark.parametrize(
    ("index", "attributes", "words"),
    [
        (
            an_index("status-createdAt-index", "status", "createdAt"),
            texts("jobId", "status", "createdAt"),
            "it is on status and createdAt, and has to be on jobStatus and createdAt",
        ),
        (
            an_index("status-createdAt-index", "jobStatus", "createdAt"),
            texts("jobId", "jobStatus", createdAt="N"),
            "have to be texts",
        ),
        (an_index("walk-index", "walk", "walkAt"), texts("jobId", "walk", "walkAt"), "it lacks the attributes keys"),
        (an_index("mine", "walk"), texts("jobId", walk="N"), "attribute walk is a key of another index"),
    ],
)
async def test_an_index_that_is_another_one_is_pointed_out(
    calls: Calls, wanted: Wanted, index, attributes, words
) -> None:
    await make_table(calls, wanted.jobs, GlobalSecondaryIndexes=[index], AttributeDefinitions=attributes)
    steps = await prepared(calls, wanted)
    wrong = [step for step in steps if step.state == "wrong"]
    assert any(words in step.detail for step in wrong), steps
    found = await inspect(calls, wanted)
    assert any(words in text for text in found.lacking)
    assert found.indexes[wanted.jobs] < NAMES


async def test_an_index_that_holds_more_than_needed_will_do(calls: Calls, wanted: Wanted) -> None:
    index = an_index("status-createdAt-index", "jobStatus", "createdAt", "ALL")
    await make_table(
        calls,
        wanted.jobs,
        GlobalSecondaryIndexes=[index],
        AttributeDefinitions=texts("jobId", "jobStatus", "createdAt"),
    )
    steps = await prepared(calls, wanted)
    assert states(steps)[f"index status-createdAt-index of {wanted.jobs}"] == "there"
    assert (await inspect(calls, wanted)).lacking == ()


async def test_indexes_of_others_are_left_alone(calls: Calls, wanted: Wanted) -> None:
    await make_table(
        calls,
        wanted.jobs,
        GlobalSecondaryIndexes=[an_index("theirs", "nodeId", "rank", "ALL")],
        AttributeDefinitions=texts("jobId", "nodeId", rank="N"),
    )
    await prepared(calls, wanted)
    table = await describe(calls, wanted.jobs)
    assert table is not None
    assert table.indexes.keys() == NAMES | {"theirs"}
    assert (await inspect(calls, wanted)).lacking == ()


# --- time to live -----------------------------------------------------------------------------------------------------


async def switch(calls: Calls, table: str, attribute: str) -> None:
    asked = {"TableName": table, "TimeToLiveSpecification": {"Enabled": True, "AttributeName": attribute}}
    await calls.call("UpdateTimeToLive", asked)


async def test_time_to_live_by_another_attribute_is_wrong(calls: Calls, wanted: Wanted) -> None:
    await make_table(calls, wanted.jobs)
    await switch(calls, wanted.jobs, "ttl")
    step = step_of(await prepared(calls, wanted), f"time to live of {wanted.jobs}")
    assert step.state == "wrong"
    assert step.detail.startswith("it is by ttl, and has to be by expiresAt")


async def test_time_to_live_that_is_off_is_left_off(calls: Calls, tables: Tables) -> None:
    wanted = Wanted.of(Dynamodb(table_name=tables.jobs, ttl_enabled=False))
    steps = await prepared(calls, wanted)
    assert f"time to live of {tables.jobs}" not in states(steps)
    told = await calls.call("DescribeTimeToLive", {"TableName": tables.jobs})
    assert told["TimeToLiveDescription"]["TimeToLiveStatus"] == "DISABLED"


async def test_time_to_live_that_is_on_against_the_configuration_is_pointed_out(calls: Calls, tables: Tables) -> None:
    await make_table(calls, tables.jobs)
    await switch(calls, tables.jobs, "expiresAt")
    steps = await prepared(calls, Wanted.of(Dynamodb(table_name=tables.jobs, ttl_enabled=False)))
    assert "the configuration has it off" in step_of(steps, f"time to live of {tables.jobs}").detail


async def test_a_dry_run_does_not_switch_it_on(calls: Calls, wanted: Wanted) -> None:
    await make_table(calls, wanted.jobs)
    steps = await prepared(calls, wanted, dry_run=True)
    assert step_of(steps, f"time to live of {wanted.jobs}") == Step(
        f"time to live of {wanted.jobs}", "missing", "by expiresAt"
    )
