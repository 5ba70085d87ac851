"""The program that is recorded: a store at work on a folder, and notes of what it does and whom it told.

python -m tests.faults.power.workload FOLDER DURABILITY BOOT SEED SCRIPT

Owns what happens to the store, and the notes. Must not know that anybody records it, or what becomes of the files.

FOLDER has, or gets, the store and the file of notes; several may be given, separated by commas. BOOT is another after a
power loss. SCRIPT is a list of what to do, by name, separated by commas; see `Life`.

Some bounds are lowered, so that checkpoints, cuts and shrinking come after dozens of records rather than thousands.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from statesvc.backends.port import REMOVED, LogKept, Query, Result, Row, Unit, Write
from statesvc.backends.sqlite import SqliteEngine, boots, compaction
from statesvc.backends.sqlite.files import Checkpoints
from statesvc.backends.sqlite.opening import SYNCHRONOUS
from statesvc.store.administration import Administration
from statesvc.store.store import Store
from statesvc.store.transactions import transact
from statesvc.store.writes import Caller
from statesvc_client.wire import Create, Delete, Txn, Update
from tests.sqlite.filling import content

from .operations import Begun, Epoch, Kept, Note, Phase, Rows, Told, decoded, encoded
from .timeline import NOTHING_YET, Timeline
from .tracing import NOTES, STORE

CHECKPOINT_PAGES = 150
"""Of the state's WAL; the log's begins anew after a third. That is beyond frame 41, the first whose note ends a sector:
from the second time on it is written over one of the WAL before."""

SPARE_PAGES = 6
LONG_WAL_BYTES = 150_000

CLIENTS = 3
JOBS = 40
"""Ids that are written to: few, so that most are changed, deleted and made again."""

IDLE_SECONDS = 0.03
KEPT_BYTES = 6_000
"""Of the log, after it was cut."""


class Notes:
    """Says what happens, in a file beside the store; knows what was said by the processes before."""

    def __init__(self, path: Path, durability: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.timeline = Timeline(durability)
        with os.fdopen(os.dup(self._fd), "rb") as said:
            for line in said:
                self.timeline.take(decoded(line))
        os.lseek(self._fd, 0, os.SEEK_END)

    def say(self, note: Note) -> None:
        self.timeline.take(note)
        line = encoded(note)
        assert os.write(self._fd, line) == len(line)

    @property
    def newest(self) -> int:
        return len(self.timeline.steps) - 1

    def close(self) -> None:
        os.close(self._fd)


class NotedEngine(SqliteEngine):
    """The engine itself; what it is asked to do is noted before it does it."""

    notes: Notes
    at = NOTHING_YET
    """The step it is at."""

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        rows = [write.row for unit in batch for write in unit]
        self.notes.say(Begun(self.at, self.epoch, self._committed.position + len(rows), rows))
        step = self.notes.newest
        results = await super().commit(batch)
        assert set(results) == {"applied"}
        self.at = step
        return results

    async def load(self, rows: AsyncIterator[list[Row]]) -> None:
        self.notes.say(Begun(self.at, "", 0, [], whole=True))
        step = self.notes.newest
        count = 0

        async def noted() -> AsyncIterator[list[Row]]:
            nonlocal count
            async for page in rows:
                self.notes.say(Rows(page))
                count += len(page)
                yield page
            self.notes.say(Epoch(step, "", max(1, count)))

        await super().load(noted())
        self.at = step
        self.notes.say(Epoch(step, self.epoch, max(1, count)))


class Life:
    """A store from its opening to its end, and some clients."""

    def __init__(self, folder: Path, durability: str, chance: random.Random) -> None:
        self._chance = chance
        self._data = folder / STORE
        self._notes = Notes(folder / NOTES, durability)
        self._durability = durability
        self._seqs = dict.fromkeys(range(CLIENTS), 0)
        self._life = os.urandom(8).hex()

    async def run(self, script: Sequence[str]) -> None:
        for name in script:
            self._notes.say(Phase(name))
            await getattr(self, name)()
        self._notes.close()

    async def open(self) -> None:
        self._engine = engine = NotedEngine(
            self._data, durability=self._durability, apply_seconds=0.05, idle_seconds=IDLE_SECONDS
        )
        engine.notes = self._notes
        await engine.open()
        await self._find_out()
        self._store = Store(engine)
        self._store.start()
        self._administration = Administration(self._store, self._data)
        await self._administration.load()

    async def _find_out(self) -> None:
        """Where it stands; from now on clients are told of what they read."""
        engine, timeline = self._engine, self._notes.timeline
        position = engine._committed.position
        engine.at = timeline.find(engine.epoch, position, await content(engine))
        if engine.at == NOTHING_YET or timeline.steps[engine.at].epoch != engine.epoch:
            self._notes.say(Begun(engine.at, engine.epoch, position, []))
            engine.at = self._notes.newest
        self._told(safely=True)

    def _told(self, *, safely: bool = False) -> None:
        self._notes.say(Told(self._engine.at, safely))

    # --- work ----------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Some rounds, in each of which some clients write something, and wait for the answers."""
        for _ in range(self._chance.randint(2, 5)):
            await asyncio.gather(*(self._round(client) for client in range(CLIENTS)))

    async def burst(self) -> None:
        """Many records in one commit, some of them large."""
        await asyncio.gather(*(self._round(client, self._chance.randint(8, 20)) for client in range(CLIENTS)))

    async def _round(self, client: int, most: int = 3) -> None:
        await asyncio.sleep(self._chance.choice((0, 0, 0.002)))
        if self._chance.random() < 0.2:
            await self._transaction(client)
            return
        batches = []
        for name in self._chance.sample(range(JOBS), self._chance.randint(1, most)):
            decided = self._store.write_now(self._request(client, name), self._caller(client))
            if decided.refused is None and decided.after is not None:
                batches.append(decided.after)
        for batch in batches:
            await batch.wait()
            assert batch.failure is None
            self._told()

    async def _transaction(self, client: int) -> None:
        ops = [self._request(client, name) for name in self._chance.sample(range(JOBS), 3)]
        await transact(self._store, Txn(ops=ops, seq=self._seq(client)), ops, self._caller(client))
        self._told()

    def _request(self, client: int, number: int) -> Any:
        """Whatever can be done to the record as it is now."""
        name = f"job-{number:02d}"
        row, _ = self._store.newest(("job", name))
        fields = {
            "note": f"{self._life} {self._chance.random()}",
            "pad": "x" * self._chance.choice((0, 100, 900, 5000)),
        }
        seq = self._seq(client)
        if row is None or row.deleted:
            job = {"uuid": name, "status": "QUEUED", "labels": {"of": str(number % 3)}, **fields}
            return Create(job=job, seq=seq)
        if self._chance.random() < 0.2:
            return Delete(job_id=name, seq=seq)
        return Update(job_id=name, job=fields, seq=seq)

    def _seq(self, client: int) -> int:
        self._seqs[client] += 1
        return self._seqs[client]

    def _caller(self, client: int) -> Caller:
        return Caller(said_hello=True, client=f"client-{client}-{self._life}")

    async def purge(self) -> None:
        """Tombstones go for good, without anybody being told."""
        rows = await self._engine.query(Query(kind="job", sort="deleted", limit=5))
        for row in rows:
            gone = Row(row.kind, row.id, row.uid, row.revision, row.keys, row.body, row.marks, REMOVED, row.token)
            await self._store.committed((Write(gone, row.stamp, None),))
            self._told()

    # --- the whole -----------------------------------------------------------------------------------------------

    async def idle(self) -> None:
        """Until the store has noted its end."""
        while self._engine._marked != self._engine._committed.position:
            await asyncio.sleep(IDLE_SECONDS / 3)
        self._told(safely=True)

    async def compact(self) -> None:
        while await self._engine.compact(LogKept(since=0, most_bytes=KEPT_BYTES)):
            if self._chance.random() < 0.3:
                await self._round(0)

    async def snapshot(self) -> None:
        told = await self._administration.snapshot(None, lambda *_: None)
        self._snapshot = Path(told["path"])
        inside = self._snapshot if not self._snapshot.is_absolute() else self._snapshot.relative_to(self._data)
        self._notes.say(Kept(str(inside)))

    async def restore(self) -> None:
        await self._administration.restore(str(self._snapshot), lambda *_: None)
        self._told(safely=True)

    async def close(self) -> None:
        await self._store.stop()
        await self._engine.close()
        self._told(safely=True)

    async def forever(self) -> None:
        """Until somebody kills us."""
        for _ in range(200):
            await self.work()
        raise AssertionError("nobody did")


@contextmanager
def machine(boot: str) -> Iterator[None]:
    """With lower bounds, so that much happens soon. By its boot id a machine tells that it lost power in between."""
    with ExitStack() as changed:
        changed.enter_context(patch.object(Checkpoints, "PAGES", CHECKPOINT_PAGES))
        changed.enter_context(patch.object(compaction, "SPARE_PAGES", SPARE_PAGES))
        changed.enter_context(patch.object(compaction, "LONG_WAL_BYTES", LONG_WAL_BYTES))
        changed.enter_context(patch.object(boots, "boot_id", lambda: boot))
        yield


async def main(folders: str, durability: str, seed: str, script: str) -> None:
    if durability == "off":  # planted: a level that promises what it does not keep
        SYNCHRONOUS["disk"], durability = "OFF", "disk"
    for number, folder in enumerate(folders.split(",")):
        await Life(Path(folder), durability, random.Random(f"{seed} {number}")).run(script.split(","))


if __name__ == "__main__":
    folders, durability, boot, *others = sys.argv[1:]
    with machine(boot):
        asyncio.run(main(folders, durability, *others))
