"""The Redis engine: one namespace on one master, shared by many daemons.

Owns the port's calls and what each of them becomes. Must not know lifecycles, or how a connection is made. What must
happen at one moment is in scripts/, which the server runs; this side makes their arguments and reads their answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from statesvc_client.errors import StateError, Unavailable

from ... import logs
from ..port import Cursor, Dump, Engine, Guess, Key, LogEntry, LogKept, Query, Result, Row, Step, Unit
from . import calling, checking, commits, compaction, dumping, loading, preparing, rows, walking
from .access import Access
from .durability import durability_of
from .epochs import Trust
from .facts import Facts
from .faults import Refused, as_error
from .guesses import Guesses
from .link import Link, sends_until
from .log import Log
from .meta import FORMAT, Meta, too_new
from .names import namespace_key
from .namespace import Namespace
from .replicas import Replicas
from .seen import Seen

log = logs.get(__name__)


class RedisEngine(Engine):
    """Rows in hashes, indexes in sorted sets, the log in a stream."""

    name = "redis"

    def __init__(
        self,
        access: Access,
        namespace: str,
        *,
        wait_replicas: int = 0,
        wait_seconds: float = 1.0,
        durability: str = "auto",
    ) -> None:
        self.epoch = ""
        self.durability = "memory"
        self._trust = Trust(wait_replicas, durability, fixed=not access.sentinel_master and len(access.endpoints) == 1)
        self._link = Link(access, namespace)
        self._namespace = Namespace(self._link, namespace, self._trust, access.timeout_seconds)
        self._namespace.met, self._namespace.took = self._met, self._took
        self._replicas = Replicas(self._link, namespace_key(namespace), wait_replicas, wait_seconds)
        self._log = Log(self._namespace, self._replicas)
        self._seen = Seen()
        self._guesses = Guesses()
        self._loading = False
        self.timeout_seconds = access.timeout_seconds
        self.commit_seconds = access.timeout_seconds + (wait_seconds if wait_replicas else 0.0)

    async def open(self) -> None:
        await self._link.open()
        policy = self._link.facts.maxmemory_policy or ""
        if policy.startswith("allkeys"):
            log.warning("redis_may_evict", server=self._link.server, policy=policy)

    async def close(self) -> None:
        await self._log.close()
        await self._link.close()

    async def ping(self) -> None:
        await self._namespace.look()

    async def prepare(self, *, dry_run: bool) -> list[Step]:
        return await preparing.prepare(self._namespace, self._trust, dry_run=dry_run)

    @property
    def server(self) -> int:  # type: ignore[override]
        return self._link.servers

    async def assure(self, read_from: int | None = None) -> None:
        if not self._replicas.wait:
            return
        try:
            await self._replicas.ask()
        except StateError as away:
            # Surely no mark was made; but what it was to be behind is there, or was.
            raise type(away)(away.text, outcome="unknown") from None
        if read_from not in (None, self.server):
            why = f"redis at {self._link.server}: it took over meanwhile, and may lack what was read before"
            raise Unavailable(why, outcome="unknown")

    def _met(self, facts: Facts) -> None:
        self.durability = durability_of(facts, self._trust)

    def _took(self, meta: Meta) -> None:
        """The namespace was judged: on a new connection, or because it is not what it was."""
        if meta.epoch == self.epoch:
            self._log.found(meta)
            return
        was, self.epoch = self.epoch, meta.epoch
        self._log.replaced(meta)
        self._guesses.clear()
        if was and not self._loading:
            self._tell_of_new_epoch()

    def _tell_of_new_epoch(self) -> None:
        self._seen.began_anew()
        self.began_anew()

    # --- rows ------------------------------------------------------------------------------------------------------

    def guess(self, key: Key) -> Guess | None:
        return self._guesses.of(key)

    async def get(self, keys: Sequence[Key]) -> list[Row | None]:
        if not keys:
            return []
        ids: dict[str, list[str]] = {}
        for kind, id in keys:
            ids.setdefault(kind, []).append(id)
        _, replies = await self._namespace.read(
            lambda names: [("HMGET", names.rows(kind), *wanted) for kind, wanted in ids.items()]
        )
        values = {kind: iter(reply) for kind, reply in zip(ids, replies, strict=True)}
        found = [None if (value := next(values[kind])) is None else rows.unpack(kind, id, value) for kind, id in keys]
        self._seen.note(found)
        return found

    async def kinds(self) -> list[str]:
        _, [names] = await self._namespace.read(lambda names: [("HKEYS", names.kinds)])
        return sorted(name.decode() for name in names)

    async def query(self, query: Query) -> list[Row]:
        epoch = self.epoch
        found = await walking.query(self._namespace, query)
        if self.epoch == epoch:  # a walk in several steps may have begun before a change
            self._seen.note(found)
        return found

    async def count(self, query: Query) -> int:
        total = await walking.count(self._namespace, query)
        return await super().count(query) if total is None else total

    # --- commits ---------------------------------------------------------------------------------------------------

    async def commit(self, batch: Sequence[Unit]) -> list[Result]:
        return await self.commit_within(batch, self.timeout_seconds)

    async def commit_within(self, batch: Sequence[Unit], seconds: float) -> list[Result]:
        # One deadline and one epoch for the whole of it: those that held when it was handed over.
        until = asyncio.get_running_loop().time() + self.commit_seconds - (self.timeout_seconds - seconds)
        epoch = self._namespace.known.epoch
        outcome = commits.Outcome(len(batch))
        waiting = commits.parts(batch, self._guesses.digest)
        if unfounded := self._seen.unfounded(waiting):
            outcome.conflict(unfounded)
            waiting = commits.without(unfounded, waiting)
        while waiting and outcome.refused is None and not outcome.replaced:
            run = commits.next_run(waiting)
            try:
                replies = await self._sent(run, epoch, until)
            except StateError as problem:
                if problem.outcome == "unknown" or not outcome.touched:
                    raise
                # Of this run nothing was applied, of an earlier one something.
                outcome.never_applied([*(part for call in run for part in call.parts), *waiting], problem)
                return outcome.results
            self._take(run, replies, outcome, epoch)
            waiting = outcome.without_lost(waiting)
        await self._conclude(waiting, outcome)
        return outcome.results

    def _take(self, run: Sequence[commits.Call], replies: list[Any], outcome: commits.Outcome, epoch: str) -> None:
        waited = replies.pop() if self._replicas.wait else None
        for call, reply in zip(run, replies, strict=True):
            outcome.take(call, reply)
        self._guess_from(run, outcome, epoch)
        if outcome.touched:
            self._replicas.check(waited)
        if self._namespace.known.epoch != epoch:
            return  # the answers are true, and tell nothing of the store that is known now
        if outcome.seq is not None:
            self._namespace.reached(outcome.seq, outcome.log_bytes)
            self._log.reached(outcome.seq, safe=outcome.touched)
        if outcome.newest is not None:
            self._namespace.judge.acknowledged(outcome.newest)
        self._log.took(outcome.told)
        outcome.told.clear()
        self._seen.note(outcome.applied(run))

    def _guess_from(self, run: Sequence[commits.Call], outcome: commits.Outcome, epoch: str) -> None:
        """What was written is most likely what is stored; of what was refused nobody knows."""
        known = self._namespace.known.epoch == epoch
        for row, stored in outcome.stored(run):
            if stored is None:
                self._guesses.forget(row.key)
            elif known:
                self._guesses.note(row, stored)

    async def _conclude(self, waiting: Sequence[commits.Part], outcome: commits.Outcome) -> None:
        """Say of units that were never sent why they were not."""
        if outcome.refused is not None:
            error = self._error(outcome.refused)
            if not outcome.touched:
                raise error
            outcome.never_applied(waiting, type(error)(error.text, outcome="not_applied"))
        if outcome.replaced:
            outcome.conflict(waiting)
            try:
                await self._namespace.learn()
            except StateError:
                if not outcome.touched:
                    raise

    async def _sent(self, run: Sequence[commits.Call], epoch: str, until: float) -> list[Any]:
        """Each call's reply, then that of the wait. Nothing is sent once the time is over."""
        head = (FORMAT, epoch, int(self._link.facts.cluster))
        calls = [(*head, *call.arguments) for call in run]
        send = partial(self._link.change, until=until)
        return await calling.run(send, sends_until(until), "commit", self._namespace.key, calls, self._replicas.wait)

    def _error(self, refused: Refused | int) -> StateError:
        if isinstance(refused, int):
            return too_new(self._namespace.name, refused)
        error = as_error(refused, self._link.server)
        if refused.code not in commits.SURELY_NOTHING:
            error.outcome = "unknown"
        return error

    # --- the log ---------------------------------------------------------------------------------------------------

    async def position(self) -> Cursor:
        return await self._log.position()

    async def read_log(self, after: Cursor, limit: int) -> list[LogEntry]:
        return await self._log.read(after, limit)

    async def log_grew(self, after: Cursor, seconds: float) -> None:
        await self._log.grew(after, seconds)

    async def history(self, key: Key, after: Cursor, limit: int) -> list[LogEntry]:
        return await self._log.history(key, after, limit)

    async def compact(self, keep: LogKept) -> bool:
        more = await compaction.step(self._namespace, keep)
        self._log.was_cut()
        return more

    # --- the whole -------------------------------------------------------------------------------------------------

    async def dump(self) -> Dump:
        return await dumping.dump(self._namespace)

    async def load(self, rows: AsyncIterator[list[Row]]) -> None:
        before, self._loading = self.epoch, True
        try:
            await self._replace(rows)
        except BaseException:
            # Whoever loads expects a new epoch of a load that succeeds, and of no other.
            if self.epoch != before:
                self._tell_of_new_epoch()
            raise
        finally:
            self._loading = False

    async def _replace(self, rows: AsyncIterator[list[Row]]) -> None:
        server = self.server
        epoch = await loading.load(self._namespace, rows)
        await self.assure(server)
        if self.epoch != epoch:
            why = f"the namespace {self._namespace.name} was loaded, and began yet another epoch right after that"
            raise Unavailable(why, outcome="unknown")

    async def check(self) -> list[str]:
        return await checking.check(self._namespace)

    async def repair(self) -> list[str]:
        return await checking.repair(self._namespace)

    def measures(self) -> dict[str, int]:
        meta = self._namespace.meta
        if meta is None:
            return {}
        log = {"logEntries": meta.seq - meta.start, "logBytes": meta.log_bytes}
        memory = self._namespace.used_memory
        return log if memory is None else {**log, "usedMemory": memory}
