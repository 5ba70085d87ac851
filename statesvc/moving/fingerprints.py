"""Fingerprints: whether two engines hold the same row, and the same rows.

Owns what counts as the same, and the digest of many rows whatever their order. Must not know where rows come from.

The beat of a lease and the time it is shown to end at are left out: holders go on renewing while a store is frozen, and
where a lease moved to gets its full time anew in any case.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw, Struct

from ..backends.port import Row
from ..store.leasing import is_leased

Fingerprint = bytes
FINGERPRINT_BYTES = 16
_WRAP = 1 << (8 * FINGERPRINT_BYTES)

_pack = msgspec.msgpack.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, Raw])
_values = msgspec.json.Decoder(dict[str, Raw])
_text = msgspec.json.Encoder().encode


def fingerprint(row: Row) -> Fingerprint:
    """The same for rows that are the same, from whichever engine."""
    body = _without_beat(row.body) if is_leased(row) else row.body
    parts = (row.kind, row.id, row.uid, row.revision, row.keys, body, row.marks, row.deleted, row.token)
    return hashlib.blake2b(_pack(parts), digest_size=FINGERPRINT_BYTES).digest()


def _without_beat(body: bytes) -> bytes:
    fields = _fields.decode(body)
    fields.pop("expiresAt", None)
    lease = fields.get("lease")
    if lease is not None:
        inner = _values.decode(bytes(lease))
        inner.pop("beat", None)
        fields["lease"] = Raw(_text(inner))
    return _text(fields)


class Tally(Struct, frozen=True):
    """How many rows there are of a kind, and a digest over them that no order changes."""

    rows: int = 0
    digest: str = "0" * (2 * FINGERPRINT_BYTES)


class Counting:
    """Adds up rows, kind by kind."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._sums: dict[str, int] = {}

    def add(self, kind: str, prints: Iterable[Fingerprint]) -> None:
        for each in prints:
            self._rows[kind] = self._rows.get(kind, 0) + 1
            self._sums[kind] = (self._sums.get(kind, 0) + int.from_bytes(each, "big")) % _WRAP

    def tallies(self) -> dict[str, Tally]:
        return {kind: _tally(self._rows[kind], self._sums[kind]) for kind in sorted(self._rows)}


def whole(tallies: Mapping[str, Tally]) -> Tally:
    """All kinds together."""
    rows = sum(tally.rows for tally in tallies.values())
    return _tally(rows, sum(int(tally.digest, 16) for tally in tallies.values()) % _WRAP)


def _tally(rows: int, total: int) -> Tally:
    return Tally(rows, total.to_bytes(FINGERPRINT_BYTES, "big").hex())
