"""Every record that a filter lets pass, one after the other: for counting and looking through, not for pages.

Owns walking them to the end without keeping others from their turn. Must not know what is done with them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from statesvc_client.errors import BadRequest

from ..backends.port import Row
from . import queries
from .kinds import Kind
from .store import Store
from .turns import Turns

OLDEST_FIRST = queries.Order("created", descending=False)


async def matching(
    store: Store, kind: Kind, given: queries.Filter, among: frozenset[str] | None = None
) -> AsyncGenerator[Row, None]:
    """All that pass, oldest first, `among` records of certain states if so told."""
    await store.commits.settled()
    planned = queries.plan(given, kind, OLDEST_FIRST, among)
    turns = Turns()
    async with aclosing(_candidates(store, planned, given)) as rows:
        async for row in rows:
            if queries.passes(row, planned.tests):
                yield row
            await turns.pause()


async def _candidates(store: Store, planned: queries.Plan, given: queries.Filter) -> AsyncGenerator[Row, None]:
    if given.ids is None:
        async with aclosing(queries.candidates(store.engine, planned, None)) as rows:
            async for row in rows:
                yield row
        return
    names = list(dict.fromkeys(given.ids))
    if len(names) > store.limits.list_limit:
        raise BadRequest(f"ids names {len(names)} records; the limit is {store.limits.list_limit}")
    for name in names:
        (found,) = await store.engine.get([(planned.kind.name, name)])
        if found is not None and not found.deleted:
            yield found
