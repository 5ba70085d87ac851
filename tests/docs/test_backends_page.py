"""The page on engines tells the truth: its configurations load, its commands run, its rules are enough."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from statesvc import backends
from statesvc.backends.dynamodb import faults as dynamodb_faults
from statesvc.backends.dynamodb import policy
from statesvc.backends.dynamodb.layout import INDEXES
from statesvc.backends.redis import commits
from statesvc.backends.redis import faults as redis_faults
from statesvc.backends.redis.faults import Refused
from statesvc.config import load
from statesvc.config.model import Dynamodb, Redis, Secret, assemble
from tests.daemon.harness import ROOT, Client, Daemon, until
from tests.docs.conversing import blocks
from tests.docs.shell import Shell, marked, names, section, table
from tests.dynamodb import asking
from tests.dynamodb import servers as dynamodb
from tests.fleet.daemons import daemon as made_daemon
from tests.redis import servers as redis

PAGE = ROOT / "docs" / "BACKENDS.md"
ON_REDIS, ON_DYNAMODB = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))
NAMESPACE = ON_REDIS["state"]["storage"]["redis"]["namespace"]


# --- configurations and commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])
def test_the_configurations_of_the_page_load(number: int, tmp_path: Path):
    file = tmp_path / "statesvc.yml"
    file.write_text(blocks(PAGE, "yaml")[number])
    assert load({"config": file}, {}).settings.backend == ("redis", "dynamodb")[number]


@pytest.mark.parametrize("kind", [Redis, Dynamodb])
def test_every_key_of_a_shared_engine_is_on_the_page(kind: type[Redis | Dynamodb]):
    words = set(re.findall(r"\w+", section(PAGE, kind.__name__.lower())))
    assert set(kind.__struct_fields__) <= words | {"password"}  # which is better in a file


def test_the_commands_of_the_page_run_on_the_files_of_the_page(socket_folder: Path):
    tables = dynamodb.own_tables()
    with redis.Server() as server:
        here = {"redis.yml": ON_REDIS, "dynamodb.yml": ON_DYNAMODB}
        here = json.loads(json.dumps(here))
        here["redis.yml"]["state"]["storage"]["redis"] = {"endpoint": server.address, "namespace": NAMESPACE}
        here["dynamodb.yml"]["state"]["storage"]["dynamodb"] |= {
            "endpoint": dynamodb.endpoint(),
            "table_name": tables.jobs,
        }
        for name, content in here.items():
            (socket_folder / name).write_text(json.dumps(content))
        shell = Shell(socket_folder, **dynamodb.environment())
        on_redis, dry_run, on_dynamodb = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
        steps = json.loads(shell.run(on_redis))["steps"]
        assert {step["state"] for step in steps} == {"there", "made"}
        assert {step["state"] for step in json.loads(shell.run(dry_run, code=1))["steps"]} >= {"missing"}
        assert {step["state"] for step in json.loads(shell.run(on_dynamodb))["steps"]} <= {"there", "made"}


# --- what a user must be allowed -------------------------------------------------------------------------------------


def rule(namespace: str = NAMESPACE, password: str = "PASSWORD") -> list[str]:
    (line,) = re.findall(r"^ACL SETUSER .*$", marked(PAGE, "acl"), re.MULTILINE)
    return str(line).replace("PASSWORD", password).replace(f"{{{NAMESPACE}}}", f"{{{namespace}}}").split()


def allowed() -> set[str]:
    return {word[1:] for word in rule() if word.startswith("+")}


@pytest.fixture
def guarded() -> Iterator[redis.Server]:
    with redis.Server() as server:
        assert server.say(*rule(password="secret")) == b"OK"
        yield server


def test_the_rule_of_the_page_is_enough_for_a_daemon_and_all_that_is_done_to_its_store(
    guarded: redis.Server, socket_folder: Path
):
    user = {"username": "statesvc", "password": Secret("secret"), "namespace": NAMESPACE}
    with made_daemon(socket_folder / "d", "redis", guarded.settings(**user)) as served:
        everything(served.serving())
    refusals = guarded.say("ACL", "LOG")
    assert refusals == []


def everything(served: Daemon) -> None:
    """Every kind of request, and all that is done to a store as a whole."""
    with Client(served.socket) as client:
        client.hello("agent-1")
        job = {"uuid": "a", "status": "QUEUED", "labels": {"team": "x"}, "nodeId": "n", "owner": "worker/w"}
        requests: list[dict[str, Any]] = [
            {"op": "create", "job": job},
            {"op": "create", "job": {"uuid": "b", "status": "SCHEDULED", "scheduledAt": "2199-01-01T00:00:00Z"}},
            {"op": "claim", "filter": {}, "ttl": 30},
            {"op": "renew", "jobId": "a", "token": 1},
            {"op": "release", "jobId": "a", "token": 1, "status": "COMPLETED"},
            {"op": "history", "jobId": "a"},
            {"op": "txn", "ops": [{"op": "update", "jobId": "a", "job": {"x": 1}}, {"op": "delete", "jobId": "b"}]},
            {"op": "stats"},
            {"op": "stuck"},
            *({"op": "list", "sortBy": sort, "count": True} for sort in ("createdAt", "updatedAt", "priority", "id")),
            *(
                {"op": "list", "filter": each}
                for each in ({"labels": {"team": "x"}}, {"nodeId": "n"}, {"status": "FAILED"})
            ),
            {"op": "sweep"},
            {"op": "snapshot", "path": "snapshots/s"},
            {"op": "restore", "path": "snapshots/s"},
            {"op": "check", "repair": True},
            {"op": "freeze"},
            {"op": "thaw"},
            {"op": "sweep"},
            {"op": "health"},
        ]
        for request in requests:
            client.send(request)
            reply = client.reply()
            while "progress" in reply or "event" in reply:
                reply = client.reply()
            assert reply["success"], (request, reply)


def test_the_rule_of_the_page_names_every_command_of_the_scripts_and_no_dangerous_one(guarded: redis.Server):
    folder = ROOT / "statesvc" / "backends" / "redis" / "scripts"
    text = "".join(path.read_text() for path in folder.glob("*.lua") if path.stem != "probe")
    used = {name.lower() for name in re.findall(r"(?:call|in_pieces)\('([A-Z]+)'", text)}
    assert used <= allowed()
    for command in (
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("GET", "theirs"),
        ("HGET", "theirs", "x"),
        ("CONFIG", "SET", "a", "b"),
    ):
        assert guarded.say("ACL", "DRYRUN", "statesvc", *command) != b"OK", command
    for command in (("CLIENT", "KILL", "ID", "1"), ("WAIT", "1", "1"), ("CLUSTER", "SLOTS"), ("SELECT", "1")):
        assert guarded.say("ACL", "DRYRUN", "statesvc", *command) == b"OK", command


async def test_the_rule_of_the_page_is_enough_for_a_sentinel(tmp_path: Path):
    (needed,) = re.findall(r"`(\+sentinel\S+)`", PAGE.read_text())
    (tmp_path / "password").touch(0o600)
    (tmp_path / "password").write_text("secret\n")
    with redis.SentinelPair() as pair:
        for sentinel in pair.sentinels:
            sentinel.say("ACL", "SETUSER", "u", "on", ">secret", "-@all", needed)
        reached = {"sentinel_username": "u", "sentinel_password_file": tmp_path / "password", "wait_replicas": 1}
        engine = backends.make(assemble({"backend": "redis", **pair.settings(namespace=NAMESPACE, **reached)}))
        await engine.open()
        assert engine.durability == "replicated"
        await engine.close()
        assert [sentinel.say("ACL", "LOG") for sentinel in pair.sentinels] == [[]] * len(pair.sentinels)


def test_the_policy_of_the_page_is_the_one_that_is_shipped():
    wanted = policy.text(policy.SERVING, "joblet-jobs", "joblet-jobs-statesvc")
    (shown,) = re.findall(r"```json\n(.*?)\n```", marked(PAGE, "policy"), re.DOTALL)
    assert shown == wanted
    besides = re.findall(r"`(dynamodb:\w+)`", section(PAGE, "dynamodb"))
    assert set(besides) == set(policy.PREPARING) - set(policy.SERVING)


# --- what errors become ----------------------------------------------------------------------------------------------


def rows_of(header: str) -> dict[str, str]:
    """By what a server says: what a client is told."""
    found = table(PAGE.read_text(), header)
    return {code: cells[-1] for first, cells in found.items() for code in names(first)}


def test_what_the_errors_of_redis_become_is_what_the_page_says():
    told = rows_of("the server says")
    plain = {"MAXCLIENTS", "NOPASSWORD", "NODB"}  # servers say these under ERR
    assert redis_faults._WORDS.keys() - plain | {"NOSCRIPT"} == told.keys()
    for code, text in told.items():
        if code == "NOSCRIPT":
            continue
        assert names(text)[0] == redis_faults.as_error(Refused(code, ""), "server").code, code
        surely = code in commits.SURELY_NOTHING or code in redis_faults.IDENTITY - {"NOPERM"}
        assert ("not_applied" in text) == surely, code


def test_what_the_errors_of_dynamodb_become_is_what_the_page_says():
    told = rows_of("DynamoDB says")
    outcomes = {"throttled": "unavailable", "passing": "unavailable", "skewed": "unavailable",
                "credentials": "unavailable", "denied": "unavailable"}  # fmt: skip
    final = {"ConditionalCheckFailedException", "ResourceNotFoundException", "ValidationException"}
    assert told.keys() - final <= dynamodb_faults._SORTS.keys()
    sorts = {dynamodb_faults._SORTS[code] for code in told.keys() - final}
    assert sorts == set(dynamodb_faults._SORTS.values())
    for code in told.keys() - final:
        sort = dynamodb_faults._SORTS[code]
        assert sort == "unsure" or names(told[code]) == [outcomes[sort], "not_applied"], code


# --- tables of DynamoDB ----------------------------------------------------------------------------------------------


def test_the_indexes_of_the_page_are_those_that_are_made():
    made = table(section(PAGE, "dynamodb"), "it makes")
    shown = {name: names(cells[0]) for first, cells in made.items() for name in names(first) if name.endswith("-index")}
    assert shown == {shape.name: [shape.hash, shape.range] for shape in INDEXES}


@pytest.mark.parametrize("key", ["jobId", "job_uuid"])
def test_joblets_table_opens_as_it_is_and_init_makes_it_whole(
    key: str, socket_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Keyed as Joblet's documents have it, without an index, and with an item as bare as can be."""
    tables, endpoint = dynamodb.own_tables(), dynamodb.endpoint()
    for name, value in dynamodb.environment().items():
        monkeypatch.setenv(name, value)
    asyncio.run(joblets_table(endpoint, tables, key))
    values = {f"storage.dynamodb.{name}": value for name, value in reached(endpoint, tables).items()}
    with made_daemon(socket_folder / "d", "dynamodb", values, env=dynamodb.environment()) as served:
        served.serving()
        assert [served.events(name) != [] for name in ("companion_made", "jobs_not_indexed")] == [True, True]
        shell = Shell(socket_folder, **dynamodb.environment())
        (socket_folder / "s.yml").write_text(json.dumps(configuration(endpoint, tables)))
        with Client(served.socket) as client:
            looked_at(client)
            steps = json.loads(shell.run("statesvc init --config s.yml"))["steps"]
            assert {step["state"] for step in steps} == {"there", "made"}
            looked_at(client)
            assert client.ask("update", jobId="old-1", job={"uuid": "old-1", "status": "COMPLETED"})["success"]
            assert client.ask("get", jobId="old-1")["job"]["revision"] == 1
    item = asyncio.run(stored(endpoint, tables, key, "old-1"))
    assert (item["jobStatus"]["S"], item["command"]["S"]) == ("COMPLETED", "echo 1")
    assert "record" in item


