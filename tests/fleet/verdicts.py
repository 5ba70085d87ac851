"""What must be true after a race, and what was not, in words.

Owns the promises a fleet is held to. Must not know how the load came about.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.fleet.linearizability import Key, Logged, Op, violations
from tests.fleet.race import Race
from tests.fleet.story import Guarded
from tests.fleet.watchers import Seen

OWN_CHANGES = frozenset({"lock", "job"})
"""Kinds whose records the daemon changes by itself: leases lapse."""


def faults(race: Race, *, epochs: int = 1) -> list[str]:
    """Everything that must not be."""
    return [
        *race.story.problems,
        *(fault for watcher in race.watchers for fault in watcher.faults()),
        *_watchers_disagree(race),
        *_daemons_disagree(race),
        *_histories(race),
        *_tokens(race),
        *_two_holders(race),
        *_jobs(race),
        *_sums(race),
        *([] if len(race.epochs) <= epochs else [f"the epoch changed: {race.epochs}"]),
    ]


# --- what everybody saw ----------------------------------------------------------------------------------------------


def _log(race: Race) -> dict[Key, list[Seen]]:
    """The log as the watcher knows it that saw most; that the others saw the same is checked by itself."""
    return max(race.watchers, key=lambda watcher: watcher.count).seen


def _watchers_disagree(race: Race) -> Iterator[str]:
    most = _log(race)
    for watcher in race.watchers:
        for key in most.keys() | watcher.seen.keys():
            mine, theirs = watcher.seen.get(key, []), most.get(key, [])
            if mine != theirs:
                missing = [each.stamp for each in theirs if each not in set(mine)]
                yield f"{watcher.path}: {'/'.join(key)}: saw {len(mine)} of {len(theirs)} events; not {missing[:5]}"
        if watcher.gone:
            yield f"{watcher.path}: could not follow: {watcher.gone[:3]}"


def _daemons_disagree(race: Race) -> Iterator[str]:
    first = race.finals[race.paths[0]]
    seen = _log(race)
    for path, finals in race.finals.items():
        for key, stamp in finals.items():
            if stamp != first[key]:
                yield f"{path}: {'/'.join(key)} is {stamp}, elsewhere {first[key]}"
    for key, stamp in first.items():
        last = seen[key][-1] if seen.get(key) else None
        told = None if last is None or last.type == "deleted" else last.stamp
        if told != stamp:
            yield f"{'/'.join(key)} is {stamp}, and the log ends at {told}"
    alive = {stamp for key, stamp in first.items() if stamp is not None and key[0] == "kv"}
    for path, found in race.lists.items():
        if found != alive:
            yield f"{path}: a list lacks {sorted(alive - found)[:5]} and has {sorted(found - alive)[:5]} too many"


def _histories(race: Race) -> list[str]:
    seen = _log(race)
    log = max(race.watchers, key=lambda watcher: watcher.count).log()
    first = _first_tries(race, log)
    known = [*_sharp(race), *_placed(race, seen), *_taken_in_vain(race, seen)]
    known = [*(_named_apart(op, first) for op in known), *_lost_again(race, first)]
    log = {key: [_entry_apart(key, entry, first) for entry in entries] for key, entries in log.items()}
    return [*_vain_claims(race, seen), *violations(known, log, OWN_CHANGES)]


State = tuple[Key, str, int]
"""Of a record: its uid and revision."""


def _first_tries(race: Race, log: dict[Key, list[Logged]]) -> dict[State, str]:
    """A claim that is sent again when its lease is gone is a claim of its own: the states of what it got before, and a
    tag of their own for them."""
    first: dict[State, str] = {}
    for op in race.story.ops:
        if op.found != "state" or op.tag not in race.story.unplaced:
            continue
        before = _before(op, log.get(op.key, []))
        if before and before[-1].tag == op.tag and before[-1].token is not None:
            continue  # it still had it
        token = None
        for entry in before:
            if entry.tag == op.tag:
                token = entry.token or token
                first[op.key, entry.uid, entry.revision] = f"{op.tag}#{token}"
    return first


def _before(op: Op, entries: list[Logged]) -> list[Logged]:
    """What the log says before the state that a write made."""
    stamps = [(entry.uid, entry.revision) for entry in entries]
    return entries[: stamps.index((op.uid, op.revision))] if (op.uid, op.revision) in stamps else []


def _entry_apart(key: Key, entry: Logged, first: dict[State, str]) -> Logged:
    return entry._replace(tag=first.get((key, entry.uid, entry.revision), entry.tag))


def _named_apart(op: Op, first: dict[State, str]) -> Op:
    """The same for what was read, or met by a refusal."""
    tag = first.get((op.key, op.uid, op.revision))
    if tag is None or op.found != "state":
        return op
    return op._replace(tag=tag) if op.action == "get" else op._replace(met=tag)


def _lost_again(race: Race, first: dict[State, str]) -> Iterator[Op]:
    for key, tag in sorted({(key, tag) for (key, _, _), tag in first.items()}):
        client, told = race.story.unplaced[tag.partition("#")[0]]
        yield Op(key, client, "update", told.invoked, told.returned, "unknown", tag)


def _placed(race: Race, seen: dict[Key, list[Seen]]) -> Iterator[Op]:
    """Claims that got a record without hearing of it."""
    known = {(op.key, op.tag) for op in race.story.ops}
    for key, events in seen.items():
        for tag in {event.tag for event in events} & race.story.unplaced.keys():
            if (key, tag) not in known:
                client, told = race.story.unplaced[tag]
                yield Op(key, client, "update", told.invoked, told.returned, "unknown", tag)


def _sharp(race: Race) -> Iterator[Op]:
    """The history without what was only read while reads proved nothing."""
    for op in race.story.ops:
        is_sharp = all(op.returned < begin or op.invoked > end for begin, end in race.blurred)
        if is_sharp or (op.outcome == "ok" and op.action != "get"):
            yield op
        elif op.action != "get":
            yield op._replace(found="", uid="", revision=0, met="")


def _vain_claims(race: Race, seen: dict[Key, list[Seen]]) -> Iterator[str]:
    """Claims that took a record and said that they had not."""
    for key, events in seen.items():
        for tag in {event.tag for event in events} & race.story.vain.keys():
            yield f"{'/'.join(key)}: claim {tag} took it, and was told {race.story.vain[tag]}"


def _taken_in_vain(race: Race, seen: dict[Key, list[Seen]]) -> Iterator[Op]:
    """The same for the history, which need not name them again."""
    for key, events in seen.items():
        for tag in {event.tag for event in events} & race.story.vain.keys():
            yield Op(key, "a claim in vain", "update", -math.inf, math.inf, "unknown", tag)


# --- leases ----------------------------------------------------------------------------------------------------------


def _tokens(race: Race) -> Iterator[str]:
    """By the log, which is the order things happened in: tokens grow, and only the newest is worth anything."""
    for key, events in _log(race).items():
        newest = 0
        held: int | None = None
        tags: set[str] = set()
        for event in events:
            token = race.story.tokens.get(event.tag)
            if event.tag not in tags and token is not None and held != token:
                yield f"{'/'.join(key)}: {event.tag} was accepted with token {token} while {held} was held"
            tags.add(event.tag)
            if event.token is not None and event.token != held:
                if event.token <= newest:
                    yield f"{'/'.join(key)}: token {event.token} was given out after {newest}"
                newest = max(newest, event.token)
            held = event.token


def _two_holders(race: Race) -> Iterator[str]:
    """By the clients' own clock: nothing is accepted under a token after a newer one was handed over."""
    claims: dict[Key, list[Guarded]] = defaultdict(list)
    for claim in race.story.claims:
        claims[claim.key].append(claim)
    for key, given in claims.items():
        if len({claim.token for claim in given}) != len(given):
            yield f"{'/'.join(key)}: a token was given to two: {sorted(claim.token for claim in given)}"
    for done in race.story.guarded:
        newer = [claim for claim in claims[done.key] if claim.token > done.token]
        first = min(newer, key=lambda claim: claim.returned, default=None)
        if first is not None and first.returned < done.invoked:
            yield f"{'/'.join(done.key)}: {done.what} with token {done.token} after {first.token} was handed over"


