"""Which kinds there are records of.

Owns naming a kind in the registry before its first record is written, and finding out whether one has any left. Must
not know walks. A witness, a record known to be there, spares the search: it is read again, with those of all other
kinds.
"""

from __future__ import annotations

from typing import Any

from .fetching import Fetcher
from .items import text
from .known import Recent
from .layout import BY_DUE, BY_WALK, JOB, PK, record_key
from .registry import Registry, Seen


class KnownKinds:
    """Kinds, by what the registry names and what is there."""

    def __init__(self, fetcher: Fetcher, registry: Registry, recent: Recent) -> None:
        self._fetcher = fetcher
        self._registry = registry
        self._recent = recent
        self._epoch = ""
        self._named: set[str] = set()
        self._witness: dict[str, str] = {}

    def begin(self, epoch: str) -> None:
        """Another epoch: everything was replaced, and what is there now is named anew."""
        self._epoch = epoch
        self._named.clear()
        self._witness.clear()

    def take_in(self, seen: Seen) -> None:
        """A look that lags behind a load shows what was named before it; what one shows meanwhile is about to go."""
        if seen.meta is not None and seen.meta.epoch == self._epoch and not seen.meta.loading:
            self._named |= seen.kinds

    def not_named(self, kinds: set[str]) -> set[str]:
        """Those that have to be named before there may be records of them."""
        return kinds - self._named

    async def name(self, kinds: set[str]) -> None:
        """There will be records of these."""
        epoch = self._epoch
        for kind in sorted(self.not_named(kinds)):
            await self._registry.name_kind(kind)
            # Where everything was replaced meanwhile, the name went with the rest.
            if epoch == self._epoch:
                self._named.add(kind)

    async def living(self) -> list[str]:
        """The kinds there are rows of, tombstones included."""
        await self._look()
        named = sorted(self._named | {JOB})
        suspected = [(kind, self._witness[kind]) for kind in named if kind in self._witness]
        there = {kind for kind, _ in await self._fetcher.records(suspected)}
        for kind in named:
            if kind not in there and await self._found_another(kind):
                there.add(kind)
        return sorted(there)

    async def _look(self) -> None:
        self.take_in(await self._registry.look(consistent=False))

    async def _found_another(self, kind: str) -> bool:
        """Look for a record to be the witness."""
        self._witness.pop(kind, None)
        lately = [row.id for row in self._recent.of_kind(kind) if row.deleted >= 0][-10:]
        for names in (lately, await self._indexed(kind)):
            found = await self._fetcher.records([(kind, name) for name in names]) if names else {}
            if found:
                self._witness[kind] = next(iter(found))[1]
                return True
        return False

    async def _indexed(self, kind: str) -> list[str]:
        tables = self._fetcher.tables
        if kind == JOB and not tables.walked:
            return await self._scanned()
        for index, partition in ((BY_WALK, kind), (BY_DUE, f"{kind}#deleted")):
            request: dict[str, Any] = {
                "TableName": tables.name_of(kind),
                "IndexName": index.name,
                "KeyConditionExpression": "#hash = :hash",
                "ExpressionAttributeNames": {"#hash": index.hash},
                "ExpressionAttributeValues": {":hash": {"S": partition}},
                "Limit": 10,
            }
            items = (await self._fetcher.read("Query", request))["Items"]
            if items:
                return [self._id(item, kind) for item in items]
        return []

    def _id(self, item: dict[str, Any], kind: str) -> str:
        if kind == JOB:
            return text(item, self._fetcher.tables.key)
        key = record_key(text(item, PK))
        return "" if key is None else key[1]

    async def _scanned(self) -> list[str]:
        async for found in self._fetcher.scanned(self._fetcher.tables.jobs):
            if found:
                return [row.id for row, _ in found[:10]]
        return []
