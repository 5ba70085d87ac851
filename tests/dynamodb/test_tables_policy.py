"""The policies shipped are enough for what is done under them, and for nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import boto3  # type: ignore[import-untyped]
import pytest

from statesvc.backends.dynamodb import policy
from statesvc.backends.dynamodb.engine import DynamodbEngine
from statesvc.backends.dynamodb.tables import Wanted
from statesvc.backends.port import Event, Key, Keys, LogKept, Query, Row, Write
from statesvc.config.model import Dynamodb
from statesvc_client.errors import StateError, Unavailable
from tests.dynamodb import servers
from tests.dynamodb.asking import calling, get, make_table, put
from tests.dynamodb.servers import REGION, Moto, Tables
from tests.engines.rows import after, buried, hidden, removed, row

pytestmark = pytest.mark.skipif(servers.elsewhere() is not None, reason="policies are those of the server we start")


@pytest.fixture(scope="module")
def server() -> Iterator[Moto]:
    with servers.moto() as made:
        yield made


@pytest.fixture
def options(server: Moto, tables: Tables) -> Iterator[Dynamodb]:
    server.settings()
    yield Dynamodb(region=REGION, endpoint=server.url, table_name=tables.jobs, index_lag_seconds=0.0)
    server.settings()


@pytest.fixture
def wanted(options: Dynamodb) -> Wanted:
    return Wanted.of(options)


def adopted(key: Key, body: bytes) -> Row:
    """A stand-in for the rules."""
    return Row(*key, "uid-of-joblets", 0, Keys(created=1, updated=1), body)


async def prepare(options: Dynamodb) -> None:
    engine = DynamodbEngine(options)
    engine.adopt = adopted
    steps = await engine.prepare(dry_run=False)
    assert {step.state for step in steps} <= {"made", "there"}


async def apply(engine: DynamodbEngine, *writes: Write) -> None:
    (result,) = await engine.commit([writes])
    if isinstance(result, StateError):
        raise result
    assert result == "applied"


async def serve(options: Dynamodb) -> None:
    """Everything the port has, once, on tables that are there."""
    engine = DynamodbEngine(options)
    engine.adopt = adopted
    await engine.open()
    try:
        await engine.ping()
        labels = tuple((f"label-{n:03}", "x") for n in range(120))
        first, second = row("first", status="RUNNING", node="n"), row("second", kind="volume", labels=labels)
        await apply(engine, *(Write(each, None, Event("created", 1)) for each in (first, second)))
        changed = after(first, status="DONE")
        await apply(engine, changed)
        await apply(engine, hidden(changed.row, updated=9))
        assert await engine.get([first.key, second.key, ("job", "none")])
        for term in (None, ("status", "DONE"), ("node", "n"), ("label:label-001", "x")):
            await engine.query(Query(kind="job", limit=10, term=term))
        await engine.query(Query(kind="volume", limit=10, sort="updated"))
        entries = await engine.read_log("", 100)
        assert entries
        await engine.history(first.key, "", 10)
        buried_ = buried(second)
        await apply(engine, buried_)
        await apply(engine, removed(buried_.row))
        for _ in range(50):
            if not await engine.compact(LogKept(since=2**62, most_bytes=0)):
                break
        dump = await engine.dump()
        rows = [each async for page in dump.rows for each in page]
        await engine.load(in_one_page(rows))
        assert await engine.check() == []
        await engine.repair()
    finally:
        await engine.close()


async def in_one_page(rows: list[Row]) -> AsyncIterator[list[Row]]:
    yield rows


async def test_the_daemons_policy_is_what_it_needs_and_nothing_else(server: Moto, options: Dynamodb) -> None:
    await prepare(options)
    wanted = Wanted.of(options)
    server.settings(policy=policy.policy(policy.SERVING, wanted.jobs, wanted.companion, region=REGION))
    await serve(options)
    assert server.actions() == set(policy.SERVING)


@pytest.mark.parametrize("action", policy.SERVING)
async def test_an_action_that_is_missing_is_named(server: Moto, options: Dynamodb, action: str) -> None:
    await prepare(options)
    less = tuple(each for each in policy.SERVING if each != action)
    wanted = Wanted.of(options)
    server.settings(policy=policy.policy(less, wanted.jobs, wanted.companion))
    with pytest.raises(Unavailable, match=f"denies {action} on "):
        await serve(options)


async def test_the_policy_of_init_is_what_it_needs_and_nothing_else(server: Moto, options: Dynamodb) -> None:
    wanted = Wanted.of(options)
    async with calling(server.url) as calls:
        await make_table(calls, wanted.jobs)
        await calls.call("PutItem", {"TableName": wanted.jobs, "Item": {"jobId": {"S": "old"}}})
    server.settings(policy=policy.policy(policy.PREPARING, wanted.jobs, wanted.companion))
    await prepare(options)
    assert server.actions() == set(policy.PREPARING)


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("DeleteTable", {}),
        ("UpdateTable", {"BillingMode": "PAY_PER_REQUEST"}),
        ("UpdateTimeToLive", {"TimeToLiveSpecification": {"Enabled": False, "AttributeName": "expiresAt"}}),
    ],
)
async def test_the_daemon_may_not_change_tables(server: Moto, options, wanted: Wanted, operation, request_) -> None:
    await prepare(options)
    async with calling(server.url) as calls:
        server.settings(policy=policy.policy(policy.SERVING, wanted.jobs, wanted.companion))
        with pytest.raises(Unavailable, match=f"denies dynamodb:{operation} on {wanted.jobs}"):
            await calls.call(operation, {"TableName": wanted.jobs, **request_})


async def test_nobody_else_s_table_is_touched(server: Moto, wanted: Wanted) -> None:
    async with calling(server.url) as calls:
        await make_table(calls, wanted.jobs)
        await make_table(calls, f"{wanted.jobs}-of-others")
        server.settings(policy=policy.policy(policy.SERVING + policy.PREPARING, wanted.jobs, wanted.companion))
        with pytest.raises(Unavailable, match=rf"denies dynamodb:GetItem on {wanted.jobs}-of-others"):
            await calls.call("GetItem", get(f"{wanted.jobs}-of-others", "job-1"))
        both = [{"Put": put(wanted.jobs, "job-1")}, {"Put": put(f"{wanted.jobs}-of-others", "job-1")}]
        with pytest.raises(Unavailable, match="denies dynamodb:PutItem on"):
            await calls.call("TransactWriteItems", {"TransactItems": both})


def test_the_text_of_a_policy_is_the_policy() -> None:
    text = policy.text(policy.SERVING, "joblet-jobs", "joblet-jobs-statesvc")
    assert json.loads(text) == policy.policy(policy.SERVING, "joblet-jobs", "joblet-jobs-statesvc")
    assert '"dynamodb:PutItem",\n' in text
    for actions in (policy.SERVING, policy.PREPARING):
        assert list(actions) == sorted(set(actions))


async def test_requests_are_accepted_by_a_server_that_checks_signatures(monkeypatch, tables: Tables) -> None:
    """moto's own check, with identities of its own; it knows neither tables nor parts of transactions."""
    prepared_by_anybody = 4
    with servers.moto(whole=True, INITIAL_NO_AUTH_ACTION_COUNT=str(prepared_by_anybody)) as server:
        admin = {
            "endpoint_url": server.url,
            "region_name": REGION,
            "aws_access_key_id": "AKIAADMIN",
            "aws_secret_access_key": "any",
        }
        identities = boto3.client("iam", **admin)
        identities.create_user(UserName="daemon")
        key = identities.create_access_key(UserName="daemon")["AccessKey"]
        allowed = policy.policy((*policy.SERVING, "dynamodb:TransactWriteItems"), tables.jobs)
        allowed["Statement"][0]["Resource"] = "*"
        identities.put_user_policy(UserName="daemon", PolicyName="p", PolicyDocument=json.dumps(allowed))
        boto3.client("dynamodb", **admin).create_table(
            TableName=tables.jobs,
            KeySchema=[{"AttributeName": "jobId", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "jobId", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        async with calling(server.url) as calls:
            await calls.call("PutItem", put(tables.jobs, "ä ö ü 😀"))
            asked = {"TransactItems": [{"Put": put(tables.jobs, "job-2")}]}
            await calls.call("TransactWriteItems", asked)
            assert (await calls.call("GetItem", get(tables.jobs, "ä ö ü 😀")))["Item"]["wid"] == {"S": "w"}
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        async with calling(server.url) as calls:
            with pytest.raises(Unavailable):
                await calls.call("GetItem", get(tables.jobs, "job-2"))
