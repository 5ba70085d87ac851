"""What the clients of the race make of tries that got no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.harness import Daemon, serving
from tests.fleet.lines import Json, Speaker


@pytest.fixture
def daemon(socket_folder: Path) -> Iterator[Daemon]:
    with serving(socket_folder, backend="memory") as daemon:
        yield daemon


async def lost_at_first(daemon: Daemon, frame: Json, *, numbered: bool) -> tuple[str, str, int]:
    """What became of a request whose first try got no answer."""
    speaker = Speaker([daemon.folder / "nobody.sock", daemon.socket], "one", numbered=numbered, insists=30.0)
    told = await (speaker.read if frame["op"] == "get" else speaker.write)(**frame)
    speaker.drop()
    await asyncio.sleep(0)  # its transport closes in the next turn
    return told.outcome, told.code, told.tries


@pytest.mark.parametrize("numbered", [True, False])
async def test_a_read_means_what_its_last_try_was_told(daemon: Daemon, numbered: bool):
    found = await lost_at_first(daemon, {"op": "get", "kind": "kv", "id": "a"}, numbered=numbered)
    assert found == ("not_applied", "not_found", 2)


@pytest.mark.parametrize(("numbered", "meaning"), [(True, ("ok", "", 2)), (False, ("unknown", "lost", 1))])
async def test_a_write_is_tried_again_where_it_has_a_number(
    daemon: Daemon, numbered: bool, meaning: tuple[str, str, int]
):
    frame = {"op": "create", "kind": "kv", "record": {"id": "a"}}
    assert await lost_at_first(daemon, frame, numbered=numbered) == meaning
