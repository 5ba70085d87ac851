"""Queries: from a client's filter to walks along indexes, and pages out of them.

Owns filters, sort orders, cursors and which index drives a list. Must not know how an engine walks an index.

One index drives a list. What the index cannot decide is tested on each record it yields; a call examines a bounded
number of records and may return a short page with a cursor to go on from.
"""

from __future__ import annotations

import base64
import binascii
import operator
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from statesvc_client import patch
from statesvc_client.errors import BadRequest
from statesvc_client.spelling import SECRET
from statesvc_client.wire import Fields, List, printable

from ..backends.port import LINK, NULLABLE_SORTS, Engine, Place, Query, Row, SortField, sort_key
from . import clock
from .kinds import Kind
from .records import decode, spelled_path

SORTS: dict[str, SortField] = {
    "createdAt": "created",
    "updatedAt": "updated",
    "startedAt": "started",
    "completedAt": "completed",
    "scheduledAt": "scheduled",
    "priority": "priority",
    "status": "status",
    "id": "id",
    "uuid": "id",
    "jobId": "id",
}
_SORTS_BY_LOWER_CASE = {name.lower(): sort for name, sort in SORTS.items()}

NO_STATUS = ""
"""Stands for a record without a status where statuses are named."""

MOST_PATTERN_CHARS = 1000
MOST_PATTERN_STEPS = 1000
"""Bounds of a regex: its text, and RE2's program for it. One match costs at most steps times characters of the id."""

PATTERN_BYTES = 512 * 1024
"""What RE2 may take for one: many times what a program of so many steps needs, and little enough that it gives up on a
larger one within milliseconds."""

MOST_TERMS = 64
"""Labels, paths and statuses a filter may name, each: every one is looked at for every record examined."""

Test = Callable[[Row, Callable[[], Fields]], bool]
"""Decides on a row; the second argument decodes its record, for tests that need more than the index keys."""


