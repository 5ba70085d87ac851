"""Everything stored, kind by kind, while others go on writing.

Owns the scan of the rows. Must not know what becomes of them. Each row is at least as new as the cursor that was read
first, so the log behind that cursor leads from the rows to the present.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from statesvc_client.errors import Gone

from ..port import Dump, Row
from . import rows
from .meta import Meta
from .namespace import Namespace
from .steps import Steps

FIRST_ROWS = 32
MOST_ROWS = 512
"""Rows asked for at a time: at first, until it is known how large they are, and at most."""


async def dump(namespace: Namespace) -> Dump:
    meta, [counts] = await namespace.read(lambda names: [("HGETALL", names.kinds)])
    total = sum(int(count) for count in counts[1::2])
    return Dump(str(meta.seq), total, _every_row(namespace, meta.epoch))


async def _every_row(namespace: Namespace, epoch: str) -> AsyncIterator[list[Row]]:
    _, [kinds] = await namespace.read(lambda names: [("HKEYS", names.kinds)])
    for kind in sorted(kinds):
        async for some in _scan(namespace, kind.decode(), epoch):
            yield [rows.unpack(kind.decode(), id, stored) for id, stored in some.items()]


async def _scan(namespace: Namespace, kind: str, epoch: str) -> AsyncIterator[dict[str, bytes]]:
    """The stored rows of a kind, each once. A scan may name one twice while its hash grows: ids are remembered."""
    cursor, seen, steps = b"0", set[str](), Steps(FIRST_ROWS, MOST_ROWS)
    while True:
        meta, cursor, some = await _step(namespace, kind, cursor, steps.count)
        steps.note(map(len, some.values()))
        if meta.epoch != epoch:
            raise Gone("the store was replaced while it was being read; begin again")
        fresh = {id: stored for id, stored in some.items() if id not in seen}
        seen.update(fresh)
        if fresh:
            yield fresh
        if cursor == b"0":
            return


async def _step(namespace: Namespace, kind: str, cursor: bytes, count: int) -> tuple[Meta, bytes, dict[str, bytes]]:
    meta, [[following, flat]] = await namespace.read(
        lambda names: [("HSCAN", names.rows(kind), cursor, "COUNT", count)],
    )
    return meta, following, {id.decode(): stored for id, stored in zip(flat[::2], flat[1::2], strict=True)}
