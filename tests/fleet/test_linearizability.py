"""The checker itself: it accepts what can have happened, and finds every kind of thing that cannot."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from tests.fleet.histories import AppliesTwice, BringsBack, Model
from tests.fleet.linearizability import Logged, Op, violations

KEY = ("kv", "k")


def op(client: str, action: str, invoked: float, returned: float, outcome: str = "ok", **told) -> Op:
    return Op(KEY, client, action, invoked, returned, outcome, **told)  # type: ignore[arg-type]


def made(client: str, action: str, invoked: float, returned: float, uid: str, revision: int, **more) -> Op:
    """A write that was applied, and says so."""
    tag = more.pop("tag", f"{uid}.{revision}")
    return op(client, action, invoked, returned, found="state", uid=uid, revision=revision, tag=tag, **more)


def read(client: str, invoked: float, returned: float, uid: str, revision: int, **more) -> Op:
    return made(client, "get", invoked, returned, uid, revision, **more)


def kinds_of(found: list[str]) -> set[str]:
    return {text.split(": ")[1] for text in found}


BIRTH = made("a", "create", 0, 1, "u", 1)
BORN = Logged("u", 1, "u.1")
END = Logged("u", 2, "", deleted=True)


# --- what can have happened ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("with_log", [True, False])
def test_what_a_faultless_store_tells_is_accepted(seed: int, with_log: bool):
    chance = random.Random(seed)
    model = Model(
        seed,
        clients=chance.choice([2, 5, 12]),
        records=chance.choice([1, 3, 20]),
        unknown=chance.choice([0.0, 0.1, 0.5]),
    ).run(600)
    assert violations(model.history, model.log if with_log else None) == []


def test_writes_that_overlap_may_be_read_in_either_order_until_one_order_was_seen():
    writes = [BIRTH, made("a", "update", 2, 9, "u", 2), made("b", "update", 2, 9, "u", 3)]
    assert violations([*writes, read("c", 3, 4, "u", 2), read("c", 5, 6, "u", 3)]) == []
    assert violations([*writes, read("c", 3, 4, "u", 3), read("c", 5, 6, "u", 2)]) != []


def test_a_write_of_unknown_fate_may_have_happened_late_or_never():
    lost = op("b", "update", 2, math.inf, "unknown", tag="x")
    assert violations([BIRTH, lost, read("c", 100, 101, "u", 1)]) == []
    assert violations([BIRTH, lost, read("c", 100, 101, "u", 1), read("c", 102, 103, "u", 2, tag="x")]) == []


def test_a_delete_of_unknown_fate_may_explain_an_absence():
    lost = op("b", "delete", 2, math.inf, "unknown")
    gone = op("c", "get", 5, 6, found="absent")
    log = {KEY: [BORN, END]}
    assert violations([BIRTH, lost, gone], log) == []
    assert kinds_of(violations([BIRTH, gone], log)) == {"ended by nobody"}
    assert kinds_of(violations([BIRTH, gone, read("c", 8, 9, "u", 1)], {KEY: [BORN]})) == {"out of order"}


def test_a_delete_of_unknown_fate_explains_the_end_of_the_revision_it_asked_for_only():
    gone = op("c", "get", 5, 6, found="absent")
    for asked_for, found in ((1, set()), (2, {"ended by nobody"})):
        lost = op("b", "delete", 2, math.inf, "unknown", if_revision=asked_for)
        assert kinds_of(violations([BIRTH, lost, gone], {KEY: [BORN, END]})) == found


def test_of_deletes_of_unknown_fate_each_ends_the_life_it_can():
    """The one that was sent first, and may have been any life's end, is left for the life that no other can end."""
    any_life = op("b", "delete", 2, math.inf, "unknown")
    second = op("b", "delete", 3, math.inf, "unknown", if_revision=2)
    history = [BIRTH, any_life, second, made("a", "create", 4, 5, "v", 1), made("a", "update", 6, 7, "v", 2)]
    log = [BORN, END, Logged("v", 1, "v.1"), Logged("v", 2, "v.2"), Logged("v", 3, "", deleted=True)]
    assert violations(history, {KEY: log}) == []
    assert violations([each for each in history if each is not second], {KEY: log}) != []


def test_a_change_of_the_daemons_own_keeps_the_tag_it_finds():
    history = [BIRTH, read("c", 2, 3, "u", 2, tag=BIRTH.tag)]
    assert violations(history, own_changes={"kv"}) == []
    assert kinds_of(violations(history)) == {"applied twice"}


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        pytest.param(7, None, set(), id="the lease was taken away"),
        pytest.param(None, None, {"applied twice"}, id="there was none"),
        pytest.param(7, 7, {"applied twice"}, id="it is still held"),
        pytest.param(7, 8, {"applied twice"}, id="it was taken again"),
    ],
)
def test_a_second_state_of_a_write_is_the_daemons_own_only_where_a_lease_went(
    before: int | None, after: int | None, found: set[str]
):
    log = {KEY: [BORN._replace(token=before), Logged("u", 2, BORN.tag, token=after)]}
    assert kinds_of(violations([BIRTH], log, own_changes={"kv"})) == found
    assert kinds_of(violations([BIRTH], log)) == {"applied twice"}


