"""Long work on the loop takes turns: others are served in between, however much of it there is."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

from statesvc.backends.memory import MemoryEngine
from statesvc.store.store import Store
from statesvc.store.turns import REST_SECONDS, SECONDS, Share, Turns
from statesvc.store.writes import Caller
from statesvc_client.wire import Create


def work(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


async def test_somebody_else_comes_in_between_any_two_turns():
    order: list[str] = []

    async def long(name: str) -> None:
        turns = Turns()
        for _ in range(5):
            work(1.5 * SECONDS)
            order.append(name)
            await turns.pause()

    async def others() -> None:
        while sum(each != "." for each in order) < 15:
            order.append(".")
            await asyncio.sleep(0)

    await asyncio.gather(long("a"), long("b"), long("c"), others())
    behind_the_first = "".join(order).lstrip("abc")
    assert all(len(turn) == 1 for turn in behind_the_first.split(".") if turn)


async def test_long_work_goes_in_turn_and_comes_to_its_end():
    done: list[str] = []

    async def long(name: str, steps: int) -> None:
        turns = Turns()
        for _ in range(steps):
            work(SECONDS)
            await turns.pause()
        done.append(name)

    await asyncio.gather(long("long", 30), long("short", 3))
    assert done == ["short", "long"]


async def test_one_that_gave_up_waiting_holds_up_nobody():
    async def long() -> str:
        turns = Turns()
        for _ in range(5):
            work(1.5 * SECONDS)
            await turns.pause()
        return "done"

    given_up, other = asyncio.create_task(long()), asyncio.create_task(long())
    await asyncio.sleep(0)
    given_up.cancel()
    assert await asyncio.wait_for(other, 30) == "done"


def test_a_loop_that_was_closed_while_somebody_waited_holds_up_no_other():
    async def long() -> None:
        turns = Turns()
        for _ in range(3):
            work(1.5 * SECONDS)
            await turns.pause()

    async def cut_off() -> None:
        waiting = asyncio.create_task(long())
        await asyncio.sleep(0)
        assert not waiting.done()

    asyncio.run(cut_off())
    asyncio.run(asyncio.wait_for(long(), 30))


async def test_undivided_work_goes_one_behind_the_other_with_rests():
    share, spans = Share(), list[tuple[float, float]]()

    async def piece() -> None:
        await share.take()
        began = time.monotonic()
        work(0.003)
        spans.append((began, time.monotonic()))
        share.give_back()

    await asyncio.gather(*(piece() for _ in range(4)))
    worked = sum(ended - began for began, ended in spans[:-1])
    rested = sum(began - ended for (_, ended), (began, _) in pairwise(spans))
    assert rested >= worked - REST_SECONDS


async def test_one_that_gave_up_in_line_or_in_its_rest_leaves_its_place_to_the_next():
    share = Share()
    await share.take()
    in_line = [asyncio.create_task(share.take()) for _ in range(2)]
    await asyncio.sleep(0)
    in_line[0].cancel()
    work(0.003)
    share.give_back()
    await asyncio.sleep(0)  # the second has the place now, and rests
    in_line[1].cancel()
    assert [type(each) for each in await asyncio.gather(*in_line, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 2
    await asyncio.wait_for(share.take(), 30)


async def test_an_engine_that_never_waits_lets_others_in_between_two_commits():
    """Whoever hears of a commit may fill the next one at once, and so on for as long as there is something to write."""
    store = Store(MemoryEngine())
    await store.engine.open()
    store.start()
    order: list[str] = []

    def write(number: int) -> None:
        order.append("w")
        decided = store.write_now(Create(job={"uuid": f"{number}"}), Caller())
        if number < 20 and decided.after is not None:
            decided.after.listeners.append(lambda: write(number + 1))

    async def others() -> None:
        while order.count("w") < 20:
            order.append(".")
            await asyncio.sleep(0)

    write(1)
    await others()
    assert "www" not in "".join(order)
    await store.stop()
