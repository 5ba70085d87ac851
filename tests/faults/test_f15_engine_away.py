"""F15: a shared store that is away, flaps, hangs or is slow: the daemon says so, keeps within its memory, and serves
again by itself.

The load of tests/fleet goes on all the time, so every answer given on the way is held to be true: what was said not to
be applied is not there, what was acknowledged is, and what was unknown happened once or never.

How soon a store that is back is served again is measured by `python -m tests.faults.recoveries`.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.harness import SECONDS, Client, Daemon, Reply, until
from tests.faults.recoveries import FAULTS, MOST_GROWN_BYTES, recovered
from tests.faults.test_f07_hostile_clients import FRAME, memory_bounded
from tests.fleet.daemons import daemon, fleet
from tests.fleet.places import PLACES, Place
from tests.fleet.race import Plan, Race
from tests.fleet.verdicts import faults, figures

AWAY_SECONDS = 2.0

LOAD = Plan(until_told=True, mixed=10, lockers=3, workers=3, jobs=15, hot=4, cold=30, ttl=2.0)


@pytest.fixture(params=["proxied redis", "dynamodb"])
def slow_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with PLACES[request.param]() as place:
        yield place


@pytest.fixture(params=["redis", "dynamodb", pytest.param("proxied redis", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with PLACES[request.param]() as place:
        yield place


def health(of: Daemon) -> Reply:
    with of.connect() as client:
        return client.ask("health")


def verdict(of: Daemon, name: str) -> tuple[str, str]:
    (check,) = (check for check in health(of)["checks"] if check["name"] == name)
    return check["verdict"], check["detail"]


def is_ready(of: Daemon) -> bool:
    return bool(health(of)["ready"])


# --- at the start ----------------------------------------------------------------------------------------------------


def test_a_store_that_is_away_at_the_start_is_named_and_served_as_soon_as_it_comes(folder: Path, place: Place):
    place.go_away()
    with daemon(folder, place.backend, place.values, env=place.env).start() as one:
        one.wait_for_ping()
        pid = one.pid
        with one.connect() as client:
            read = client.ask("get", jobId="a")
            written = client.ask("create", job={"uuid": "a"})
        assert read["code"] == written["code"] == "unavailable"
        assert written["outcome"] == "not_applied"
        endpoint = str(place.values[f"storage.{place.backend}.endpoint"])
        assert endpoint.removeprefix("http://") in read["error"]
        told = health(one)
        assert (told["live"], told["ready"]) == (True, False)
        assert verdict(one, "engine")[0] == "fail"
        assert endpoint.removeprefix("http://") in verdict(one, "engine")[1]
        place.come_back()
        until(one._serves, "the store to be served without a restart")
        assert one.pid == pid
        assert is_ready(one)
        assert verdict(one, "engine")[0] == "ok"
        with one.connect() as client:
            assert client.ask("create", job={"uuid": "a"})["success"]


def test_a_store_that_hangs_at_the_start_is_named_and_served_as_soon_as_it_answers(folder: Path, place: Place):
    place.hang()
    with daemon(folder, place.backend, place.values, env=place.env).start() as one:
        one.wait_for_ping()
        with one.connect() as client:
            assert client.ask("get", jobId="a")["code"] == "unavailable"
        assert not is_ready(one)
        place.resume()
        until(one._serves, "the store to be served without a restart")
        assert is_ready(one)


def test_a_store_that_flaps_while_the_daemon_starts_is_served_in_the_end(folder: Path, place: Place):
    said: dict[str, str] = {}
    with daemon(folder, place.backend, place.values, env=place.env).start() as one:
        for name in ("a", "b", "c"):
            place.go_away()
            one.wait_for_ping()
            with one.connect() as client:
                refused = client.ask("create", job={"uuid": name})
            assert refused["code"] == "unavailable"
            said[name] = refused["outcome"]
            place.come_back()
        until(one._serves, "the store to be served without a restart")
        assert is_ready(one)
        # A link that had opened in between may have carried the write away.
        assert set(said.values()) <= {"not_applied", "unknown"}
        with one.connect() as client:
            there = {name for name in said if client.ask("get", jobId=name)["success"]}
        assert {name for name in there if said[name] == "not_applied"} == set()


# --- while nobody asks for anything ----------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["go_away", "hang"])
def test_a_daemon_whose_store_is_away_goes_on_feeding_its_watchdog(folder: Path, place: Place, trouble: str):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(folder / "notify"))
        supervisor.settimeout(SECONDS)
        env = {**place.env, "NOTIFY_SOCKET": supervisor.getsockname(), "WATCHDOG_USEC": "300000"}
        with daemon(folder, place.backend, place.values, env=env).serving() as one:
            # A supervisor that reads nothing has room for some lines only: what it had none for is said once more.
            while not supervisor.recv(4096).startswith(b"READY=1"):
                pass
            getattr(place, trouble)()
            until(lambda: not one._serves(), "the store to be missed")
            forget_what_was_told(supervisor)
            assert [supervisor.recv(4096) for _ in range(20)] == [b"WATCHDOG=1"] * 20
            assert one.events("duty_failed") == []


def forget_what_was_told(supervisor: socket.socket) -> None:
    supervisor.setblocking(False)
    with suppress(BlockingIOError):
        while supervisor.recv(4096):
            pass
    supervisor.settimeout(SECONDS)


# --- under load ------------------------------------------------------------------------------------------------------


def raced(folder: Path, place: Place, trouble: Callable[[Race, list[Daemon]], Awaitable[None]]) -> None:
    """A load on two daemons, with trouble on the way; everything that was said must have been true."""
    with fleet(folder, place.backend, place.values, 2, env=place.env) as daemons:
        race = Race([each.socket for each in daemons], LOAD)

        async def meanwhile() -> None:
            answering = [asyncio.create_task(answers(each, race)) for each in daemons]
            try:
                await race.more(100)
                await trouble(race, daemons)
                await race.more(100)
            finally:
                race.end()
            assert all(times > 1 for times in await asyncio.gather(*answering))

        with ExitStack() as bounded:
            for each in daemons:
                bounded.enter_context(memory_bounded(each, MOST_GROWN_BYTES))
            asyncio.run(race.run(meanwhile))
        print("\n".join(figures(race)), dict(race.heard))
        assert faults(race) == []
        assert all(map(is_ready, daemons))


async def answers(one: Daemon, race: Race) -> int:
    """Ask for what needs no store all the time; every time there is an answer."""

    def asked() -> None:
        with one.connect() as client:
            assert client.ask("ping")["success"]
            told = client.ask("health")
            assert told.get("live"), (told, one.stderr[-3000:])

    times = 0
    while not race.is_ending:
        await asyncio.to_thread(asked)
        times += 1
        await asyncio.sleep(0.05)
    return times


async def says(daemons: list[Daemon], expected: bool) -> None:
    """Wait until health says so, without holding up the load."""
    for each in daemons:
        for _ in range(3000):
            if await asyncio.to_thread(is_ready, each) is expected:
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail(f"health still says that ready is {not expected}: {health(each)}")


@pytest.mark.slow
def test_a_store_that_goes_away_under_load_is_served_again_and_every_answer_was_true(folder: Path, place: Place):
    async def trouble(race: Race, daemons: list[Daemon]) -> None:
        place.go_away()
        await says(daemons, expected=False)
        await race.more(10, "unavailable")
        place.come_back()
        await says(daemons, expected=True)

    raced(folder, place, trouble)


@pytest.mark.slow
def test_a_store_that_hangs_under_load_is_served_again_and_every_answer_was_true(folder: Path, place: Place):
    async def trouble(race: Race, daemons: list[Daemon]) -> None:
        place.hang()
        await says(daemons, expected=False)
        await race.more(10, "unavailable")
        place.resume()
        await says(daemons, expected=True)

    raced(folder, place, trouble)


@pytest.mark.slow
def test_a_store_that_flaps_is_survived_and_every_answer_was_true(folder: Path, place: Place):
    async def trouble(race: Race, daemons: list[Daemon]) -> None:
        for turn in range(6):
            place.go_away()
            # Sometimes nobody has even noticed.
            await (race.more(5, "unavailable") if turn % 2 else asyncio.sleep(0.2))
            place.come_back()
            await (race.more(20) if turn % 2 else asyncio.sleep(0.2))
        await says(daemons, expected=True)

    raced(folder, place, trouble)


@pytest.mark.slow
def test_a_store_that_is_slow_is_waited_for_and_every_answer_was_true(folder: Path, slow_place: Place):
    async def trouble(race: Race, daemons: list[Daemon]) -> None:
        assert slow_place.slow is not None
        before = race.heard["unavailable"]
        slow_place.slow()
        await race.more(150)
        assert race.heard["unavailable"] == before
        slow_place.resume()
        await says(daemons, expected=True)

    raced(folder, slow_place, trouble)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("store", ["redis", "dynamodb", pytest.param("proxied redis", marks=pytest.mark.long)])
def test_whatever_keeps_a_store_away_everything_arrives_once_and_in_order_when_it_is_back(
    folder: Path, store: str, fault: str
):
    assert recovered(folder, store, fault, AWAY_SECONDS, random.Random(1)).broken() == []


# --- with more than it can take --------------------------------------------------------------------------------------


NESTED = '{"a":' * 200 + "1" + "}" * 200

FLOODS = {
    "small": "x" * 4 * 1024,
    "large": "x" * 100 * 1024,
    "of many values": [{}] * 1024,
    "nested": [json.loads(NESTED)] * 8,
}


def flood(client: Client, value: Any) -> None:
    """More than one client may have under way, each frame with something in it."""
    client.sock.settimeout(0.5)
    try:
        for number in range(40 * 1024 * 1024 // len(json.dumps(value))):
            client.send({"op": "update", "jobId": f"f{number}", "upsert": True, "job": {"value": value}})
    except TimeoutError:
        pass  # the daemon takes no more from this client, as it should


@pytest.mark.slow
@pytest.mark.parametrize("frames", FLOODS)
def test_a_flood_against_a_store_that_hangs_costs_a_bounded_amount_of_memory(folder: Path, place: Place, frames: str):
    with daemon(folder, place.backend, place.values, env=place.env).serving() as one:
        clients = [one.connect() for _ in range(8)]
        for client in clients * 50:
            client.ask("get", jobId="a")  # many small answers: many requests may be under way
        with memory_bounded(one, MOST_GROWN_BYTES):
            place.hang()
            for client in clients:
                flood(client, FLOODS[frames])
            with one.connect() as other:
                assert other.ask("ping")["success"]
                assert other.ask("get", jobId="a")["code"] == "unavailable"
            place.resume()
            for client in clients:
                client.close()
            until(lambda: is_ready(one), "the store to be served")
            until(one._serves, "the store to be served")


def test_clients_that_hang_up_inside_a_frame_while_the_store_hangs_leave_none_of_it_behind(folder: Path, place: Place):
    """Their writes are under way, so their connections are not over; but nobody will end their frames."""
    with daemon(folder, place.backend, place.values, env=place.env).serving() as one:
        place.hang()
        with memory_bounded(one, 4 * FRAME):
            for number in range(20):
                with one.connect() as client:
                    client.send({"op": "create", "job": {"uuid": f"h{number}"}})
                    client.send_raw(b"x" * (FRAME - 1))
        place.resume()
        until(one._serves, "the store to be served")


def test_every_one_of_many_requests_in_a_row_is_answered_in_time_while_the_store_hangs(folder: Path, place: Place):
    """A client that sends many at once must not wait for the deadline of each of them, one after the other."""
    with daemon(folder, place.backend, place.values, env=place.env).serving() as one:
        place.hang()
        with one.connect() as client:
            client.hello("many")
            sent = 300
            for seq in range(1, sent + 1):
                client.send({"op": "create", "job": {"uuid": f"m{seq}"}, "seq": seq, "floor": 1, "requestId": seq})
            replies = [client.reply() for _ in range(sent)]
        assert [reply["requestId"] for reply in replies] == list(range(1, sent + 1))
        assert {reply["code"] for reply in replies} == {"unavailable"}
        place.resume()
        until(one._serves, "the store to be served")
        said = {reply["requestId"]: reply["outcome"] for reply in replies}
        with one.connect() as client:
            for seq in range(1, sent + 1):
                found = client.ask("get", jobId=f"m{seq}")["success"]
                assert not (found and said[seq] == "not_applied"), f"write {seq} was applied and said not to be"


def test_every_one_of_many_who_want_one_record_is_answered_in_time_while_the_store_hangs(folder: Path, place: Place):
    """Each waits for those before it, and must not have the whole of its own time behind theirs. The daemon's own time
    tells: all of them have their answers when one who asks for other records, one at a time, has had three."""
    with daemon(folder, place.backend, place.values, env=place.env).serving() as one, ExitStack() as stack:
        clients = [stack.enter_context(one.connect()) for _ in range(20)]
        assert clients[0].ask("create", job={"uuid": "wanted"})["success"]
        place.hang()
        for client in clients:
            client.send({"op": "get", "jobId": "wanted"}, {"op": "update", "jobId": "wanted", "job": {"n": 1}})
        with one.connect() as alone:
            for n in range(3):
                assert alone.ask("get", jobId=f"other-{n}")["code"] == "unavailable"
        for client in clients:
            client.sock.setblocking(False)  # whatever is not there by now comes too late
        replies = [client.reply() for client in clients for _ in range(2)]
        assert {reply["code"] for reply in replies} == {"unavailable"}
        place.resume()
        until(one._serves, "the store to be served")
        with one.connect() as client:
            n = client.ask("get", jobId="wanted")["job"].get("n")
        assert n is None or "unknown" in {reply.get("outcome") for reply in replies}
