"""Whether a short history of one record can have happened, found by trying every order.

Owns the slow and plain way, which the checker is held against. Must not know the checker's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.fleet.linearizability import Logged, Op


def is_possible(ops: Sequence[Op], log: Sequence[Logged]) -> bool:
    """Whether each request can have taken effect at one moment within its time, so that this log came of it."""
    return _Search(ops, log).succeeds(done=0, made=0)


class _Search:
    """Goes from request to request, as far as their times and the log allow. Sets of requests are bits of a number."""

    def __init__(self, ops: Sequence[Op], log: Sequence[Logged]) -> None:
        self._ops, self._log = ops, log
        self._owed = sum(1 << place for place, op in enumerate(ops) if op.outcome != "unknown")
        self._earlier = [
            sum(1 << place for place, other in enumerate(ops) if other.returned < op.invoked) for op in ops
        ]
        self._in_vain: set[tuple[int, int]] = set()

    def succeeds(self, done: int, made: int) -> bool:
        """Whether the rest can follow, once these are done and so many entries of the log are made."""
        if done & self._owed == self._owed and made == len(self._log):
            return True
        if (done, made) in self._in_vain:
            return False
        self._in_vain.add((done, made))
        for place, op in enumerate(self._ops):
            if done >> place & 1 or self._earlier[place] & ~done:
                continue
            if self._may_see(op, made) and self.succeeds(done | 1 << place, made):
                return True
            if self._may_make(op, made) and self.succeeds(done | 1 << place, made + 1):
                return True
        return False

    def _may_see(self, op: Op, made: int) -> bool:
        return _sees(op, self._state_after(made))

    def _may_make(self, op: Op, made: int) -> bool:
        return made < len(self._log) and _makes(op, self._log[made], self._state_after(made))

    def _state_after(self, made: int) -> Logged | None:
        return None if made == 0 or self._log[made - 1].deleted else self._log[made - 1]


def _sees(op: Op, state: Logged | None) -> bool:
    """Whether a request that changes nothing can be told this of the state."""
    if op.action != "get" and op.outcome != "not_applied":
        return False
    if op.found == "state":
        tag = op.tag if op.action == "get" else op.met
        return state is not None and (state.uid, state.revision, state.tag) == (op.uid, op.revision, tag)
    return op.found == "" or (op.found == "present") == (state is not None)


def _makes(op: Op, entry: Logged, state: Logged | None) -> bool:
    """Whether a write can lead from the state to the entry."""
    if op.action == "get" or op.outcome == "not_applied" or entry.deleted != (op.action == "delete"):
        return False
    if op.action == "create":
        follows = state is None and entry.revision == 1
    else:
        follows = state is not None and entry.continues(state) and op.if_revision in {None, state.revision}
    is_told = op.found != "state" or (op.uid, op.revision) == (entry.uid, entry.revision)
    return follows and is_told and op.tag == entry.tag
