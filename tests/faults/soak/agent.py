"""The agent that is killed: writes through the adapter, with a cache and a spool, and says what it has handed over.

Owns what it writes. Must not know who starts it, nor when it ends. Every write appends its number to one of the records
of its chapter; at a chapter's end all of them are flushed, compared with what the cache has and with what the daemon
says, and deleted. What it says, a line each: `ready`, `made CHAPTER NUMBER`, `deleting CHAPTER`, `wrong WORDS`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from itertools import count

from statesvc_client import StateStore
from tests.faults.soak.working import NOTE

RECORDS = 8
WRITES = 240
"""Of a chapter."""

FLUSH_SECONDS = 120.0


def name(chapter: int, record: int) -> str:
    return f"chapter-{chapter}-{record}"


def expected(record: int, writes: int) -> list[int]:
    """What a record has seen when so many writes of its chapter were made."""
    return list(range(record, writes, RECORDS))


def say(*words: object) -> None:
    print(*words, flush=True)


async def write(state: StateStore, chapter: int, pause: float) -> None:
    """One chapter, to its end."""
    for record in range(RECORDS):
        state.create({"id": name(chapter, record), "seen": []}, kind=NOTE)
    for number in range(WRITES):
        state.update(name(chapter, number % RECORDS), append={"seen": [number]}, kind=NOTE)
        say("made", chapter, number)
        await asyncio.sleep(pause)
    await state.flush(FLUSH_SECONDS)
    for record in range(RECORDS):
        reply = await state.call("get", kind=NOTE, id=name(chapter, record))
        for place, found in (("cache", state.get(name(chapter, record), kind=NOTE)), ("daemon", reply["record"])):
            if found is None or found["seen"] != expected(record, WRITES):
                say("wrong", f"{name(chapter, record)} by the {place}: {found}")
    say("deleting", chapter)
    for record in range(RECORDS):
        state.delete(name(chapter, record), kind=NOTE)
    await state.flush(FLUSH_SECONDS)


async def main(path: str, spool: str, first: int, pause: float) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with StateStore.connect(
        path,
        name="soak",
        kinds=(NOTE,),
        spool=spool,
        connect_seconds=FLUSH_SECONDS,
        close_seconds=FLUSH_SECONDS,
        on_rejected=lambda write, error: say("wrong", f"{write} was rejected: {error.code} {error}"),
        on_epoch=lambda before, now: say("wrong", f"the epoch {before} became {now}"),
    ) as state:
        await state.flush(FLUSH_SECONDS)
        say("ready")
        for chapter in count(first):
            await write(state, chapter, pause)
            if stopping.is_set():
                return


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
