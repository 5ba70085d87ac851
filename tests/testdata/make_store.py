"""Makes a kept store: `python tests/testdata/make_store.py tests/testdata/store-format-1`, from the project's root.

Run once for every format that is released, by the version that writes it, and never again for the same one: what lies
in the folder is what that version left behind. tests/sqlite/test_kept_stores.py opens every one of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from msgspec.structs import replace

from statesvc.backends.port import REMOVED, Event, Keys, Row, Write
from statesvc.backends.sqlite import SqliteEngine
from statesvc.store.clock import Clock
from statesvc.store.store import Store
from statesvc.store.writes import Caller
from statesvc_client.wire import Create, Delete, Update

AGENT = Caller(said_hello=True, client="agent-1")


class KeptClock(Clock):
    """Each look at the clock is a second later."""

    def __init__(self) -> None:
        self._at = 1_767_225_600_000_000_000  # 2026-01-01

    def now(self) -> int:
        self._at += 1_000_000_000
        return self._at


async def make(folder: Path) -> None:
    engine = SqliteEngine(folder)
    await engine.open()
    store = Store(engine, clock=KeptClock())
    store.start()
    for number, (status, labels) in enumerate((("PENDING", {}), ("RUNNING", {"team": "red"}), ("COMPLETED", {})), 1):
        job = {"uuid": f"job-{number}", "status": status, "command": "echo hi", "nodeId": "node-1", "labels": labels}
        store.write_now(Create(job=job, seq=number), AGENT)
    store.write_now(Update(job_id="job-2", job={"big": 2**63 - 1, "text": "ünï ☃", "empty": {}}, seq=4), AGENT)
    await store.commits.settled()
    store.write_now(Create(job={"uuid": "job-4", "status": "FAILED", "exitCode": 1}, seq=5), AGENT)
    store.write_now(Delete(job_id="job-4", seq=6), AGENT)
    store.write_now(Create(kind="volume", record={"id": "vol-1", "size": 10}, seq=7), AGENT)
    await store.stop()
    await leave_quiet_traces(engine)
    await engine.close()


async def leave_quiet_traces(engine: SqliteEngine) -> None:
    """A write nobody was told of, and a record that was removed for good."""
    volume = engine.peek(("volume", "vol-1"))
    assert volume is not None
    keys = Keys(1, 1, "QUEUED", due=2, ready="5", labels=(("", "leased"),))
    passing = Row("job", "job-5", "uid-5", 1, keys, b"{}")
    batch = (
        Write(replace(volume, token=3, keys=replace(volume.keys, labels=(("", "leased"),))), volume.stamp, None),
        Write(passing, None, Event("created", 1)),
        Write(replace(passing, deleted=REMOVED), passing.stamp, None),
    )
    for write in batch:
        assert await engine.commit([(write,)]) == ["applied"]


async def records(folder: Path) -> list[dict[str, object]]:
    """What is in it, tombstones left out, in the order of the log."""
    engine = SqliteEngine(folder)
    await engine.open()
    keys = dict.fromkeys(entry.row.key for entry in await engine.read_log("", 1000))
    rows = await engine.get(list(keys))
    await engine.close()
    return [json.loads(row.body) for row in rows if row is not None and not row.deleted]


def main() -> None:
    folder = Path(sys.argv[1])
    asyncio.run(make(folder))
    text = json.dumps(asyncio.run(records(folder)), indent=2, ensure_ascii=False)
    (folder / "records.json").write_text(text + "\n")
    for left in ("lock", "log.db-wal", "log.db-shm", "state.db-wal", "state.db-shm"):  # made again at a start
        (folder / left).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
