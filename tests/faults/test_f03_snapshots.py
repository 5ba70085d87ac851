"""F3, snapshots: every bit flipped and every cut is refused by name, and the store that runs is left as it is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from statesvc.store.snapshots import inspect
from statesvc_client.errors import BadRequest
from tests.daemon.harness import Client, serving

NAMES = ("one", "two", "gone")


def fill(client: Client) -> None:
    assert client.hello("c")["success"]
    for number, name in enumerate(NAMES, 1):
        job = {"uuid": name, "status": "PENDING", "labels": {"of": name}}
        assert client.ask("create", job=job, seq=number, floor=number)["success"]
    assert client.ask("delete", jobId="gone", seq=4, floor=4)["success"]


def everything(client: Client) -> dict[str, Any]:
    history = {name: client.ask("history", jobId=name) for name in NAMES}
    return {"epoch": client.hello("c")["epoch"], "list": client.ask("list", sortBy="id"), **history}


def refusal(path: Path) -> str:
    with pytest.raises(BadRequest) as refused:
        inspect(path)
    assert str(path) in refused.value.text
    return refused.value.text


def test_a_damaged_snapshot_is_refused_by_name_and_the_store_goes_on_as_it_was(folder):
    chance = random.Random(3)
    with serving(folder) as daemon, daemon.connect() as client:
        fill(client)
        done = client.ask("snapshot", path="s.snapshot")
        assert done["success"], done
        whole = (daemon.data / "s.snapshot").read_bytes()
        path = daemon.data / "damaged.snapshot"
        path.touch(0o600)
        before = everything(client)
        for bit in range(len(whole) * 8):
            flipped = bytearray(whole)
            flipped[bit >> 3] ^= 1 << (bit & 7)
            path.write_bytes(flipped)
            refusal(path)
            if chance.random() < 0.004:
                assert_not_restored(client, before)
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            refusal(path)
            if chance.random() < 0.01:
                assert_not_restored(client, before)
        path.write_bytes(whole)
        assert inspect(path).footer.rows == len(NAMES)
        restored = client.ask("restore", path="damaged.snapshot")
        assert restored["success"], "what is whole is taken"
        assert everything(client)["list"]["jobs"] == before["list"]["jobs"]


def assert_not_restored(client: Client, before: dict[str, Any]) -> None:
    reply = client.ask("restore", path="damaged.snapshot")
    assert reply["code"] == "bad_request", reply
    assert "damaged.snapshot" in reply["error"]
    assert reply["outcome"] == "not_applied"
    assert everything(client) == before
