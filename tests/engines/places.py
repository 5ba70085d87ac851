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
import time
from collections.abc import Callable
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import botocore.session  # type: ignore[import-untyped]
import msgspec
import pytest
import redis
from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
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


class Asking:
    """Calls to an endpoint, one after the other on one connection. A client of botocore's takes five milliseconds for
    each, and every test makes four."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._credentials = botocore.session.get_session().get_credentials()
        parts = urlsplit(endpoint)
        connection = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = connection(parts.hostname or "", parts.port, timeout=PATIENCE_SECONDS)
        leftovers.of_the_run.callback(self._connection.close)

    def ask(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """What is answered; `LookupError` when there is no such table."""
        signed = AWSRequest("POST", f"{self._endpoint}/", data=msgspec.json.encode(request))
        signed.headers["x-amz-target"] = f"DynamoDB_20120810.{operation}"
        signed.headers["content-type"] = "application/x-amz-json-1.0"
        SigV4Auth(self._credentials.get_frozen_credentials(), "dynamodb", _region()).add_auth(signed)
        try:
            status, body = self._sent(signed)
        except (ConnectionError, HTTPException):  # a connection that has long been idle may have been ended
            self._connection.close()
            status, body = self._sent(signed)
        if b"ResourceNotFoundException" in body:
            raise LookupError(body)
        assert status == 200, (operation, status, body)
        answer: dict[str, Any] = msgspec.json.decode(body)
        return answer

    def _sent(self, signed: Any) -> tuple[int, bytes]:
        self._connection.request("POST", "/", signed.data, dict(signed.headers))
        response = self._connection.getresponse()
        return response.status, response.read()


class DynamodbServer:
    """An endpoint where tests make tables of their own."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.asking = Asking(endpoint)

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
            self.asking.ask("CreateTable", definition(Wanted.of(options), name))
        for name in () if self._is_played else names:
            self._wait_for(name)
        return Settings(backend="dynamodb", storage=Storage(dynamodb=options))

    @property
    def _is_played(self) -> bool:
        return ".amazonaws." not in (urlsplit(self.endpoint).hostname or "")

    def _wait_for(self, name: str) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while self.asking.ask("DescribeTable", {"TableName": name})["Table"]["TableStatus"] != "ACTIVE":
            assert time.monotonic() < until, f"table {name} did not become active"
            time.sleep(0.5)

    def _take_away(self, *names: str) -> None:
        for name in names:
            try:
                self.asking.ask("DeleteTable", {"TableName": name})
            except LookupError:
                pass  # the test has done it


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
