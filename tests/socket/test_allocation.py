"""Addresses: the lowest free one of a network, never twice, free again when it is given back or its owner has ended."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from statesvc.backends.port import Engine
from statesvc.store import allocation
from statesvc_client.errors import Unavailable
from tests.daemon.harness import serving
from tests.engines.addresses import EMBEDDED
from tests.engines.faulty import FaultyEngine
from tests.socket.conftest import Start
from tests.socket.talking import Daemon, Json, Talker

SMALL = {"cidr": "10.0.0.0/29", "gateway": "10.0.0.1"}
"""Five addresses: .2 to .6."""


async def network(talker: Talker, name: str = "net", **fields) -> None:
    await talker.ok("create", kind="network", record={"id": name, **(fields or SMALL)})


async def allocate(talker: Talker, name: str = "net", **fields) -> str:
    reply = await talker.ok("create", kind="ip", **{"from": name}, record=fields)
    address: str = reply["record"]["address"]
    return address


async def refused(talker: Talker, name: str = "net", **fields) -> tuple[str, str]:
    return await talker.refused("create", kind="ip", **{"from": name}, record=fields)


async def test_the_lowest_free_address_is_taken_and_named(client: Talker):
    await network(client)
    reply = await client.ok("create", kind="ip", **{"from": "net"}, record={"owner": "job/a", "note": "x"})
    record = reply["record"]
    assert (record["id"], record["network"], record["address"]) == ("net/10.0.0.2", "net", "10.0.0.2")
    assert (record["owner"], record["note"], record["revision"]) == ("job/a", "x", 1)
    assert (await client.ok("get", kind="ip", id="net/10.0.0.2"))["record"] == record
    assert await allocate(client) == "10.0.0.3"


@pytest.mark.parametrize(
    ("fields", "addresses"),
    [
        ({"cidr": "10.0.0.0/30"}, ["10.0.0.1", "10.0.0.2"]),
        ({"cidr": "10.0.0.5/30"}, ["10.0.0.5", "10.0.0.6"]),
        ({"cidr": "10.0.0.0/31"}, ["10.0.0.0", "10.0.0.1"]),
        ({"cidr": "10.0.0.9/32"}, ["10.0.0.9"]),
        ({"cidr": "10.0.0.0/29", "reserved": ["10.0.0.2", "10.0.0.4/31"]}, ["10.0.0.1", "10.0.0.3", "10.0.0.6"]),
        ({"cidr": "fd00::/126", "gateway": "fd00::1"}, ["fd00::2", "fd00::3"]),
    ],
    ids=["thirty", "host-bits", "pair", "single", "reserved", "six"],
)
async def test_every_address_but_those_that_are_nobodys_is_given_out(client: Talker, fields: Json, addresses: list):
    await network(client, **fields)
    assert [await allocate(client) for _ in addresses] == addresses
    code, text = await refused(client)
    assert (code, text) == ("conflict", f"CREATE_ERROR: network net has no free address ({len(addresses)} in use)")


async def test_a_huge_network_costs_no_more_than_a_small_one(client: Talker):
    await network(client, cidr="fd00::/16", reserved=["fd00::/32"])
    assert [await allocate(client) for _ in range(2)] == ["fd00:1::", "fd00:1::1"]


async def test_an_address_given_back_is_the_lowest_again(daemon: Daemon):
    client = await daemon.client(None)
    await network(client)
    taken = [await allocate(client) for _ in range(4)]
    for address in (taken[2], taken[0]):
        await client.ok("delete", kind="ip", id=f"net/{address}")
    again = [await allocate(client) for _ in range(3)]
    # Where others give addresses back too, one that came free is seen a little later.
    assert (again if daemon.engine.immediate else sorted(again)) == ["10.0.0.2", "10.0.0.4", "10.0.0.6"]


async def test_an_address_that_was_named_counts_as_taken(client: Talker):
    await network(client)
    await client.ok("create", kind="ip", record={"id": "net/10.0.0.2"})
    await client.ok("create", kind="ip", record={"id": "net/10.0.0.4", "network": "net", "address": "10.0.0.4"})
    assert [await allocate(client) for _ in range(2)] == ["10.0.0.3", "10.0.0.5"]


async def allocate_now(daemon: Daemon, talker: Talker) -> str:
    """Where records are shared, what others name is seen a little later; here that has passed."""
    await daemon.caught_up()
    return await allocate(talker)


async def test_an_address_that_a_record_of_any_id_names_is_not_given_out(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(allocation, "SHARED_SECONDS", -1.0)
    client = await daemon.client(None)
    await network(client)
    await network(client, "other")
    await client.ok("create", kind="ip", id="my-ip", record={"network": "net", "address": "10.0.0.2"})
    await client.ok("create", kind="ip", id="elsewhere", record={"network": "other", "address": "10.0.0.3"})
    assert await allocate_now(daemon, client) == "10.0.0.3"
    # Known by now: what is named from here on is noticed as it comes.
    await client.ok("create", kind="ip", id="x/10.0.0.9", record={"network": "net", "address": "10.0.0.4/29"})
    await client.ok("create", kind="ip", id="twice", record={"network": "net", "address": "10.0.0.4"})
    assert await allocate_now(daemon, client) == "10.0.0.5"
    await client.ok("delete", kind="ip", id="twice")
    assert await allocate_now(daemon, client) == "10.0.0.6"
    await daemon.caught_up()
    assert (await refused(client))[0] == "conflict"


async def test_an_address_named_by_a_record_is_free_when_the_record_names_another_or_goes(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(allocation, "SHARED_SECONDS", -1.0)
    client = await daemon.client(None)
    await network(client)
    await client.ok("create", kind="ip", id="a", record={"network": "net", "address": "10.0.0.2"})
    await client.ok("create", kind="ip", id="b", record={"network": "net", "address": "10.0.0.3"})
    assert await allocate_now(daemon, client) == "10.0.0.4"
    await client.ok("update", kind="ip", id="a", record={"address": "10.0.0.5"})
    await client.ok("delete", kind="ip", id="b")
    taken = [await allocate_now(daemon, client) for _ in range(3)]
    assert taken == ["10.0.0.2", "10.0.0.3", "10.0.0.6"]
    await daemon.caught_up()
    assert (await refused(client))[0] == "conflict"


@pytest.mark.parametrize("engine", EMBEDDED, indirect=True)
async def test_an_address_named_in_the_same_breath_is_not_given_out(daemon: Daemon):
    """Where records are shared, what others name is seen a little later."""
    client = await daemon.client(None)
    await network(client)
    assert await allocate(client) == "10.0.0.2"
    named = {"op": "create", "kind": "ip", "id": "mine", "record": {"network": "net", "address": "10.0.0.3"}}
    _, reply = await client.in_one_go([named, {"op": "create", "kind": "ip", "from": "net"}])
    assert reply["record"]["address"] == "10.0.0.4"


async def test_a_network_that_reserves_too_many_addresses_is_refused_by_name(client: Talker):
    reserved = [f"10.{number >> 8}.{number & 255}.1" for number in range(4097)]
    await network(client, cidr="10.0.0.0/8", reserved=reserved)
    for _ in range(2):
        code, text = await refused(client)
        assert code == "bad_request"
        assert "network net: reserved has 4097 entries; the limit is 4096" in text
    await client.ok("update", kind="network", id="net", record={"reserved": reserved[1:]})
    assert await allocate(client) == "10.0.0.1"


async def test_networks_do_not_share_addresses_and_follow_their_records(client: Talker):
    await network(client)
    await network(client, "other")
    assert [await allocate(client, name) for name in ("net", "other")] == ["10.0.0.2"] * 2
    await client.ok("update", kind="network", id="net", record={"cidr": "10.9.0.0/29", "gateway": None})
    assert await allocate(client) == "10.9.0.1"
    await client.ok("update", kind="network", id="net", record={"cidr": "10.0.0.0/29", "reserved": ["10.0.0.3"]})
    assert [await allocate(client) for _ in range(2)] == ["10.0.0.1", "10.0.0.4"]


@pytest.mark.parametrize(
    ("frame", "code", "text"),
    [
        ({"kind": "ip", "from": "nowhere"}, "not_found", "network nowhere not found"),
        ({"kind": "ip", "from": ""}, "bad_request", "id is required"),
        ({"kind": "job", "from": "net"}, "bad_request", "job has no pool"),
        ({"kind": "ip", "from": "net", "id": "x"}, "bad_request", "leave id out"),
        ({"kind": "ip", "from": "net", "record": {"address": "10.0.0.5"}}, "bad_request", "leave address out"),
        ({"kind": "ip", "from": "net", "record": {"network": "x"}}, "bad_request", "from and network differ"),
        ({"kind": "ip", "from": "net", "record": {"owner": 7}}, "bad_request", "owner must be a string"),
        ({"kind": "ip", "from": "bare"}, "bad_request", "network bare has no cidr"),
        ({"kind": "ip", "from": "bad"}, "bad_request", "cidr must be a CIDR like 10.0.0.0/24, not 10.0.0.0/99"),
    ],
    ids=lambda part: part if isinstance(part, str) and " " in part else None,
)
async def test_what_cannot_be_allocated_is_refused_by_name(client: Talker, frame: Json, code: str, text: str):
    await network(client)
    await client.ok("create", kind="network", record={"id": "bare"})
    await client.ok("create", kind="network", record={"id": "bad", "cidr": "10.0.0.0/99"})
    refusal = await client.refused("create", **frame)
    assert (refusal[0], text in refusal[1]) == (code, True), refusal
    assert await allocate(client) == "10.0.0.2"


async def test_an_allocation_sent_again_finds_its_address(daemon: Daemon):
    client = await daemon.client("c")
    await network(client)
    frame = {"kind": "ip", "from": "net", "record": {"owner": "job/a"}, "seq": 2}
    first = await client.ok("create", **frame)
    await client.ok("update", kind="ip", id=first["record"]["id"], record={"note": "x"}, seq=3)
    client = await daemon.client("c")
    await daemon.caught_up()
    again = await client.ok("create", **frame, again=True)
    assert (again["duplicate"], again["record"]["address"], again["revision"]) == (True, "10.0.0.2", 2)
    assert again["record"]["note"] == "x"
    await daemon.caught_up()
    replayed = await client.ok("create", **frame, again=True)
    assert replayed["record"]["id"] == first["record"]["id"]
    assert await allocate(await daemon.client("d")) == "10.0.0.3"


async def test_an_allocation_that_never_came_is_done_when_it_comes_again(daemon: Daemon):
    client = await daemon.client("c")
    await network(client)
    reply = await client.ok("create", kind="ip", **{"from": "net"}, seq=1, again=True)
    assert "duplicate" not in reply


async def test_every_address_of_a_network_goes_to_one_of_sixteen_and_comes_free_with_its_job(daemon: Daemon):
    """253 addresses of a /24 with a gateway, no duplicates, then a clear error; ending the jobs frees them."""
    setup = await daemon.client(None)
    await network(setup, cidr="10.1.2.0/24", gateway="10.1.2.1")
    talkers = [await daemon.client(f"c{number}") for number in range(16)]
    await asyncio.gather(
        *(t.ok("create", job={"uuid": f"job-{n}", "status": "RUNNING"}) for n, t in enumerate(talkers))
    )

    async def take_all(number: int, talker: Talker) -> list[str]:
        mine: list[str] = []
        while True:
            reply = await talker.ask("create", kind="ip", **{"from": "net"}, record={"owner": f"job/job-{number}"})
            if not reply["success"]:
                assert reply["code"] == "conflict", reply
                assert reply["error"] == "CREATE_ERROR: network net has no free address (253 in use)"
                return mine
            mine.append(reply["record"]["address"])

    taken = await asyncio.gather(*(take_all(number, talker) for number, talker in enumerate(talkers)))
    addresses = [address for mine in taken for address in mine]
    assert len(addresses) == 253
    assert set(addresses) == {f"10.1.2.{number}" for number in range(2, 255)}

    ending = [number for number, mine in enumerate(taken) if mine][:2]
    for number in ending:
        await setup.ok("update", jobId=f"job-{number}", job={"status": "COMPLETED"})
    freed = {address for number in ending for address in taken[number]}
    again = [await allocate(setup, owner="job/job-15") for _ in freed]
    assert set(again) == freed
    assert (await refused(setup))[0] == "conflict"


async def test_only_an_owner_that_was_there_and_ended_gives_its_address_up(client: Talker):
    await network(client, cidr="10.0.0.0/30")
    await client.ok("create", job={"uuid": "gone"})
    assert await allocate(client, owner="job/never-there") == "10.0.0.1"
    assert await allocate(client, owner="job/gone") == "10.0.0.2"
    assert (await refused(client))[0] == "conflict"
    await client.ok("delete", jobId="gone")
    assert await allocate(client) == "10.0.0.2"
    assert (await refused(client))[0] == "conflict"


async def test_after_a_failed_commit_the_address_is_free(start: Start, faulty: FaultyEngine):
    daemon = await start(faulty)
    client = await daemon.client(None)
    await network(client)
    assert await allocate(client) == "10.0.0.2"
    faulty.fail(Unavailable("pulled the plug"))
    assert (await refused(client))[0] == "unavailable"
    assert await allocate(client) == "10.0.0.3"


async def test_daemons_that_share_a_store_never_give_out_one_address_twice(fleet: list[Daemon]):
    talkers = [await daemon.client(None) for daemon in fleet]
    await network(talkers[0], cidr="10.0.0.0/27")

    async def take(talker: Talker) -> list[str]:
        return [await allocate(talker) for _ in range(8)]

    taken = [address for mine in await asyncio.gather(*map(take, talkers)) for address in mine]
    assert len(set(taken)) == 24


async def test_addresses_are_known_after_a_restart(start: Start, tmp_path: Path):
    from statesvc.backends.sqlite import SqliteEngine

    def engine() -> Engine:
        return SqliteEngine(tmp_path / "kept", durability="os")

    first = await start(engine())
    talker = await first.client(None)
    await network(talker)
    await talker.ok("create", job={"uuid": "a", "status": "RUNNING"})
    for owner in ("job/a", "job/b", "job/b", "job/b", "job/b"):
        await allocate(talker, owner=owner)
    await talker.ok("delete", kind="ip", id="net/10.0.0.5")
    await first.stop()
    second = Daemon(engine(), first.server._settings)
    await second.start()
    try:
        talker = await second.client(None)
        assert await allocate(talker) == "10.0.0.5"
        assert (await refused(talker))[0] == "conflict"
        await talker.ok("update", jobId="a", job={"status": "FAILED"})
        assert await allocate(talker) == "10.0.0.2"
    finally:
        await second.stop()


def test_a_process_gives_a_network_to_sixteen_connections(tmp_path: Path):
    """The same on a daemon of its own, on disk, with clients in threads."""
    taken: list[str] = []
    ends: list[str] = []
    with serving(tmp_path) as daemon:
        with daemon.connect() as setup:
            setup.ask("create", kind="network", record={"id": "net", "cidr": "10.1.2.0/24", "gateway": "10.1.2.1"})
            setup.ask("create", job={"uuid": "j", "status": "RUNNING"})

        def work() -> None:
            with daemon.connect() as client:
                while (reply := client.ask("create", kind="ip", **{"from": "net"}, record={"owner": "job/j"}))[
                    "success"
                ]:
                    taken.append(reply["record"]["address"])
                ends.append(reply["error"])

        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert (len(taken), len(set(taken))) == (253, 253)
        assert set(ends) == {"CREATE_ERROR: network net has no free address (253 in use)"}
        with daemon.connect() as setup:
            setup.ask("update", job={"uuid": "j", "status": "COMPLETED"})
            again = [setup.ask("create", kind="ip", **{"from": "net"})["record"]["address"] for _ in range(253)]
        assert sorted(again) == sorted(taken)
