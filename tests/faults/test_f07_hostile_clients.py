"""F7: clients that send too much, too slowly or nonsense, or never read: each costs a bounded amount, the others go on.

What the others notice of them is measured by `python -m tests.faults.crowds`.
"""

from __future__ import annotations

import json
import math
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from tests.daemon.harness import SECONDS, Client, Daemon, Reply, serving, until
from tests.faults.crowds import ATTACKS, Attack, Outcome, Strangers, measured

MIB = 1024 * 1024

FRAME = 10 * MIB
"""The default limit of a frame."""


@contextmanager
def memory_bounded(daemon: Daemon, most: int) -> Iterator[None]:
    """Within the block the daemon's peak may grow by `most` bytes."""
    daemon.reset_peak()
    before = daemon.peak_bytes()
    yield
    grown = daemon.peak_bytes() - before
    assert grown < most, f"the daemon's memory grew by {grown / MIB:.0f} MiB"


def assert_served(daemon: Daemon) -> None:
    """Another client is served as if nothing had happened."""
    with daemon.connect() as client:
        assert client.ask("ping")["success"]
        name = f"other-{time.monotonic_ns()}"
        assert client.ask("create", job={"uuid": name})["success"]
        assert client.ask("get", jobId=name)["success"]


TURNS = 200
"""Requests of another client, one after the other: as many turns of the daemon's loop in which it takes nothing more
from somebody, and then it will not."""


def offer(daemon: Daemon, client: Client, line: bytes, times: int) -> int:
    """Send a line as often as the daemon takes it without a reply being read; returns how often that was."""
    data, sent, turns = line * times, 0, 0
    client.sock.setblocking(False)
    with daemon.connect() as other:
        while turns < TURNS:
            try:
                taken = client.sock.send(data[sent : sent + MIB]) if sent < len(data) else 0
            except BlockingIOError:
                taken = 0
            except ConnectionError:
                break
            sent += taken
            turns = 0 if taken else turns + 1
            assert other.ask("ping")["success"]
    client.sock.settimeout(SECONDS)
    return sent // len(line)


# --- too much ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_hundred_megabytes_without_a_newline_are_too_large_and_cost_a_frame_at_most(folder, backend):
    with serving(folder, backend=backend) as daemon, daemon.connect() as client:
        with memory_bounded(daemon, 4 * FRAME):
            chunk = b"x" * MIB
            for _ in range(100):
                client.send_raw(chunk)
            reply = client.reply()
        assert (reply["success"], reply["code"]) == (False, "too_large")
        assert client.replies() == []
        assert_served(daemon)


@pytest.mark.parametrize("told_before", [b"", b'{"op":"ping"}\n'], ids=["at once", "behind a request"])
def test_frames_that_clients_leave_unfinished_go_with_them(folder, told_before):
    """One after the other: nobody is there any more for whom they could be kept."""
    with serving(folder, backend="memory") as daemon:
        with memory_bounded(daemon, 4 * FRAME):
            for _ in range(20):
                with daemon.connect() as client:
                    client.send_raw(told_before + padded(FRAME)[:-1])
                assert_served(daemon)
        assert_served(daemon)


def test_a_frame_that_was_not_ended_is_not_kept_for_a_client_that_only_reads(folder):
    with serving(folder, backend="memory") as daemon, ExitStack() as clients:
        with memory_bounded(daemon, 4 * FRAME):
            for _ in range(20):
                client = clients.enter_context(daemon.connect())
                client.send({"op": "watch", "requestId": "w"})
                client.send_raw(padded(FRAME)[:-1])
                client.sock.shutdown(socket.SHUT_WR)
                assert client.reply()["requestId"] == "w"
                assert_served(daemon)
        assert "event" in client.reply()


