"""Places for shared engines: a namespace or a pair of tables for every store a test makes, on one server a process.

Owns which server that is: one that the environment names, or one started when the first test asks for it. What a test
made is taken away behind it, and nothing else on a server is touched. Must not know what engines keep in their places.

    STATESVC_TEST_REDIS_URL            redis://user:password@host:port/db, rediss:// with ?ssl_ca_certs=, unix:///path;
                                       the address of any node of a cluster will do
    STATESVC_TEST_DYNAMODB_ENDPOINT    http://host:port; credentials and region as for any program
    STATESVC_TEST_WITHOUT              engines to be left out by name (redis, cluster, dynamodb), with commas between
                                       them: only who says so gets a run without them
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import redis
from redis.connection import parse_url

from statesvc.backends.dynamodb.tables import Wanted, definition
from statesvc.config import Settings
from statesvc.config.model import Dynamodb, Storage, assemble
from tests import leftovers
from tests.dynamodb import servers as dynamodb_servers
from tests.redis import servers as redis_servers

T = TypeVar("T")

REDIS_URL = "STATESVC_TEST_REDIS_URL"
DYNAMODB_ENDPOINT = "STATESVC_TEST_DYNAMODB_ENDPOINT"
WITHOUT = "STATESVC_TEST_WITHOUT"

SHARED = ("redis", "cluster", "dynamodb")

PATIENCE_SECONDS = 60.0
"""What an engine gives its server on a machine that is busy with something else: no test waits for it to pass."""


def _wanted(name: str) -> None:
    """Skip the test when the run was asked to leave this engine out."""
    without = {each.strip() for each in os.environ.get(WITHOUT, "").split(",")} - {""}
    if unknown := without - set(SHARED):
        raise ValueError(f"{WITHOUT} names {', '.join(sorted(unknown))}; it may name {', '.join(SHARED)}")
    if name in without:
        pytest.skip(f"{name} is left out by {WITHOUT}")


# --- Redis -----------------------------------------------------------------------------------------------------------


class RedisServer:
    """A server, or a cluster by any of its nodes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._reached_by = redis_servers.settings_from_url(url)
        self._client = _client(url)
        self.is_cluster = bool(self._client.info("cluster")["cluster_enabled"])

    def namespace(self) -> Settings:
        """A namespace that nobody else has."""
        name = f"test-{uuid4().hex}"
        leftovers.of_the_test.callback(self._take_away, name)
        own = redis_servers.dotted({"namespace": name, "timeout_seconds": PATIENCE_SECONDS})
        return assemble({"backend": "redis", **self._reached_by, **own})

    def _take_away(self, namespace: str) -> None:
        """Delete the keys of a namespace, and no other."""
        client = self._master_of(namespace) if self.is_cluster else self._client
        found = list(client.scan_iter(match=f"{{{namespace}}}*", count=1000))
        if found:
            client.unlink(*found)

    def _master_of(self, namespace: str) -> Any:
        slot = redis_servers.slot_of(namespace)
        for first, last, (host, port, *_), *_ in self._client.execute_command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return _client(self._url, host=host.decode(), port=port)
        raise LookupError(f"no node of the cluster serves slot {slot}")


@cache
def _client(url: str, **instead: Any) -> Any:
    """A plain connection, for cleaning up."""
    pool = redis.ConnectionPool(**{**parse_url(url), "socket_timeout": PATIENCE_SECONDS, "protocol": 2, **instead})
    client = redis.Redis(connection_pool=pool)
    client.response_callbacks.pop("CLUSTER SLOTS", None)
    leftovers.of_the_run.callback(pool.disconnect)
    return client


@cache
def _redis_server() -> RedisServer:
    given = os.environ.get(REDIS_URL)
    return RedisServer(given or _had("a Redis server", redis_servers.shared_server, REDIS_URL).url)


@cache
def _cluster_server() -> RedisServer:
    """The server that was given, if it is a cluster's, or one of our own."""
    if os.environ.get(REDIS_URL) and _redis_server().is_cluster:
        return _redis_server()
    cluster = _had("a Redis cluster", _three_masters, REDIS_URL)
    return RedisServer(cluster.masters[0].url)


def _three_masters() -> redis_servers.Cluster:
    # A node that gets no processor for a while is not a node that has failed.
    return leftovers.of_the_run.enter_context(redis_servers.Cluster(node_timeout_ms=30_000))


def namespace() -> Settings:
    """A namespace on a server."""
    _wanted("redis")
    return _redis_server().namespace()


def namespace_in_a_cluster() -> Settings:
    """A namespace on one of the masters of a cluster."""
    _wanted("cluster")
    return _cluster_server().namespace()


# --- DynamoDB --------------------------------------------------------------------------------------------------------


class DynamodbServer:
    """An endpoint, and a plain client of it for cleaning up."""

    def __init__(self, endpoint: str) -> None:
        import botocore.session  # type: ignore[import-untyped]

        self.endpoint = endpoint
        session = botocore.session.get_session()
        self._client = session.create_client("dynamodb", region_name=_region(), endpoint_url=endpoint)
        leftovers.of_the_run.callback(self._client.close)

    def tables(self) -> Settings:
        """A pair of tables that nobody else has, made as `statesvc init` makes them."""
        names = dynamodb_servers.own_tables()
        options = Dynamodb(
            region=_region(),
            endpoint=self.endpoint,
            table_name=names.jobs,
            companion_table=names.companion,
            timeout_seconds=PATIENCE_SECONDS,
            # A server that plays DynamoDB does not lag: a list may be taken at its word, and watched from.
            index_lag_seconds=0.0 if self._is_played else Dynamodb().index_lag_seconds,
        )
        leftovers.of_the_test.callback(self._take_away, *names)
        for name in names:
            self._client.create_table(**definition(Wanted.of(options), name))
        if not self._is_played:
            for name in names:
                self._client.get_waiter("table_exists").wait(TableName=name)
        return Settings(backend="dynamodb", storage=Storage(dynamodb=options))

    @property
    def _is_played(self) -> bool:
        return ".amazonaws." not in (urlsplit(self.endpoint).hostname or "")

    def _take_away(self, *names: str) -> None:
        for name in names:
            try:
                self._client.delete_table(TableName=name)
            except self._client.exceptions.ResourceNotFoundException:
                pass  # the test never opened it


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or dynamodb_servers.REGION


@cache
def _dynamodb_server() -> DynamodbServer:
    # Daemons find them too: those in this process, and those that are started from it.
    os.environ.update(dynamodb_servers.environment())
    return DynamodbServer(_had("moto", dynamodb_servers.endpoint, DYNAMODB_ENDPOINT))


def tables() -> Settings:
    """A pair of tables at an endpoint."""
    _wanted("dynamodb")
    return _dynamodb_server().tables()


# --- servers of our own ----------------------------------------------------------------------------------------------


def _had(what: str, start: Callable[[], T], variable: str) -> T:
    """A server that can be had; where it cannot, say what would help."""
    try:
        return start()
    except Exception as problem:
        help = f"give the address of one in {variable}, or leave it out by naming it in {WITHOUT}"
        raise RuntimeError(f"{what} could not be started ({problem}): {help}") from problem


leftovers.forget += [each.cache_clear for each in (_redis_server, _cluster_server, _dynamodb_server, _client)]
