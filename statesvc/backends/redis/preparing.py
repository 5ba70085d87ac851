"""What a server must be and allow, looked at one by one; the namespace is made unless this is a dry run.

Owns the list of those things and the words for how they stand. Must not know how a server is found.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..port import Step
from .durability import durability_of
from .epochs import Trust
from .facts import Facts
from .faults import Refused, words
from .meta import FIELDS, FORMAT, read_meta, too_new
from .namespace import Namespace
from .opening import Ask
from .scripting import script

_LEVELS = {
    "memory": "nothing of it survives the server; set appendonly yes",
    "os": "it survives the server, not a power cut; appendfsync always makes it survive that",
    "disk": "it survives a power cut, not the loss of the machine",
    "replicated": "it survives the loss of the machine",
}


async def prepare(namespace: Namespace, trust: Trust, *, dry_run: bool) -> list[Step]:
    link = namespace.link
    greet, link.greet = link.greet, _no_greeting
    try:
        await link.open()
        steps = [*_facts_in_steps(link.facts, trust), await _commands(namespace, dry_run=dry_run)]
        link.greet = greet
        return [*steps, await _namespace_there(namespace, dry_run=dry_run)]
    finally:
        link.greet = greet


async def _no_greeting(_facts: Facts, _ask: Ask) -> None:
    """A namespace is made by the first who judges it: not while only looking."""


def _facts_in_steps(facts: Facts, trust: Trust) -> Iterator[Step]:
    kind = "valkey" if facts.is_valkey else "redis"
    form = ", in a cluster" if facts.cluster else ""
    yield Step("redis server", "there", f"{kind} {facts.own_version} at {facts.address}{form}")
    yield _eviction(facts.maxmemory_policy)
    level = durability_of(facts, trust)
    yield Step("durability", "there", f"{level}: what is acknowledged: {_LEVELS[level]}")
    if trust.wait_replicas:
        yield _replicas(facts.replicas, trust.wait_replicas)


def _eviction(policy: str | None) -> Step:
    what = "maxmemory-policy"
    if policy is None:
        return Step(what, "there", "the server does not tell; see to it that it is noeviction")
    if policy.startswith("allkeys"):
        return Step(what, "wrong", f"{policy}: a full server would forget records; set maxmemory-policy noeviction")
    return Step(what, "there", policy)


def _replicas(connected: int, wanted: int) -> Step:
    detail = f"{connected} connected, wait_replicas is {wanted}"
    if connected < wanted:
        return Step("replicas", "wrong", f"{detail}: no write would be acknowledged; connect replicas or lower it")
    return Step("replicas", "there", detail)


async def _commands(namespace: Namespace, *, dry_run: bool) -> Step:
    what = "permitted commands"
    [reply] = await namespace.link.ask(script("probe").whole(namespace.key, int(not dry_run)))
    if isinstance(reply, Refused):
        return Step(what, "wrong", f"the server does not run scripts: {words(reply)}")
    if reply:
        names = ", ".join(name.decode() for name in reply)
        return Step(
            what, "wrong", f"the server refuses {names}; permit them to the user, with keys {namespace.key.decode()}*"
        )
    return Step(what, "there", "those that read; those that write were not tried" if dry_run else "all that are needed")


async def _namespace_there(namespace: Namespace, *, dry_run: bool) -> Step:
    what = f"namespace {namespace.name}"
    [reply] = await namespace.link.ask(("HMGET", namespace.key, *FIELDS))
    meta = read_meta(namespace.checked(reply))
    if meta is not None and meta.oldest > FORMAT:
        return Step(what, "wrong", too_new(namespace.name, meta.oldest).text)
    if meta is not None:
        return Step(what, "there", f"format {meta.format}, epoch {meta.epoch}")
    if dry_run:
        return Step(what, "missing")
    return Step(what, "made", f"format {FORMAT}, epoch {(await namespace.learn()).epoch}")
