"""Queries: from walks along indexes to rows.

Owns how a walk is asked for, call by call. Must not know which indexes there are.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..port import Place, Query, Row
from . import rows
from .namespace import Namespace
from .steps import REPLY_BYTES
from .walks import Walk
from .walks import walk as plan


async def query(namespace: Namespace, asked: Query) -> list[Row]:
    walk = plan(asked)
    if walk is None:
        return await _filtered(namespace, asked)
    return await _walked(namespace, asked, walk) if walk.names else []


async def _walked(namespace: Namespace, asked: Query, walk: Walk) -> list[Row]:
    """A walk over more than a reply may hold goes on with another call."""
    found: list[Row] = []
    low, high = walk.low, walk.high
    while True:
        resume, *stored = await namespace.run(
            "query", asked.kind, int(asked.descending), asked.limit - len(found), low, high, walk.before_id,
            REPLY_BYTES, *walk.names,
        )  # fmt: skip
        pairs = zip(stored[::2], stored[1::2], strict=True)
        found += [rows.unpack(asked.kind, id.decode(), value) for id, value in pairs]
        if not resume or len(found) >= asked.limit:
            return found
        low, high = (low, b"(" + resume) if asked.descending else (b"(" + resume, high)


async def _filtered(namespace: Namespace, asked: Query) -> list[Row]:
    """Rows without a node or owner are looked for among all: there is no index of them."""
    field, *values = asked.term or ("",)
    found: list[Row] = []
    step = replace(asked, term=None)
    while True:
        page = await query(namespace, step)
        found += [row for row in page if (getattr(row.keys, field) or "") in values]
        if len(found) >= asked.limit or len(page) < step.limit:
            return found[: asked.limit]
        step = replace(step, after=Place(page[-1].keys.created, page[-1].id))


async def count(namespace: Namespace, asked: Query) -> int | None:
    """How many rows the walk yields; None when the indexes cannot tell without looking at the rows."""
    walk = plan(asked)
    if walk is None or not walk.disjoint:
        return None
    [total] = await namespace.run("count", asked.kind, walk.low, walk.high, *walk.names)
    return int(total)
