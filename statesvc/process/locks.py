"""One owner for one thing: an exclusive lock on a lock file, held as long as the process lives.

Owns the file and the flock on it. Knows nothing of what the lock guards.

The kernel drops a flock when its holder dies, however it dies, so a lock is never stale. The file itself is
never removed: two processes could then hold locks on two files of one name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from types import TracebackType
from typing import Self

from statesvc.process.errors import AlreadyRunning, UnsafePath

# Times the file may be replaced under our hands before we call the folder unsafe.
MAX_REPLACEMENTS = 16

# Bytes read from the file to find the pid of its holder: a pid has at most seven digits on Linux.
MAX_PID_BYTES = 32

# What a pid is made of. It is not synced: after a power loss it may be cut short, or zeros may stand in its place.
PID_BYTES = b"0123456789\n\0"

_REFUSED = {
    errno.ELOOP: "is a symbolic link; a lock file must be a plain file",
    errno.EISDIR: "is a folder; a lock file must be a plain file",
    errno.ENXIO: "is a socket or pipe; a lock file must be a plain file",
    errno.ENOENT: "cannot be created: its folder does not exist",
    errno.ENOTDIR: "cannot be created: what should be its folder is none",
    errno.EACCES: "cannot be opened for writing: permission denied",
    errno.EPERM: "cannot be opened for writing: not permitted",
    errno.EROFS: "cannot be created: the file system is read-only",
    errno.ENAMETOOLONG: "cannot be created: the name is too long",
}


class InstanceLock:
    """The lock at `path`: `acquire` takes it at once or raises AlreadyRunning, `release` gives it back."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1

    @property
    def held(self) -> bool:
        return self._fd >= 0

    def acquire(self) -> Self:
        """Take the lock without waiting. UnsafePath when the file is not a lock file of ours."""
        if not self.held:
            self._fd = _open_locked(self.path)
        return self

    def release(self) -> None:
        """Give the lock back. The file stays, emptied of the pid if it can be: nobody goes by one without the lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.ftruncate(fd, 0)
            os.close(fd)

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _open_locked(path: str) -> int:
    """A descriptor of the file that is at `path` now, locked and carrying our pid."""
    for _ in range(MAX_REPLACEMENTS):
        fd = _open(path)
        try:
            _check_owned(path, fd)
            _lock(path, fd)
            if _is_at(path, fd):
                _check_content(path, fd)
                _write_pid(fd)
                return fd
        except OSError as error:
            os.close(fd)
            error.filename = path  # what fails on a descriptor names no file
            raise
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # somebody replaced the file between open and flock: what we hold guards nothing
    raise UnsafePath(path, "is replaced again and again; something else uses this name")


def _open(path: str) -> int:
    # O_NONBLOCK: opening a pipe must not hang. The mode is asked for at creation, so no umask makes it wider.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        problem = _REFUSED.get(error.errno or 0)
        if problem is None:
            raise
        raise UnsafePath(path, problem) from error


def _check_owned(path: str, fd: int) -> None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise UnsafePath(path, "is not a plain file; a lock file must be one")
    if found.st_uid != os.geteuid():
        raise UnsafePath(path, f"belongs to uid {found.st_uid}, not to uid {os.geteuid()} which runs this")
    if found.st_nlink > 1:
        raise UnsafePath(path, "has a second name (hard link); remove it or choose another path")


def _check_content(path: str, fd: int) -> None:
    """Refuse to write a pid over something else. Called with the lock held, when no pid is half written."""
    if os.pread(fd, MAX_PID_BYTES, 0).translate(None, PID_BYTES):
        raise UnsafePath(path, "holds something that is not a process id; it is not a lock file of ours")


def _lock(path: str, fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadyRunning(path, _read_pid(fd)) from None


def _is_at(path: str, fd: int) -> bool:
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))


def _read_pid(fd: int) -> int | None:
    text = os.pread(fd, MAX_PID_BYTES, 0).strip()
    return int(text) if text.isdigit() else None


def _write_pid(fd: int) -> None:
    text = f"{os.getpid()}\n".encode()
    os.ftruncate(fd, 0)
    try:
        os.pwrite(fd, text, 0)
    except OSError as error:
        # The pid is a courtesy to whoever comes second; a full disk must not keep the lock from us.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