def looked_at(client: Client) -> None:
    found = client.ask("get", jobId="old-1")["job"]
    assert (found["status"], found["command"], found["revision"], found["exact"]) == (
        "RUNNING",
        "echo 1",
        0,
        12345678901234567890,
    )
    listed = until(lambda: client.ask("list", filter={"status": "RUNNING"}).get("jobs"), "the list")
    assert [job["uuid"] for job in listed] == ["old-1"]
    assert {job["uuid"] for job in client.ask("list")["jobs"]} == {"old-1", "bare"}


def reached(endpoint: str, tables: dynamodb.Tables) -> dict[str, Any]:
    return {"endpoint": endpoint, "region": dynamodb.REGION, "table_name": tables.jobs, "index_lag_seconds": 0.0}


def configuration(endpoint: str, tables: dynamodb.Tables) -> dict[str, Any]:
    return {"state": {"backend": "dynamodb", "storage": {"dynamodb": reached(endpoint, tables)}}}


async def joblets_table(endpoint: str, tables: dynamodb.Tables, key: str) -> None:
    """As Joblet's own guide makes it."""
    full = {
        "jobStatus": {"S": "RUNNING"},
        "command": {"S": "echo 1"},
        "createdAt": {"S": "2025-10-26T00:00:00Z"},
        "updatedAt": {"S": "2025-10-26T00:00:05Z"},
        "nodeId": {"S": "node-1"},
        "exact": {"N": "12345678901234567890"},
    }
    async with asking.calling(endpoint) as calls:
        await asking.make_table(calls, tables.jobs, key)
        for item in ({key: {"S": "old-1"}, **full}, {key: {"S": "bare"}}):
            await calls.call("PutItem", {"TableName": tables.jobs, "Item": item})


async def stored(endpoint: str, tables: dynamodb.Tables, key: str, name: str) -> dict[str, Any]:
    async with asking.calling(endpoint) as calls:
        reply = await calls.call("GetItem", {"TableName": tables.jobs, "Key": {key: {"S": name}}})
    item: dict[str, Any] = reply["Item"]
    return item
