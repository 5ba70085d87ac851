"""Makes a kept snapshot and a kept spool: `python -m tests.testdata.make_kept_files`, from the project's root.

Run once for every version of either format that is released, by the version that writes it; a folder that is there is
left alone, for it holds what an earlier version left behind. tests/faults/test_f14_old_files.py reads all of them. The
snapshot is taken by a real daemon, of the newest kept store (make_store.py); the spool is written by the adapter.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from statesvc.store import snapshots
from statesvc_client import spool, writes
from tests.daemon.harness import serving

KEPT = Path(__file__).parent

SPOOL_VERSION = int(spool.MAGIC.split()[1])


def make_snapshot(target: Path) -> None:
    store = max(KEPT.glob("store-format-*"))
    with tempfile.TemporaryDirectory(prefix="statesvc-") as name:
        folder = Path(name)
        shutil.copytree(store, folder / "data")
        (folder / "data").chmod(0o700)
        with serving(folder) as daemon, daemon.connect() as client:
            assert client.ask("snapshot", path="snapshots/kept")["success"]
        target.mkdir()
        shutil.copy(folder / "data" / "snapshots" / "kept", target / "kept")
        shutil.copy(store / "records.json", target / "records.json")


def make_spool(target: Path) -> None:
    """A write of every sort that can wait, two of them merged, and the first of all already decided."""
    waiting = [
        writes.create("job", {"uuid": "job-1", "status": "PENDING", "text": "ünï ☃"}),
        writes.create("job", {"uuid": "job-2", "status": "RUNNING", "big": 2**53}),
        writes.update("job", "job-2", {"step": 1}, None),
        writes.update("job", "job-2", {"step": 2}, None),
        writes.create("volume", {"id": "vol-1", "size": 10}),
        writes.emit("job", "job-2", {"type": "note", "message": "hi"}),
        writes.delete("volume", "vol-1", None),
    ]
    target.mkdir()
    kept = spool.Spool(str(target / "spool"))
    kept.load()
    kept.begin("client-1", [])
    for seq, write in enumerate(waiting, 1):
        write.seq = seq
        kept.add(write)
    merged = writes.update("job", "job-2", {"step": 2, "twin": 1}, None)
    merged.seq = 4
    kept.merge(4, 3, merged.frame())
    kept.decided_upto(1, waiting[:1])
    kept.close()
    found = [{"seq": write.seq, **json.loads(write.frame())} for write in reread(target / "spool").waiting]
    (target / "writes.json").write_text(json.dumps(found, indent=2) + "\n")


def reread(path: Path) -> spool.Found:
    again = spool.Spool(str(path))
    try:
        return again.load()
    finally:
        again.close()


def main() -> None:
    for target, make in (
        (KEPT / f"snapshot-format-{snapshots.VERSION}", make_snapshot),
        (KEPT / f"spool-format-{SPOOL_VERSION}", make_spool),
    ):
        if target.exists():
            print(f"{target.name} is there")
        else:
            make(target)
            print(f"{target.name} was made")


if __name__ == "__main__":
    main()
