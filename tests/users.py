"""Being somebody else for a moment.

Owns the change of user within this process. Must not know what for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 54321


@contextmanager
def not_root() -> Iterator[None]:
    """Modes of files count: they do not for root. Whoever is somebody else stays that."""
    own = os.geteuid()
    os.seteuid(own or NOBODY)
    try:
        yield
    finally:
        os.seteuid(own)
