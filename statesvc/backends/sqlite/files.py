"""Opening SQLite files: permissions, settings, page checksums, format versions and migrations.

Owns what every file of the engine has in common. Must not know what the tables mean.

Every page carries a checksum, kept by SQLite's own checksum VFS: a flipped bit is an error when the page is read, never
a wrong answer.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any
from weakref import WeakSet

import apsw
import apsw.sqlite_extra

from statesvc_client.errors import Internal

from ... import failpoints, logs
from ...process.folders import sync_folder
from ..port import DataCorrupt, EngineBroken
from . import watermark
from .disk import sync_file
from .paths import sides, unfinished
from .wal import Salts, Tail, frames, pages, synced_salts, unread_tail, write_anew
from .watermark import Mark

log = logs.get(__name__)

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

APPLICATION_ID = 0x53535643
"""Written into each file's header, so that a stranger's database is not taken for ours."""

BUSY_MILLISECONDS = 5_000
"""Only our own threads share a file; they hold it for moments."""

_MAGIC = b"SQLite format 3\x00"

LOCKED_BYTE = 1 << 30
"""SQLite locks a byte here, and never writes the page around it."""

CHECKSUM_BYTES = 8
"""Kept free at the end of every page for its checksum; SQLite notes the number in the file's header."""


class Format:
    """The format of one file: its migrations, in order. The last one's number is the version we write."""

    def __init__(self, stem: str, newest: int) -> None:
        self.stem = stem
        self.newest = newest

    def script(self, version: int) -> str:
        return resources.files(__package__).joinpath(f"{self.stem}_{version:04d}.sql").read_text()


def stored_version(path: Path) -> int | None:
    """The format version in a file's header, without opening it; None when there is no database yet.

    Versions change only in a migration, which ends with a checkpoint: the header on disk is always true.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return None
    if not header:
        return None
    if len(header) < 100 or not header.startswith(_MAGIC):
        raise DataCorrupt(f"{path} is not a SQLite database: its header is damaged")
    if header[20] != CHECKSUM_BYTES:
        raise DataCorrupt(f"{path} has no page checksums: its header is damaged, or another program made it")
    version, application = struct.unpack(">I4xI", header[60:72])
    if version == 0 and application == 0:
        return None
    if application != APPLICATION_ID:
        raise DataCorrupt(f"{path} is a database of another program; choose another data folder")
    return int(version)


def refuse_newer(path: Path, format_: Format) -> None:
    version = stored_version(path)
    if version is not None and version > format_.newest:
        raise DataCorrupt(
            f"{path} has format {version}, this version knows up to {format_.newest}: "
            "use the newer statesvc that wrote it; the file was left untouched"
        )


def open_file(
    path: Path, format_: Format, synchronous: str, judge: Callable[[Tail], None] = lambda _: None
) -> apsw.Connection:
    """A connection that writes, the file migrated first. `judge` is shown what SQLite left out of the WAL and may
    raise; until then nothing is changed, for the first write would go over it."""
    refuse_newer(path, format_)
    write_anew(path)
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=_checksum_vfs())
    try:
        _set(db, synchronous)
        tail = unread_tail(db, path)
        judge(tail)
        _refuse_cut(db, path, tail.taken)
        _migrate(db, format_)
    except BaseException:
        close_untouched(db)
        raise
    return db


def make_file(path: Path, format_: Format) -> None:
    """Make the file under another name; it gets its own when it is whole and on the disk. So what is found was whole
    once, and of one whose sync failed nothing is ever built on, or synced a second time."""
    unnamed = unfinished(path)
    for old in (unnamed, *sides(unnamed), *sides(path)):
        old.unlink(missing_ok=True)
    # SQLite gives its side files the mode of the main one: nobody but us reads any of them.
    os.close(os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    db = apsw.Connection(str(unnamed), flags=apsw.SQLITE_OPEN_READWRITE, vfs=_checksum_vfs())
    try:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA journal_mode = OFF")
        db.reserve_bytes("main", CHECKSUM_BYTES)
        # Free pages can be given back a few at a time. Only an empty file can be told so.
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _migrate(db, format_)
        _use_wal(db)
    finally:
        db.close()
    sync_file(unnamed)
    os.rename(unnamed, path)
    sync_folder(path.parent)


def _use_wal(db: apsw.Connection) -> None:
    """When the change fails, SQLite stays with what it had and says nothing: with a journal, every sync that failed
    would be tried again."""
    if db.pragma("journal_mode", "WAL") != "wal":
        raise apsw.IOError("SQLite cannot give it a WAL: writing its first page failed")


def _refuse_cut(db: apsw.Connection, path: Path, taken: int) -> None:
    """Every page must be in the file or in its WAL. SQLite takes the number of pages from the WAL without a look at the
    length of the file, or rounds that up: behind its end it would read zeros, and ask for no checksum."""
    page_bytes, count = db.pragma("page_size"), db.pragma("page_count")
    whole = path.stat().st_size // page_bytes
    if whole >= count:
        return
    missing = set(range(whole + 1, count + 1)) - pages(path, taken, page_bytes) - {LOCKED_BYTE // page_bytes + 1}
    if missing:
        raise apsw.CorruptError(f"it was cut: page {min(missing)} of {count} is neither in it nor in its WAL")


@cache
def _checksum_vfs() -> str:
    """The VFS that checks pages; loading its extension makes it known to the whole process."""
    db = apsw.Connection(":memory:")
    try:
        apsw.sqlite_extra.load(db, "cksumvfs")
    except apsw.sqlite_extra.NotAvailable as missing:
        raise EngineBroken(f"apsw lacks SQLite's checksum VFS; install it from PyPI's wheels: {missing}") from None
    finally:
        db.close()
    return "cksmvfs"


def is_full_disk(problem: Exception) -> bool:
    """Whether the disk has no room, or seems to: a WAL's index that cannot grow is all the same to SQLite, whatever the
    reason, and called a failing disk. There is nothing in it but where the pages of the WAL are, so it is safe to try
    again, except where that WAL was just written."""
    if isinstance(problem, OSError):
        return problem.errno in NO_SPACE
    return isinstance(problem, apsw.FullError) or _extended(problem) == apsw.SQLITE_IOERR_SHMSIZE


def is_damage(problem: Exception) -> bool:
    """Whether SQLite found the file damaged, rather than the disk failing."""
    return _is_damaged_page(problem) or isinstance(problem, (apsw.CorruptError, apsw.NotADBError))


def is_failing_disk(problem: Exception) -> bool:
    """Whether it is the disk that fails. Nobody knows then what is on it."""
    return isinstance(problem, apsw.IOError) and not is_damage(problem) and not is_full_disk(problem)


def _is_damaged_page(problem: Exception) -> bool:
    return _extended(problem) == apsw.SQLITE_IOERR_DATA


def _extended(problem: Exception) -> int:
    """SQLite's own code for what went wrong, in full."""
    return getattr(problem, "extendedresult", 0)


