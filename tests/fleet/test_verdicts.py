"""The verdicts themselves, on races that never took place: each of them tells one lie, and is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.linearizability import Op
from tests.fleet.lines import Told
from tests.fleet.race import Race
from tests.fleet.story import Guarded
from tests.fleet.verdicts import faults
from tests.fleet.watchers import Seen, Watcher

PATH = Path("/nowhere")
KEY = ("kv", "cold-1")
LOCK = ("lock", "lock-1")


@pytest.fixture
def race() -> Race:
    """One record that was made, and changed, as everybody agrees."""
    race, watcher = Race([PATH]), Watcher(PATH, ("kv", "lock"))
    race.watchers.append(watcher)
    race.epochs.add("e")
    for revision, (action, type) in enumerate([("create", "created"), ("update", "updated")], 1):
        tag, asked = f"t{revision}", 10.0 * revision
        race.story.ops.append(
            Op(KEY, "c", action, asked, asked + 1, "ok", tag, found="state", uid="u", revision=revision)  # type: ignore[arg-type]
        )
        watcher.seen[KEY].append(Seen("u", revision, type, tag, None, None))
        watcher.count += 1
    race.finals[PATH] = {KEY: ("u", 2)}
    race.lists[PATH] = {("u", 2)}
    race.records[KEY] = {"uid": "u", "revision": 2}
    return race


def test_a_race_in_which_all_was_well_has_no_faults(race: Race):
    assert faults(race) == []


def test_an_acknowledged_write_that_vanished_from_everywhere_is_found(race: Race):
    race.watchers[0].seen[KEY].pop()
    race.finals[PATH][KEY] = ("u", 1)
    race.lists[PATH] = {("u", 1)}
    race.records[KEY] = {"uid": "u", "revision": 1}
    (fault,) = faults(race)
    assert fault.startswith("kv/cold-1: lost: update t2")


def test_an_acknowledged_create_that_vanished_from_everywhere_is_found(race: Race):
    race.watchers[0].seen.clear()
    race.finals[PATH][KEY] = race.records[KEY] = None
    race.lists[PATH] = set()
    assert [fault.split(" by ")[0] for fault in faults(race)] == [
        "kv/cold-1: lost: create t1",
        "kv/cold-1: lost: update t2",
    ]


def test_a_change_under_a_lease_that_was_applied_twice_in_a_row_is_found(race: Race):
    """Only where the lease went the second state is the daemon's own."""
    watcher = race.watchers[0]
    claim = Op(LOCK, "c", "update", 1.0, 2.0, "ok", "t3", found="state", uid="v", revision=1)
    race.story.ops.append(claim)
    race.finals[PATH][LOCK] = ("v", 2)
    watcher.seen[LOCK] = [Seen("v", 1, "claimed", "t3", 7, None), Seen("v", 2, "lapsed", "t3", None, None)]
    assert faults(race) == []
    watcher.seen[LOCK][1] = Seen("v", 2, "updated", "t3", 7, None)
    (fault,) = faults(race)
    assert fault.startswith("lock/lock-1: applied twice: update t3")


def test_a_holder_whose_write_is_accepted_after_any_newer_token_was_handed_over_is_found(race: Race):
    """The next token's own answer may be late; the one after that tells enough."""
    race.story.claims += [
        Guarded(LOCK, 1, 0.0, 1.0, "claim"),
        Guarded(LOCK, 2, 2.0, 30.0, "claim"),
        Guarded(LOCK, 3, 4.0, 5.0, "claim"),
    ]
    race.story.guarded.append(Guarded(LOCK, 1, 4.5, 7.0, "guarded"))
    assert faults(race) == []
    race.story.guarded.append(Guarded(LOCK, 1, 6.0, 7.0, "guarded"))
    assert faults(race) == ["lock/lock-1: guarded with token 1 after 3 was handed over"]


def claimed_twice(race: Race, *between: Seen, tries: int) -> list[str]:
    """The faults of a lock that one claim got at revision 1, and again behind all of these."""
    watcher, last = race.watchers[0], len(between) + 2
    watcher.seen[LOCK] += [Seen("l", 1, "created", "t7", 1, None), *between, Seen("l", last, "claimed", "t7", 3, None)]
    watcher.count += last
    told = Told({"success": True}, 1.0, 2.0, "ok", tries, 1.0)
    if tries > 1:
        race.story.unplaced["t7"] = ("c", told)
    race.story.ops.append(Op(LOCK, "c", "update", 1.0, 2.0, "ok", "t7", found="state", uid="l", revision=last))
    race.finals[PATH][LOCK] = ("l", last)
    race.records[LOCK] = {"uid": "l", "revision": last}
    return faults(race)


LAPSED = Seen("l", 2, "lapsed", "t7", None, None)


def test_a_claim_sent_again_when_its_lease_was_gone_is_a_claim_of_its_own(race: Race):
    assert claimed_twice(race, LAPSED, tries=2) == []


def test_a_claim_sent_once_that_got_it_twice_is_found(race: Race):
    assert any("applied twice" in fault for fault in claimed_twice(race, LAPSED, tries=1))


def test_a_claim_sent_again_that_got_what_it_still_had_is_found(race: Race):
    assert any("applied twice" in fault for fault in claimed_twice(race, tries=2))