def test_a_hundred_thousand_operations_are_checked_in_one_go():
    model = Model(3, clients=64, records=200, unknown=0.05).run(100_000)
    assert len(model.history) > 90_000
    assert violations(model.history, model.log) == []
    assert violations(model.history) == []


def test_one_record_with_a_long_history_is_no_harder():
    model = Model(4, clients=16, records=1, unknown=0.05).run(20_000)
    assert violations(model.history) == []


# --- what cannot -----------------------------------------------------------------------------------------------------


def test_a_lost_update_is_found():
    """Both were told that they made revision 2."""
    history = [BIRTH, made("a", "update", 2, 3, "u", 2, tag="x"), made("b", "update", 2, 3, "u", 2, tag="y")]
    assert "revision twice" in kinds_of(violations(history))


@pytest.mark.parametrize("outcome", ["ok", "unknown"])
def test_a_write_that_came_about_on_another_revision_than_it_asked_for_is_found(outcome: str):
    one, log = made("a", "update", 2, 3, "u", 2), {KEY: [BORN, Logged("u", 2, "u.2"), Logged("u", 3, "u.3")]}
    for asked_for, found in ((2, set()), (1, {"on another revision"})):
        other = op("b", "update", 4, 5, outcome, tag="u.3", if_revision=asked_for)
        assert kinds_of(violations([BIRTH, one, other], log)) == found


def test_an_acknowledged_write_that_nobody_can_see_afterwards_is_found():
    history = [BIRTH, made("a", "update", 2, 3, "u", 2), read("c", 4, 5, "u", 1)]
    assert kinds_of(violations(history)) == {"out of order"}


def test_an_acknowledged_write_that_the_log_lacks_is_found():
    duplicate = op("a", "update", 2, 3, tag="x")  # told that it was applied, not where
    log = {KEY: [BORN]}
    assert kinds_of(violations([BIRTH, duplicate], log)) == {"lost"}
    assert violations([BIRTH, duplicate], {KEY: [*log[KEY], Logged("u", 2, "x")]}) == []


@pytest.mark.parametrize("told", ["create", "update", "get", "refused"])
def test_what_the_log_lacks_is_found_though_nobody_came_by_later(told: str):
    """The newest state of a record is gone, and whoever looks at it afterwards finds nothing wrong."""
    wrote = op("b", "update", 2, math.inf, "unknown", tag="x")
    lost = {
        "create": [BIRTH],
        "update": [BIRTH, made("a", "update", 2, 3, "u", 2)],
        "get": [BIRTH, wrote, read("a", 4, 5, "u", 2, tag="x")],
        "refused": [BIRTH, wrote, op("a", "update", 4, 5, "not_applied", found="state", uid="u", revision=2, met="x")],
    }[told]
    assert violations(lost) == []
    assert kinds_of(violations(lost, {KEY: [] if told == "create" else [BORN]})) == {"lost"}


def test_an_acknowledged_write_that_the_last_read_does_not_show_is_found_without_a_log():
    update = made("a", "update", 2, 3, "u", 2)
    assert violations([BIRTH, update]) == []
    assert kinds_of(violations([BIRTH, update, read("auditor", 9, 10, "u", 1)])) == {"out of order"}


@pytest.mark.parametrize(
    "log",
    [
        pytest.param([BORN, Logged("u", 3, "u.3")], id="a gap"),
        pytest.param([Logged("u", 2, "u.2")], id="no beginning"),
        pytest.param([BORN, END, Logged("u", 3, "u.3")], id="a life after its end"),
        pytest.param([BORN, Logged("v", 1, "v.1")], id="a life without an end"),
        pytest.param([BORN, END, BORN], id="a life that came back"),
    ],
)
def test_a_log_that_is_not_one_life_after_the_other_is_found(log: list[Logged]):
    assert "log out of order" in kinds_of(violations([BIRTH], {KEY: log}))


def test_a_stale_read_is_found():
    history = [BIRTH, made("a", "update", 2, 3, "u", 2), read("b", 4, 5, "u", 2), read("c", 6, 7, "u", 1)]
    assert kinds_of(violations(history)) == {"out of order"}


def test_a_read_that_goes_back_is_found_while_the_write_is_still_under_way():
    writing = made("a", "update", 2, 20, "u", 2)
    assert violations([BIRTH, writing, read("c", 3, 4, "u", 1), read("c", 5, 6, "u", 2)]) == []
    assert kinds_of(violations([BIRTH, writing, read("c", 3, 4, "u", 2), read("c", 5, 6, "u", 1)])) == {"out of order"}


def test_one_revision_with_two_contents_is_found():
    assert kinds_of(violations([BIRTH, read("b", 2, 3, "u", 1, tag="other")])) >= {"revision twice"}


def test_a_write_that_was_refused_and_is_there_is_found():
    refused = op("b", "update", 2, 3, "not_applied", tag="x")
    assert "applied though it was said not to be" in kinds_of(
        violations([BIRTH, refused, read("c", 4, 5, "u", 2, tag="x")])
    )


