"""The registry: what all daemons on one pair of tables agree on.

Owns its items: the epoch and the format, the lanes with their holders, the kinds there are. Must not know slots.

All of it lies in one partition, so that one query tells a daemon what has happened everywhere. A lane has one holder
at a time, and only the holder writes into it. It says so by `beat`; a lane whose beat stands still for long, by the
clock of whoever looks, is taken from its holder by that daemon. `end` is how far a lane is settled: every number up to
it is either a slot or void for good. `start` is how far it was cut: what is at or below it is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from statesvc_client.errors import Unavailable

from .. import epoch_names
from .calls import ConditionFailed, Lost
from .fetching import Fetcher
from .items import number, text
from .layout import META, PK, REGISTRY, SK, Item, kind_key, meta_key, registry_key

FORMAT = 1
"""Of what this version stores. A store says which formats may write to it; see `Meta.oldest`."""

HOLDER, BEAT, END, START, BYTES, CUT = "holder", "beat", "end", "start", "bytes", "cut"
EPOCH, FORMAT_NAME, OLDEST, LOADING, WALKED = "epoch", "format", "oldest", "loading", "walked"
LOADER, STEPS = "loader", "steps"


class Overtaken(Unavailable):
    """Another daemon came first: it replaces everything, or goes on with the load that was ours."""


class Meta(NamedTuple):
    epoch: str
    format: int
    """The newest format anything was stored in."""
    oldest: int
    """The oldest format that may still be written. A daemon that knows no newer one refuses."""
    loading: str
    """The epoch that is to follow, while a snapshot takes the place of everything."""
    walked: bool
    """Every job is in our indexes: the table was made by us, or Joblet's items have been put into them."""
    loader: str = ""
    """Who is at that load."""
    steps: int = 0
    """Grows while somebody is."""


class LaneState(NamedTuple):
    """A lane as the registry has it."""

    number: int
    holder: str
    """"" for a lane that is free."""
    beat: int
    end: int
    start: int
    bytes: int
    """Written into it in all."""
    cut: int
    """Bytes cut off in all."""


class Seen(NamedTuple):
    """What one look at the registry showed."""

    meta: Meta | None
    lanes: dict[int, LaneState]
    kinds: frozenset[str]


