"""Where snapshots lie: files below the data folder, and nowhere else.

Owns which paths a request may name, and opening them. Must not know what is in the files.

Every folder on the way is opened from the one before it and no symbolic link is followed, so that what was checked is
what is used. Names that engines keep in the folder are not for snapshots.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from statesvc_client.errors import BadRequest, Exists, Internal, NoSpace, NotFound, StateError
from statesvc_client.wire import printable

from ..process.folders import make_private

SUFFIX = ".snapshot"
"""Of names we choose; others may choose as they like."""

PART = ".snapshot-part"
"""Behind a dot and the name: a snapshot that is not whole yet."""

ENGINES_OWN = ("log.db", "state.db", "watermark", "state.watermark", "unsynced", "incoming", "restoring-", "lock")
"""What names in the data folder begin with that are not ours to give."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ROOT = 0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_WRONG = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ENXIO, errno.EACCES})
"""What the system says when it is the path that is to blame. A link met with O_NOFOLLOW is ELOOP or ENOTDIR."""


class Place:
    """A name in a folder that was checked and is held open."""

    def __init__(self, folder: int, name: str, shown: str) -> None:
        self._folder = folder
        self.name = name
        self.shown = shown
        """The path below the data folder, for people."""

    def open(self) -> int:
        """The file, for reading. Refuses one that others could change."""
        with in_words(self.shown):
            file = os.open(self.name, os.O_RDONLY | _FILE, dir_fd=self._folder)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise BadRequest(f"{self.shown} is not a file")
            _check_ours(found, self.shown)
        except BaseException:
            os.close(file)
            raise
        return file

    def make(self) -> int:
        """A file for writing, under a name that does not pass for a snapshot, and locked for as long as it is open."""
        with in_words(self.shown):
            if self._is_taken():
                raise FileExistsError
            self._clear_away()
            file = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=self._folder)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file

    def keep(self) -> None:
        """Give what was made its name, unless another has it by now; it stays from here on."""
        with in_words(self.shown):
            os.link(self._part, self.name, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
            os.unlink(self._part, dir_fd=self._folder)
            os.fsync(self._folder)

    def abandon(self) -> None:
        """Take away what was made, if it is still there."""
        try:
            os.unlink(self._part, dir_fd=self._folder)
        except OSError:
            pass

    @property
    def _part(self) -> str:
        return f".{self.name}{PART}"

    def _is_taken(self) -> bool:
        try:
            os.stat(self.name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _clear_away(self) -> None:
        """Remove what a daemon that was killed left half written. What is still being written is locked."""
        for name in os.listdir(self._folder):
            if name.startswith(".") and name.endswith(PART) and self._is_nobodys(name):
                os.unlink(name, dir_fd=self._folder)

    def _is_nobodys(self, name: str) -> bool:
        try:
            file = os.open(name, os.O_RDONLY | _FILE, dir_fd=self._folder)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(file)
        return True

    def close(self) -> None:
        os.close(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def find(data: Path, given: str, *, make: bool) -> Place:
    """The place a request names. With `make` the folders on the way are made, for us alone."""
    *folders, name = _steps(data, given)
    shown = "/".join([*folders, name])
    if make:
        _make_data_folder(data)
    with in_words(shown):
        held = os.open(data, _FOLDER)
    try:
        _check_folder(held, str(data))
        for number, folder in enumerate(folders, 1):
            held = _entered(held, folder, "/".join(folders[:number]), make=make)
    except BaseException:
        os.close(held)
        raise
    return Place(held, name, shown)


def _steps(data: Path, given: str) -> list[str]:
    """The names on the way from the data folder to the file."""
    if not given.isprintable():
        raise BadRequest(f"path must not hold control characters: {printable(given)}")
    steps = _relative(data, given).split("/")
    if any(step in ("", ".", "..") for step in steps):
        raise BadRequest(f"path must lie below the data folder, without '..': {printable(given, 200)}")
    if steps[-1].startswith(".") or steps[0].startswith(ENGINES_OWN):
        raise BadRequest(f"a snapshot needs a name of its own, without a dot at its front: {printable(given)}")
    return steps


def _relative(data: Path, given: str) -> str:
    if not given.startswith("/"):
        return given
    for base in (os.path.abspath(data), os.path.realpath(data)):
        if given.startswith(base + "/"):
            return given[len(base) + 1 :]
    raise BadRequest(f"path must lie below the data folder {data}: {printable(given, 200)}")


def _make_data_folder(data: Path) -> None:
    try:
        make_private(data)
    except OSError as problem:
        raise BadRequest(f"the data folder {data} cannot be made: {problem.strerror}; configure another") from None


def _entered(held: int, name: str, shown: str, *, make: bool) -> int:
    """The folder of this name, opened; the one it lies in is let go."""
    with in_words(shown):
        if make:
            _make_folder(held, name)
        inner = os.open(name, _FOLDER, dir_fd=held)
    try:
        _check_folder(inner, shown)
    except BaseException:
        os.close(inner)
        raise
    os.close(held)
    return inner


def _make_folder(held: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=held)
    except FileExistsError:
        return
    os.fsync(held)


def _check_folder(folder: int, shown: str) -> None:
    _check_ours(os.fstat(folder), shown)


def _check_ours(found: os.stat_result, shown: str) -> None:
    if found.st_uid not in (os.geteuid(), _ROOT):
        raise BadRequest(f"{shown} belongs to uid {found.st_uid}; it must be the daemon's own or root's")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadRequest(f"others may write to {shown}: chmod go-w")


@contextmanager
def in_words(shown: str) -> Iterator[None]:
    """What the system says of a path, as an error a client can read."""
    try:
        yield
    except OSError as problem:
        raise _error(problem, shown) from None


def _error(problem: OSError, shown: str) -> StateError:
    if isinstance(problem, FileNotFoundError):
        return NotFound(f"{shown} is not there")
    if isinstance(problem, FileExistsError):
        return Exists(f"{shown} is there already; a snapshot never overwrites: choose another name")
    if problem.errno in _FULL:
        return NoSpace(f"{shown} cannot be written: {problem.strerror}; nothing of it is left")
    if problem.errno in _WRONG:
        return BadRequest(f"{shown} cannot be used: {problem.strerror}; links are not followed")
    return Internal(f"{shown} cannot be read or written: {problem.strerror or problem}")
