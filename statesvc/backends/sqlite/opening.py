"""Opening a store: both files found to belong together, and the state brought up to the log.

Owns what must hold before a store is served: nothing that was safely there may be missing. Must not know threads or
requests. Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import NamedTuple

import apsw
import msgspec

from statesvc_client.errors import NoSpace

from ... import logs
from ..port import DataCorrupt, EngineBroken, Key, Row
from . import watermark
from .files import in_words, is_damage, open_reader, refuse_newer
from .log import FORMAT as LOG_FORMAT
from .log import End, LogFile, digest_at, read_batches
from .state import FORMAT as STATE_FORMAT
from .state import StateFile, StateReader, TornState
from .watermark import Watermark

log = logs.get(__name__)

REPLAY_ENTRIES = 20_000
REPLAY_BYTES = 64 * 1024 * 1024
"""What is replayed in one transaction, whichever comes first: bounded memory whatever the log holds."""


class Paths(NamedTuple):
    """The files of a store."""

    folder: Path
    log: Path
    state: Path
    watermark: Path

    @classmethod
    def below(cls, folder: Path) -> Paths:
        return cls(folder, folder / "log.db", folder / "state.db", folder / "watermark")


class Files(NamedTuple):
    """An open store."""

    log: LogFile
    state: StateFile

    def abandon(self) -> None:
        """Let go without another write: after a failure the files must be left as they are."""
        self.log.abandon()
        self.state.abandon()


_CURE = "bring back a copy of all its files, or try without state.db, which is made again from log.db if that is intact"


def open_files(paths: Paths, synchronous: str, stopped: Event) -> Files:
    """Both files, checked and in step. Raises `DataCorrupt` rather than serve less than there was."""
    refuse_newer(paths.log, LOG_FORMAT)
    refuse_newer(paths.state, STATE_FORMAT)
    mark = watermark.read(paths.watermark)
    if not paths.log.exists() and (mark is not None or paths.state.exists()):
        raise DataCorrupt(f"{paths.log} is missing, but other files of the store are there: bring it back")
    with _named(paths.log):
        log_file = LogFile(paths.log, synchronous, new=mark is None and not paths.state.exists())
    try:
        with _named(paths.log):
            _check_tail(log_file, mark, paths)
        with _named(paths.state):
            state = _open_state(log_file, paths)
    except BaseException:
        log_file.abandon()
        raise
    files = Files(log_file, state)
    try:
        with _named(paths.folder):
            _replay(files, paths, stopped)
            watermark.sync_folder(paths.folder)
    except BaseException:
        files.abandon()
        raise
    return files


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Tell what went wrong with which file."""
    try:
        yield
    except (msgspec.DecodeError, TypeError, ValueError) as problem:
        # SQLite does not look into values: a damaged one shows when it is used.
        raise DataCorrupt(f"{path} is damaged: {problem}; {_CURE}") from None
    except apsw.FullError:
        raise NoSpace(f"{path} cannot be opened: the disk is full") from None
    except (apsw.Error, OSError) as problem:
        if is_damage(problem):
            raise DataCorrupt(f"{path} is damaged: {in_words(problem)}; {_CURE}") from None
        raise EngineBroken(f"{path} cannot be opened: {problem}") from None


def _open_state(log_file: LogFile, paths: Paths) -> StateFile:
    """The state; one that is torn, or knows of more than the log, is made again from the log."""
    try:
        state = StateFile(paths.state, log_file.epoch, log_file.start)
    except TornState as torn:
        return _made_again(log_file, paths, str(torn))
    lost = state.applied.position - log_file.end.position
    if log_file.synced or not (lost > 0 or log_file.torn):
        return state
    # Without syncing, a power loss may take what was acknowledged. That is what the level promises; clients are told.
    state.abandon()
    paths.watermark.unlink(missing_ok=True)
    log_file.begin_new_epoch()
    watermark.write(paths.watermark, Watermark.of(log_file.epoch, log_file.end.position, log_file.end.digest))
    return _made_again(log_file, paths, f"the log lost its tail, {max(0, lost)} entries of it known here")