class Registry:
    """The partition all daemons share."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._table = fetcher.tables.companion

    async def look(self, *, consistent: bool = True) -> Seen:
        request: dict[str, Any] = {
            "TableName": self._table,
            "KeyConditionExpression": f"{PK} = :registry",
            "ExpressionAttributeValues": {":registry": {"S": REGISTRY}},
            "ConsistentRead": consistent,
        }
        return _read(await self._fetcher.query_all(request))

    async def ping(self) -> None:
        """Raises unless a read works now."""
        await self._stored_meta()

    async def is_at(self, epoch: str) -> bool:
        """Whether what is stored is of that epoch, and nothing is to take its place."""
        meta = _meta_of(await self._stored_meta())
        return meta.epoch == epoch and not meta.loading

    async def _stored_meta(self) -> Item:
        request = {"TableName": self._table, "Key": meta_key(), "ConsistentRead": True}
        reply = await self._fetcher.read("GetItem", request)
        return dict(reply.get("Item", {}))

    async def found(self, *, walked: bool) -> Seen:
        """What is there; a registry that is not there yet is begun."""
        seen = await self.look()
        if seen.meta is not None:
            return seen
        fresh = Meta(epoch_names.first(), FORMAT, FORMAT, "", walked)
        await self._fetcher.put_if_absent(_meta_item(fresh))
        return await self.look()

    async def all_walked(self) -> None:
        """Every job is in the indexes."""
        meta = (await self.found(walked=True)).meta
        if meta is not None and not meta.walked:
            await self.begin_anew(meta._replace(walked=True), meta)

    async def begin_anew(self, meta: Meta, before: Meta, *, seconds: float | None = None) -> None:
        """Put another meta item in the place of the one that was seen. May be done again when no reply came."""
        expected = {EPOCH: {"S": before.epoch}}
        if before.loading:
            expected |= {LOADER: {"S": before.loader}, STEPS: {"N": str(before.steps)}}
        conditions = [f"#{name} = :{name}" for name in expected]
        request = {
            "TableName": self._table,
            "Item": _meta_item(meta),
            "ConditionExpression": " AND ".join(
                conditions if before.loading else [*conditions, f"attribute_not_exists({LOADING})"]
            ),
            "ExpressionAttributeNames": {f"#{name}": name for name in expected},
            "ExpressionAttributeValues": {f":{name}": value for name, value in expected.items()},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        try:
            await self._fetcher.call("PutItem", request, seconds=seconds)
        except ConditionFailed as failed:
            if failed.item is None or _meta_of(failed.item) != meta:
                raise Overtaken("another daemon replaced everything at the same time: try again") from None
        except Lost:
            raise Unavailable("DynamoDB did not answer in time", outcome="unknown") from None

    async def name_kind(self, kind: str) -> None:
        """There are records of this kind from now on."""
        try:
            await self._fetcher.put_if_absent(kind_key(kind))
        except Lost:
            raise Unavailable(f"DynamoDB did not answer in time when kind {kind} was named") from None

    # --- lanes -------------------------------------------------------------------------------------------------------

    async def take_lane(self, epoch: str, holder: str, lanes: Sequence[LaneState]) -> LaneState:
        """A lane nobody holds: a free one, or a new one."""
        for lane in sorted(lanes):
            if not lane.holder and (taken := await self._take(epoch, holder, lane)) is not None:
                return taken
        return await self._make(epoch, holder, 1 + max((lane.number for lane in lanes), default=0))

    async def _take(self, epoch: str, holder: str, lane: LaneState) -> LaneState | None:
        changed = await self.change(
            epoch, lane.number, {HOLDER: {"S": holder}, BEAT: {"N": "1"}}, only_if=f"attribute_not_exists(#{HOLDER})"
        )
        return changed if changed is not None and changed.holder == holder else None

    async def _make(self, epoch: str, holder: str, first: int) -> LaneState:
        for lane in range(first, first + 1000):
            item = {**registry_key(epoch, lane), HOLDER: {"S": holder}, BEAT: {"N": "1"}}
            try:
                there = await self._fetcher.put_if_absent(item)
            except Lost:
                raise Unavailable("DynamoDB did not answer in time when a lane of the log was taken") from None
            if there is None or text(there, HOLDER) == holder:
                return LaneState(lane, holder, 1, 0, 0, 0, 0)
        raise Unavailable("no lane of the log is free: a thousand daemons take one at the same time")

    async def change(
        self,
        epoch: str,
        lane: int,
        values: Item,
        *,
        remove: Sequence[str] = (),
        only_if: str = "",
        given: Item | None = None,
    ) -> LaneState | None:
        """Set fields of a lane. Returns the lane as it is then, None when the condition did not hold."""
        sets = ", ".join(f"#{name} = :{name}" for name in values)
        removes = ", ".join(f"#{name}" for name in remove)
        request: dict[str, Any] = {
            "TableName": self._table,
            "Key": registry_key(epoch, lane),
            "UpdateExpression": f"SET {sets}" + (f" REMOVE {removes}" if remove else ""),
            "ExpressionAttributeNames": {f"#{name}": name for name in [*values, *remove]},
            "ExpressionAttributeValues": {f":{name}": value for name, value in values.items()} | (given or {}),
            "ConditionExpression": f"attribute_exists({PK})" + (f" AND {only_if}" if only_if else ""),
            "ReturnValues": "ALL_NEW",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        try:
            reply = await self._fetcher.call("UpdateItem", request)
        except ConditionFailed as failed:
            # Our own call, repeated after its reply was lost, finds what it did itself.
            if failed.item and all(failed.item.get(name) == value for name, value in values.items()):
                return _lane_of(failed.item)
            return None
        except Lost:
            raise Unavailable("DynamoDB did not answer in time", outcome="unknown") from None
        return _lane_of(reply["Attributes"])


def _read(items: Sequence[Item]) -> Seen:
    meta: Meta | None = None
    lanes: list[tuple[str, LaneState]] = []
    kinds: set[str] = set()
    for item in items:
        what, _, rest = text(item, SK).partition("#")
        if what == META:
            meta = _meta_of(item)
        elif what == "lane":
            lanes.append((rest.partition("#")[0], _lane_of(item)))
        elif what == "kind":
            kinds.add(rest)
    epoch = "" if meta is None else meta.epoch
    return Seen(meta, {lane.number: lane for of, lane in lanes if of == epoch}, frozenset(kinds))


def _meta_item(meta: Meta) -> Item:
    item = {
        **meta_key(),
        EPOCH: {"S": meta.epoch},
        FORMAT_NAME: {"N": str(meta.format)},
        OLDEST: {"N": str(meta.oldest)},
        WALKED: {"BOOL": meta.walked},
    }
    if not meta.loading:
        return item
    return item | {LOADING: {"S": meta.loading}, LOADER: {"S": meta.loader}, STEPS: {"N": str(meta.steps)}}


def _meta_of(item: Item) -> Meta:
    walked = bool(item.get(WALKED, {}).get("BOOL", False))
    return Meta(
        text(item, EPOCH), number(item, FORMAT_NAME), number(item, OLDEST), text(item, LOADING), walked,
        text(item, LOADER), number(item, STEPS),
    )  # fmt: skip


def _lane_of(item: Item) -> LaneState:
    return LaneState(
        int(text(item, SK).rpartition("#")[2]), text(item, HOLDER), number(item, BEAT),
        number(item, END), number(item, START), number(item, BYTES), number(item, CUT),
    )  # fmt: skip
