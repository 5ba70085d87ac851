"""F3: opening a store that may be damaged, reading all of it in every way, and saying what became of the damage.

Owns the verdict. Must not know where the damage is, nor how many trials there are.

Two ways lead in. The quick one is what the engine stands on: it opens the files as the engine does and reads through
the engine's own readers, without its threads. The whole one is the engine itself; it also writes on top of what it
found, closes, opens again and reads again.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import apsw

from statesvc import logs
from statesvc.backends.port import NULLABLE_SORTS, DataCorrupt, Event, Key, Query, SortField, Write
from statesvc.backends.sqlite import SqliteEngine
from statesvc.backends.sqlite.files import is_damage
from statesvc.backends.sqlite.opening import Files, open_files
from statesvc.backends.sqlite.paths import Paths
from statesvc.backends.sqlite.reading import LogReader
from statesvc.backends.sqlite.state import StateReader
from statesvc_client.errors import StateError
from tests.engines.rows import row

Outcome = Literal["refused", "reported", "repaired", "torn tail", "no effect", "WRONG"]
"""Refused by name at the start; an error by name when it is read; everything there, with a warning; less by the newest
commit, told with its length; everything there; and what must not be: something else, or an error without a name."""

KEYS: tuple[Key, ...] = (
    ("job", "one"), ("job", "two"), ("job", "gone"), ("job", "later"), ("lock", "held"), ("kv", "k"), ("job", "nobody"),
)  # fmt: skip

MANY = 1000

WALKS = (
    *(Query(kind="job", sort=sort, limit=MANY) for sort in ("created", "updated", "id", "ready", "due", "deleted")),
    *(Query(kind="job", sort="priority", limit=MANY, missing=missing) for missing in (False, True)),
    *(Query(kind="job", term=term, limit=MANY) for term in (("status", "PENDING"), ("node", "n1"), ("owner", "me"))),
    Query(kind="job", term=("label:of", "a", "b"), limit=MANY),
    Query(kind="lock", limit=MANY),
    Query(kind="kv", limit=MANY),
)
"""A walk along every index there is, and one along none."""

NAMED_WALKS = tuple((f"list {walk.kind} {walk.sort} {walk.term} {walk.missing}", walk) for walk in WALKS)


def _more_walks() -> Iterator[Query]:
    yield from WALKS
    for sort in get_args(SortField):
        yield Query(kind="job", sort=sort, limit=MANY, descending=False)
        yield Query(kind="job", sort=sort, limit=2)
        if sort in NULLABLE_SORTS:
            yield Query(kind="job", sort=sort, limit=MANY, missing=True)
    for term in (("status", "QUEUED", "SCHEDULED"), ("status", ""), ("label:of", "a"), ("label:of", "b")):
        yield Query(kind="job", term=term, limit=MANY, descending=False)


MORE_WALKS = tuple(_more_walks())
"""Every order there is, both ways."""

Content = dict[str, Any]
"""What each way of reading gives; an error that has a name stands for itself."""


class Named(NamedTuple):
    """An error that says what is damaged."""

    text: str


class Verdict(NamedTuple):
    outcome: Outcome
    why: str = ""
    failed: frozenset[str] = frozenset()
    """The reads that were answered by an error."""


class Expected(NamedTuple):
    """What a store holds; and what it holds without its newest commit, and how long that is, should it be allowed to
    look torn."""

    whole: Content
    torn: Content | None = None
    torn_bytes: int = 0


# --- what is warned of ---------------------------------------------------------------------------------------------


@contextmanager
def warnings() -> Iterator[list[Any]]:
    """The lines of the log from warnings upward, as they are told."""
    told: list[Any] = []

    def take(line: Any) -> None:
        if line.level not in ("debug", "info"):
            told.append(line)

    before, logs._write = logs._write, take
    try:
        yield told
    finally:
        logs._write = before


# --- the quick way -------------------------------------------------------------------------------------------------


def quickly(folder: Path, expected: Expected, only: frozenset[str] | None = None) -> Verdict:
    """`only`: the names of the reads that have to be made; None for all."""
    with warnings() as told:
        try:
            found = read_files(folder, only)
        except DataCorrupt as corrupt:
            return Verdict("refused", str(corrupt))
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is the finding
            return Verdict("WRONG", f"an error without a name: {problem!r}")
        return judged(found, expected, told)


def read_files(folder: Path, only: frozenset[str] | None = None) -> Content:
    paths = Paths.below(folder)
    files = open_files(paths, "FULL", threading.Event())
    readers = _Readers(paths)
    try:
        return {name: _guarded(read) for name, read in _reads(files, readers) if only is None or name in only}
    finally:
        readers.close()
        files.abandon()


class _Readers:
    """The readers of both files, opened when they are first asked for something."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    @cached_property
    def state(self) -> StateReader:
        return StateReader(self._paths.state)

    @cached_property
    def log(self) -> LogReader:
        return LogReader(self._paths.log)

    def close(self) -> None:
        for reader in (self.__dict__.get("state"), self.__dict__.get("log")):
            if reader is not None:
                reader.close()


