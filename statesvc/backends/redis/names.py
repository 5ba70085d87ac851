"""The names of keys. All begin with the namespace in braces, so that a Cluster keeps them in one slot.

Owns names as Python needs them; scripts/prelude.lua makes the same ones. Must not know what is stored under them.
A generation is one whole store: loading makes a new one beside the old, and the namespace's hash says which counts.
"""

from __future__ import annotations

from typing import NamedTuple

from ..port import Key


def namespace_key(namespace: str) -> bytes:
    """The hash that says what holds for the whole namespace."""
    return b"{%b}" % namespace.encode()


class Names(NamedTuple):
    """The keys of one generation."""

    namespace: bytes
    generation: bytes

    @property
    def log(self) -> bytes:
        return b"%b:%b:log" % self

    @property
    def kinds(self) -> bytes:
        return b"%b:%b:kinds" % self

    def rows(self, kind: str) -> bytes:
        return b"%b:%b:r:%b" % (*self, kind.encode())

    def index_of(self, kind: str, name: bytes) -> bytes:
        raw = kind.encode()
        return b"%b:%b:i:%d:%b:%b" % (*self, len(raw), raw, name)

    def history(self, key: Key) -> bytes:
        raw = key[0].encode()
        return b"%b:%b:h:%d:%b:%b" % (*self, len(raw), raw, key[1].encode())