def test_names_are_as_long_as_an_id_at_most(folder):
    with serving(folder, backend="memory") as daemon:
        for word in ("client", "name", "bootId"):
            with daemon.connect() as client:
                assert client.ask("hello", **{word: "x" * 256})["success"]
                reply = client.ask("hello", **{word: "x" * 257})
                assert (reply["code"], reply["error"]) == (
                    "bad_request", f"HELLO_ERROR: {word} is 257 characters long; the limit is 256",
                )  # fmt: skip
        with daemon.connect() as client:
            assert client.ask("claim", kind="lock", id="a", holder="x" * 256, ttl=60)["success"]
            reply = client.ask("claim", kind="lock", id="b", holder="x" * 257, ttl=60)
            assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
            assert client.ask("get", kind="lock", id="b")["code"] == "not_found"


def padded(size: int) -> bytes:
    """A frame of exactly `size` bytes, without its newline."""
    head, tail = b'{"op":"ping","requestId":"p","timestamp":"', b'"}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


def test_a_frame_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(folder):
    with serving(folder, backend="memory") as daemon:
        with daemon.connect() as client:
            client.send_raw(padded(FRAME) + b"\n")
            assert client.reply() == {"requestId": "p", "success": True}
            client.send_raw(padded(FRAME + 1) + b"\n")
            assert client.reply()["code"] == "too_large"
            assert client.replies() == []
        with daemon.connect() as client:
            client.send_raw(padded(FRAME + 1) + b"\n")
            assert client.reply()["code"] == "too_large"


def test_a_record_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(folder):
    limit = 8 * MIB
    with serving(folder) as daemon, daemon.connect() as client:
        job = client.ask("create", job={"uuid": "a", "pad": ""})["job"]
        room = limit - len(json.dumps(job, separators=(",", ":")))
        assert client.ask("create", job={"uuid": "b", "pad": "x" * room})["success"]
        reply = client.ask("create", job={"uuid": "c", "pad": "x" * (room + 1)})
        assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
        assert len(client.ask("get", jobId="b")["job"]["pad"]) == room
        listed = client.ask("list", filter={"prefix": "b"})["jobs"]
        assert [len(job["pad"]) for job in listed] == [room]


