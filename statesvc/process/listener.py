"""The daemon's Unix socket, from the check of its folder to the removal of its file.

Owns the socket file, its lock file and its temporary name. Knows nothing of connections.

    folder      ours or root's, no symbolic link, not writable by others (a sticky one may be)
    lock        <socket>.lock, so that of two daemons one gives up before it touches anything
    path        free, or a socket of ours that nobody answers on; anything else is refused and left as it was
    bind        as <socket>~ with the narrow mode from the first moment, then group, then mode, then listen
    rename      into place: whoever finds the path finds a socket that listens, and never a wider mode

umask belongs to the process, so `listen` is for the start, before threads create files.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from types import TracebackType
from typing import Self

from statesvc.process.errors import AlreadyRunning, BadInheritance, UnsafePath
from statesvc.process.locks import InstanceLock
from statesvc.process.peers import ROOT, Access, Peer, peer_credentials

__all__ = ["BACKLOG", "Access", "Listener", "Peer", "listen", "listen_on_inherited", "peer_credentials"]

# Connections the kernel keeps waiting for accept; the kernel caps it at net.core.somaxconn.
BACKLOG = 1024

# sockaddr_un.sun_path in bytes, without its closing NUL.
MAX_PATH_BYTES = 107

LOCK_SUFFIX = ".lock"
TEMPORARY_SUFFIX = "~"


class Listener:
    """A listening socket. `close` removes its file if that is still ours, then lets the lock go."""

    __slots__ = ("_file", "_lock", "path", "sock")

    def __init__(
        self,
        sock: socket.socket,
        path: str,
        *,
        file: os.stat_result | None = None,
        lock: InstanceLock | None = None,
    ) -> None:
        self.sock = sock
        self.path = path
        self._file = file
        self._lock = lock

    def remove_file(self) -> None:
        """Take the name away, so that nobody new finds us. Leaves alone what another process put there.

        Call it while the socket is open: until then the kernel cannot give its inode number to another file.
        """
        ours, self._file = self._file, None
        if ours is not None and _is_same_file(self.path, ours):
            os.unlink(self.path)

    def close(self) -> None:
        """Remove the file, close the socket, release the lock, in this order. A second call does nothing."""
        try:
            self.remove_file()
        finally:
            self.sock.close()
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def listen(path: str, *, mode: int = 0o600, gid: int | None = None, backlog: int = BACKLOG) -> Listener:
    """Listen at `path`. UnsafePath or AlreadyRunning when that would touch what is not ours."""
    _check_name(path)
    _prepare_folder(os.path.dirname(path) or ".")
    lock = InstanceLock(path + LOCK_SUFFIX).acquire()
    try:
        _check_replaceable(path)
        return _listen_locked(path, lock, mode=mode, gid=gid, backlog=backlog)
    except BaseException:
        lock.release()
        raise


def listen_on_inherited(sock: socket.socket) -> Listener:
    """Take over a listening socket from the supervisor, who keeps its file: `close` will not remove it."""
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
        raise BadInheritance(f"descriptor {sock.fileno()} is not a Unix stream socket; see ListenStream= of its unit")
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise BadInheritance(f"descriptor {sock.fileno()} does not listen; with systemd, use Accept=no")
    sock.setblocking(False)
    return Listener(sock, _readable_address(sock))


# -- where -----------------------------------------------------------------------------------------------


def _check_name(path: str) -> None:
    if not os.path.basename(path) or "\0" in path:
        raise UnsafePath(repr(path), "is not the name of a socket; give a folder and a name")
    length, limit = len(os.fsencode(path)), MAX_PATH_BYTES - len(TEMPORARY_SUFFIX)
    if length > limit:
        raise UnsafePath(path, f"is {length} bytes long, a Unix socket takes at most {limit}; choose a shorter one")


def _prepare_folder(folder: str) -> None:
    """Make the folder, for us alone, if only it is missing; refuse one that others could play tricks in."""
    try:
        if not os.path.lexists(folder):
            os.mkdir(folder, 0o700)
    except FileExistsError:
        pass  # made by another start at the same moment; checked like any other
    except OSError as error:
        raise UnsafePath(folder, f"cannot be created as the socket's folder: {error.strerror}") from error
    _check_folder(folder)


def _check_folder(folder: str) -> None:
    found = os.lstat(folder)
    if stat.S_ISLNK(found.st_mode):
        raise UnsafePath(folder, "is a symbolic link; name the folder it points to")
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafePath(folder, "is not a folder")
    if found.st_uid not in (os.geteuid(), ROOT):
        raise UnsafePath(folder, f"belongs to uid {found.st_uid}; the socket's folder must be ours or root's")
    others_may_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others_may_write and not found.st_mode & stat.S_ISVTX:
        bits = stat.S_IMODE(found.st_mode)
        raise UnsafePath(
            folder,
            f"has mode {bits:04o}, others may replace files in it; chmod go-w, or use a folder of 0700",
        )


# -- what is there ---------------------------------------------------------------------------------------


def _check_replaceable(path: str) -> None:
    """Nothing is there, or a socket of ours that nobody answers on."""
    if _is_own_socket(path) and _answers(path):
        raise AlreadyRunning(path)


def _is_own_socket(path: str) -> bool:
    """False when nothing is there; UnsafePath when it is anything but a socket of ours."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(found.st_mode):
        raise UnsafePath(path, f"is {_describe(found.st_mode)}, not a socket; it was left alone, choose another path")
    if found.st_uid != os.geteuid():
        raise UnsafePath(path, f"is a socket of uid {found.st_uid}, not of uid {os.geteuid()} which runs this")
    return True


