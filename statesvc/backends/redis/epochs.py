"""Whether the server we meet still has everything that was acknowledged, and a new epoch when that cannot be shown.

Owns the judgement. Must not know how connections are made, or what an epoch means to those above.

Each server process has a run id, each replication stream an id. The namespace's hash holds those of the server that was
judged last. Whoever meets another one judges it and writes that down, for all daemons, unless another was quicker:

    the same process                    has everything; a replication id may change while nobody replicates
    a promoted replica                  has everything that was acknowledged only after replicas had it
    a server that started again         has everything where each write was on its disk before it was acknowledged
    anything else                       may have lost something: a new epoch

Beside that each daemon looks for the newest entry it has itself acknowledged: if it is gone, all proofs are void. They
are void, too, where the epoch it meets cannot have followed the one it knows: then the server had lost everything, and
another daemon, which knew of nothing, took it for a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from statesvc_client.errors import Unavailable

from ... import logs
from .. import epoch_names
from .facts import Facts
from .faults import Refused, as_error
from .meta import FIELDS, FORMAT, OLDEST, Meta, read_meta, too_new
from .names import Names, namespace_key
from .opening import Ask
from .rows import read_entry
from .scripting import script

log = logs.get(__name__)

ATTEMPTS = 8
"""Daemons that judge at once overtake each other; each of them needs one more look at most."""

NO_REPLICATION_ID = "0" * 40


class Trust(NamedTuple):
    """What an acknowledgement rests on, as far as the settings tell."""

    wait_replicas: int = 0
    durability: str = "auto"
    fixed: bool = True
    """The server is always the one at the same address; otherwise one of several may take its place."""


class Acknowledged(NamedTuple):
    """The newest log entry this daemon has acknowledged."""

    number: int
    kind: str
    id: str
    uid: str
    revision: int


class Judge:
    """Judges each server this daemon meets, for one namespace."""

    def __init__(self, namespace: str, trust: Trust, took: Callable[[Meta], None]) -> None:
        self._namespace = namespace
        self._trust = trust
        self._took = took
        """Is told what holds after every judgement."""
        self._met: str | None = None
        self._epoch: str | None = None
        self._acknowledged: Acknowledged | None = None
        self._judgements = 0

    def acknowledged(self, entry: Acknowledged) -> None:
        if self._acknowledged is None or entry.number > self._acknowledged.number:
            self._acknowledged = entry

    async def judge(self, met: Callable[[], Facts], ask: Ask) -> None:
        """Settle which epoch holds on the server that `ask` reaches, `met` being what it says of itself. Raises
        `Unavailable` when this daemon must not use it."""
        for _ in range(ATTEMPTS):
            judgements, facts = self._judgements, met()
            identity = _identity(facts)
            meta = await self._read(facts, ask)
            if _identity(met()) != identity:
                continue  # another server answered: with what is known of the one before it would look like a loss
            if meta is None:
                meta = await self._founded(facts, identity, ask)
            elif meta.oldest > FORMAT:
                raise too_new(self._namespace, meta.oldest)
            elif meta.server != identity or self._met not in (None, identity) or not self._follows(meta.epoch):
                meta = await self._settled(meta, facts, identity, ask)
            if meta is None:
                continue
            # Another connection of ours may have been judged meanwhile: then what was read is old, or the same.
            if self._judgements == judgements:
                self._take(meta, identity)
            elif (meta.epoch, identity) != (self._epoch, self._met):
                continue
            return
        raise Unavailable(f"redis at {met().address}: daemons do not agree on the epoch of {self._namespace}")

    async def _read(self, facts: Facts, ask: Ask) -> Meta | None:
        [reply] = await ask(("HMGET", namespace_key(self._namespace), *FIELDS))
        return read_meta(_checked(reply, facts))

    async def _founded(self, facts: Facts, identity: str, ask: Ask) -> Meta | None:
        """What holds in a namespace that was made now; None when another daemon was quicker, and is to be judged."""
        fresh = epoch_names.first() if self._epoch is None else epoch_names.following(self._epoch)
        made, fields = await self._run(facts, ask, "found", FORMAT, OLDEST, fresh, identity, *FIELDS)
        if not made:
            return None
        log.info("redis_namespace_made", namespace=self._namespace, server=facts.address)
        return read_meta(fields)

    async def _settled(self, meta: Meta, facts: Facts, identity: str, ask: Ask) -> Meta | None:
        """What holds after this judgement; None when another daemon was quicker."""
        doubt = await self._doubt(meta, facts, identity, ask)
        epoch = meta.epoch if doubt is None else epoch_names.following(meta.epoch, self._known_floor)
        reply = await self._run(facts, ask, "adjudicate", meta.epoch, meta.server, epoch, identity, *FIELDS)
        after = read_meta(reply)
        if after is None or (after.epoch, after.server) != (epoch, identity):
            return None
        if doubt is None:
            log.info("redis_server_changed", namespace=self._namespace, server=facts.address)
        else:
            log.warning("redis_epoch_begun", namespace=self._namespace, server=facts.address, reason=doubt)
        return after

    def _take(self, meta: Meta, identity: str) -> None:
        if meta.epoch != self._epoch:
            self._acknowledged = None
        self._epoch, self._met = meta.epoch, identity
        self._judgements += 1
        self._took(meta)

    # --- doubts ----------------------------------------------------------------------------------------------------

    async def _doubt(self, meta: Meta, facts: Facts, identity: str, ask: Ask) -> str | None:
        """Why acknowledged writes may be missing; None when all are shown to be there."""
        if not self._follows(meta.epoch):
            return "the epoch that was known here is gone, and the one in its place is new or older"
        if not await self._has_own_newest(meta, facts, ask):
            return "the newest write acknowledged here is not there"
        return None if meta.server == identity else unproven(meta.server, facts, self._trust)

    def _follows(self, epoch: str) -> bool:
        """Whether this epoch is the known one or may have come behind it: each has a higher floor than the last."""
        if self._epoch is None or epoch == self._epoch:
            return True
        return epoch_names.token_floor(epoch) > self._known_floor

    @property
    def _known_floor(self) -> int:
        return 0 if self._epoch is None else epoch_names.token_floor(self._epoch)

    async def _has_own_newest(self, meta: Meta, facts: Facts, ask: Ask) -> bool:
        own = self._acknowledged
        if own is None or meta.epoch != self._epoch or own.number <= meta.start:
            return True
        names = Names(namespace_key(self._namespace), meta.generation)
        [reply] = await ask(("XRANGE", names.log, f"{own.number}-0", f"{own.number}-0"))
        entries = _checked(reply, facts)
        if not entries:
            return False
        row = read_entry(entries[0]).row
        return (row.kind, row.id, row.uid, row.revision) == own[1:]

    async def _run(self, facts: Facts, ask: Ask, name: str, *arguments: str | int) -> Any:
        [reply] = await ask(script(name).whole(namespace_key(self._namespace), *arguments))
        return _checked(reply, facts)


def _identity(facts: Facts) -> str:
    return f"{facts.run_id} {facts.replid}"


def unproven(judged: str, facts: Facts, trust: Trust) -> str | None:
    """Why a server that is not the one judged last may lack what others have acknowledged; None when it cannot."""
    run_id, _, replid = judged.partition(" ")
    if run_id == facts.run_id and facts.replid2 in ("", NO_REPLICATION_ID):
        return None
    if trust.durability == "replicated":
        return None
    if replid and facts.replid2 == replid:
        return None if trust.wait_replicas else "a replica took over, and writes were not waited for on replicas"
    if facts.cluster or not trust.fixed:
        return "another server took over, and it did not follow the one before it"
    on_disk = trust.durability == "disk" or (trust.durability == "auto" and facts.aof and facts.fsync == "always")
    return None if on_disk else "the server started again, and writes are not on its disk before they are acknowledged"


def _checked(reply: Any, facts: Facts) -> Any:
    if isinstance(reply, Refused):
        raise as_error(reply, facts.address)
    return reply
