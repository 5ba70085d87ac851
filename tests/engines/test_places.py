"""Servers that tests use are left as they were found, and a run without one of them is a run that was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from statesvc.backends import make
from statesvc.config import Settings
from tests import leftovers
from tests.engines import places
from tests.engines.rows import fill, row
from tests.redis.servers import Cluster, Server


async def used(settings: Settings) -> None:
    """Leave records of several kinds and a log there."""
    engine = make(settings)
    await engine.open()
    try:
        await fill(engine, [row(f"r{number}", kind=kind, labels=(("a", "b"),)) for number in range(3) for kind in "xy"])
    finally:
        await engine.close()


async def test_a_namespace_goes_with_its_test_and_nothing_else_does():
    with Server() as server:
        server.say("SET", "somebody", "else")
        server.say("SET", "{test-1}", "else")
        await used(places.RedisServer(server.url).namespace())
        assert server.say("DBSIZE") > 2
        leftovers.tidy()
        assert sorted(server.say("KEYS", "*")) == [b"somebody", b"{test-1}"]


async def test_a_namespace_on_any_master_of_a_cluster_goes_with_its_test():
    with Cluster(node_timeout_ms=30_000) as cluster:
        given = places.RedisServer(cluster.masters[1].url)
        assert given.is_cluster
        for _ in range(6):
            await used(given.namespace())
        assert sum(master.say("DBSIZE") for master in cluster.masters) > 6
        leftovers.tidy()
        assert [master.say("DBSIZE") for master in cluster.masters] == [0, 0, 0]


def tables_there() -> set[str]:
    """All of them: other tests may have theirs on the same server, and a page of them is a hundred."""
    ask = places._dynamodb_server().asking.ask
    found: set[str] = set()
    page: dict[str, Any] = {}
    while True:
        told = ask("ListTables", page)
        found.update(told["TableNames"])
        if "LastEvaluatedTableName" not in told:
            return found
        page = {"ExclusiveStartTableName": told["LastEvaluatedTableName"]}


async def test_a_pair_of_tables_goes_with_its_test():
    settings = places.tables()
    await used(settings)
    own = {settings.storage.dynamodb.table_name, settings.storage.dynamodb.companion_table}
    assert own <= tables_there()
    leftovers.tidy()
    assert own.isdisjoint(tables_there())


def test_an_engine_is_left_out_only_by_its_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(places.WITHOUT, "cluster, dynamodb")
    with pytest.raises(pytest.skip.Exception, match="dynamodb is left out by STATESVC_TEST_WITHOUT"):
        places.tables()
    with pytest.raises(pytest.skip.Exception, match="cluster is left out"):
        places.namespace_in_a_cluster()
    monkeypatch.setenv(places.WITHOUT, "dynamo")
    with pytest.raises(ValueError, match="names dynamo; it may name redis, cluster, dynamodb"):
        places.tables()


def test_a_server_that_cannot_be_had_is_a_failure_that_says_what_would_help():
    def start() -> None:
        raise FileNotFoundError("no redis-server")

    with pytest.raises(RuntimeError, match=r"\(no redis-server\): give the address of one in STATESVC_TEST_REDIS_URL"):
        places._had("a Redis server", start, places.REDIS_URL)
