"""Whether what many clients saw of one record can have happened one after the other, each step within its time.

Owns the rule and the words for what breaks it. Must not know sockets, daemons or engines: it is given what clients
asked and were told, with the times on one clock, and, where there is one, the log.

A record is a chain of states: absent, then uid/1, uid/2 ... of one life, a tombstone, the next life. Every applied
write has a uid and a revision of its own and leaves its tag in the record, so the chain is mostly given by what was
seen, and each state needs only a moment at which it began:

    it begins no earlier than the state before it, than its write was sent, and than anybody who saw the state before
    it asked; it has begun when its write is answered, and when anybody who saw it was answered

The earliest such moments are found in one walk along the chain. If one of them is too late, no order explains what
was seen. Whoever only saw that there is a record, or that there is none, must fit somewhere; that may push a state
later. Which delete ended which life is all that is left to choose, and is tried in turn. A write of unknown fate
may have happened at any time after it was sent, or never.

The log tells in which order lives followed each other, and when they ended. It has to be whole, from before the first
request: what somebody made or saw and it lacks was lost, whether or not anybody came by later. Without it each life is
judged by itself, and that no two of them were there at a time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

MOST_TRIES = 20
"""How much longer than the chain the search for an explanation may be. Almost always the first one holds."""

MOST_AT_ONCE = 64
"""Deletes of one record that may have been under way at a time."""

MOST_ENDS = 4
"""Of them, how many are tried for the end of one life."""

Key = tuple[str, str]
"""Kind and id."""

Stamp = tuple[str, int]
"""Uid and revision."""


class Op(NamedTuple):
    """What one client asked of one record, and what it was told in the end, however often it had to ask."""

    key: Key
    client: str
    action: Literal["create", "update", "delete", "get"]
    invoked: float
    returned: float
    """Infinite when the answer never came."""
    outcome: Literal["ok", "not_applied", "unknown"]
    tag: str = ""
    """A write's own mark, which it leaves in the record; for a read, the mark it found there."""
    found: Literal["", "absent", "present", "state"] = ""
    """What the answer tells of the record: nothing, whether it was there, or the very state. For an applied write the
    state it made; for a read or a refusal the one that was met."""
    uid: str = ""
    revision: int = 0
    met: str = ""
    """The tag in the state that refused a write."""
    if_revision: int | None = None

    def __str__(self) -> str:
        told = {"state": f"{self.uid}/{self.revision}", "": "nothing"}.get(self.found, self.found)
        when = f"[{self.invoked:.6f}, {self.returned:.6f}]"
        return f"{self.action} {self.tag} by {self.client} {when}: {self.outcome}, {told}"


class Logged(NamedTuple):
    """An entry of the log about one record."""

    uid: str
    revision: int
    tag: str
    deleted: bool = False
    token: int | None = None
    """Of the lease the record is held under."""

    def continues(self, before: Logged) -> bool:
        """Whether it is the next of the same life."""
        return not before.deleted and (self.uid, self.revision) == (before.uid, before.revision + 1)

    def is_lapse_of(self, before: Logged) -> bool:
        """Whether the daemon itself made it: it took a lease away, and left the rest as it was."""
        return self.continues(before) and self.tag == before.tag and before.token is not None and self.token is None


class _State:
    """One state of a record: who made it, and between when and when it was seen."""

    __slots__ = ("first_out", "last_in", "tag", "writer")

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.writer: Op | None = None
        self.last_in: Op | None = None
        """Of those who saw it, the one who asked last: it still stood then."""
        self.first_out: Op | None = None
        """Of those who saw it, the one who was answered first: it had begun by then."""

    def seen_by(self, op: Op) -> None:
        if self.last_in is None or op.invoked > self.last_in.invoked:
            self.last_in = op
        if self.first_out is None or op.returned < self.first_out.returned:
            self.first_out = op