def in_words(problem: Exception) -> str:
    """What SQLite says; its words for a damaged page ("disk I/O error") would send people to the wrong place."""
    return "a page does not match its checksum" if _is_damaged_page(problem) else str(problem)


def unreadable(path: Path, problem: apsw.Error) -> Internal:
    """The answer to a request whose record cannot be read."""
    log.error("file_unreadable", file=str(path), why=in_words(problem), damaged=is_damage(problem))
    what = "is damaged" if is_damage(problem) else "cannot be read"
    return Internal(f"{path.name} {what}: {in_words(problem)}; see the log and the guide to operating")


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Damage is told to whoever came upon it, by the name of its file: all else is still served. A disk that fails is
    another matter."""
    try:
        yield
    except apsw.Error as problem:
        if is_damage(problem):
            raise unreadable(path, problem) from None
        raise


def close_untouched(db: apsw.Connection) -> None:
    """Close without the checkpoint that SQLite makes when a file's last user goes."""
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.close()


@contextmanager
def transaction(db: apsw.Connection) -> Iterator[None]:
    """All or nothing. On a full disk SQLite itself may have ended the transaction: that must not hide why."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def checkpoint(db: apsw.Connection, mode: int) -> None:
    """A WAL moved into its file, as far as its readers allow."""
    if failpoints.armed:
        failpoints.reach("checkpoint.before")
    db.wal_checkpoint(mode=mode)
    if failpoints.armed:
        failpoints.reach("checkpoint.after")


class Checkpoints:
    """Moves a WAL into its file when it has grown long, and tells when that fails."""

    PAGES = 4000
    """A checkpoint is cheaper in one go than page by page; 4,000 pages are 16 MiB of WAL."""

    def __init__(self, db: apsw.Connection, prepare: Callable[[], None], part: int) -> None:
        self._db = db
        self._prepare = prepare
        self._part = part
        self._pages = self.PAGES
        """Of the WAL, at most. It is not asked at every commit: a hook would be one more time that a busy loop has to
        give the interpreter away before a commit is told."""
        self._tried = 0
        """Pages there were when it was tried last."""
        self._is_put_off = False
        """The last one failed, which was told."""
        self.long_readers: WeakSet[Any] = WeakSet()
        self.views: set[Any] = set()

    def after_commit(self, written: int | None = None) -> None:
        """`written`: pages that the commit wrote at most, where that is known."""
        enough = self.PAGES // self._part
        if written is not None and self._pages + written < enough:
            self._pages += written
            return
        self._pages = frames(self._db)
        if self._pages < self._tried:
            self._tried = 0  # the WAL began anew
        if self._pages < enough or self._pages - self._tried < enough // 8:
            return
        self._tried = self._pages
        # With a reader always at work the WAL would never begin anew: then wait for readers to let go of it.
        overdue = self._pages > 8 * enough and not self.long_readers and not self.views
        self.run(apsw.SQLITE_CHECKPOINT_RESTART if overdue else apsw.SQLITE_CHECKPOINT_PASSIVE)

    def run(self, mode: int) -> None:
        """Everything is safe in the WAL: what cannot be done now, a later commit tries again."""
        try:
            self._prepare()
            checkpoint(self._db, mode)
        except apsw.BusyError:
            pass
        except (apsw.FullError, OSError) as problem:
            if not self._is_put_off:
                log.warning("checkpoint_put_off", file=Path(self._db.filename).name, why=str(problem))
            self._is_put_off = True
        else:
            self._is_put_off = False


class DatabaseFile:
    """A file open for writing. What is read from it first is read by `_load`; if that fails, it is left as it is."""

    checkpoint_part = 1
    """Checkpoints are made when the WAL has this part of the usual length."""
    free_bytes = 0
    """Pages that hold nothing, as far as compaction has seen."""

    def __init__(
        self,
        path: Path,
        mark_path: Path,
        format_: Format,
        synchronous: str,
        judge: Callable[[Tail], None],
        *,
        new: bool,
    ) -> None:
        """`new`: where there is nothing yet, it is made."""
        self._path = path
        self._mark_path = mark_path
        if stored_version(path) is None:
            if not new:
                raise apsw.CorruptError("it is empty" if path.exists() else "it is missing")
            make_file(path, format_)
        self._has_torn_tail = False
        self._db = open_file(path, format_, synchronous, partial(self._look_at, judge))
        self._checkpoints = Checkpoints(self._db, self.secure, self.checkpoint_part)
        try:
            self._load()
            if self._has_torn_tail:
                self._clear_wal()
            self._look_for_free_pages()
        except BaseException:
            self.abandon()
            raise

    def _load(self) -> None:
        raise NotImplementedError

    def _look_at(self, judge: Callable[[Tail], None], tail: Tail) -> None:
        judge(tail)
        self._has_torn_tail = tail.bytes > 0

    def _clear_wal(self) -> None:
        """Begin a new WAL. In one of which SQLite took nothing it would go on as if it were empty: what a power loss
        left there could not be told from what is written now, should the power be lost again."""
        self.secure()
        checkpoint(self._db, apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def secure(self) -> None:
        """Put the WAL onto the disk, and note outside of SQLite what is safe with it. Comes before any page moves from
        the WAL into the file; an OSError puts that off."""
        known = frames(self._db)
        salts = synced_salts(self._path)
        watermark.write(self._mark_path, self._mark_of(salts, known))

    def _mark_of(self, salts: Salts | None, frames: int) -> Mark:
        raise NotImplementedError

    @property
    def long_readers(self) -> WeakSet[Any]:
        """Those who hold on to the WAL for longer than anybody should wait for: see dumping.py."""
        return self._checkpoints.long_readers

    @property
    def views(self) -> set[Any]:
        """Those who do so too, and come to their end by themselves: see checking.py."""
        return self._checkpoints.views

    @property
    def db(self) -> apsw.Connection:
        """For what is done to the file as a whole: compaction, checking, repair. In the file's own thread only."""
        return self._db

    def written(self) -> None:
        """To be called after a commit that was made through `db`."""
        self._look_for_free_pages()
        self._checkpoints.after_commit()

    def _look_for_free_pages(self) -> None:
        self.free_bytes = self._db.pragma("freelist_count") * self._db.pragma("page_size")

    def shorten_wal(self) -> None:
        """Empty the WAL, unless somebody is reading from it just now."""
        self._db.set_busy_timeout(0)
        try:
            self._checkpoints.run(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            self._db.set_busy_timeout(BUSY_MILLISECONDS)

    def settle(self) -> None:
        """Move the WAL into the file and onto the disk."""
        self.secure()
        checkpoint(self._db, apsw.SQLITE_CHECKPOINT_PASSIVE)

    def close(self) -> None:
        try:
            self._clear_wal()
        except BaseException:
            self.abandon()
            raise
        self._db.close()

    def abandon(self) -> None:
        """Let go without another write: after a failure the file must be left as it is."""
        close_untouched(self._db)


def open_reader(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=_checksum_vfs())
    db.set_busy_timeout(BUSY_MILLISECONDS)
    return db


def open_writer(path: Path) -> apsw.Connection:
    """A second connection that writes to a file in use; it leaves the WAL to the first."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=_checksum_vfs())
    db.set_busy_timeout(BUSY_MILLISECONDS)
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("PRAGMA synchronous = FULL")
    return db


def _set(db: apsw.Connection, synchronous: str) -> None:
    db.set_busy_timeout(BUSY_MILLISECONDS)
    _use_wal(db)
    # FULL: a commit is on the disk when it returns. NORMAL: it survives us, not a power loss.
    db.execute(f"PRAGMA synchronous = {synchronous}")
    # SQLite's own checkpoints keep a failed sync to themselves; see Checkpoints.
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("PRAGMA journal_size_limit = 67108864")


def _migrate(db: apsw.Connection, format_: Format) -> None:
    version = db.pragma("user_version")
    if version == format_.newest:
        return
    for step in range(version + 1, format_.newest + 1):
        with transaction(db):
            db.execute(format_.script(step))
            db.execute(f"PRAGMA user_version = {step}")
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            if failpoints.armed:
                failpoints.reach("format.inside")
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
