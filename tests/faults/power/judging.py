"""Opens what a power loss left, with the real engine, and holds it against what was promised.

Owns the verdict on one folder. Must not know how the folder came to be.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from statesvc.backends.port import DataCorrupt, EngineBroken
from statesvc.backends.sqlite import SqliteEngine, watermark
from statesvc.backends.sqlite.watermark import LogMark, Mark
from statesvc.process.errors import ProcessError
from statesvc_client.errors import StateError
from tests.daemon.harness import Daemon
from tests.sqlite.filling import content

from .operations import Image
from .timeline import NOTHING_YET, Broken, Timeline

NEVER_IDLE_SECONDS = 3600.0


def lay_out(image: Image, folder: Path) -> None:
    """Make a folder what the disk says it is."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    for path, data in image.items():
        if data is None:
            (folder / path).mkdir(mode=0o700)
            continue
        fd = os.open(folder / path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)


async def judge(folder: Path, timeline: Timeline, *, closely: bool) -> int:
    """The step it is at; raises `Broken` for a promise that was not kept."""
    _judge_marks(folder)
    engine = SqliteEngine(folder, durability=timeline.durability, idle_seconds=NEVER_IDLE_SECONDS)
    try:
        await engine.open()
    except (DataCorrupt, EngineBroken, StateError, ProcessError) as refused:
        await engine.close()
        raise Broken("refused", f"{type(refused).__name__}: {refused}") from refused
    try:
        found = await content(engine)
        step = timeline.find(engine.epoch, engine._committed.position, found)
        if closely:
            await _look_closely(engine, timeline, step)
        return step
    except StateError as damaged:
        raise Broken("damaged", str(damaged)) from damaged
    finally:
        await engine.close()


def _judge_marks(folder: Path) -> None:
    """A watermark is the old or the new one, never neither."""
    for name, type_ in (("watermark", LogMark), ("state.watermark", Mark)):
        if (folder / name).exists() and watermark.read(folder / name, type_) is None:
            raise Broken("watermark", f"{name} is there and says nothing")


async def _look_closely(engine: SqliteEngine, timeline: Timeline, step: int) -> None:
    if problems := await engine.check():
        raise Broken("check", "; ".join(problems[:5]))
    told = {} if step == NOTHING_YET else timeline.log_of(step)
    for entry in await engine.read_log("", 100_000):
        if told.get(int(entry.cursor)) != entry.row:
            raise Broken("log", f"entry {entry.cursor} is not what was committed")


def judge_by_daemon(folder: Path, data: Path, timeline: Timeline) -> None:
    """The daemon as a process: it serves, and ends as it should. What it leaves is for `judge`."""
    flags = ("--durability", timeline.durability)
    with Daemon(folder, *flags, data=data) as daemon:
        try:
            daemon.serving()
        except AssertionError as ended:
            raise Broken("refused", str(ended)) from None
        if (code := daemon.stop()) != 0:
            raise Broken("daemon", f"it ended with {code}: {daemon.stderr}")
