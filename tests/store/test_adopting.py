"""Records that came into a shared table by another hand: taken as they are, and written to like any other."""

from __future__ import annotations

import msgspec
import pytest

from statesvc.store.adopting import adopted
from statesvc.store.store import Store
from statesvc.store.writes import Caller, Subject, update
from statesvc_client.errors import Conflict
from statesvc_client.wire import Update
from tests.engines.weak import WeakEngine

ME = Caller(said_hello=True, client="me", name="me")


def row_of(**fields: object):
    store = Store(WeakEngine())
    return store, adopted(store, ("job", "a"), msgspec.json.encode(fields))


def written(store: Store, row, **request: object):
    subject = Subject(store.kinds["job"], "a", row)
    asked = Update(kind="job", id="a", **request)  # type: ignore[arg-type]
    return update(asked, asked.record or {}, subject, ME, store.moment()).row


def test_it_is_revision_0_and_has_the_same_uid_for_every_daemon():
    (_, one), (_, two) = row_of(status="RUNNING"), row_of(status="RUNNING")
    assert (one.uid, one.revision, one.uid) == (two.uid, 0, two.uid)


@pytest.mark.parametrize("given", [{}, {"createdAt": "yesterday"}, {"nodeId": 7}, {"labels": "x"}, {"priority": []}])
def test_what_is_missing_or_cannot_be_indexed_is_kept_as_it_is(given: dict[str, object]):
    _, row = row_of(**given)
    record = msgspec.json.decode(row.body)
    assert {name: record[name] for name in given} == given
    assert row.keys.created == 0


def test_its_times_and_its_status_are_what_it_is_found_by():
    _, row = row_of(status="running", createdAt="1970-01-01T00:00:01Z", nodeId="n")
    assert (row.keys.status, row.keys.created, row.keys.node) == ("RUNNING", 1_000_000_000, "n")


def test_a_status_nobody_knows_stays_until_somebody_writes_a_known_one():
    store, row = row_of(status="WEIRD")
    patched = written(store, row, record={"note": 1})
    assert (patched.revision, patched.keys.status) == (1, "WEIRD")
    assert written(store, patched, record={"status": "RUNNING"}).keys.status == "RUNNING"


def test_whoever_wants_to_make_a_record_does_not_change_one_that_is_there():
    store, row = row_of(status="RUNNING")
    assert written(store, row, record={"pid": 1}, if_revision=0).revision == 1
    with pytest.raises(Conflict, match="there already"):
        written(store, row, record={"pid": 1}, if_revision=0, upsert=True)
