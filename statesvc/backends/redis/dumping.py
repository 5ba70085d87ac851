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
from .scanning import WHO_ANSWERS, Scan, process_in
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
    """The stored rows of a kind, each once. A scan may name one twice, as its hash grows or as it begins again: ids are
    remembered."""
    scan, seen, steps = Scan(), set[str](), Steps(FIRST_ROWS, MOST_ROWS)
    while not scan.is_over:
        meta, some = await _step(namespace, kind, scan, steps.count)
        steps.note(map(len, some.values()))
        if meta.epoch != epoch:
            raise Gone("the store was replaced while it was being read; begin again")
        fresh = {id: stored for id, stored in some.items() if id not in seen}
        seen.update(fresh)
        if fresh:
            yield fresh


async def _step(namespace: Namespace, kind: str, scan: Scan, count: int) -> tuple[Meta, dict[str, bytes]]:
    meta, [[following, flat], told] = await namespace.read(
        lambda names: [("HSCAN", names.rows(kind), scan.cursor, "COUNT", count), WHO_ANSWERS],
    )
    scan.stepped(process_in(told), following)
    return meta, {id.decode(): stored for id, stored in zip(flat[::2], flat[1::2], strict=True)}