class _Life:
    """The states of one uid."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.states: dict[int, _State] = {}
        self.buried: bool | None = None
        """Whether the log says that it ended; None without a log."""

    @property
    def last(self) -> int:
        return max(self.states)

    def latest_in(self) -> float:
        """It had not ended before."""
        return max((op.invoked for op in self._touching("last_in")), default=-math.inf)

    def earliest_out(self) -> float:
        """It had begun by then."""
        return min((op.returned for op in self._touching("first_out")), default=math.inf)

    def _touching(self, side: str) -> Iterator[Op]:
        for state in self.states.values():
            for op in (state.writer, getattr(state, side)):
                if op is not None:
                    yield op


def violations(
    ops: Iterable[Op], log: Mapping[Key, Sequence[Logged]] | None = None, own_changes: Collection[str] = ()
) -> list[str]:
    """What cannot have happened, in words; empty when every record's history can be explained.

    `own_changes` names the kinds whose records the daemon changes by itself: it takes leases away, and such a change
    keeps the tag it finds. Only the log knows of leases; without it every state that keeps the tag may be one.
    """
    by_key: dict[Key, list[Op]] = defaultdict(list)
    for op in ops:
        by_key[op.key].append(op)
    found: list[str] = []
    for key, of_key in by_key.items():
        logged = None if log is None else log.get(key, ())
        found += (f"{'/'.join(key)}: {text}" for text in _Record(of_key, logged, key[0] in own_changes).violations())
    return found


class _Record:
    """Everything known of one record."""

    def __init__(self, ops: Sequence[Op], log: Sequence[Logged] | None, own_changes: bool) -> None:
        self._ops = ops
        self._log = log
        self.own_changes = own_changes
        self._lives: dict[str, _Life] = {}
        self.absent = [op for op in ops if op.found == "absent"]
        self.present = [op for op in ops if op.found == "present"]
        self.deletes = [op for op in ops if op.action == "delete" and op.outcome == "ok"]
        self.perhaps_deleted = [op for op in ops if op.action == "delete" and op.outcome == "unknown"]
        self._kept: set[Stamp] = set()
        """The states that are in the log."""
        self._lapses: set[Stamp] = set()
        """Of them, those that the daemon made when it took a lease away."""
        self._nowhere: list[Op] = []
        """Writes that may have been applied and left no state anybody saw."""
        self._problems: list[str] = []

    def violations(self) -> list[str]:
        self._take_log()
        for op in self._ops:
            if op.found == "state":
                self._met(op)
        self._attribute()
        if not self._problems:
            self._look_for_gaps()
        if self._problems:
            return self._problems  # what contradicts itself need not be put in order
        return self._apart() if self._log is None else self._together()

    # --- which states there were, and who made them ------------------------------------------------------------------

    def _take_log(self) -> None:
        before: Logged | None = None
        for entry in self._log or ():
            if not self._comes_next(entry, before):
                self._problems.append(f"log out of order: {entry} follows {before}")
            if before is not None and entry.is_lapse_of(before):
                self._lapses.add((entry.uid, entry.revision))
            if entry.deleted:
                self._life(entry.uid).buried = True
            else:
                self._state(entry.uid, entry.revision, entry.tag)
                self._kept.add((entry.uid, entry.revision))
            before = entry
        for life in self._lives.values():
            life.buried = bool(life.buried)

    def _comes_next(self, entry: Logged, before: Logged | None) -> bool:
        if before is not None and not before.deleted:
            return entry.continues(before)
        return entry.revision == 1 and not entry.deleted and entry.uid not in self._lives

    def _life(self, uid: str) -> _Life:
        if uid not in self._lives:
            self._lives[uid] = _Life(uid)
        return self._lives[uid]

    def _state(self, uid: str, revision: int, tag: str) -> _State:
        states = self._life(uid).states
        state = states.get(revision)
        if state is None:
            state = states[revision] = _State(tag)
        elif state.tag != tag:
            self._problems.append(f"revision twice: {uid}/{revision} was {state.tag} and {tag}")
        return state

    def _met(self, op: Op) -> None:
        if self._log is not None and (op.uid, op.revision) not in self._kept:
            self._problems.append(f"lost: {op} is not in the log")
        made = op.outcome == "ok" and op.action != "get"
        state = self._state(op.uid, op.revision, op.tag if made or op.action == "get" else op.met)
        if not made:
            state.seen_by(op)
        elif state.writer is None:
            state.writer = op
        else:
            self._problems.append(f"revision twice: {op.uid}/{op.revision} made by {state.writer} and by {op}")

    def _attribute(self) -> None:
        """Find the states that each write made, and hold that it made as many as it may."""
        places: dict[str, list[Stamp]] = defaultdict(list)
        for life in self._lives.values():
            for revision, state in life.states.items():
                places[state.tag].append((life.uid, revision))
        known = {""}
        for op in self._ops:
            if op.action in {"create", "update"}:
                known.add(op.tag)
                self._place(op, sorted(places.get(op.tag, ())))
        for tag, at in places.items():
            if tag not in known:
                self._problems.append(f"from nowhere: {tag} at {at} was never written")

    def _place(self, op: Op, at: list[Stamp]) -> None:
        if op.outcome == "not_applied":
            if at:
                self._problems.append(f"applied though it was said not to be: {op} is at {at}")
        elif op.found == "state":
            self._as_it_may(op, (op.uid, op.revision), at)
        elif at:
            self._lives[at[0][0]].states[at[0][1]].writer = op
            self._as_it_may(op, at[0], at)
        elif op.outcome == "ok" and self._log is not None:
            self._problems.append(f"lost: {op} is not in the log")
        else:
            self._nowhere.append(op)

    def _as_it_may(self, op: Op, made: Stamp, at: list[Stamp]) -> None:
        """It came about on the revision it asked for, and once: a change by the daemon itself keeps the tag, any other
        state with it is a second application."""
        if op.if_revision not in {None, made[1] - 1}:
            self._problems.append(f"on another revision: {op} was to follow {op.if_revision}, and made {made}")
        for other in at:
            if other != made and not (self.own_changes and self._is_carried(made, other)):
                self._problems.append(f"applied twice: {op} is at {made} and at {other}")

    def _is_carried(self, made: Stamp, other: Stamp) -> bool:
        """Whether the daemon itself made the other state out of this one, as far as can be told."""
        if self._log is not None:
            return other in self._lapses
        states = self._lives[made[0]].states
        between = range(made[1] + 1, other[1] + 1)
        tag = states[made[1]].tag
        return other[0] == made[0] and bool(between) and all(n not in states or states[n].tag == tag for n in between)

    def _look_for_gaps(self) -> None:
        """Revisions nobody saw must be somebody's too."""
        gaps = 0
        for life in self._lives.values():
            for revision in range(1, life.last):
                if revision not in life.states:
                    life.states[revision] = _State("")
                    gaps += 1
        if gaps > len(self._nowhere) and not self.own_changes:
            self._problems.append(
                f"from nowhere: {gaps} revisions that nobody made; {len(self._nowhere)} may have been"
            )

    # --- one order of all of it --------------------------------------------------------------------------------------

    def _together(self) -> list[str]:
        lives = list(self._lives.values())
        chain = _Chain(lives, self)
        return [] if (problem := chain.problem()) is None else [problem]

    def _apart(self) -> list[str]:
        lives = list(self._lives.values())
        found = [problem for life in lives if (problem := _Chain([life], None).problem()) is not None]
        return found or self._at_once([_Zone(life.earliest_out(), life.latest_in(), life.uid) for life in lives])

    def _at_once(self, zones: list[_Zone]) -> list[str]:
        """What cannot be true of lives side by side."""
        found: list[str] = []
        sure = sorted(zone for zone in zones if zone.begun < zone.standing)
        for one, other in pairwise(sure):
            if other.begun < one.standing:
                found.append(f"two at a time: the lives {one.uid} and {other.uid}")
        # One that was seen by requests side by side only was there somewhere between these two moments.
        inside = [zone._replace(begun=zone.standing, standing=zone.begun) for zone in zones if zone not in sure]
        inside += [_Zone(op.invoked, op.returned, f"absence seen by {op}") for op in self.absent]
        for zone in inside:
            place = bisect_right(sure, (zone.begun, math.inf, "")) - 1
            if place >= 0 and sure[place].begun < zone.begun and zone.standing < sure[place].standing:
                found.append(f"two at a time: the life {sure[place].uid} and {zone.uid}")
        return found


