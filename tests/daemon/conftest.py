"""A folder for a daemon, and a way to be sure that its store holds together."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where a daemon lives: its socket, its data, what it says. Short, because a socket's name must be."""
    path = Path(tempfile.mkdtemp(prefix="statesvc-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