class Filter(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The filter of a list, as clients write it. `limit`, `sortBy` and `sortDesc` may stand here too."""

    status: str | None = None
    statuses: list[str] | None = None
    node_id: str | None = None
    owner: str | None = None
    ids: list[str] | None = None
    prefix: str | None = None
    regex: str | None = None
    labels: dict[str, Any] | None = None
    created_after: str | None = None
    created_before: str | None = None
    updated_after: str | None = None
    updated_before: str | None = None
    started_after: str | None = None
    started_before: str | None = None
    completed_after: str | None = None
    completed_before: str | None = None
    where: dict[str, Any] | None = None
    limit: int | None = None
    sort_by: str | None = None
    sort_desc: bool | None = None


_KNOWN = {name.lower(): name for name in Filter.__struct_encode_fields__}


def read_filter(given: Fields | None) -> Filter:
    """The filter a client means. A key that is not known is refused: ignoring it would return too much."""
    named: Fields = {}
    for name, value in (given or {}).items():
        known = _KNOWN.get(name.lower())
        if known is None:
            raise BadRequest(f"unknown filter {printable(name)}; known: {' '.join(Filter.__struct_encode_fields__)}")
        if named.setdefault(known, value) != value:
            raise BadRequest(f"filter: {known} is given twice, in two spellings")
    try:
        wanted = msgspec.convert(named, Filter)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"filter: {problem}") from None
    for name in ("statuses", "labels", "where"):
        if len(getattr(wanted, name) or ()) > MOST_TERMS:
            raise BadRequest(f"filter: {name} names more than {MOST_TERMS}, which is the limit")
    return wanted


class Order(NamedTuple):
    """How a list is sorted; `descending` turns the whole order around, ids included."""

    sort: SortField
    descending: bool


def read_order(request: List, given: Filter) -> Order:
    """Newest first unless something else is asked for."""
    by = request.sort_by or given.sort_by
    descending = request.sort_desc if request.sort_desc is not None else given.sort_desc
    if not by:
        return Order("created", True if descending is None else descending)
    sort = _SORTS_BY_LOWER_CASE.get(by.lower())
    if sort is None:
        raise BadRequest(f"cannot sort by {printable(by)}; known: {' '.join(SORTS)}")
    return Order(sort, bool(descending))


# --- cursors -------------------------------------------------------------------------------------------------------


class _Cursor(Struct, array_like=True):
    version: int
    kind: str
    sort: str
    descending: bool
    key: int | float | str | None
    id: str


def write_cursor(kind: Kind, order: Order, place: Place) -> str:
    raw = msgspec.json.encode(_Cursor(1, kind.name, order.sort, order.descending, place.key, place.id))
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def read_cursor(text: str, kind: Kind, order: Order) -> Place:
    try:
        raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
        cursor = msgspec.json.decode(raw, type=_Cursor)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise BadRequest("cursor is not one of ours: pass nextCursor on as it came") from None
    if (cursor.version, cursor.kind, cursor.sort, cursor.descending) != (1, kind.name, *order):
        raise BadRequest("cursor belongs to another list: keep kind and sort order while paging")
    if not _may_be_key(cursor.key, order.sort):
        raise BadRequest("cursor is not one of ours: pass nextCursor on as it came")
    return Place(cursor.key, cursor.id)


def _may_be_key(key: Any, sort: SortField) -> bool:
    if key is None:
        return sort in NULLABLE_SORTS
    if isinstance(key, str):
        return sort in ("id", "status")
    if sort in ("id", "status"):
        return False
    return sort == "priority" if isinstance(key, float) else bool(clock.clamp(key) == key)


# --- tests on single records ---------------------------------------------------------------------------------------


def tests(given: Filter, kind: Kind, statuses: frozenset[str] | None) -> list[Test]:
    """Everything a record must satisfy, cheapest first."""
    found: list[Test] = []
    if statuses is not None:
        found.append(lambda row, _: (row.keys.status or NO_STATUS) in statuses)
    if given.node_id:
        found.append(lambda row, _: row.keys.node == given.node_id)
    if given.owner:
        found.append(lambda row, _: row.keys.owner == given.owner)
    if given.prefix:
        prefix = given.prefix
        found.append(lambda row, _: row.id.startswith(prefix))
    found.extend(_time_tests(given))
    if given.regex:
        found.append(_regex_test(given.regex))
    for name, value in (given.labels or {}).items():
        found.append(_label_test(name, value))
    for path, value in (given.where or {}).items():
        found.append(_where_test(kind, path, value))
    return found


def wanted_statuses(given: Filter, kind: Kind) -> frozenset[str] | None:
    """The states asked for; where `status` and `statuses` are both given, a record must satisfy both."""
    named = [given.statuses] if given.statuses is not None else []
    named += [[given.status]] if given.status else []
    if not named:
        return None
    return frozenset.intersection(*(frozenset(_canonical(kind, name) for name in names) for names in named))


def _canonical(kind: Kind, status: str) -> str:
    return status if kind.lifecycle is None else kind.lifecycle.canonical(status)


def _time_tests(given: Filter) -> Iterable[Test]:
    for field in ("created", "updated", "started", "completed"):
        for bound, later in ((f"{field}_after", True), (f"{field}_before", False)):
            text = getattr(given, bound)
            if text:
                yield _time_test(field, clock.parse(text, _camel(bound)), later=later)


def _camel(name: str) -> str:
    head, _, tail = name.partition("_")
    return head + tail.capitalize()


def _time_test(field: str, bound: int, *, later: bool) -> Test:
    def test(row: Row, _: Callable[[], Fields]) -> bool:
        at = getattr(row.keys, field)
        return at is not None and (at > bound if later else at < bound)

    return test


def _regex_test(pattern: str) -> Test:
    """RE2: time linear in the text whatever the pattern, and patterns small enough that the factor stays small."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES
    if len(pattern) > MOST_PATTERN_CHARS:
        raise BadRequest(f"regex is {len(pattern)} characters long; the limit is {MOST_PATTERN_CHARS}")
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as problem:
        why = problem.args[0].decode() if isinstance(problem.args[0], bytes) else problem
        raise BadRequest(f"regex is not RE2 syntax: {printable(pattern)} ({why})") from None
    if max(compiled.programsize, compiled.reverseprogramsize) > MOST_PATTERN_STEPS:
        raise BadRequest(f"regex is too large once its repeats are written out: {printable(pattern)}")
    return lambda row, _: compiled.search(row.id) is not None


def _label_test(name: str, value: Any) -> Test:
    if isinstance(value, str) and name != LINK:
        return lambda row, _: (name, value) in row.keys.labels
    return lambda _, record: patch.same(patch.lookup(record().get("labels"), [name]), value)


def open_path(kind: Kind, path: str) -> list[str]:
    """The names of a path that may be asked about. A secret that could be counted by, or compared with, is none."""
    names = spelled_path(kind, patch.steps(path))
    if names[0] == SECRET:
        raise BadRequest(f"{SECRET} can be read with its record, but neither filtered nor counted by")
    return names


def _where_test(kind: Kind, path: str, value: Any) -> Test:
    names = open_path(kind, path)
    if names == ["status"] and isinstance(value, str) and kind.lifecycle is not None:
        value = kind.lifecycle.canonical(value)
    return lambda _, record: patch.same(patch.lookup(record(), names), value)


def passes(row: Row, all_tests: list[Test]) -> bool:
    record: list[Fields] = []

    def decoded() -> Fields:
        if not record:
            record.append(decode(row.body))
        return record[0]

    return all(test(row, decoded) for test in all_tests)


# --- from a filter to walks ----------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """The walk whose rows are all candidates, and the tests they must pass."""

    kind: Kind
    order: Order
    walk: Query
    tests: list[Test]
    exact: bool
    """The walk yields nothing that would fail a test."""


FIRST_STEP = 16
MOST_STEP = 256
STEP_BYTES = 4 * 1024 * 1024
"""Rows fetched from an engine at a time: few at first, then as many as are likely to stay within the bytes."""


def plan(given: Filter, kind: Kind, order: Order, among: frozenset[str] | None = None) -> Plan:
    """How to find what a filter asks for, `among` records of certain states if so told."""
    low, high = _bounds(given, order)
    statuses = wanted_statuses(given, kind)
    if among is not None:
        statuses = among if statuses is None else statuses & among
    term = _term(given, kind, statuses) if order.sort == "created" else None
    walk = Query(
        kind=kind.name, sort=order.sort, descending=order.descending, limit=FIRST_STEP, low=low, high=high, term=term
    )
    return Plan(kind, order, walk, tests(given, kind, statuses), _is_exact(given, walk))


_DECIDED_BY = {"status": {"status", "statuses"}, "node": {"node_id"}, "owner": {"owner"}}
"""The filters a walk along a term's index settles."""

_NO_FILTERS = {"limit", "sort_by", "sort_desc"}


def _is_exact(given: Filter, walk: Query) -> bool:
    asked = {name for name in Filter.__struct_fields__ if getattr(given, name)} - _NO_FILTERS
    if given.statuses is not None:
        asked.add("statuses")  # an empty list lets nothing pass
    if walk.term and walk.term[0] == f"label:{LINK}":
        return asked == {"where"} and len(given.where or ()) == 1
    if walk.term and walk.term[0].startswith("label:"):
        return asked == {"labels"} and len(given.labels or ()) == 1
    return asked <= (_DECIDED_BY.get(walk.term[0], set()) if walk.term else set())


def _term(given: Filter, kind: Kind, statuses: frozenset[str] | None) -> tuple[str, ...] | None:
    """The narrowest index there is, by experience: a label, a field of the kind's own, an owner, live states, a node,
    final states."""
    for name, value in (given.labels or {}).items():
        # What has no name is no label of a user's.
        if isinstance(value, str) and name != LINK:
            return (f"label:{name}", value)
    for path, value in (given.where or {}).items():
        names = spelled_path(kind, patch.steps(path))
        if len(names) == 1 and names[0] in kind.indexed and isinstance(value, str):
            return (f"label:{LINK}", f"{names[0]}={value}")
    if given.owner:
        return ("owner", given.owner)
    final = kind.lifecycle.terminal if kind.lifecycle else frozenset()
    if statuses is not None and not (given.node_id and statuses & final):
        return ("status", *sorted(statuses))
    return ("node", given.node_id) if given.node_id else None


def _bounds(given: Filter, order: Order) -> tuple[int | str | None, int | str | None]:
    """The part of the sort order that can match at all."""
    if order.sort == "id":
        return (given.prefix, _after_prefix(given.prefix)) if given.prefix else (None, None)
    after, before = (getattr(given, f"{order.sort}_{side}", None) for side in ("after", "before"))
    low = clock.clamp(clock.parse(after, f"{order.sort}After") + 1) if after else None
    high = clock.parse(before, f"{order.sort}Before") if before else None
    return low, high


def _after_prefix(prefix: str) -> str | None:
    """The first text behind all that begin with `prefix`, if there is one."""
    kept = prefix.rstrip(chr(0x10FFFF))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    # Surrogates are no characters: the one behind U+D7FF is U+E000.
    return kept[:-1] + chr(0xE000 if 0xD800 <= following <= 0xDFFF else following)


def place_of(row: Row, order: Order) -> Place:
    return Place(sort_key(row, order.sort), row.id)


def behind(places: Sequence[Place], order: Order, after: Place | None) -> list[Place]:
    """Places in the order asked for, those up to `after` left out; those that lack the sort key come last."""
    having = sorted((place for place in places if place.key is not None), reverse=order.descending)
    lacking = sorted((place for place in places if place.key is None), key=_id, reverse=order.descending)
    if after is None:
        return having + lacking
    beyond = operator.lt if order.descending else operator.gt
    if after.key is None:
        return [place for place in lacking if beyond(place.id, after.id)]
    return [place for place in having if beyond(place, after)] + lacking


def _id(place: Place) -> str:
    return place.id


def candidates(engine: Engine, planned: Plan, after: Place | None) -> AsyncGenerator[Row, None]:
    """All rows of the plan's walk behind `after`, in order; records that lack the sort key come last."""
    return _one_by_one(steps(engine, planned, after))


async def _one_by_one(fetched: AsyncGenerator[list[Row], None]) -> AsyncGenerator[Row, None]:
    async with aclosing(fetched):
        async for rows in fetched:
            for row in rows:
                yield row


async def steps(
    engine: Engine, planned: Plan, after: Place | None, wanted: int | None = None
) -> AsyncGenerator[list[Row], None]:
    """The same, as they are fetched. `wanted` is how many the caller is likely to take."""
    order, walk = planned.order, planned.walk
    if after is None or after.key is not None:
        async for rows in walk_steps(engine, walk, after, wanted):
            yield rows
        after = None
    if order.sort in NULLABLE_SORTS and walk.low is None and walk.high is None:
        lacking = msgspec.structs.replace(walk, missing=True)
        async for rows in walk_steps(engine, lacking, after, wanted):
            yield rows


def walked(engine: Engine, walk: Query, after: Place | None = None) -> AsyncGenerator[Row, None]:
    """All rows of one walk."""
    return _one_by_one(walk_steps(engine, walk, after))


async def walk_steps(
    engine: Engine, walk: Query, after: Place | None = None, wanted: int | None = None
) -> AsyncGenerator[list[Row], None]:
    """The same, as they are fetched."""
    order = Order("id" if walk.missing else walk.sort, walk.descending)
    most = MOST_STEP if wanted is None else min(MOST_STEP, wanted + 1)
    step = min(FIRST_STEP, most)
    while True:
        rows = await engine.query(msgspec.structs.replace(walk, after=after, limit=step))
        yield rows
        if len(rows) < step:
            return
        after = place_of(rows[-1], order)
        step = _next_step(rows, most)


def _next_step(rows: list[Row], most: int) -> int:
    average = sum(len(row.body) + len(row.marks) for row in rows) // len(rows) + 1
    return max(1, min(most, STEP_BYTES // average))
