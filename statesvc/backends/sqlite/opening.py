"""Opening a store: both files found to belong together, and the state brought up to the log.

Owns what must hold before a store is served: nothing that was safely there may be missing. Must not know threads or
requests. Everything here blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import NamedTuple

import apsw
import msgspec

from statesvc_client.errors import NoSpace

from ... import logs
from ...process.folders import sync_folder
from .. import epoch_names
from ..port import DataCorrupt, EngineBroken
from . import restoring, watermark
from .cache import Waiting
from .files import in_words, is_damage, is_full_disk, open_reader, refuse_newer, stored_version
from .log import FORMAT as LOG_FORMAT
from .log import End, LogFile
from .paths import Paths, sides
from .state import FORMAT as STATE_FORMAT
from .state import StateFile, TornState
from .watermark import Mark

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

    def close(self) -> None:
        """Move everything into the files, and note the end of the log."""
        self.state.close()
        self.log.close()

    def abandon(self) -> None:
        """Let go without another write: after a failure the files must be left as they are."""
        self.log.abandon()
        self.state.abandon()


LOG_CURE = "bring back a copy of all its files, or restore a snapshot into an empty folder"
STATE_CURE = "remove state.db, which is made again from log.db, or bring back a copy of all its files"
CUT_CURE = "log.db no longer has all it was made from: run a check with repair, restore a snapshot or bring back a copy"
"""What helps against damage: to the log, to the state, and to the state once the log has been cut."""


def state_cure(log_file: LogFile) -> str:
    return CUT_CURE if log_file.start.position else STATE_CURE


def end_of(path: Path, problem: Exception, cure: str) -> DataCorrupt | EngineBroken:
    """What a store that is served comes to its end by: damage, told as at its opening, or else a disk that fails."""
    if is_damage(problem):
        return _damaged(path, problem, cure)
    return EngineBroken(f"{path.name} failed: {problem}")


def _damaged(path: Path, problem: Exception, cure: str) -> DataCorrupt:
    return DataCorrupt(f"{path} is damaged: {in_words(problem)}; {cure}")


def open_files(paths: Paths, synchronous: str, stopped: Event) -> Files:
    """Both files, checked and in step. Raises `DataCorrupt` rather than serve less than there was."""
    with _named(paths.incoming, LOG_CURE):
        restoring.finish(paths)
    refuse_newer(paths.log, LOG_FORMAT)
    refuse_newer(paths.state, STATE_FORMAT)
    is_new = not _was_begun(paths)
    if not paths.log.exists() and not is_new:
        raise DataCorrupt(f"{paths.log} is missing, but other files of the store are there: bring it back")
    with _named(paths.log, LOG_CURE):
        if is_new:
            sync_folder(paths.folder)  # a start that was killed may have named the log, and done no more
        log_file = LogFile(paths.log, synchronous, new=is_new)
    try:
        with _named(paths.state, state_cure(log_file)):
            state = _open_state(log_file, paths)
    except BaseException:
        log_file.abandon()
        raise
    files = Files(log_file, state)
    try:
        with _named(paths.log, LOG_CURE):
            refuse_out_of_step(log_file, state.applied, paths)
            _replay(files, paths, stopped)
            log_file.note_level()
            sync_folder(paths.folder)
    except BaseException:
        files.abandon()
        raise
    return files


def _was_begun(paths: Paths) -> bool:
    """Whether there was a log, with facts in it. Of a first start that was cut off only the log itself may be there,
    and whole: its name is on the disk before its WAL is made, and its facts are before anything else."""
    beside = sides(paths.state)
    if not paths.log.exists():
        beside += sides(paths.log)
    elif stored_version(paths.log) is None:
        return True  # it was emptied
    return any(file.exists() for file in (paths.state, *paths.notes)) or any(map(_holds_something, beside))


def _holds_something(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


@contextmanager
def _named(path: Path, cure: str) -> Iterator[None]:
    """Tell what went wrong with which file, and what helps."""
    try:
        yield
    except (msgspec.DecodeError, TypeError, ValueError) as problem:
        # SQLite does not look into values: a damaged one shows when it is used.
        raise DataCorrupt(f"{path} is damaged: {problem}; {cure}") from None
    except (apsw.Error, OSError) as problem:
        if is_damage(problem):
            raise _damaged(path, problem, cure) from None
        if is_full_disk(problem) or (isinstance(problem, apsw.CantOpenError) and _has_no_room_for_files(path.parent)):
            told = "" if isinstance(problem, apsw.FullError) else f" ({problem})"
            raise NoSpace(f"{path} cannot be opened: the disk is full{told}") from None
        raise EngineBroken(f"{path} cannot be opened: {problem}") from None


def _has_no_room_for_files(folder: Path) -> bool:
    """Whether no other file can be made there, however small: SQLite does not say why it cannot."""
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as problem:
        return is_full_disk(problem)
    return False


def _open_state(log_file: LogFile, paths: Paths) -> StateFile:
    """The state; one that is torn, or knows of more than the log, is made again from the log while that has all."""
    is_cut = log_file.start.position > 0
    if not paths.state.exists():
        if is_cut:
            raise DataCorrupt(f"{paths.state} is missing; {CUT_CURE}")
        heed_lost_tail(log_file, paths)
        remove_state(paths)
    try:
        state = StateFile(paths.state, log_file.epoch, log_file.start, new=not is_cut)
    except TornState as torn:
        heed_lost_tail(log_file, paths)
        state = _without_torn_end(log_file, paths) if is_cut else _made_again(log_file, paths, str(torn))
    lost = state.applied.position - log_file.end.position
    if not log_file.may_have_lost and (log_file.synced or lost <= 0):
        return state
    # Without syncing, a power loss may take what was acknowledged. That is what the level promises; clients are told.
    log_file.note_loss()  # they are told by the next start, should this one be cut off
    if is_cut or lost <= 0:
        return _went_on(state, log_file, paths)
    epoch = epoch_names.following(log_file.epoch)
    state.expect_epoch(epoch)  # cut off in between, both are found to belong together
    state.abandon()
    _begin_new_epoch(log_file, paths, epoch, None)
    return _made_again(log_file, paths, f"the log lost its tail, {lost} entries of it known here")


def readable_position(paths: Paths) -> int:
    """How far the log was applied to the state, as far as that can be read in it, torn or damaged as it is."""
    try:
        with closing(open_reader(paths.state)) as db:
            return int(db.execute("SELECT value FROM fact WHERE name = 'applied'").get or 0)
    except apsw.Error:
        return 0


def heed_lost_tail(log_file: LogFile, paths: Paths) -> None:
    """Before a state is made from the log: the one that goes may be all that tells of entries which the log has lost.
    A log that is synced had them on the disk before they were applied; from another a power loss may take them."""
    mark = watermark.read(paths.state_watermark, Mark)
    marked = mark.position if mark is not None and mark.epoch == log_file.epoch else 0
    known = max(marked, readable_position(paths))
    if known <= log_file.end.position or log_file.may_have_lost:
        return
    if log_file.synced:
        raise _lost_tail(log_file, known, paths)
    log_file.note_loss()


def _lost_tail(log_file: LogFile, applied: int, paths: Paths) -> DataCorrupt:
    return DataCorrupt(
        f"{paths.state} has applied entry {applied}, but {paths.log} ends at {log_file.end.position}: "
        "the log's tail is lost; bring back a copy"
    )


def _begin_new_epoch(log_file: LogFile, paths: Paths, epoch: str, after: End | None) -> None:
    log.warning(
        "epoch_begun",
        why="acknowledged writes may be missing: the power was lost, or a damaged part was left out",
        epoch=epoch,
    )
    paths.watermark.unlink(missing_ok=True)
    sync_folder(paths.folder)
    log_file.begin_new_epoch(epoch, after)
    log_file.secure()


def _without_torn_end(log_file: LogFile, paths: Paths) -> StateFile:
    """After a power loss the end of the state's WAL may be torn. The log has it; only real damage is refused."""
    try:
        return StateFile(paths.state, log_file.epoch, log_file.start, new=False, take_torn=True)
    except TornState as torn:
        raise DataCorrupt(f"{paths.state} is damaged: {torn}; {CUT_CURE}") from None


