"""Whether rows, indexes, counts and log agree, and making again what can be made from rows and log.

Owns what is compared and the words for what differs. Must not know how any of it came about. Everything is looked at in
small steps, each at one moment, while others go on writing: what differs only because of them is looked at once more.

    rows        can be read, stand where their keys say, and are in every index they stand in
    indexes     hold as many rows as stand in them; if not, they are walked for members that have no such row
    counts      how many rows of a kind there are, how long the log is, how large
    histories   begin and end with entries of their record; the log's entries are in the history of their record
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from hashlib import sha1
from typing import Any

from statesvc_client.errors import Gone

from ..port import DataCorrupt, Key, LogEntry
from . import indexes, rows, standing
from .namespace import Namespace
from .scanning import Scan
from .scripting import Argument
from .steps import Steps
from .writing import change_store

FIRST_ROWS = 32
MOST_ROWS = 128
"""Rows looked at in one step: at first, until it is known how large they are, and at most."""
STEP_MEMBERS = 500
STEP_ENTRIES = 200

MOST_WORDS = 100
"""Problems named one by one; of the rest only their number is told."""


async def check(namespace: Namespace) -> list[str]:
    return await Survey(namespace, mend=False).run()


async def repair(namespace: Namespace) -> list[str]:
    return await Survey(namespace, mend=True).run()


class Survey:
    """One look at everything. With `mend` it puts right what it finds, and its words say what was done."""

    def __init__(self, namespace: Namespace, *, mend: bool) -> None:
        self._namespace = namespace
        self._mend = mend
        self._epoch = namespace.known.epoch
        self._words: list[str] = []
        self._more = 0
        self._untraced: set[Key] = set()

    async def run(self) -> list[str]:
        _, [names] = await self._namespace.read(lambda names: [("HKEYS", names.kinds)])
        kinds = sorted(name.decode() for name in names)
        for kind in kinds:
            await self._look_at_indexes(kind, await self._look_at_rows(kind))
        await self._look_at_counts(kinds)
        await self._look_at_log()
        if self._mend and self._untraced:
            await self._retrace()
        return [*self._words, *([f"and {self._more} more"] if self._more else [])]

    def _tell(self, problem: str, done: str = "") -> None:
        text = done if self._mend and done else problem
        if len(self._words) < MOST_WORDS:
            self._words.append(text)
        else:
            self._more += 1

    async def _run(self, name: str, *arguments: Argument) -> list[Any]:
        reply = await self._namespace.run(name, *arguments)
        if self._namespace.known.epoch != self._epoch:
            raise Gone("the store was replaced while it was being checked; begin again")
        return reply

    # --- rows ------------------------------------------------------------------------------------------------------

    async def _look_at_rows(self, kind: str) -> Counter[bytes]:
        """How many rows stand in each index of the kind. A row that a scan names twice counts once."""
        there: Counter[bytes] = Counter()
        scan, seen, steps = Scan(), set[bytes](), Steps(FIRST_ROWS, MOST_ROWS)
        while not scan.is_over:
            process, cursor, *found = await self._run("inspect", kind, scan.cursor, steps.count)
            scan.stepped(process.decode(), cursor)
            steps.note(map(len, found[1::4]))
            wrong: list[Argument] = []
            for raw, stored, missing, history in _in_fours(found):
                if raw not in seen:
                    seen.add(raw)
                    wrong += self._looked_at(kind, raw.decode(), stored, missing, history, there)
            if wrong and self._mend:
                await change_store(self._namespace, "mend", kind, *wrong)
        return there

    def _looked_at(
        self, kind: str, id: str, stored: bytes, missing: bytes, history: bytes, there: Counter[bytes]
    ) -> Sequence[Argument]:
        """Count one row's places; what is to be mended of it, if anything."""
        try:
            right = rows.pack(rows.unpack(kind, id, stored))
            there.update(standing.read_places(rows.stored_places(right)).keys())
        except DataCorrupt as problem:
            self._tell(str(problem))
            return ()
        if history:
            self._tell(f"the history of {kind} {id} {history.decode()}", f"made the history of {kind} {id} again")
            self._untraced.add((kind, id))
        if right != stored:
            self._tell(f"{kind} {id} is not stored as its keys say", f"stored {kind} {id} as its keys say")
        elif missing:
            names = ", ".join(indexes.shown(name) for name in standing.read_names(missing))
            self._tell(f"{kind} {id} is missing in the index {names}", f"put {kind} {id} back into the index {names}")
        return (id, sha1(stored).hexdigest(), right) if missing or right != stored else ()  # noqa: S324 - no secret

    # --- indexes ---------------------------------------------------------------------------------------------------

    async def _look_at_indexes(self, kind: str, there: Counter[bytes]) -> None:
        names = sorted({*there, *indexes.ALWAYS})
        for begin in range(0, len(names), STEP_MEMBERS):
            some = names[begin : begin + STEP_MEMBERS]
            sizes = await self._sizes(kind, some)
            for name, size in zip(some, sizes, strict=True):
                if size != there[name]:
                    await self._walk_for_strays(kind, name)

    async def _sizes(self, kind: str, some: Sequence[bytes]) -> list[int]:
        _, sizes = await self._namespace.read(
            lambda names: [("ZCARD", names.index_of(kind, name)) for name in some],
        )
        return sizes

    async def _walk_for_strays(self, kind: str, name: bytes) -> None:
        low, found = b"-", 0
        while True:
            last, *strays = await self._run(
                "strays", kind, name, indexes.before_id(name), low, STEP_MEMBERS, int(self._mend)
            )
            found += len(strays)
            if not last:
                break
            low = b"(" + last
        if found:
            shown = f"the index {indexes.shown(name)} of {kind}"
            self._tell(f"{shown} names {found} records that do not stand there", f"took {found} records out of {shown}")

    # --- counts ----------------------------------------------------------------------------------------------------

    async def _look_at_counts(self, kinds: Sequence[str]) -> None:
        length, newest, start, _, first, last, *counts = await self._run("census", int(self._mend), *kinds)
        for kind, there, counted in zip(kinds, counts[::2], counts[1::2], strict=True):
            if there != counted:
                self._tell(f"{there} rows of {kind} are counted as {counted}", f"counted the rows of {kind} again")
        if length != int(newest) - int(start):
            self._tell(f"the log has {length} entries between {int(start)} and {int(newest)}")
        elif length and (int(first), int(last)) != (int(start) + 1, int(newest)):
            self._tell(f"the log reaches from {int(first)} to {int(last)}, not from {int(start) + 1} to {int(newest)}")

    # --- the log ---------------------------------------------------------------------------------------------------

    async def _look_at_log(self) -> None:
        """Entries follow each other, weigh what was counted, and are in the history of their record."""
        _, newest, start, counted, *_ = await self._run("census", 0)
        expected, weight = int(start) + 1, 0
        async for entries, sizes in self._entries(int(start), int(newest)):
            numbers = [int(entry.cursor) for entry in entries]
            if numbers != list(range(expected, expected + len(numbers))) and not await self._is_cut(expected):
                self._tell(f"the log lacks entries between {expected} and {numbers[-1]}")
            expected, weight = numbers[-1] + 1, weight + sum(sizes)
            await self._trace(entries)
        _, _, start_now, *_ = await self._run("census", 0)
        if start_now == start and weight != int(counted):
            self._tell(f"the log weighs {weight} bytes and is counted as {int(counted)}", "weighed the log again")
            if self._mend:
                await change_store(self._namespace, "weigh", start, weight - int(counted))

    async def _is_cut(self, number: int) -> bool:
        """Whether an entry was cut while the log was being read."""
        return number <= int((await self._run("census", 0))[2])

    async def _entries(self, after: int, newest: int) -> AsyncIterator[tuple[list[LogEntry], list[int]]]:
        """Entries up to `newest` with what each is counted as."""
        steps = Steps(FIRST_ROWS, STEP_ENTRIES)
        while after < newest and (found := await self._page(after, newest, steps.count)):
            steps.note(sum(map(len, fields)) for _, fields in found)
            entries = [rows.read_entry(entry) for entry in found]
            yield entries, [len(fields[7]) + len(fields[9]) for _, fields in found]
            after = int(entries[-1].cursor)

    async def _page(self, after: int, newest: int, count: int) -> Sequence[Any]:
        span = (f"({after}-0", f"{newest}-0", "COUNT", count)
        _, [found] = await self._namespace.read(lambda names: [("XRANGE", names.log, *span)])
        return list(found)

    async def _trace(self, entries: Sequence[LogEntry]) -> None:
        asked = [part for entry in entries for part in (entry.cursor, entry.row.kind, entry.row.id, entry.row.uid)]
        missing = {number.decode() for number in await self._run("untraced", *asked)}
        for kind, id in dict.fromkeys(entry.row.key for entry in entries if entry.cursor in missing):
            if (kind, id) not in self._untraced:
                self._tell(f"the history of {kind} {id} lacks entries", f"made the history of {kind} {id} again")
                self._untraced.add((kind, id))

    async def _retrace(self) -> None:
        """Histories again, from the log as a whole."""
        _, newest, start, *_ = await self._run("census", 0)
        numbers: dict[Key, list[str]] = defaultdict(list)
        async for entries, _ in self._entries(int(start), int(newest)):
            for entry in entries:
                if entry.row.key in self._untraced:
                    numbers[entry.row.key].append(entry.cursor)
        for key in self._untraced:
            await change_store(self._namespace, "retrace", *key, newest, *numbers[key])


def _in_fours(flat: Sequence[Any]) -> zip[tuple[Any, Any, Any, Any]]:
    return zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