def test_a_write_that_was_applied_twice_is_found():
    lost = op("b", "update", 2, math.inf, "unknown", tag="x")
    other = made("a", "update", 2, 9, "u", 3)
    history = [BIRTH, lost, other, read("c", 2, 9, "u", 2, tag="x"), read("c", 20, 21, "u", 4, tag="x")]
    assert kinds_of(violations(history)) == {"applied twice"}
    assert "applied twice" in kinds_of(violations(history, own_changes={"kv"}))


def test_a_revision_that_nobody_made_is_found():
    assert kinds_of(violations([BIRTH, made("a", "update", 2, 3, "u", 3)])) == {"from nowhere"}


def test_a_value_that_nobody_wrote_is_found():
    assert "from nowhere" in kinds_of(violations([BIRTH, read("a", 2, 3, "u", 2, tag="x")]))


def test_a_record_that_came_back_after_its_end_is_found():
    history = [BIRTH, op("a", "delete", 2, 3), read("b", 4, 5, "u", 1)]
    assert kinds_of(violations(history, {KEY: [BORN, END]})) == {"applied nowhere"}


def test_an_end_that_two_were_told_to_have_made_is_found():
    history = [BIRTH, op("a", "delete", 2, 3), op("b", "delete", 2, 3)]
    assert kinds_of(violations(history, {KEY: [BORN, END]})) == {"applied nowhere"}
    assert violations(history[:2], {KEY: [BORN, END]}) == []


def test_an_absence_in_the_middle_of_a_life_is_found():
    history = [BIRTH, read("a", 2, 3, "u", 1), op("b", "get", 4, 5, found="absent"), read("a", 6, 7, "u", 1)]
    assert kinds_of(violations(history)) == {"two at a time"}
    assert kinds_of(violations(history, {KEY: [BORN]})) == {"out of order"}


def test_a_record_said_to_exist_before_anybody_made_it_is_found():
    early = op("b", "create", -3, -2, "not_applied", found="present", tag="x")
    assert kinds_of(violations([BIRTH, early], {KEY: [BORN]})) == {"out of order"}


def test_a_second_life_that_began_before_the_first_had_ended_is_found():
    history = [BIRTH, made("b", "create", 2, 3, "v", 1), read("a", 4, 5, "u", 1), read("a", 6, 7, "v", 1)]
    assert kinds_of(violations(history)) == {"two at a time"}
    history.append(op("c", "delete", 4, 9))
    assert kinds_of(violations(history, {KEY: [BORN, END, Logged("v", 1, "v.1")]})) == {"out of order"}


# --- faults planted in long histories --------------------------------------------------------------------------------


def some(history: list[Op], chance: random.Random, fits: Callable[[Op], bool]) -> int:
    return chance.choice([place for place, each in enumerate(history) if fits(each)])


def older_read(history: list[Op], chance: random.Random) -> None:
    """A read is answered with the state before."""
    tags = {(each.uid, each.revision): each.tag for each in history if each.found == "state" and each.action != "get"}
    place = some(
        history, chance, lambda each: each.action == "get" and each.found == "state" and each.revision > 1
        and (each.uid, each.revision - 1) in tags and quiet_since(history, each)
    )  # fmt: skip
    each = history[place]
    history[place] = each._replace(revision=each.revision - 1, tag=tags[each.uid, each.revision - 1])


def quiet_since(history: list[Op], read_: Op) -> bool:
    """Whether the state that was read had been seen by others who were answered before this one asked."""
    return any(
        other.found == "state" and (other.uid, other.revision) == (read_.uid, read_.revision)
        and other.outcome == "ok" and other.returned < read_.invoked
        for other in history
    )  # fmt: skip


def refused_and_applied(history: list[Op], chance: random.Random) -> None:
    seen = {each.tag for each in history if each.action == "get"}
    place = some(history, chance, lambda each: each.action == "update" and each.outcome == "ok" and each.tag in seen)
    history[place] = history[place]._replace(outcome="not_applied", found="", uid="", revision=0)


def acknowledged_and_gone(history: list[Op], chance: random.Random) -> None:
    """A write claims a revision that is another's."""
    place = some(history, chance, lambda each: each.action == "update" and each.outcome == "ok" and each.revision > 2)
    each = history[place]
    history[place] = each._replace(revision=each.revision - 1)


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("plant", [older_read, refused_and_applied, acknowledged_and_gone])
def test_one_fault_in_a_long_history_is_found(plant: Callable[[list[Op], random.Random], None], seed: int):
    model = Model(seed, clients=6, records=3, unknown=0.05).run(1500)
    history = list(model.history)
    plant(history, random.Random(seed))
    assert violations(history, model.log) != []
    assert violations(history) != []


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize(
    ("store", "kinds"), [(AppliesTwice, {"applied twice"}), (BringsBack, {"applied nowhere", "out of order"})]
)
def test_one_mistake_of_a_store_in_a_long_history_is_found(
    store: type[AppliesTwice | BringsBack], kinds: set[str], seed: int
):
    model = store(seed, clients=6, records=3, unknown=0.05).run(1500)
    assert model.has_erred
    assert kinds_of(violations(model.history, model.log)) & kinds
