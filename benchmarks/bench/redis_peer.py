"""Redis through its best client for Python: redis-py with hiredis, pipelines without transactions, a Unix socket.

Owns what the same work is on Redis. Must not know statesvc. A job is a string under its id, as prepared bytes. With
indexes, one sorted set by createdAt stands for each status, each node, each label and for all: what a page by any of
them needs.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import redis
from redis.utils import HIREDIS_AVAILABLE

from . import frames
from .effort import OWN
from .lines import CLOCK, CLOCK_NS, Batch, Talker
from .shape import Failed

FILL = 1_000
"""Jobs put into a store with indexes at once."""


Put = Callable[..., object]


def _by_method(pipe: Any) -> tuple[Put, Put]:
    return pipe.set, pipe.get


def _by_command(pipe: Any) -> tuple[Put, Put]:
    return partial(pipe.execute_command, "SET"), partial(pipe.execute_command, "GET")


class RedisPeer:
    """One connection to one server. Pipelines are filled by the methods that have the commands' names, as an agent does
    it; with `bare_commands` by `execute_command`, which checks no options and takes redis-py less time."""

    def __init__(self, path: str, *, bare_commands: bool = False) -> None:
        self._puts = _by_command if bare_commands else _by_method
        if not HIREDIS_AVAILABLE:
            raise Failed("redis-py has no hiredis here: it would be slower than it can be")
        self._client: Any = redis.Redis(unix_socket_path=path)
        self._client.ping()

    def rate_of_sets(self, items: Sequence[tuple[str, bytes]], depth: int) -> float:
        """SETs a second."""
        answers: list[list[Any]] = []
        with OWN:
            began = CLOCK()
            for start in range(0, len(items), depth):
                pipe = self._client.pipeline(transaction=False)
                put, _ = self._puts(pipe)
                for key, value in items[start : start + depth]:
                    put(key, value)
                answers.append(pipe.execute())
            took = CLOCK() - began
        _check(all(itertools.chain(*answers)), "SET")
        return len(items) / took

    def rate_of_gets(self, keys: Sequence[str], depth: int) -> float:
        answers: list[list[Any]] = []
        with OWN:
            began = CLOCK()
            for start in range(0, len(keys), depth):
                pipe = self._client.pipeline(transaction=False)
                _, put = self._puts(pipe)
                for key in keys[start : start + depth]:
                    put(key)
                answers.append(pipe.execute())
            took = CLOCK() - began
        _check(all(itertools.chain(*answers)), "GET")
        return len(keys) / took

    def publish(self, items: Sequence[tuple[str, bytes]], channel: str, depth: int) -> None:
        """SET each, and tell who has subscribed."""
        with OWN:
            for start in range(0, len(items), depth):
                pipe = self._client.pipeline(transaction=False)
                for key, value in items[start : start + depth]:
                    pipe.set(key, value)
                    pipe.publish(channel, value)
                pipe.execute()

    def times_of_gets(self, keys: Sequence[str]) -> list[int]:
        """Nanoseconds of each, one at a time."""
        with OWN:
            return [self._timed(key, None) for key in keys]

    def times_of_sets(self, items: Sequence[tuple[str, bytes]]) -> list[int]:
        with OWN:
            return [self._timed(key, value) for key, value in items]

    def _timed(self, key: str, value: bytes | None) -> int:
        began = CLOCK_NS()
        done = self._client.get(key) if value is None else self._client.set(key, value)
        took = CLOCK_NS() - began
        _check(bool(done), "a request")
        return took

    def rate_of_pages(self, count: int) -> float:
        """Pages by status a second: the newest ids of the index, then their jobs."""
        with OWN:
            began = CLOCK()
            for number in range(count):
                index = f"status:{frames.STATES[number % len(frames.STATES)]}"
                ids = self._client.zrevrange(index, 0, frames.PAGE - 1)
                found = self._client.mget(ids)
                if len(found) != frames.PAGE:
                    raise Failed(f"a page had {len(found)} jobs")
            return count / (CLOCK() - began)

    def fill(self, jobs: int) -> None:
        """That many jobs with their indexes, the same that statesvc keeps."""
        for first in range(0, jobs, FILL):
            numbers = range(first, min(jobs, first + FILL))
            values: dict[str, bytes] = {}
            indexes: dict[str, dict[str, float]] = defaultdict(dict)
            for number in numbers:
                id, status = f"job-{number}", frames.STATES[number % len(frames.STATES)]
                values[id] = frames.body(id, number, status, createdAt="2026-01-01T00:00:00.000000Z")
                for index in _indexes(number, status):
                    indexes[index][id] = number
            pipe = self._client.pipeline(transaction=False)
            pipe.mset(values)
            for index, members in indexes.items():
                pipe.zadd(index, members)
            pipe.execute()

    def about(self) -> str:
        """The server's own name and version."""
        info = cast("dict[str, Any]", self._client.info("server"))
        name = str(info.get("server_name", "redis"))
        return f"{name} {info.get(f'{name}_version', info.get('redis_version'))}"

    def close(self) -> None:
        self._client.close()


def _indexes(number: int, status: str) -> tuple[str, ...]:
    node, team = number % frames.NODES, number % frames.TEAMS
    return ("createdAt", f"status:{status}", f"node:{node}", f"label:team:t{team}", "label:env:prod")


def _check(good: bool, what: str) -> None:
    if not good:
        raise Failed(f"{what} failed on Redis")


class Bare:
    """The protocol's own bytes, made beforehand and sent by the load generator that statesvc gets: the server alone."""

    def __init__(self, path: str) -> None:
        self._talker = Talker(path)

    def rate_of_sets(self, items: Sequence[tuple[str, bytes]], depth: int) -> float:
        """SETs a second."""
        took, heard = self._exchange([set_command(key, value) for key, value in items], depth, newlines=1)
        _check(heard.count(b"+OK\r\n") == len(items), "SET")
        return len(items) / took

    def rate_of_gets(self, keys: Sequence[str], depth: int) -> float:
        took, heard = self._exchange([get_command(key) for key in keys], depth, newlines=2)
        _check(heard.count(b"\r\n{") == len(keys), "GET")
        return len(keys) / took

    def _exchange(self, commands: Sequence[bytes], depth: int, newlines: int) -> tuple[float, bytes]:
        """`newlines` is how many a reply has."""
        parts = [commands[start : start + depth] for start in range(0, len(commands), depth)]
        return self._talker.exchange([Batch(b"".join(part), len(part) * newlines) for part in parts])


def set_command(key: str, value: bytes) -> bytes:
    """As bytes on the wire, for the load generator of many connections."""
    return b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(key), key.encode(), len(value), value)


def get_command(key: str) -> bytes:
    return b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key.encode())