def _reads(files: Files, readers: _Readers) -> Iterator[tuple[str, Callable[[], Any]]]:
    log = files.log
    ends = (log.epoch, log.start, log.end, log.visible, log.newest, log.total, files.state.applied)
    yield "ends", lambda: ends
    for key in KEYS:
        yield f"record {key}", partial(_record, readers, key)
    for key in KEYS[:3]:
        yield f"history {key}", partial(_history, readers, key)
    for name, query in NAMED_WALKS:
        yield name, partial(_list, readers, query)
    yield "count", lambda: readers.state.count(WALKS[0])
    yield "keys", lambda: readers.state.keys_behind(("", ""), MANY)
    yield "kinds", lambda: (readers.state.kinds(), readers.state.most_records())
    yield "log", lambda: readers.log.behind("", log.end.position, MANY)


def _record(readers: _Readers, key: Key) -> Any:
    return readers.state.row(key)


def _history(readers: _Readers, key: Key) -> Any:
    return readers.log.at(key, readers.state.history(key, 0, MANY))


def _list(readers: _Readers, query: Query) -> Any:
    return readers.state.query(query)


def _guarded(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except StateError as problem:
        return Named(str(problem))
    except apsw.Error as problem:
        # What the engine's readers make an error of its own of, by name.
        if is_damage(problem):
            return Named(str(problem))
        raise


# --- the whole engine ----------------------------------------------------------------------------------------------

PROBE = row("probe", kind="probe")
CHANGED_BY_PROBE = frozenset({"ends", "keys", "log"})


async def wholly(folder: Path, expected: Expected) -> Verdict:
    """Open, read, write on top, close, open again, read again."""
    with warnings() as told:
        engine = SqliteEngine(folder)
        try:
            await engine.open()
        except DataCorrupt as corrupt:
            await engine.close()
            return Verdict("refused", str(corrupt))
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is the finding
            return Verdict("WRONG", f"an error without a name: {problem!r}")
        try:
            verdict = judged(await read_engine(engine), expected, told)
            probed = await _write_on_top(engine)
        finally:
            await engine.close()
    return verdict if verdict.outcome == "WRONG" else await _again(folder, expected, verdict, probed=probed)


async def _write_on_top(engine: SqliteEngine) -> bool:
    try:
        return await engine.commit([((Write(PROBE, None, Event("created", 1))),)]) == ["applied"]
    except StateError:
        return False


async def _again(folder: Path, expected: Expected, first: Verdict, *, probed: bool) -> Verdict:
    """What was written on top of damage must not have hidden it, nor made it worse."""
    engine = SqliteEngine(folder)
    try:
        await engine.open()
    except DataCorrupt as corrupt:
        await engine.close()
        if first.outcome in ("no effect", "repaired"):
            return Verdict("WRONG", f"fine at first, refused after a write: {corrupt}")
        return first
    try:
        found = await read_engine(engine)
        probe = _guarded(partial(engine.peek, PROBE.key))
    finally:
        await engine.close()
    against = expected.torn if first.outcome == "torn tail" and expected.torn else expected.whole
    wrong = [
        name
        for name, value in found.items()
        if name not in CHANGED_BY_PROBE and not isinstance(value, Named) and value != against[name]
    ]
    if not isinstance(found["log"], Named) and found["log"][: len(against["log"])] != against["log"]:
        wrong.append("log")
    if probed and not isinstance(probe, Named) and probe != PROBE:
        wrong.append("what was written")
    if first.outcome in ("no effect", "repaired") and any(isinstance(value, Named) for value in found.values()):
        wrong.append("fine at first, unreadable after a write")
    return Verdict("WRONG", f"after a write on top: {', '.join(wrong)}") if wrong else first


async def read_engine(engine: SqliteEngine) -> Content:
    reads: dict[str, Callable[[], Awaitable[Any]]] = {}
    for key in KEYS:
        reads[f"record {key}"] = partial(_peek, engine, key)
        reads[f"history {key}"] = partial(engine.history, key, "", MANY)
    for query in MORE_WALKS:
        reads[f"list {query}"] = partial(engine.query, query)
        reads[f"count {query}"] = partial(engine.count, query)
    reads["keys"] = engine.kinds
    reads["log"] = partial(engine.read_log, "", MANY)
    reads["ends"] = partial(_ends, engine)
    return {name: await _guarded_wait(read) for name, read in reads.items()}


async def _peek(engine: SqliteEngine, key: Key) -> Any:
    return engine.peek(key)


async def _ends(engine: SqliteEngine) -> Any:
    return (engine.epoch, await engine.position())


async def _guarded_wait(read: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await read()
    except StateError as problem:
        return Named(str(problem))


# --- the verdict ---------------------------------------------------------------------------------------------------


def judged(found: Content, expected: Expected, told: list[Any]) -> Verdict:
    events = ", ".join(sorted({line.event for line in told if line.event != "file_unreadable"}))
    against = expected.whole
    torn = sum(line.values["bytes"] for line in told if line.event == "torn_tail" and line.values["file"] == "log.db")
    if expected.torn is not None and torn == expected.torn_bytes:
        against = expected.torn
    wrong = [name for name, value in found.items() if not isinstance(value, Named) and value != against[name]]
    if wrong or not found.keys() <= against.keys():
        return Verdict("WRONG", f"{', '.join(wrong)} (told: {events or 'nothing'})")
    if failed := {name: value.text for name, value in found.items() if isinstance(value, Named)}:
        return Verdict("reported", next(iter(failed.values())), frozenset(failed))
    if against is not expected.whole:
        return Verdict("torn tail", f"{torn} bytes")
    return Verdict("repaired", events) if events else Verdict("no effect")