def _went_on(state: StateFile, log_file: LogFile, paths: Paths) -> StateFile:
    """The log may have lost its tail: the state stays as far as it came, under a new epoch."""
    epoch, ahead = epoch_names.following(log_file.epoch), state.applied.position > log_file.end.position
    state.expect_epoch(epoch)
    _begin_new_epoch(log_file, paths, epoch, state.applied if ahead else None)
    state.secure()
    return state


def _made_again(log_file: LogFile, paths: Paths, why: str) -> StateFile:
    log.warning("state_made_again", path=str(paths.state), why=why)
    remove_state(paths)
    return StateFile(paths.state, log_file.epoch, log_file.start, new=True)


def remove_state(paths: Paths) -> None:
    """The file itself goes first: without its WAL it must not be found, for it may be a mixture then."""
    for path in (paths.state, *sides(paths.state), paths.state_watermark):
        path.unlink(missing_ok=True)
        sync_folder(paths.folder)


def refuse_out_of_step(log_file: LogFile, applied: End, paths: Paths) -> None:
    """The log must have the entry that the state is at, and all behind it."""
    start = log_file.start.position
    if applied.position > log_file.end.position:
        raise _lost_tail(log_file, applied.position, paths)
    if applied.position < start:
        raise DataCorrupt(
            f"{paths.state} has applied entry {applied.position}, but {paths.log} is kept from entry {start + 1} on: "
            "restore a snapshot or bring back a copy"
        )
    if log_file.digest_at(applied.position) != applied.digest:
        raise DataCorrupt(f"{paths.state} and {paths.log} disagree about entry {applied.position}")


def _replay(files: Files, paths: Paths, stopped: Event) -> None:
    """Apply what the log has and the state has not."""
    with _named(paths.state, state_cure(files.log)):
        if files.log.start.position and not files.state.secured:
            # Before its first write: without a mark, a WAL that is torn could not be told from a damaged one.
            files.state.secure()
    replayed = _apply_behind(files, paths, stopped)
    if replayed:
        log.info("log_replayed", entries=replayed, position=files.log.end.position)


def _apply_behind(files: Files, paths: Paths, stopped: Event) -> int:
    def apply() -> None:
        # What is wrong here is wrong with the state, though the log is being read.
        with _named(paths.state, state_cure(files.log)):
            files.state.apply(waiting, end)

    waiting = Waiting()
    total = 0
    end = files.state.applied
    for end, changes in files.log.batches(files.state.applied):
        if stopped.is_set():
            raise EngineBroken("told to stop while the log was being replayed")
        waiting.take(end.position - len(changes) + 1, changes)
        total += len(changes)
        if waiting.entries >= REPLAY_ENTRIES or waiting.bytes >= REPLAY_BYTES:
            apply()
            waiting = Waiting()
    if waiting.entries:
        apply()
    return total
