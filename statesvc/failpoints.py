"""Named moments at which a daemon can be made to die, for those who test that it survives it.

Owns the names, and what happens there. Must not know why anybody passes them.

    STATESVC_FAILPOINTS="commit.after=kill@3"                 die when it is reached for the third time
    STATESVC_FAILPOINTS="snapshot.inside=stop"                stand still there, until somebody sends SIGCONT
    STATESVC_FAILPOINTS="commit.before=kill;trace=/tmp/file"  and count in a file how often each was reached

Without the variable `armed` is False, and a point costs one look at it. None of them is passed once a request: they lie
around commits, files and the ends of things. What was counted outlives a SIGKILL, for the file is mapped.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path

VARIABLE = "STATESVC_FAILPOINTS"

POINTS = {
    "commit.before": "a batch is decided; nothing of it is written",
    "commit.after": "it is in the log, as safely as the level asks for; nobody knows",
    "reply.before": "the engine has taken it; those who wait are about to hear",
    "apply.before": "the state is about to follow the log",
    "apply.inside": "its tables have changed, and the transaction is still open",
    "apply.after": "the state has followed",
    "checkpoint.before": "pages are about to move from a WAL into its file",
    "checkpoint.after": "they have moved",
    "replace.inside": "a watermark or a note is written anew, and has not taken the place of the old one",
    "compaction.inside": "the front of the log is taken off, and the transaction is still open",
    "format.inside": "a file is being brought to a newer format, and the transaction is still open",
    "snapshot.inside": "a part of a snapshot is written",
    "snapshot.whole": "all of it is on the disk, without its name",
    "restore.inside": "a part of the new store is written",
    "restore.complete": "the new store is declared complete; the old one is still in place",
    "restore.placing": "one of its files has taken its place",
    "migrate.inside": "a part of a move is written",
    "migrate.frozen": "the source takes no more writes; the rest is not moved yet",
    "migrate.complete": "everything is moved and verified; that is not noted yet, and the target takes no writes",
    "drain.before": "the socket is gone; connections are about to be finished",
    "drain.answered": "everything read was answered; the engine is still open",
    "close.between": "state.db is closed, log.db is not",
}

_COUNTER = struct.Struct("=Q")
_PLACES = {name: _COUNTER.size * place for place, name in enumerate(POINTS)}

armed = False
"""Whether anything is to happen anywhere. Ask this before `reach`."""

_actions: dict[str, Callable[[int], None]] = {}
_counts: memoryview = memoryview(bytearray(len(POINTS) * _COUNTER.size))


class UnknownFailpoint(ValueError):
    """The variable says something that does not exist. A test that arms nothing would prove nothing."""

    exit_code = 78


def arm(text: str) -> None:
    """Take the variable at its word; an empty one arms nothing."""
    for entry in filter(None, text.split(";")):
        _arm_one(*(part.strip() for part in entry.partition("=")[::2]))


def _arm_one(name: str, value: str) -> None:
    global armed, _counts  # noqa: PLW0603 - one process, one set of points
    action, _, nth = value.partition("@")
    if name == "trace":
        _counts = _mapped(Path(value))
    elif name in POINTS and action in _SIGNALS and (nth or "1").isdecimal():
        _actions[name] = _at(int(nth or 1), _SIGNALS[action])
    else:
        raise UnknownFailpoint(
            f"{VARIABLE}: {name}={value} is not known: give trace=FILE, or one of {', '.join(POINTS)} "
            f"with kill or stop, and @N for the Nth time"
        )
    armed = True


_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def _at(nth: int, number: signal.Signals) -> Callable[[int], None]:
    def act(count: int) -> None:
        if count == nth:
            os.kill(os.getpid(), number)

    return act


def _mapped(file: Path) -> memoryview:
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.ftruncate(fd, len(_counts))
        return memoryview(mmap.mmap(fd, len(_counts)))
    finally:
        os.close(fd)


def reach(name: str) -> None:
    """A point was reached. Two threads that meet at one may be counted as one."""
    place = _PLACES[name]
    count = _COUNTER.unpack_from(_counts, place)[0] + 1
    _COUNTER.pack_into(_counts, place, count)
    if (act := _actions.get(name)) is not None:
        act(count)


def reached(trace: Path) -> dict[str, int]:
    """How often each point was reached, from the file of a process that may be long gone."""
    raw = trace.read_bytes()
    return {name: _COUNTER.unpack_from(raw, place)[0] for name, place in _PLACES.items()}
