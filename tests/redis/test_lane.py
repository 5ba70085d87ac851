"""A connection in use, on the loop that the daemon runs on."""

from __future__ import annotations

import asyncio

import uvloop

from statesvc.backends.redis.access import access_of
from statesvc.backends.redis.faults import Trouble
from statesvc.backends.redis.lane import Batch, Lane
from statesvc.backends.redis.opening import Opener, pack
from statesvc.config.model import assemble
from tests.redis.servers import Server


def test_calls_whose_time_is_over_when_they_come_are_told_and_the_next_is_answered(server: Server):
    """What is due now, uvloop makes no timer of: it cannot be asked when it comes."""

    async def call() -> None:
        access = access_of(assemble({"storage.redis.endpoint": server.address}).storage.redis)
        opener = Opener(access, "t")
        wire = await opener.open(access.endpoints[0], access.identity)
        lane = Lane(wire, await opener.meet(wire), lambda *_: None)
        try:
            now = asyncio.get_running_loop().time()
            late = [Batch(pack([("PING",)]), now) for _ in range(3)]
            timely = Batch(pack([("PING",)]), now + 30)
            await asyncio.gather(*map(lane.run, [*late, timely]))
            assert all(batch.trouble is not None and not batch.sent for batch in late)
            assert timely.fates() == [b"PONG"]
        finally:
            lane.end(Trouble("the test is over"))
            await lane.closed()

    uvloop.run(call())
