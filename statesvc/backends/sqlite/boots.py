"""A note that the newest writes of a store may not outlive this boot of the machine.

Owns the file `unsynced`. Must not know the store.

At level `os` a power loss may take what was told, down to the last byte: nothing in the files shows it. So such a store
says in which boot it was opened, before it takes anything, until all of it is on the disk. Found in the same boot, only
the daemon has died.
"""

from __future__ import annotations

import os
from pathlib import Path

from ...process.folders import sync_folder
from .disk import replace

VARIABLE = "STATESVC_BOOT_ID"

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Another for every start of the machine; "" when that cannot be told. Where /proc is hidden from services, whoever
    starts them has to tell."""
    told = os.environ.get(VARIABLE, "")
    try:
        found = told or _BOOT_ID.read_text()
    except OSError:
        return ""
    return found.strip().replace("-", "")  # systemd and the kernel write it in two ways


def note(path: Path) -> None:
    replace(path, boot_id().encode())


def note_loss(path: Path) -> None:
    """Of no boot: whoever finds it knows that something is missing."""
    replace(path, b"")


def may_have_lost(path: Path) -> bool:
    """Whether a note is there, and not surely of this boot."""
    try:
        noted = path.read_bytes()
    except FileNotFoundError:
        return False
    return not noted or noted != boot_id().encode()


def forget(path: Path) -> None:
    if path.exists():
        path.unlink()
        sync_folder(path.parent)