class _Zone(NamedTuple):
    """A life was there from one moment to the other, if that is the later one."""

    begun: float
    standing: float
    uid: str


class _Phase(NamedTuple):
    """A link of the chain: a state, or the absence of one."""

    state: _State | None
    life: _Life | None
    revision: int = 0


class _End(NamedTuple):
    """What may have ended a life: an acknowledged delete, by its place among them; one of unknown fate, by the revision
    it asked for; nobody else."""

    invoked: float
    place: int = -1
    unknown: bool = False
    if_revision: int | None = None


class _Choice:
    """A life's end, and what may have ended it: the likeliest first, the others when that leads nowhere."""

    __slots__ = ("ends", "now", "place", "taken", "why")

    def __init__(self, place: int, now: float, why: Op | str, ends: list[_End]) -> None:
        self.place, self.now, self.why, self.ends = place, now, why, ends
        self.taken: _End | None = None


class _Chain:
    """Lives in their order: the earliest moments, and whether they are early enough."""

    def __init__(self, lives: list[_Life], record: _Record | None) -> None:
        """With a record, those who saw only whether it was there must fit too, and every end have its delete."""
        self._absent = record.absent if record else []
        self._present = record.present if record else []
        self._perhaps: dict[int | None, list[Op]] = defaultdict(list)
        """Deletes of unknown fate by the revision they asked for, the first sent first: it can do whatever the others
        can, so they are used in this order."""
        for op in sorted(record.perhaps_deleted if record else (), key=lambda op: op.invoked):
            self._perhaps[op.if_revision].append(op)
        self._perhaps_used: Counter[int | None] = Counter()
        self._own_changes = bool(record and record.own_changes)
        self._phases = [_Phase(None, None)]
        self._absences = [0]
        self._spans: list[tuple[int, int]] = []
        """First and behind-the-last phase of each life."""
        for life in lives:
            begin = len(self._phases)
            self._phases += [_Phase(life.states[n], life, n) for n in range(1, life.last + 1)]
            self._spans.append((begin, len(self._phases)))
            if life is not lives[-1] or life.buried:
                self._absences.append(len(self._phases))
                self._phases.append(_Phase(None, life, life.last + 1))
        self._begins = [-math.inf] * len(self._phases)
        self._needs: dict[int, Op] = {}
        """Phases that must not begin before somebody asked who saw only presence or absence before them."""
        self._deletes = sorted(record.deletes if record else (), key=lambda op: op.returned)
        self._used = [False] * len(self._deletes)
        self._oldest = 0
        """Before it every acknowledged delete has its life."""
        self._problem: str | None = None

    def problem(self) -> str | None:
        """What is in the way of this order, or None.

        Whoever makes room pushes what began before it asked, and so gives another place only to those who were answered
        before it asked. The one who asked last has its place after one turn, the one before it after two, and so on.
        Only another choice of deletes could upset that; then nothing was shown, and that is said.
        """
        for _ in range(len(self._absent) + len(self._present) + 1):
            self._problem = self._walk()
            if self._problem is not None or not self._push():
                return self._problem
        return "undecided: no place was found for everybody who saw only whether there was a record"

    # --- the walk ----------------------------------------------------------------------------------------------------

    def _walk(self) -> str | None:
        """The earliest beginning of every phase; or the first thing that was in the way, if nothing helps."""
        self._used = [False] * len(self._deletes)
        self._oldest = 0
        self._perhaps_used.clear()
        choices: list[_Choice] = []
        first: str | None = None
        place, now = 1, -math.inf
        why: Op | str = "the beginning"
        for _ in range(len(self._phases) * MOST_TRIES):
            if place == len(self._phases):
                problem = self._left_over()
                if problem is None:
                    return None
            else:
                now, why = self._not_before(place, now, why)
                problem = self._too_late(place, now, why)
                if problem is None and self._phases[place].state is None:
                    choices.append(_Choice(place, now, why, self._ends(self._phases[place], now)))
                    problem = "" if choices[-1].ends else f"ended by nobody: a life was over, after {why}"
            if problem is None:
                self._begins[place] = now
                place += 1
                continue
            first = first or problem or None
            choice = self._next(choices)
            if choice is None or choice.taken is None:
                return first
            place, now, why = choice.place, choice.now, choice.why
            if choice.taken.invoked > now:
                now, why = choice.taken.invoked, self._words_for(choice.taken)
            self._begins[place] = now
            place += 1
        return first

    def _not_before(self, place: int, now: float, why: Op | str) -> tuple[float, Op | str]:
        before, state = self._phases[place - 1].state, self._phases[place].state
        for op in (before.last_in if before else None, self._needs.get(place), state.writer if state else None):
            if op is not None and op.invoked > now:
                now, why = op.invoked, op
        return now, why

    def _too_late(self, place: int, now: float, why: Op | str) -> str | None:
        phase = self._phases[place]
        if phase.state is not None and phase.life is not None:
            for op in (phase.state.writer, phase.state.first_out):
                if op is not None and op.returned < now:
                    return f"out of order: {phase.life.uid}/{phase.revision} had begun for {op}, after {why}"
        if self._oldest < len(self._deletes) and self._deletes[self._oldest].returned < now:
            return f"applied nowhere: {self._deletes[self._oldest]} was acknowledged and ended no life, before {why}"
        return None

    def _left_over(self) -> str | None:
        if self._oldest == len(self._deletes):
            return None
        return f"applied nowhere: {self._deletes[self._oldest]} was acknowledged and ended no life"

    # --- which delete ended which life -------------------------------------------------------------------------------

    def _ends(self, phase: _Phase, now: float) -> list[_End]:
        """Deletes that can have ended a life, the likeliest first: those sent already, the first answered first."""
        able = [
            _End(op.invoked, place)
            for place in range(self._oldest, min(self._oldest + MOST_AT_ONCE, len(self._deletes)))
            if not self._used[place]
            and (op := self._deletes[place]).returned >= now
            and op.if_revision in {None, phase.revision - 1}
        ]
        # One that asked for this revision is of less use elsewhere.
        for asked_for in (phase.revision - 1, None):
            used = self._perhaps_used[asked_for]
            first = self._perhaps.get(asked_for, [])[used : used + 1]
            able += (_End(op.invoked, unknown=True, if_revision=asked_for) for op in first)
        ready = [end for end in able if end.invoked <= now]
        waiting = sorted((end for end in able if end.invoked > now), key=lambda end: end.invoked)
        itself = [_End(-math.inf)] if self._own_changes else []
        return (ready + waiting + itself)[:MOST_ENDS]

    def _next(self, choices: list[_Choice]) -> _Choice | None:
        """The newest choice with something left to try, which is tried; everything chosen since is taken back."""
        while choices:
            choice = choices[-1]
            if choice.taken is not None:
                self._take_back(choice.taken)
            if choice.ends:
                choice.taken = choice.ends.pop(0)
                self._take(choice.taken)
                return choice
            choices.pop()
        return None

    def _take(self, end: _End) -> None:
        if end.place >= 0:
            self._use(end.place)
        self._perhaps_used[end.if_revision] += end.unknown

    def _take_back(self, end: _End) -> None:
        if end.place >= 0:
            self._used[end.place] = False
            self._oldest = min(self._oldest, end.place)
        self._perhaps_used[end.if_revision] -= end.unknown

    def _use(self, place: int) -> None:
        self._used[place] = True
        while self._oldest < len(self._used) and self._used[self._oldest]:
            self._oldest += 1

    def _words_for(self, end: _End) -> Op | str:
        return self._deletes[end.place] if end.place >= 0 else "a delete of unknown fate"

    # --- those who saw only whether there was a record ---------------------------------------------------------------

    def _push(self) -> bool:
        """Make room for each of them, as late as it may be; True when something had to move.

        A phase begins no earlier than found. So whoever saw an absence saw at the latest the last one that had begun
        when it was answered, and what follows that one cannot have begun before it asked.
        """
        moved = False
        absences = [self._begins[place] for place in self._absences]
        for op in self._absent:
            place = self._absences[bisect_right(absences, op.returned) - 1]
            moved |= self._raise(place + 1, op)
        births = [self._begins[begin] for begin, _ in self._spans]
        for op in self._present:
            number = bisect_right(births, op.returned) - 1
            if number >= 0:
                moved |= self._raise(self._spans[number][1], op)
            else:
                self._problem = f"out of order: nothing had begun for {op}"
        return moved and self._problem is None

    def _raise(self, place: int, op: Op) -> bool:
        if place >= len(self._phases) or self._begins[place] >= op.invoked:
            return False
        if place not in self._needs or self._needs[place].invoked < op.invoked:
            self._needs[place] = op
            return True
        return False
