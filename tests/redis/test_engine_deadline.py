"""A commit has one time and one epoch, however many calls it takes: those that held when it was handed over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from statesvc.backends.port import Query, Row, Write
from statesvc.backends.redis import commits, seen
from statesvc.backends.redis.engine import RedisEngine
from statesvc.backends.redis.guesses import Guesses
from statesvc_client.errors import Unavailable
from tests.engines.rows import after, born, fill, row
from tests.redis.conftest import LinkTo
from tests.redis.engines import opened
from tests.redis.proxies import Proxy
from tests.redis.servers import Server


def between_calls(engine: RedisEngine, happens: Callable[[float], Awaitable[Any]]) -> list[int]:
    """Let something happen behind the first call to the server. Returns the number of commands in each call made."""
    change, calls = engine._link.change, []

    async def watched(*commands: Any, until: float) -> list[Any]:
        replies = await change(*commands, until=until)
        calls.append(len(commands))
        if len(calls) == 1:
            await happens(until)
        return replies

    engine._link.change = watched  # type: ignore[method-assign, assignment]
    return calls


async def past(until: float) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() <= until:
        await asyncio.sleep(until - loop.time())


async def of(*rows: Row) -> AsyncIterator[list[Row]]:
    yield list(rows)


def chain(first: Row) -> list[tuple[Write, ...]]:
    """Units of which each builds on the one before: they go one call after the other."""
    second = after(first)
    return [(Write(first, None, born(first.id)[0].event),), (second,), (after(second.row),)]


@pytest.fixture
def one_unit_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "CALL_UNITS", 1)


# --- time ------------------------------------------------------------------------------------------------------------


async def test_writes_whose_time_is_over_are_not_sent(server: Server, namespace: str, link_to: LinkTo):
    link = link_to(server.settings())
    await link.open()
    assert await link.change(("SET", f"{namespace}-in-time", 1)) == [b"OK"]
    with pytest.raises(Unavailable) as late:
        await link.change(("SET", f"{namespace}-late", 1), until=asyncio.get_running_loop().time())
    assert late.value.outcome == "not_applied"
    assert server.say("EXISTS", f"{namespace}-late") == 0


@pytest.mark.usefixtures("one_unit_a_call")
async def test_what_was_not_sent_in_time_is_not_sent_at_all(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        await fill(engine, [row("known")])  # and with it the script
        engine.commit_seconds = 1.0
        calls = between_calls(engine, past)
        units = chain(row("a"))
        first, *rest = await engine.commit(units)
        assert first == "applied"
        assert [(type(each), getattr(each, "outcome", None)) for each in rest] == [(Unavailable, "not_applied")] * 2
        assert calls == [1]
        assert await engine.get([("job", "a")]) == [row("a")]


@pytest.mark.usefixtures("one_unit_a_call")
async def test_a_later_call_has_only_the_time_that_is_left(server: Server, namespace: str):
    """What is on its way when the time is over may have been applied, and a read tells for good."""
    async with Proxy(server.port) as proxy, opened(server, namespace, endpoint=proxy.address) as engine:
        await fill(engine, [row("known")])  # and with it the script
        engine.commit_seconds = 1.0

        async def held(_: float) -> None:
            proxy.hold()

        between_calls(engine, held)
        async with asyncio.timeout(20):  # another call's own time would be 30 s
            assert await engine.commit(chain(row("a"))) == ["applied", "unknown", "conflict"]
        assert await engine.get([("job", "a")]) == [row("a")]
        proxy.release()
        await engine.commit([born("later")])
        assert await engine.get([("job", "a")]) == [row("a")]


async def test_a_commit_for_those_who_have_waited_before_has_only_the_time_that_is_left(server: Server, namespace: str):
    async with Proxy(server.port) as proxy, opened(server, namespace, endpoint=proxy.address) as engine:
        await fill(engine, [row("known")])  # and with it the script
        with pytest.raises(Unavailable) as late:
            await engine.commit_within([born("a")], 0.0)
        assert late.value.outcome == "not_applied"
        proxy.hold()
        async with asyncio.timeout(20):  # its own time would be 30 s
            assert await engine.commit_within([born("a")], 1.0) == ["unknown"]
        proxy.release()


async def test_a_script_the_server_does_not_know_is_not_sent_again_when_the_time_is_over(namespace: str):
    with Server() as server:
        async with opened(server, namespace) as engine:
            engine.commit_seconds = 1.0
            server.say("SCRIPT", "FLUSH")
            between_calls(engine, past)
            with pytest.raises(Unavailable) as late:
                await engine.commit([born("a")])
            assert late.value.outcome == "not_applied"
            assert await engine.get([("job", "a")]) == [None]


async def test_of_calls_sent_together_the_one_not_sent_again_in_time_is_not_applied(namespace: str, monkeypatch: Any):
    """The server forgets the script between two calls that were sent at once."""
    monkeypatch.setattr(commits, "CALL_UNITS", 1)
    with Server() as server:
        async with opened(server, namespace) as engine:
            await fill(engine, [row("known")])
            engine.commit_seconds = 1.0
            change = engine._link.change

            async def forgetful(*commands: Any, until: float) -> list[Any]:
                if len(commands) == 1:
                    await past(until)
                    return await change(*commands, until=until)
                one, *rest = commands
                first, _, *others = await change(one, ("SCRIPT", "FLUSH"), *rest, until=until)
                return [first, *others]

            monkeypatch.setattr(engine._link, "change", forgetful)
            first, second = await engine.commit([born("a"), born("b")])
            assert first == "applied"
            assert isinstance(second, Unavailable)
            assert second.outcome == "not_applied"
            assert await engine.get([("job", "a"), ("job", "b")]) == [row("a"), None]


# --- the epoch -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_unit_a_call")
async def test_a_commit_never_goes_on_under_another_epoch(server: Server, namespace: str):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        await fill(engine, [row("known")])  # and with it the script
        look_alike = row("a", node="another")

        async def replaced(_: float) -> None:
            await other.load(of(look_alike))
            await engine.ping()

        epoch = engine.epoch
        calls = between_calls(engine, replaced)
        assert await engine.commit(chain(row("a"))) == ["applied", "conflict", "conflict"]
        assert calls == [1, 1]
        assert engine.epoch == other.epoch != epoch
        assert await engine.get([("job", "a")]) == [look_alike]


@pytest.mark.parametrize("noticed", [False, True])
async def test_what_was_decided_before_the_epoch_changed_is_decided_again(
    server: Server, namespace: str, *, noticed: bool
):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        await fill(engine, [row("a")])
        [read] = await engine.get([("job", "a")])
        assert read is not None
        look_alike = row("a", node="another")
        await other.load(of(look_alike))
        if noticed:
            await engine.ping()
        for _ in range(2):
            assert await engine.commit([(after(read),)]) == ["conflict"]
        [again] = await engine.get([("job", "a")])
        assert again == look_alike
        assert again.stamp == read.stamp
        assert await engine.commit([(after(again),)]) == ["applied"]
        assert await engine.check() == []


async def test_what_was_read_or_made_since_the_epoch_changed_may_be_built_on(server: Server, namespace: str):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        await other.load(of(row("a"), row("b")))
        await engine.ping()
        assert await engine.commit([*chain(row("new")), (after(row("a")),)]) == ["applied"] * 3 + ["conflict"]
        made = row("new", revision=3)
        assert await engine.commit([(after(made),)]) == ["applied"]
        for found in await engine.query(Query(kind="job", limit=10)):
            assert await engine.commit([(after(found),)]) == ["applied"]


async def test_stamps_are_forgotten_when_there_are_too_many_or_nobody_needs_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(seen, "MOST_STAMPS", 2)
    rows = [row(name) for name in "abc"]
    parts = commits.parts([(after(each),) for each in rows], Guesses().digest)
    watched = seen.Seen()
    assert watched.unfounded(parts) == []
    watched.began_anew()
    assert watched.unfounded(parts) == parts
    watched.note([*rows, None])
    assert watched.unfounded(parts) == parts[:1]
    monkeypatch.setattr(seen, "WATCH_SECONDS", -1.0)
    watched.began_anew()
    assert watched.unfounded(parts) == []
