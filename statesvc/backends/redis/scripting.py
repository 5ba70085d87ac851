"""The scripts, by name: their text, and the digest servers know them by.

Owns how a script file becomes a command. Must not know what scripts do or when they are sent.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

Argument = str | bytes | int

Command = tuple[Argument, ...]


class Script(NamedTuple):
    """One file of scripts/, with what stands before it."""

    text: str
    digest: str

    def short(self, key: bytes, *arguments: Argument) -> Command:
        """Works where the server knows the script, and is answered NOSCRIPT where it does not."""
        return ("EVALSHA", self.digest, 1, key, *arguments)

    def whole(self, key: bytes, *arguments: Argument) -> Command:
        """Works everywhere; the server knows the script from then on."""
        return ("EVAL", self.text, 1, key, *arguments)


WITH_CHANGES = frozenset({"commit", "load", "mend"})
"""Scripts that write rows: changes.lua stands before them."""


@cache
def script(name: str) -> Script:
    parts = ("prelude", "changes", name) if name in WITH_CHANGES else ("prelude", name)
    text = "\n".join(_read(part) for part in parts)
    return Script(text, sha1(text.encode()).hexdigest())  # noqa: S324 - the server names scripts by it


def _read(name: str) -> str:
    return files(__package__).joinpath("scripts", f"{name}.lua").read_text("utf-8")
