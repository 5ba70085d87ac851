"""The reasons for which a daemon refuses to start on a path or on what its supervisor handed over.

Each error owns its exit code. Nothing here knows who catches it or how it is printed.

    ProcessError
    ├── UnsafePath         73  a path that is not ours to use; it is left as it was
    ├── PathFailure        74  the operating system fails on a path that would be ours
    ├── AlreadyRunning     75  another instance holds it; the other one never notices
    └── BadInheritance     78  what was inherited (descriptors, variables) is not what was promised
"""

from __future__ import annotations

from typing import ClassVar


class ProcessError(Exception):
    """Why the daemon cannot start; `exit_code` is what it should exit with."""

    exit_code: ClassVar[int] = 70


class UnsafePath(ProcessError):
    """The path is a thing, or lies in a place, that must not be touched."""

    exit_code = 73

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class PathFailure(ProcessError):
    """A disk that is full or broken, a limit that is reached: the path is right, using it failed."""

    exit_code = 74

    def __init__(self, error: OSError) -> None:
        where = f"{error.filename}: " if error.filename else ""
        super().__init__(f"{where}{error.strerror or error}")


class AlreadyRunning(ProcessError):
    """Another process holds the lock at `path`, or listens there. `pid` is what it wrote down, if it did."""

    exit_code = 75

    def __init__(self, path: str, pid: int | None = None) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(f"{path}: {who} is already using it; stop that one first or choose another path")
        self.path = path
        self.pid = pid


class BadInheritance(ProcessError):
    """A descriptor or variable handed over at start is unusable."""

    exit_code = 78
