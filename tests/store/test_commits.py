"""Commits on any engine: every write is answered, whatever becomes of those who are told of it."""

from __future__ import annotations

import asyncio

import pytest

from tests.store.conftest import World


async def test_a_bug_behind_a_commit_keeps_no_write_from_being_answered(world: World, monkeypatch: pytest.MonkeyPatch):
    def broken(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(world.store.commits, "committed", broken)
    for name in ("a", "b"):
        assert (await asyncio.wait_for(world.create(name), 30))["status"] == "QUEUED"
