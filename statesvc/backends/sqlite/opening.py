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
from ..port import DataCorrupt, EngineBroken
from . import restoring, watermark
from .cache import Waiting
from .files import in_words, is_damage, open_reader, refuse_newer
from .log import FORMAT as LOG_FORMAT
from .log import End, LogFile, digest_at, new_epoch
from .paths import Paths, sides
from .state import FORMAT as STATE_FORMAT
from .state import StateFile, TornState
from .watermark import Watermark

log = logs.get(__name__)

REPLAY_ENTRIES = 20_000
REPLAY_BYTES = 64 * 1024 * 1024
"""What is replayed in one transaction, whichever comes first: bounded memory whatever the log holds."""


SYNCHRONOUS = {"disk": "FULL", "os": "NORMAL"}
"""How the log is written, by the durability that is asked for."""


class Files(NamedTuple):
    """An open store."""

    log: LogFile
    state: StateFile

    def close(self, paths: Paths) -> None:
        """Move everything into the files, and note the end of the log."""
        self.state.close()
        self.log.close()
        end = self.log.end
        watermark.write(paths.watermark, Watermark.of(self.log.epoch, end.position, end.digest))

    def abandon(self) -> None:
        """Let go without another write: after a failure the files must be left as they are."""
        self.log.abandon()
        self.state.abandon()


LOG_CURE = "bring back a copy of all its files, or restore a snapshot into an empty folder"
STATE_CURE = "remove state.db, which is made again from log.db, or bring back a copy of all its files"
CUT_CURE = "log.db no longer has all it was made from: run a check with repair, restore a snapshot or bring back a copy"
"""What helps against damage: to the log, to the state, and to the state once the log has been cut."""


def open_files(paths: Paths, synchronous: str, stopped: Event) -> Files:
    """Both files, checked and in step. Raises `DataCorrupt` rather than serve less than there was."""
    with _named(paths.incoming, LOG_CURE):
        restoring.finish(paths)
    refuse_newer(paths.log, LOG_FORMAT)
    refuse_newer(paths.state, STATE_FORMAT)
    mark = watermark.read(paths.watermark, Watermark)
    if not paths.log.exists() and (mark is not None or paths.state.exists()):
        raise DataCorrupt(f"{paths.log} is missing, but other files of the store are there: bring it back")
    with _named(paths.log, LOG_CURE):
        log_file = LogFile(paths.log, synchronous, new=mark is None and not paths.state.exists())
    try:
        with _named(paths.log, LOG_CURE):
            _check_tail(log_file, mark, paths)
        with _named(paths.state, CUT_CURE if log_file.start.position else STATE_CURE):
            state = _open_state(log_file, paths)
    except BaseException:
        log_file.abandon()
        raise
    files = Files(log_file, state)
    try:
        with _named(paths.folder, CUT_CURE if log_file.start.position else STATE_CURE):
            _replay(files, paths, stopped)
            if log_file.start.position and not state.secured:
                state.secure()  # without a mark, a torn WAL could not be told from a damaged one
            watermark.sync_folder(paths.folder)
    except BaseException:
        files.abandon()
        raise
    return files


@contextmanager
def _named(path: Path, cure: str) -> Iterator[None]:
    """Tell what went wrong with which file, and what helps."""
    try:
        yield
    except (msgspec.DecodeError, TypeError, ValueError) as problem:
        # SQLite does not look into values: a damaged one shows when it is used.
        raise DataCorrupt(f"{path} is damaged: {problem}; {cure}") from None
    except apsw.FullError:
        raise NoSpace(f"{path} cannot be opened: the disk is full") from None
    except (apsw.Error, OSError) as problem:
        if is_damage(problem):
            raise DataCorrupt(f"{path} is damaged: {in_words(problem)}; {cure}") from None
        raise EngineBroken(f"{path} cannot be opened: {problem}") from None


def _open_state(log_file: LogFile, paths: Paths) -> StateFile:
    """The state; one that is torn, or knows of more than the log, is made again from the log while that has all."""
    is_cut = log_file.start.position > 0
    if not paths.state.exists():
        if is_cut:
            raise DataCorrupt(f"{paths.state} is missing; {CUT_CURE}")
        remove_state(paths)
    try:
        state = StateFile(paths.state, log_file.epoch, log_file.start)
    except TornState as torn:
        if is_cut:
            return _without_torn_end(log_file, paths)
        return _made_again(log_file, paths, str(torn))
    lost = state.applied.position - log_file.end.position
    if log_file.synced or not (lost > 0 or log_file.torn):
        return state
    # Without syncing, a power loss may take what was acknowledged. That is what the level promises; clients are told.
    if is_cut:
        return _went_on(state, log_file, paths)
    state.abandon()
    _begin_new_epoch(log_file, paths, new_epoch(), None)
    return _made_again(log_file, paths, f"the log lost its tail, {max(0, lost)} entries of it known here")


def _begin_new_epoch(log_file: LogFile, paths: Paths, epoch: str, after: End | None) -> None:
    paths.watermark.unlink(missing_ok=True)
    log_file.begin_new_epoch(epoch, after)
    watermark.write(paths.watermark, Watermark.of(log_file.epoch, log_file.end.position, log_file.end.digest))


def _without_torn_end(log_file: LogFile, paths: Paths) -> StateFile:
    """After a power loss the end of the state's WAL may be torn. The log has it; only real damage is refused."""
    try:
        return StateFile(paths.state, log_file.epoch, log_file.start, take_torn=True)
    except TornState as torn:
        raise DataCorrupt(f"{paths.state} is damaged: {torn}; {CUT_CURE}") from None


def _went_on(state: StateFile, log_file: LogFile, paths: Paths) -> StateFile:
    """The log lost its tail and cannot be replayed from its beginning: the state stays, under a new epoch."""
    epoch, ahead = new_epoch(), state.applied.position > log_file.end.position
    state.expect_epoch(epoch)
    _begin_new_epoch(log_file, paths, epoch, state.applied if ahead else None)
    state.secure()
    return state


def _made_again(log_file: LogFile, paths: Paths, why: str) -> StateFile:
    log.warning("state_made_again", path=str(paths.state), why=why)
    remove_state(paths)
    return StateFile(paths.state, log_file.epoch, log_file.start)


def remove_state(paths: Paths) -> None:
    """The file itself goes first: without its WAL it must not be found, for it may be a mixture then."""
    for path in (paths.state, *sides(paths.state), paths.state_watermark):
        path.unlink(missing_ok=True)


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
    if mark.position >= log_file.start.position and (known is None or known.hex() != mark.digest):
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
    waiting = Waiting()
    total = 0
    end = applied
    for end, changes in files.log.batches(applied):
        if stopped.is_set():
            raise EngineBroken("told to stop while the log was being replayed")
        waiting.take(end.position - len(changes) + 1, changes)
        total += len(changes)
        if waiting.entries >= REPLAY_ENTRIES or waiting.bytes >= REPLAY_BYTES:
            files.state.apply(waiting, end)
            waiting = Waiting()
    if waiting.entries:
        files.state.apply(waiting, end)
    return total
