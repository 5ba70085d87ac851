"""Memory that large requests took is given back when they are over."""

from __future__ import annotations

import gc

from statesvc.process.memory import give_free_pages_back
from tests.daemon.harness import Client, serving

MIB = 1024 * 1024

KEPT = 4 * MIB
"""What may stay of it: a few small things. Without giving back it comes to fourteen."""


def test_what_giant_frames_took_is_given_back(socket_folder):
    with serving(socket_folder, backend="memory") as daemon, daemon.connect() as client:
        large_and_small(client, 0)
        before = daemon.rss_bytes()
        for number in range(1, 25):
            large_and_small(client, number)
            assert daemon.rss_bytes() - before < KEPT


def test_giving_back_leaves_nothing_behind_itself():
    """It is done for as long as a daemon lives, and cycles are looked for seldom."""
    give_free_pages_back()
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            give_free_pages_back()
        assert gc.collect() == 0
    finally:
        gc.enable()


def large_and_small(client: Client, number: int) -> None:
    """A large request that leads to nothing, and small ones that stay."""
    pad = "x" * (1 + number % 8) * MIB
    assert client.ask("update", kind="kv", id="nobody", record={"pad": pad})["code"] == "not_found"
    for small in range(20):
        assert client.ask("create", kind="kv", record={"id": f"small-{number}-{small}", "pad": "x" * 1000})["success"]
