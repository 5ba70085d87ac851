"""Rows of the daemon itself: what it was told to do about the whole store, and must not forget over a restart.

Owns their names, reading and writing them. Must not know what follows from them. Nobody is told of these rows: they are
no records, have no history, and no snapshot holds them, because they are about this store and not about what is in it.
"""

from __future__ import annotations

import msgspec

from ..backends.port import REMOVED, Key, Keys, Row, Unit, Write
from .store import Store

KIND = "_statesvc"

FREEZE: Key = (KIND, "freeze")
"""There while the store is frozen."""

TOKENS: Key = (KIND, "tokens")
"""Its token is the floor of all fencing tokens."""


def row(store: Store, key: Key, *, token: int = 0, revision: int = 1) -> Row:
    kind, name = key
    moment = store.moment()
    at = moment.text(moment.now)
    record = {"id": name, "uid": KIND, "revision": revision, "createdAt": at, "updatedAt": at}
    return Row(kind, name, KIND, revision, Keys(moment.now, moment.now), msgspec.json.encode(record), token=token)


def is_ours(found: Row | None) -> bool:
    """A client can make a record of the same name, but not one of this uid."""
    return found is not None and found.uid == KIND and not found.deleted


async def is_there(store: Store, key: Key) -> bool:
    """As it is stored now: on a shared engine others write and remove these rows too."""
    (found,) = await store.engine.get([key])
    return is_ours(found)


async def keep(store: Store, own: Row) -> None:
    def decide(rows: list[Row | None]) -> Unit:
        (before,) = rows
        return (Write(own, None if before is None else before.stamp, None),)

    await store.attempt([own.key], decide)


async def raise_floor(store: Store, token: int) -> int:
    """Have the floor of fencing tokens be no lower than this one; returns what it is. It never goes down: to raise it
    makes a revision, so of two daemons that do so at once one decides again."""
    floor = token

    def decide(rows: list[Row | None]) -> Unit | None:
        nonlocal floor
        (before,) = rows
        floor = max(token, 0 if before is None else before.token)
        if before is None:
            return (Write(row(store, TOKENS, token=token), None, None),)
        if before.token >= token:
            return None
        return (Write(row(store, TOKENS, token=token, revision=before.revision + 1), before.stamp, None),)

    await store.attempt([TOKENS], decide)
    return floor


async def remove(store: Store, key: Key) -> None:
    def decide(rows: list[Row | None]) -> Unit | None:
        (before,) = rows
        if before is None:
            return None
        return (removal(before),)

    await store.attempt([key], decide)


def removal(before: Row) -> Write:
    return Write(msgspec.structs.replace(before, deleted=REMOVED), before.stamp, None)
