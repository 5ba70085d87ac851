"""A folder for a daemon that is about to suffer."""

from __future__ import annotations

from tests.daemon.conftest import folder

__all__ = ["folder"]