# --- what was counted ------------------------------------------------------------------------------------------------


def _jobs(race: Race) -> Iterator[str]:
    log = _log(race)
    for key, record in race.records.items():
        if key[0] != "job":
            continue
        told, perhaps = race.story.completed[key[1]], race.story.perhaps_completed[key[1]]
        if told > 1 or told + perhaps < 1:
            yield f"job {key[1]} was completed {told} times, perhaps {perhaps} more; it is {record}"
        if _times_completed(log.get(key, ())) != 1:
            yield f"job {key[1]} was completed {_times_completed(log.get(key, ()))} times by the log"


def _times_completed(events: Sequence[Seen]) -> int:
    before, times = None, 0
    for event in events:
        times += event.status == "COMPLETED" and before != "COMPLETED"
        before = event.status
    return times


def _sums(race: Race) -> Iterator[str]:
    for key, sure in race.story.counted.items():
        found, perhaps = (race.records[key] or {}).get("n"), race.story.perhaps_counted[key]
        if found is None or not sure <= found <= sure + perhaps:
            yield f"{'/'.join(key)}: {found} after {sure} acknowledged increments and {perhaps} of unknown fate"
    accounts = {key[1]: (record or {}).get("n") for key, record in race.records.items() if "account-" in key[1]}
    if any(amount is None for amount in accounts.values()) or sum(filter(None, accounts.values())) != 0:
        yield f"accounts do not add up to nothing: {accounts}"


# --- figures ---------------------------------------------------------------------------------------------------------


def figures(race: Race) -> list[str]:
    """What the load came to, for people."""
    story = race.story
    total = sum(map(len, story.seconds.values()))
    told = [code for watcher in race.watchers for code in watcher.told]
    lines = [
        (
            f"{total} operations in {race.took:.1f} s: {total / race.took:.0f}/s over {len(race.paths)} daemons, "
            f"{story.tries - total} tries more; {race.died} holders died; {len(story.completed)} jobs completed"
        ),
        f"answers that were refusals: {dict(story.codes.most_common())}",
        (
            f"watchers: {[watcher.count for watcher in race.watchers]} events, resumed "
            f"{[watcher.resumed for watcher in race.watchers]}, ended by {sorted({*told})}"
        ),
    ]
    for op, seconds in sorted(story.seconds.items()):
        seconds.sort()
        p50, p99 = (1000 * seconds[int(len(seconds) * share)] for share in (0.5, 0.99))
        lines.append(
            f"  {op:11} {len(seconds):7} times, ms: p50 {p50:8.2f}  p99 {p99:8.2f}  max {1000 * seconds[-1]:8.2f}"
        )
    return lines