def _answers(path: str) -> bool:
    """Whether a process listens there. A full backlog (EAGAIN) is an answer too."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(path)
    if code in (errno.ECONNREFUSED, errno.ENOENT):
        return False
    if code in (0, errno.EAGAIN, errno.EINPROGRESS):
        return True
    raise UnsafePath(path, f"cannot be probed for a live daemon: {os.strerror(code)}")


def _describe(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a file" if stat.S_ISREG(mode) else "a device or pipe"


def _is_same_file(path: str, known: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), known)
    except FileNotFoundError:
        return False


def _readable_address(sock: socket.socket) -> str:
    address = sock.getsockname()
    return "@" + os.fsdecode(address[1:]) if isinstance(address, bytes) else str(address)


# -- bind, listen, rename --------------------------------------------------------------------------------


def _listen_locked(path: str, lock: InstanceLock, *, mode: int, gid: int | None, backlog: int) -> Listener:
    temporary = path + TEMPORARY_SUFFIX
    if _is_own_socket(temporary):
        os.unlink(temporary)  # left by a start that was killed; the lock says that it is nobody's now
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        _bind(sock, temporary, mode & 0o600)
        file = os.lstat(temporary)
        try:
            _open_up(temporary, mode, gid)
            sock.listen(backlog)
            _check_replaceable(path)  # once more: in a folder open to all somebody may just have put something there
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except BaseException:
        sock.close()
        raise
    return Listener(sock, path, file=file, lock=lock)


def _bind(sock: socket.socket, path: str, mode: int) -> None:
    """Bind with exactly `mode`: bind takes it from the umask, and a chmod afterwards would come too late."""
    before = os.umask(0o777 & ~mode)
    try:
        sock.bind(path)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise UnsafePath(path, "was taken by somebody else at this moment; choose a folder of 0700") from error
    finally:
        os.umask(before)


def _open_up(path: str, mode: int, gid: int | None) -> None:
    """Give the group its socket. The group first: the wider mode must never apply to the wrong one."""
    if gid is not None:
        try:
            os.chown(path, -1, gid, follow_symlinks=False)
        except PermissionError as error:
            why = "we are not a member of it, or a sandbox forbids chown (with systemd: SocketGroup=)"
            raise UnsafePath(path, f"cannot be given to group {gid}: {why}") from error
    os.chmod(path, mode)
