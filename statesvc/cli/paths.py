"""Paths on the command line.

Owns their type. Must not know what is at them: click would look whether a path can be read, and call it wrong usage
when it cannot, or when it goes away while click looks. Who uses a path knows what may be there, and says it better.
"""

from __future__ import annotations

from pathlib import Path

import click

A_PATH = click.Path(path_type=Path, readable=False)
