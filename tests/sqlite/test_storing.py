"""Changes are stored many at a time: the same tables come of it as if each were stored alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from statesvc.backends.port import REMOVED, Event, Row
from statesvc.backends.sqlite import storing
from statesvc.backends.sqlite.cache import Waiting
from statesvc.backends.sqlite.log import Change, End
from statesvc.backends.sqlite.state import StateFile
from statesvc.backends.sqlite.storing import COLUMNS, columns_of, labels_of
from tests.engines.rows import row

SIZES = (0, 1, 15, 16, 17, 127, 128, 129, 300)


@pytest.fixture
def state(tmp_path) -> Iterator[StateFile]:
    state = StateFile(tmp_path / "state.db", "epoch", End(0, b""), new=True)
    yield state
    state.close()


def job(number: int, **keys: Any) -> Row:
    """Some have what others lack, so that stretches differ in the columns they need."""
    given: dict[str, Any] = {"status": "QUEUED", "labels": (("place", str(number % 3)),)}
    if number % 5 == 0:
        given |= {"node": "n1", "ready": f"{number:05}"}
    if number % 7 == 0:
        given |= {"owner": "job/a", "due": number, "priority": 2.5, "started": 3, "labels": ()}
    return row(f"job-{number:04}", created=number, updated=number, **given | keys)


class Applied:
    """A state, and what it has to hold."""

    def __init__(self, state: StateFile) -> None:
        self.state = state
        self.rows: dict[tuple[str, str], Row] = {}
        self.told: dict[tuple[str, str], list[int]] = {}
        self.position = 0

    def apply(self, rows: list[Row], *, known: bool = True) -> None:
        waiting = Waiting()
        keys = [each.key for each in rows]
        if known:
            waiting.know(keys, [self.rows.get(key) for key in keys])
        waiting.take(self.position + 1, [Change(Event("updated", 1), each) for each in rows], keys)
        self.state.apply(waiting, End(self.position + len(rows), b"x"))
        for each in rows:
            self.position += 1
            if each.deleted == REMOVED:
                self.rows.pop(each.key, None)
                self.told.pop(each.key, None)
            else:
                self.rows[each.key] = each
                self.told.setdefault(each.key, []).append(self.position)

    def check(self) -> None:
        db = self.state.db
        found = db.execute(f"SELECT {COLUMNS}, data, checksum FROM record").fetchall()
        assert sorted(found) == sorted(map(columns_of, self.rows.values()))
        labels = {(*each.key, *label, each.keys.created) for each in self.rows.values() for label in labels_of(each)}
        assert set(db.execute("SELECT kind, id, name, value, created FROM label").fetchall()) == labels
        history = "SELECT kind, id, position FROM history JOIN record ON record.rowid = history.record"
        told = {(*key, position) for key, positions in self.told.items() for position in positions}
        assert set(db.execute(history).fetchall()) == told
        assert db.execute("SELECT count(*) FROM history").get == len(told)
        assert db.execute("PRAGMA integrity_check").get == "ok"


@pytest.mark.parametrize("known", [True, False], ids=["what was there is known", "nothing is known"])
@pytest.mark.parametrize("size", SIZES)
def test_any_number_of_changes_of_every_sort_leads_to_the_same_tables(state, size, known):
    applied = Applied(state)
    applied.apply([job(number) for number in range(size)], known=known)
    applied.check()
    touched = [replace(each, revision=2, body=b"{}") for each in applied.rows.values()]
    applied.apply(touched, known=known)
    applied.check()
    moved = [job(number, status="RUNNING", ready=None, due=5) for number in range(size)]
    applied.apply([replace(each, revision=3) for each in moved], known=known)
    applied.check()
    others = [job(number, node="n9", labels=(("new", "yes"), ("place", "0"))) for number in range(size)]
    applied.apply([replace(each, revision=4) for each in others], known=known)
    applied.check()
    buried = [replace(each, revision=5, deleted=9) for each in others[: size // 2]]
    applied.apply([*buried, *(replace(each, deleted=REMOVED) for each in others[size // 2 :])], known=known)
    applied.check()


def test_all_sorts_come_together_in_one_transaction(state):
    applied = Applied(state)
    applied.apply([job(number) for number in range(200)])
    changed = [
        replace(job(number, status="RUNNING" if number % 2 else "QUEUED"), revision=2) for number in range(0, 200, 3)
    ]
    applied.apply([*changed, *(job(number) for number in range(200, 400))])
    applied.check()


def test_a_change_to_a_record_that_is_not_there_is_damage_and_leaves_everything_as_it_was(state):
    applied = Applied(state)
    applied.apply([job(number) for number in range(20)])
    state.db.execute("DELETE FROM label WHERE id = 'job-0003'")
    state.db.execute("DELETE FROM record WHERE id = 'job-0003'")
    before = state.db.execute("SELECT id, data FROM record").fetchall()
    with pytest.raises(apsw.CorruptError, match="lacks records"):
        applied.apply([replace(each, revision=2) for each in applied.rows.values()])
    assert state.db.execute("SELECT id, data FROM record").fetchall() == before
    assert not state.db.in_transaction


def test_a_record_that_is_there_already_is_not_stored_twice_and_leaves_everything_as_it_was(state):
    applied = Applied(state)
    applied.apply([job(7)])
    applied.rows.clear()  # as if nothing were known of it
    with pytest.raises(apsw.ConstraintError):
        applied.apply([job(number) for number in range(20)])
    assert state.db.execute("SELECT id FROM record").fetchall() == [("job-0007",)]
    assert not state.db.in_transaction


def test_large_records_are_stored_one_by_one(state, monkeypatch):
    monkeypatch.setattr(storing, "LARGE_BYTES", 1000)
    longest = 0

    def look(_cursor: object, _sql: str, values: tuple[object, ...] | None) -> bool:
        nonlocal longest
        longest = max(longest, sum(isinstance(value, bytes) and len(value) > 1000 for value in values or ()))
        return True

    large = [replace(job(number), body=b"x" * 2000) for number in range(40)]
    applied = Applied(state)
    state.db.exec_trace = look
    applied.apply(large)
    applied.apply([replace(each, revision=2) for each in large])
    applied.apply([replace(each, revision=3) for each in large], known=False)
    state.db.exec_trace = None
    assert longest == 1
    applied.check()


def test_a_large_record_is_packed_once(state, monkeypatch):
    monkeypatch.setattr(storing, "LARGE_BYTES", 1000)
    packed: list[int] = []
    pack = storing._encode

    def counted(row: Row) -> bytes:
        packed.append(row.revision)
        return pack(row)

    monkeypatch.setattr(storing, "_encode", counted)
    large = [replace(job(number), body=b"x" * 2000) for number in range(40)]
    applied = Applied(state)
    applied.apply(large)
    applied.apply([replace(each, revision=2) for each in large])
    applied.apply([replace(each, revision=3) for each in large], known=False)
    assert packed == [1] * 40 + [2] * 40 + [3] * 40


@pytest.mark.parametrize("size", SIZES)
def test_new_records_of_several_kinds_come_together(state, size):
    applied = Applied(state)
    for begin in (0, size):
        rows = [job(number) for number in range(begin, begin + size)]
        applied.apply([replace(each, kind=("job", "node", "job", "alert")[at % 4]) for at, each in enumerate(rows)])
        applied.check()


def test_what_is_hidden_has_no_part_in_the_history_of_new_records(state):
    waiting = Waiting()
    rows = [job(number) for number in range(30)]
    waiting.know([each.key for each in rows], [None] * 30)
    waiting.take(5, [Change(Event("created", 1) if number % 3 else None, each) for number, each in enumerate(rows)])
    state.apply(waiting, End(34, b"x"))
    history = "SELECT id, position FROM history JOIN record ON record.rowid = history.record"
    assert set(state.db.execute(history).fetchall()) == {(each.id, 5 + at) for at, each in enumerate(rows) if at % 3}


def test_entries_that_do_not_follow_each_other_are_noted_where_they_are(state):
    waiting = Waiting()
    for first, number in ((5, 1), (9, 2), (10, 3)):
        waiting.know([job(number).key], [None])
        waiting.take(first, [Change(Event("created", 1), job(number))])
    state.apply(waiting, End(10, b"x"))
    history = "SELECT id, position FROM history JOIN record ON record.rowid = history.record ORDER BY position"
    assert state.db.execute(history).fetchall() == [("job-0001", 5), ("job-0002", 9), ("job-0003", 10)]


def test_records_that_go_are_not_taken_for_those_that_are_known_to_be_new(state):
    applied = Applied(state)
    applied.apply([job(1), job(2)])
    waiting = Waiting()
    waiting.take(3, [Change(None, replace(job(1), deleted=REMOVED)), Change(None, replace(job(2), revision=2))])
    state.apply(waiting, End(4, b"x"))
    assert state.db.execute("SELECT id FROM record").fetchall() == [("job-0002",)]


def statements() -> Iterator[tuple[str, int]]:
    for statement in (storing._MOVE, storing._TOUCH, storing._NOTE, storing._UNLABEL):
        for size in storing.AT_ONCE:
            yield statement.sql(size), size


def test_statements_of_many_rows_look_each_of_them_up_by_its_key(state):
    applied = Applied(state)
    applied.apply([job(number) for number in range(2000)])
    for sql, size in statements():
        values = sql.count("?")
        plan = [each[3] for each in state.db.execute(f"EXPLAIN QUERY PLAN {sql}", ("0",) * values)]
        walks = [step for step in plan if " record" in step or " label" in step]
        assert walks, (size, plan)
        assert all(step.startswith("SEARCH") for step in walks), (size, sql[:80], plan)


def test_the_longest_statement_is_kept_prepared(state):
    names = (*(name for name in COLUMNS.split(", ") if name != "kind"), "data", "checksum")
    texts = [storing._insertion(names, size) for size in storing.AT_ONCE]
    for statement in (storing._STORE, storing._MOVE, storing._TOUCH, storing._NOTE, storing._LABEL, storing._UNLABEL):
        texts += [statement.sql(size) for size in storing.AT_ONCE]
    assert max(map(len, texts)) < state.db.cache_stats()["max_cacheable_bytes"]