def _made_again(log_file: LogFile, paths: Paths, why: str) -> StateFile:
    if log_file.start.position:
        raise DataCorrupt(f"{paths.state}: {why}; restore it from a snapshot or a copy")
    log.warning("state_made_again", path=str(paths.state), why=why)
    for suffix in ("-wal", "-shm", ""):
        paths.state.with_name(paths.state.name + suffix).unlink(missing_ok=True)
    return StateFile(paths.state, log_file.epoch, log_file.start)


def _check_tail(log_file: LogFile, mark: Watermark | None, paths: Paths) -> None:
    """A log that was closed or idle must still have what the watermark names."""
    if mark is None:
        return
    if mark.epoch != log_file.epoch:
        raise DataCorrupt(f"{paths.log} and the watermark beside it belong to different stores")
    if mark.position > log_file.end.position:
        raise DataCorrupt(
            f"{paths.log} ends at entry {log_file.end.position}, but entry {mark.position} was safely in it: "
            "its tail is lost; bring back a copy"
        )
    known = _digest_at(paths, mark.position, log_file.start)
    if mark.position > log_file.start.position and (known is None or known.hex() != mark.digest):
        raise DataCorrupt(f"{paths.log}: entry {mark.position} is not the one the watermark names")


def _digest_at(paths: Paths, position: int, start: End) -> bytes | None:
    reader = open_reader(paths.log)
    try:
        return digest_at(reader, position, start)
    finally:
        reader.close()


def _replay(files: Files, paths: Paths, stopped: Event) -> None:
    """Apply what the log has and the state has not."""
    applied, end = files.state.applied, files.log.end
    if applied.position > end.position:
        raise DataCorrupt(
            f"{paths.state} has applied entry {applied.position}, but {paths.log} ends at {end.position}: "
            "the log's tail is lost; bring back a copy"
        )
    known = _digest_at(paths, applied.position, files.log.start)
    if applied.position >= files.log.start.position and known != applied.digest:
        raise DataCorrupt(f"{paths.state} and {paths.log} disagree about entry {applied.position}")
    replayed = _apply_behind(files, applied, stopped)
    if replayed:
        log.info("log_replayed", entries=replayed, position=end.position)


def _apply_behind(files: Files, applied: End, stopped: Event) -> int:
    rows: dict[Key, Row] = {}
    total = size = 0
    end = applied
    for end, changes in files.log.batches(applied):
        if stopped.is_set():
            raise EngineBroken("told to stop while the log was being replayed")
        rows |= {change.row.key: change.row for change in changes}
        total += len(changes)
        size += sum(len(change.row.body) + len(change.row.marks) for change in changes)
        if len(rows) >= REPLAY_ENTRIES or size >= REPLAY_BYTES:
            files.state.apply(rows, list(rows), end)
            rows, size = {}, 0
    if rows:
        files.state.apply(rows, list(rows), end)
    return total


# --- checking ------------------------------------------------------------------------------------------------------


def problems(paths: Paths, start: End) -> list[str]:
    """Everything in the files that does not fit together, in words."""
    reader = StateReader(paths.state)
    db = open_reader(paths.log)
    try:
        found = [f"log.db: {text}" for (text,) in db.execute("PRAGMA integrity_check") if text != "ok"]
        return [*found, *reader.problems(), *_differences(db, paths, start, reader)]
    except apsw.Error as problem:
        return [in_words(problem)]
    except DataCorrupt as corrupt:
        return [str(corrupt)]
    finally:
        reader.close()
        db.close()


def _differences(db: apsw.Connection, paths: Paths, start: End, reader: StateReader) -> list[str]:
    """Where the state is not what the kept log leads to."""
    newest: dict[Key, Row] = {}
    for _, changes in read_batches(db, paths.log, start, start):
        newest |= {change.row.key: change.row for change in changes}
    return [
        f"state.db: {kind} {name} is not what the log says"
        for (kind, name), row in newest.items()
        if reader.row((kind, name)) != row
    ]
