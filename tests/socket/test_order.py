"""Every frame one reply, in order, whatever the frames hold and however they arrive."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statesvc.backends.port import Engine
from statesvc.config.model import Limits
from tests.socket.conftest import Start
from tests.socket.talking import Daemon, Talker

GOOD: list[dict[str, Any]] = [
    {"op": "ping"},
    {"op": "get", "jobId": "j1"},
    {"op": "create", "job": {"uuid": "j1"}},
    {"op": "update", "job": {"uuid": "j1", "status": "RUNNING"}},
    {"op": "update", "jobId": "j1", "inc": {"n": 1}},
    {"op": "list", "limit": 3},
    {"op": "sync", "jobs": [{"uuid": "j2"}, {"uuid": "j3"}]},
    {"op": "delete", "jobId": "j2"},
    {"op": "hello"},
    {"op": "fly"},
    {"op": "create"},
    {"op": "list", "filter": {"x": 1}},
    {"op": "sync", "jobs": [None]},
]
BAD = [b"", b"{", b"[]", b"nonsense", b'{"op":"ping"}{"op":"ping"}', b"\xff\xfe", b'{"op":"ping","x":NaN}', b"\r"]


def frames(seed: int, count: int) -> tuple[bytes, list[Any]]:
    """A stream of good and bad frames, and the request id each reply must carry."""
    chance = random.Random(seed)
    stream: list[bytes] = []
    expected: list[Any] = []
    for number in range(count):
        if chance.random() < 0.3:
            stream.append(chance.choice(BAD))
            expected.append("")
        else:
            stream.append(json.dumps({**chance.choice(GOOD), "requestId": number}).encode())
            expected.append(number)
    return b"\n".join(stream) + b"\n", expected


@pytest.mark.parametrize("seed", range(3))
async def test_a_pipeline_of_good_and_bad_frames_is_answered_one_by_one_in_order(joblet: Talker, seed: int):
    stream, expected = frames(seed, 400)
    joblet.send_raw(stream + b'{"op":"ping","requestId":"end"}\n')
    replies = await joblet.receive_all(len(expected) + 1)
    assert [reply["requestId"] for reply in replies] == [*expected, "end"]


async def test_several_connections_at_once_get_their_own_replies_in_order(daemon: Daemon):
    async def talk(seed: int) -> None:
        talker = await daemon.talker()
        stream, expected = frames(seed, 200)
        chance = random.Random(seed)
        while stream:
            cut = chance.randint(1, 2000)
            talker.send_raw(stream[:cut])
            stream = stream[cut:]
            await asyncio.sleep(0)
        assert [reply["requestId"] for reply in await talker.receive_all(len(expected))] == expected

    await asyncio.gather(*(talk(seed) for seed in range(8)))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_a_stream_cut_anywhere_gets_the_same_replies(joblet: Talker, data: st.DataObject):
    stream, expected = frames(data.draw(st.integers(0, 10**6)), 12)
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    for begin, end in zip([0, *places], [*places, len(stream)], strict=True):
        joblet.send_raw(stream[begin:end])
        await asyncio.sleep(0)
    assert [reply["requestId"] for reply in await joblet.receive_all(len(expected))] == expected


async def test_writes_of_one_connection_are_applied_in_their_order(daemon: Daemon):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a", "seen": []})
    replies = await client.in_one_go(
        {"op": "update", "jobId": "a", "append": {"seen": [number]}, "seq": number} for number in range(1, 200)
    )
    assert [reply["job"]["revision"] for reply in replies] == list(range(2, 201))
    assert (await client.ok("get", jobId="a"))["job"]["seen"] == list(range(1, 200))


async def test_a_client_that_stops_sending_still_gets_its_replies(daemon: Daemon):
    talker = await daemon.talker()
    talker.send(*({"op": "create", "job": {"uuid": f"j{number}"}, "requestId": number} for number in range(300)))
    talker._writer.write_eof()
    assert [reply["requestId"] for reply in await talker.receive_all(300)] == list(range(300))
    assert await talker.line() == b""


async def test_more_requests_than_may_be_in_flight_are_answered_all_the_same(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(requests_in_flight=8, output_bytes=4096))
    talker = await daemon.talker()
    talker.send(*({"op": "create", "job": {"uuid": f"j{number}"}, "requestId": number} for number in range(500)))
    assert [reply["requestId"] for reply in await talker.receive_all(500)] == list(range(500))


async def test_a_client_that_reads_nothing_does_not_hold_up_the_others(engine: Engine, start: Start):
    daemon = await start(engine, limits=Limits(output_bytes=4096, requests_in_flight=16))
    deaf, other = await daemon.talker(), await daemon.talker()
    await other.ok("create", job={"uuid": "big", "x": "y" * 100_000})
    deaf.send(*({"op": "get", "jobId": "big"} for _ in range(200)))
    for number in range(50):
        await other.ok("create", job={"uuid": f"j{number}"})
    assert len(await deaf.receive_all(200)) == 200


async def test_a_get_sees_what_was_sent_before_it_and_nothing_sent_after_it(daemon: Daemon):
    client = await daemon.client("c")
    await client.ok("create", job={"uuid": "a", "n": 0}, seq=1)
    frames: list[dict[str, object]] = []
    for number in range(1, 61):
        frames += [
            {"op": "update", "jobId": "a", "inc": {"n": 1}, "seq": number + 1},
            {"op": "get", "jobId": "a"},
        ]
    replies = await client.in_one_go(frames)
    assert [reply["job"]["n"] for reply in replies[1::2]] == list(range(1, 61))