def test_a_frame_of_nothing_but_brackets_is_refused_before_it_is_decoded(folder):
    with serving(folder, backend="memory") as daemon, daemon.connect() as client:
        with memory_bounded(daemon, 8 * FRAME):
            client.send_raw(b'{"op":"sync","jobs":[' + b"[]," * ((FRAME - 100) // 3) + b"[]]}\n")
            assert client.reply()["code"] == "too_large"
        assert_served(daemon)


def test_a_frame_of_exactly_the_most_values_is_taken_and_one_more_is_not(folder):
    with serving(folder, backend="memory") as daemon:
        # op, requestId and timestamp, the array itself, and its elements
        for elements, answer in ((200_000 - 4, True), (200_000 - 2, False)):
            with daemon.connect() as client:
                array = ",".join(["1"] * elements)
                client.send_raw(b'{"op":"ping","requestId":1,"timestamp":[' + array.encode() + b"]}\n")
                assert client.reply()["success"] is answer


def test_nesting_a_million_deep_is_refused(folder):
    with serving(folder, backend="memory") as daemon, daemon.connect() as client:
        for depth in (300, 100_000):
            client.send_raw(b'{"op":"create","job":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}\n")
            assert client.reply()["code"] == "bad_json"
            assert client.ask("ping")["success"]
        client.send_raw(b'{"op":"create","job":' + b'{"a":' * 1_000_000 + b"1" + b"}" * 1_000_001 + b"\n")
        assert client.reply()["code"] == "too_large"


def test_watches_whose_requests_are_large_cost_a_bounded_amount(folder):
    with serving(folder, backend="memory") as daemon, daemon.connect() as client:
        much = "x" * (4 * MIB)
        with memory_bounded(daemon, 8 * FRAME):
            for number in range(32):
                assert client.ask("watch", requestId=number, timestamp=much)["success"]
                reply = client.ask("watch", requestId=f"{number}", filter={"where": {"/x": much}})
                assert (reply["success"], reply["code"]) == (False, "bad_request")
        assert_served(daemon)


# --- never reading -------------------------------------------------------------------------------------------------


def test_a_client_that_never_reads_costs_a_bounded_amount(folder):
    with serving(folder, backend="memory") as daemon, daemon.connect() as client:
        assert client.ask("create", job={"uuid": "job-1", "pad": "x" * 40_000})["success"]
        with memory_bounded(daemon, 64 * MIB):
            asked = offer(daemon, client, b'{"op":"get","jobId":"job-1"}\n', 1_000_000)
            assert_served(daemon)
        assert asked * 40_000 > 2 * 64 * MIB, "far more was asked for than it may cost"
        assert asked < 1_000_000, "and no more was taken at some point"


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_client_that_asks_for_a_big_record_again_and_again_and_never_reads_costs_a_bounded_amount(folder, backend):
    with serving(folder, backend=backend) as daemon, daemon.connect() as client:
        assert client.ask("create", job={"uuid": "job-1", "pad": "x" * (4 * MIB)})["success"]
        with memory_bounded(daemon, 64 * MIB):
            assert offer(daemon, client, b'{"op":"get","jobId":"job-1"}\n', 2000) == 2000
            assert_served(daemon)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_client_that_asks_for_big_lists_and_never_reads_costs_a_bounded_amount(folder, backend):
    with serving(folder, backend=backend) as daemon, daemon.connect() as client:
        for number in range(20):
            assert client.ask("create", job={"uuid": f"job-{number}", "pad": "x" * MIB})["success"]
        with memory_bounded(daemon, 8 * FRAME):
            assert offer(daemon, client, b'{"op":"list"}\n', 2000) == 2000
            assert_served(daemon)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_more_requests_at_once_than_may_be_under_way_are_all_answered_in_order(folder, backend):
    with (
        serving(folder, backend=backend, settings={"limits__requests_in_flight": 8}) as daemon,
        daemon.connect() as client,
    ):
        client.hello("w")
        requests = [{"op": "create", "job": {"uuid": f"job-{n}"}, "requestId": n, "seq": n} for n in range(1, 1001)]
        client.send(*requests)
        assert [client.reply()["requestId"] for _ in requests] == list(range(1, 1001))


def test_big_records_written_as_fast_as_they_can_be_sent_cost_a_bounded_amount(folder):
    with serving(folder) as daemon, daemon.connect() as client, memory_bounded(daemon, 90 * MIB):
        client.hello("w", ack="last")
        for seq in range(1, 121):
            client.send({"op": "create", "job": {"uuid": f"job-{seq}", "pad": "x" * MIB}, "seq": seq})
        until(lambda: client.reply()["acked"] == 120, "the writes to be acknowledged")


@pytest.mark.parametrize("ack", ["each", "last"])
def test_small_writes_to_a_big_record_cost_a_bounded_amount(folder, ack):
    with serving(folder) as daemon, daemon.connect() as client:
        client.hello("w", ack=ack)
        client.send({"op": "create", "job": {"uuid": "job-1", "pad": "x" * MIB}, "seq": 1})
        assert client.reply()["success"]
        with memory_bounded(daemon, 64 * MIB):
            client.send(
                *({"op": "update", "jobId": "job-1", "inc": {"n": 1}, "seq": n, "floor": n} for n in range(2, 82))
            )
            assert_served(daemon)
            until(lambda: _newest(client) >= 81, "the writes to be acknowledged")
        assert client.ask("get", jobId="job-1")["job"]["n"] == 80


def _newest(client: Client) -> int:
    reply = client.reply()
    assert reply["success"], reply
    return int(reply.get("acked") or reply["job"]["revision"])


def test_a_client_that_leaves_its_replies_is_disconnected(folder):
    settings = {"limits__stalled_output_seconds": 0.2, "limits__output_bytes": 65536}
    with serving(folder, backend="memory", settings=settings) as daemon, daemon.connect() as client:
        assert client.ask("create", job={"uuid": "job-1", "pad": "x" * 100_000})["success"]
        assert offer(daemon, client, b'{"op":"get","jobId":"job-1"}\n', 1000) > 0
        until(lambda: daemon.events("connection_ended"), "the client to be given up")
        assert daemon.events("connection_ended")[0]["why"] == "replies_not_taken"
        assert client.is_closed()
        assert_served(daemon)


# --- nonsense and slowness -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_sync_of_null_is_refused_and_ends_nothing(folder, backend):
    with serving(folder, backend=backend) as daemon, daemon.connect() as client:
        client.send_raw(b'{"op":"sync","jobs":[null]}\n')
        reply = client.reply()
        assert (reply["code"], reply["outcome"]) == ("bad_request", "not_applied")
        assert client.ask("ping")["success"]
        assert_served(daemon)


def test_a_floor_above_the_write_that_carries_it_forgets_nothing(folder):
    with serving(folder) as daemon, daemon.connect() as client:
        client.hello("w")
        assert client.ask("create", job={"uuid": "job-1"}, seq=1, floor=1)["success"]
        for seq in (2, 4, 6):
            assert client.ask("update", jobId="job-1", inc={"n": 1}, seq=seq, floor=seq + 100)["success"]
        again = client.ask("update", jobId="job-1", inc={"n": 1}, seq=6, floor=6, again=True)
        assert (again["success"], again.get("duplicate"), again.get("revision")) == (True, True, 4)
        assert client.ask("get", jobId="job-1")["job"]["n"] == 3


def test_a_frame_that_is_never_finished_ends_its_connection_and_no_other(folder):
    settings = {"limits__partial_frame_seconds": 0.3}
    with (
        serving(folder, backend="memory", settings=settings) as daemon,
        daemon.connect() as client,
        daemon.connect() as quiet,
    ):
        assert quiet.ask("ping")["success"]

        def one_byte_more() -> bool:
            try:
                client.send_raw(b"x")
            except ConnectionError:
                return True
            return False

        until(one_byte_more, "the slow client to be given up")
        assert daemon.events("connection_ended")[0]["why"] == "frame_not_finished"
        assert quiet.ask("ping")["success"], "an idle client has begun no frame"


def test_a_hostile_regex_is_answered_in_time_linear_in_what_it_looks_at(folder):
    with serving(folder, backend="memory") as daemon, daemon.connect() as client:
        for number in range(100):
            assert client.ask("create", job={"uuid": "a" * 200 + str(number)})["success"]
        for pattern in ("(a*)*b", "(a|aa)+$", "(a+)+c", "^(([a-z])+.)+[A-Z]([a-z])+$"):
            assert client.ask("list", filter={"regex": pattern})["success"]
        for pattern in ("(", "a{1000}{1000}", "(?=a)", "\\1", "((((a{100}){100}){100}){100})"):
            assert client.ask("list", filter={"regex": pattern})["code"] == "bad_request"
        assert_served(daemon)


# --- too many ------------------------------------------------------------------------------------------------------


def test_one_client_too_many_is_told_so_and_a_place_that_is_free_again_is_given_away(folder):
    with serving(folder, backend="memory", settings={"limits__clients": 3}) as daemon, ExitStack() as open_ones:
        # The harness's own connections may not be forgotten yet.
        clients = [open_ones.enter_context(until(partial(let_in, daemon), "a place")) for _ in range(3)]
        with daemon.connect() as late:
            reply = late.reply()
            assert (reply["code"], reply["success"]) == ("busy", False)
            assert late.replies() == []
        clients.pop().close()
        assert all(client.ask("ping")["success"] for client in clients)
        open_ones.enter_context(until(partial(let_in, daemon), "the free place to be given away"))


def let_in(daemon: Daemon) -> Client | None:
    """A client that is served, or None if there is no place for it."""
    client = daemon.connect()
    try:
        if client.ask("ping")["success"]:
            return client
    except OSError:
        pass
    client.close()
    return None


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_flood_of_connections_at_the_descriptor_limit_hurts_nobody_who_is_connected(folder, backend):
    limited = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh"]
    with serving(folder, backend=backend, under=limited) as daemon, daemon.connect() as settled:
        settled.hello("w")
        with ExitStack() as flood:
            for _ in range(300):
                flood.enter_context(daemon.connect())
            for seq in range(1, 30):
                assert settled.ask("create", job={"uuid": f"job-{seq}", "status": "PENDING"}, seq=seq)["success"]
            assert len(settled.ask("list", filter={"status": "PENDING"})["jobs"]) == 29
        assert daemon.events("fewer_clients")[0]["limit"] == 24
        until(partial(let_in, daemon), "new clients to be let in again").close()
        assert_served(daemon)
        assert daemon.stop() == 0


def test_a_thousand_idle_clients_cost_little_and_are_all_served(folder):
    with serving(folder, backend="memory") as daemon, ExitStack() as open_ones, memory_bounded(daemon, 64 * MIB):
        clients = [open_ones.enter_context(daemon.connect()) for _ in range(1000)]
        for client in clients:
            client.send({"op": "ping"})
        assert all(client.reply()["success"] for client in clients)


# --- all of them, at work ------------------------------------------------------------------------------------------

SHORT: dict[str, int] = {"idle": 400, "slow_writing": 50, "flood": 300}
"""Connections in the short form, where the long one has more."""


@pytest.mark.slow
@pytest.mark.parametrize("sort", ATTACKS)
def test_others_are_answered_rightly_while_it_goes_on_and_it_costs_what_the_limits_allow(folder, sort):
    attack: Attack = ATTACKS[sort]._replace(size=SHORT.get(sort, ATTACKS[sort].size), processes=1)
    outcome = measured(folder, attack, seconds=0.3, rounds=1, records=1000, compared=False)
    assert outcome.costs_too_much() == []


QUICK, SLOW = (0.001, 0.001), (0.003, 0.001)
GOOD = Outcome("idle", 1000, 0.1, QUICK, QUICK, QUICK, 10, MIB, 2 * MIB, 1001, 1000, 1064, promised=True)


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        ({}, []),
        ({"attack": SLOW}, ["writes took 3.00 times"]),
        ({"attack": SLOW, "promised": False}, []),
        ({"attack": (math.nan, math.nan), "asked": 0}, ["writes took nan", "reads took nan", "asked for nothing"]),
        ({"grown_bytes": 3 * MIB}, ["memory grew by 3 MiB"]),
        ({"descriptors": 1065}, ["above 1064"]),
        ({"descriptors": 999}, ["not all of 1000 were held"]),
    ],
)
def test_what_attackers_cost_too_much_is_named(planted, words):
    found = GOOD._replace(**planted).broken()
    assert len(found) == len(words)
    assert all(word in problem for word, problem in zip(words, found, strict=True))


@pytest.mark.parametrize(
    ("sort", "raised"), [("burn", ZeroDivisionError), ("idle", AssertionError)], ids=["at work", "nobody to connect to"]
)
def test_strangers_are_gone_however_their_time_ends(folder, sort, raised):
    strangers = Strangers(sort, folder / "nobody", 2, 1)
    with pytest.raises(raised), strangers:
        raise ZeroDivisionError
    assert len(strangers.processes) == 2
    assert all(process.returncode is not None for process in strangers.processes)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_small_requests_pass_large_ones_that_wait_in_line(folder, backend):
    """One client's large frames are answered in their order; another's small one does not wait for all of them."""
    with serving(folder, backend=backend) as daemon, daemon.connect() as large, daemon.connect() as small:
        # We may be held up ourselves between the two; who has to wait for all of them does so every time.
        assert any(ping_passes(large, small) for _ in range(5))


def ping_passes(large: Client, small: Client) -> bool:
    """Whether a ping is answered before the last of eight large frames."""
    jobs = [{"uuid": f"job-{number}", "pad": "x" * 100} for number in range(4000)]
    for number in range(8):
        large.send({"op": "sync", "requestId": number, "jobs": jobs})
    assert small.ask("ping")["success"]
    early = arrived(large)
    late = [large.reply() for _ in range(8 - len(early))]
    assert [reply["requestId"] for reply in (*early, *late)] == list(range(8))
    return bool(late)


def arrived(client: Client) -> list[Reply]:
    """The replies that can be read without waiting."""
    client.sock.setblocking(False)
    try:
        return client.replies()
    except BlockingIOError:
        return []
    finally:
        client.sock.settimeout(SECONDS)


def test_what_follows_a_frame_that_is_too_large_is_dropped_and_the_connection_ends(folder):
    settings = {"limits__partial_frame_seconds": 0.5}
    with serving(folder, backend="memory", settings=settings) as daemon, daemon.connect() as client:
        client.send_raw(b"x" * (FRAME + 1))
        assert client.reply()["code"] == "too_large"

        def still_taken() -> bool:
            try:
                client.send_raw(b"x" * 65536)
            except OSError:
                return False
            return True

        until(lambda: not still_taken(), "the connection to be given up, though it never stops sending")
        assert_served(daemon)


# --- long lists ----------------------------------------------------------------------------------------------------

MANY = 20_000
"""Records so small that what they take on their way is several times what they take in a reply."""


def test_many_long_lists_at_once_cost_their_replies_and_a_few_on_their_way(folder):
    with serving(folder) as daemon, ExitStack() as clients:
        with daemon.connect() as client:
            for number in range(0, MANY, 1000):
                client.send(*({"op": "create", "job": {"uuid": f"{number + place}"}} for place in range(1000)))
                assert all(client.reply()["success"] for _ in range(1000))
            reply_bytes = len(json.dumps(client.ask("list")["jobs"], separators=(",", ":")))
        askers = [clients.enter_context(daemon.connect()) for _ in range(16)]
        with memory_bounded(daemon, (len(askers) + 4 * 8) * reply_bytes):
            for asker in askers:
                asker.send({"op": "list"})
            for asker in askers:
                assert len(asker.reply()["jobs"]) == MANY


# --- gone ----------------------------------------------------------------------------------------------------------

# `statesvc` that never looks for cycles, and tells at SIGUSR1 how much of connections there is.
UNCOLLECTED = """
import gc, json, signal, sys
from statesvc import server
from statesvc.answers import Session
from statesvc.cli import main
from statesvc.connection import Connection
from statesvc.handlers.following import Watch

def tell(*_):
    there = sum(isinstance(each, Connection | Session | Watch) for each in gc.get_objects())
    print(json.dumps({"event": "told", "there": there}), file=sys.stderr, flush=True)

signal.signal(signal.SIGUSR1, tell)
server.COLLECTOR = (0, 0, 0)
main()
"""

LAST_WORDS = {
    "a request": {"op": "ping"},
    "a name": {"op": "hello", "client": "somebody"},
    "a write": {"op": "create", "job": {"uuid": "a"}},
    "a watch": {"op": "watch", "kind": "job"},
    "a wait": {"op": "claim", "kind": "job", "filter": {"nodeId": "none"}, "holder": "me", "wait": 3600},
}


@pytest.mark.parametrize("words", LAST_WORDS.values(), ids=LAST_WORDS.keys())
def test_nothing_is_left_of_connections_that_are_over(folder, words):
    """Not even in cycles: they are looked for so seldom that it would look like a leak."""
    with Daemon(folder, "--log-format", "json", program=UNCOLLECTED).serving() as daemon:
        for _ in range(10):
            with daemon.connect() as client:
                client.send({"op": "ping"}, words)
                assert client.reply()["success"]

        def is_nothing_left() -> bool:
            told = len(daemon.events("told"))
            daemon.signal(signal.SIGUSR1)
            return until(lambda: daemon.events("told")[told:], "the count")[0]["there"] == 0

        until(is_nothing_left, "the connections to be gone")
