"""What a daemon wrote itself: guessed without a look, written on only while it is what is stored, read from the log
without asking for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from statesvc.backends.port import Event, LogKept, Row
from statesvc.backends.redis import guesses, recent
from statesvc.backends.redis.commits import Told
from statesvc.backends.redis.guesses import Guesses
from statesvc.backends.redis.recent import Recent
from statesvc.store.store import Store
from statesvc.store.writes import Caller
from statesvc_client import wire
from statesvc_client.errors import Gone
from tests.engines.rows import after, born, buried, fill, hidden, removed, row
from tests.redis.engines import opened
from tests.redis.servers import Server

# --- guesses ---------------------------------------------------------------------------------------------------------


async def test_what_was_written_here_is_guessed_and_can_be_written_on(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        assert engine.guess(("job", "a")) is None
        [first] = await fill(engine, [row("a")])
        second = after(first)._replace(basis=first)
        assert await engine.commit([(second,)]) == ["applied"]
        guess = engine.guess(("job", "a"))
        assert guess is not None
        assert guess.row is second.row


async def test_a_hidden_change_of_another_makes_a_guess_wrong_though_the_stamp_is_the_same(
    server: Server, namespace: str
):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        [mine] = await fill(engine, [row("a")])
        renewed = hidden(mine, token=7)
        assert await other.commit([(renewed,)]) == ["applied"]
        assert await engine.commit([(after(mine)._replace(basis=mine),)]) == ["conflict"]
        assert engine.guess(("job", "a")) is None
        assert await engine.get([("job", "a")]) == [renewed.row]


async def test_within_one_call_a_guess_holds_only_until_a_unit_before_changes_the_row(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        [first] = await fill(engine, [row("a")])
        batch = [(hidden(first, token=3),), (after(first)._replace(basis=first),)]
        assert await engine.commit(batch) == ["applied", "conflict"]


async def test_a_row_that_went_for_good_is_no_longer_guessed(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        [first] = await fill(engine, [row("a")])
        assert await engine.commit([(removed(first),)]) == ["applied"]
        assert engine.guess(("job", "a")) is None


async def test_under_a_new_epoch_nothing_is_guessed(server: Server, namespace: str):
    async def nothing() -> AsyncIterator[list[Row]]:
        return
        yield

    async with opened(server, namespace) as engine:
        await fill(engine, [row("a")])
        await engine.load(nothing())
        assert engine.guess(("job", "a")) is None
        assert await engine.read_log("", 10) == []


def counted(calls: list[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def count(*given: Any, **named: Any) -> Any:
        calls.append(name)
        return call(*given, **named)

    return count


async def test_a_write_to_one_record_is_one_call_of_the_script(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
):
    async with opened(server, namespace) as engine:
        store, calls = Store(engine), list[str]()
        store.start()
        monkeypatch.setattr(engine._link, "change", counted(calls, "change", engine._link.change))
        monkeypatch.setattr(engine._namespace, "read", counted(calls, "read", engine._namespace.read))

        async def cost(request: Any) -> list[str]:
            calls.clear()
            decided = await store.write(request, Caller(said_hello=True))
            assert decided.refused is None
            return list(calls)

        assert await cost(wire.Create(kind="kv", id="k", record={"n": 0})) == ["change"]
        assert await cost(wire.Update(kind="kv", id="k", inc={"n": 1})) == ["change"]
        assert await cost(wire.Delete(kind="kv", id="k")) == ["change"]
        engine._guesses.clear()
        assert await cost(wire.Create(kind="kv", id="l", record={"n": 0})) == ["change"]
        engine._guesses.clear()
        assert await cost(wire.Update(kind="kv", id="l", inc={"n": 1})) == ["read", "change"]
        await store.stop()


def test_guesses_have_a_bound(monkeypatch):
    monkeypatch.setattr(guesses, "MOST_BYTES", 20 * guesses.OVERHEAD_BYTES)
    known = Guesses()
    for number in range(100):
        known.note(row(str(number)), b"stored")
    held = [number for number in range(100) if known.of(("job", str(number))) is not None]
    assert held[-1] == 99
    assert len(held) <= 20


def test_the_digest_of_a_row_is_known_also_when_the_guess_has_moved_on():
    known, first = Guesses(), row("a")
    before = known.digest(first)
    known.note(after(first).row, b"another form")
    assert known.digest(first) == before


# --- the log ---------------------------------------------------------------------------------------------------------


async def test_what_a_daemon_reads_of_its_own_writes_is_what_others_read(server: Server, namespace: str):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        start = await engine.position()
        [first, _] = await fill(engine, [row("a"), row("b", status="RUNNING", labels=(("x", "y"),))])
        second = after(first)
        await engine.commit([(second, hidden(row("b", status="RUNNING", labels=(("x", "y"),)), token=4))])
        await fill(other, [row("c")])
        await engine.commit([(buried(second.row),)])
        own = await _whole_log(engine, start)
        assert own == await _whole_log(other, start)
        assert [entry.event.type for entry in own] == ["created", "created", "updated", "created", "deleted"]


async def test_own_writes_that_others_came_between_are_read_in_order(server: Server, namespace: str):
    async with opened(server, namespace) as engine, opened(server, namespace) as other:
        start = await engine.position()
        for number in range(6):
            await fill((engine, other)[number % 2], [row(str(number))])
        assert [entry.row.id for entry in await _whole_log(engine, start)] == list("012345")


async def test_what_was_cut_is_gone_also_for_the_daemon_that_wrote_it(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        start = await engine.position()
        await fill(engine, [row(str(number)) for number in range(4)])
        while await engine.compact(LogKept(since=0, most_bytes=1)):
            pass
        with pytest.raises(Gone):
            await engine.read_log(start, 10)


async def _whole_log(engine, after_):
    found = []
    while entries := await engine.read_log(after_, 2):
        found += entries
        after_ = entries[-1].cursor
    return found


def _told(first: int, *names: str) -> Told:
    return Told(first, [(Event("created", 1), row(name)) for name in names])


def _names(held: Recent, position: int, limit: int = 100) -> list[tuple[str, str]]:
    return [(entry.cursor, entry.row.id) for entry in held.behind(position, limit)]


def test_recent_entries_are_those_right_behind_a_number():
    held = Recent()
    held.add(_told(5, "a", "b"))
    held.add(_told(7, "c"))
    assert _names(held, 3) == []
    assert _names(held, 4) == [("5", "a"), ("6", "b"), ("7", "c")]
    assert _names(held, 5, limit=1) == [("6", "b")]
    assert _names(held, 7) == []


def test_entries_behind_those_of_another_begin_anew():
    held = Recent()
    held.add(_told(5, "a"))
    held.add(_told(8, "b"))
    assert _names(held, 4) == []
    assert _names(held, 7) == [("8", "b")]


def test_recent_entries_have_a_bound(monkeypatch):
    monkeypatch.setattr(recent, "MOST_BYTES", 10 * recent.OVERHEAD_BYTES)
    held = Recent()
    for number in range(1, 101):
        held.add(_told(number, str(number)))
    assert _names(held, 50) == []
    assert _names(held, 99) == [("100", "100")]
    held.add(Told(101, [(Event("created", 1), row(str(number))) for number in range(50)]))
    assert _names(held, 100) == []


async def test_an_entry_of_a_unit_that_was_refused_has_no_number(server: Server, namespace: str):
    async with opened(server, namespace) as engine:
        start = await engine.position()
        assert await engine.commit([born("a"), born("a"), born("b")]) == ["applied", "conflict", "applied"]
        assert [(entry.cursor, entry.row.id) for entry in await engine.read_log(start, 10)] == [("1", "a"), ("2", "b")]
