"""Other users of the machine, for a moment each: what they hear when they ask a daemon something.

Owns how a process becomes somebody else. Must not know what the answer should be. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

STRANGER = 54321
"""A uid and gid that nobody has."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

# What is done by a process of its own; it needs nothing of the project, whose folder it may not be able to read.
_ASK = """
import json, os, socket, sys
path, uid, gid, groups, line = sys.argv[1:]
os.setgroups([int(each) for each in groups.split()]); os.setgid(int(gid)); os.setuid(int(uid))
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(20)
try:
    sock.connect(path)
except OSError as refused:
    print(json.dumps({"refused": type(refused).__name__}))
    sys.exit()
try:
    sock.sendall(line.encode() + b"\\n")
except (BrokenPipeError, ConnectionResetError):
    pass  # already answered and closed
print(sock.makefile().readline() or "{}")
"""

QUESTION = '{"op":"get","jobId":"job-1"}'


def ask_as(uid: int, path: Path, line: str = QUESTION, *, gid: int | None = None, groups: Sequence[int] = ()) -> str:
    """What a process of that user, with its own group unless told otherwise, hears."""
    who = [str(uid), str(uid if gid is None else gid), " ".join(map(str, groups))]
    command = [sys.executable, "-c", _ASK, str(path), *who, line]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
