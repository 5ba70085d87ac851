"""What deliveries are judged by: a loss is named, a double too, and one does not make up for the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.daemon.harness import Client, serving
from tests.fleet.delivery import Delivery


async def judged(delivery: Delivery) -> list[str]:
    delivery.lost = delivery.twice = 0
    return await delivery.faults()


def count(client: Client, counter: str, sender: str, by: int) -> None:
    assert client.ask("update", jobId=counter, inc={sender: by})["success"]


@pytest.mark.parametrize("sender", ["agent-0", "plain-0"])
def test_a_loss_at_one_counter_and_a_double_at_another_are_both_found(socket_folder: Path, sender: str):
    with serving(socket_folder, backend="memory") as daemon, daemon.connect() as client:
        delivery = Delivery([daemon.socket], 100, agents=1, plain=1)
        asyncio.run(delivery.run())
        assert asyncio.run(judged(delivery)) == []
        assert delivery.acknowledged == delivery.expected == delivery.sent
        count(client, "counter-0", sender, -1)
        count(client, "counter-1", sender, +1)
        found = asyncio.run(judged(delivery))
        assert [each for each in found if "revision" not in each] == [
            f"counter-0: 6 of {sender}, which counted 7 times",
            f"counter-1: 7 of {sender}, which counted 6 times",
        ]
        assert (delivery.lost, delivery.twice) == (1, 1)


def test_a_loss_of_one_sender_and_a_double_of_another_are_both_found(socket_folder: Path):
    with serving(socket_folder, backend="memory") as daemon, daemon.connect() as client:
        delivery = Delivery([daemon.socket], 100, agents=1, plain=1)
        asyncio.run(delivery.run())
        count(client, "counter-0", "agent-0", -1)
        count(client, "counter-0", "plain-0", +1)
        assert len([each for each in asyncio.run(judged(delivery)) if " of " in each]) == 2


@pytest.mark.parametrize(("sender", "senders"), [("agent-0", (1, 0)), ("plain-0", (0, 1))])
def test_a_write_that_was_refused_does_not_count_as_acknowledged(
    socket_folder: Path, sender: str, senders: tuple[int, int]
):
    """One of its records is there already, and has something else where the list should be."""
    with serving(socket_folder, backend="memory") as daemon, daemon.connect() as client:
        assert client.ask("create", job={"uuid": f"{sender}-0", "seen": "not a list"})["success"]
        delivery = Delivery([daemon.socket], 80, *senders)
        asyncio.run(delivery.run())
        refused = 1 + delivery.writes // delivery.records
        assert len(delivery.rejected) == refused
        assert delivery.acknowledged == delivery.expected - refused
