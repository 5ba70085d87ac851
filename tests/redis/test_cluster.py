"""A namespace in a Cluster: its one node found by the slot, followed when it moves, waited for when it is down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from statesvc.backends.redis.link import LOST, Refused
from statesvc_client.errors import Unavailable
from tests.redis.conftest import LinkTo, once_it_works
from tests.redis.proxies import Proxy
from tests.redis.servers import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One that every test leaves whole."""
    with Cluster() as cluster:
        yield cluster


async def test_from_any_node_the_one_that_keeps_the_namespace_is_found(cluster: Cluster, link_to: LinkTo):
    homes = set()
    for name in ("a", "b", "c", "d", "e"):
        for node in cluster.masters:
            link = link_to(node.settings(), namespace=name)
            await link.open()
            assert await link.change(("SET", f"{{{name}}}", node.port)) == [b"OK"]
            assert link.facts.cluster
            assert link.facts.address == cluster.master_of(name).address
            homes.add(link.facts.address)
    assert len(homes) == 3, "the names are chosen so that all nodes have some"


async def test_nodes_that_are_away_are_passed_over(cluster: Cluster, link_to: LinkTo):
    link = link_to(cluster.settings(endpoint=f"127.0.0.1:1,{cluster.masters[1].address}"), namespace="a")
    await link.open()
    assert link.facts.address == cluster.master_of("a").address


async def test_a_slot_that_moves_is_followed_and_nothing_is_lost(cluster: Cluster, link_to: LinkTo, namespace):
    link = link_to(cluster.settings(), namespace=namespace)
    home = cluster.master_of(namespace)
    await link.change(("SET", f"{{{namespace}}}", 1))
    target = cluster.other_than(home)
    cluster.move(namespace, target)
    assert await link.ask(("GET", f"{{{namespace}}}")) == [b"1"]
    assert await link.change(("INCR", f"{{{namespace}}}"), ("INCR", f"{{{namespace}}}")) == [2, 3]
    assert link.facts.address == target.address
    cluster.move(namespace, home)
    assert await link.change(("INCR", f"{{{namespace}}}")) == [4]
    assert link.facts.address == home.address


async def test_a_key_that_is_on_its_way_is_waited_for(cluster: Cluster, link_to: LinkTo, namespace):
    link = link_to(cluster.settings(), namespace=namespace)
    one, two = f"{{{namespace}}}:1", f"{{{namespace}}}:2"
    await link.change(("SET", one, "v"), ("SET", two, "v"))
    home = cluster.master_of(namespace)
    target = cluster.other_than(home)
    source = cluster.begin_move(namespace, target)
    assert cluster.move_keys(namespace, source, target, most=1) == 1
    both = asyncio.create_task(link.ask(("MGET", one, two)))  # TRYAGAIN: half of it is elsewhere
    each = [asyncio.create_task(link.change(("APPEND", key, "w"))) for key in (one, two)]  # ASK for one of them
    done, _ = await asyncio.wait([both, *each], timeout=0.2)
    assert len(done) <= 1, "only the key that is still here can be written"
    cluster.move_keys(namespace, source, target)
    cluster.finish_move(namespace, target)
    assert [await task for task in each] == [[2], [2]]
    assert set((await both)[0]) <= {b"v", b"vw"}
    assert await link.ask(("MGET", one, two)) == [[b"vw", b"vw"]]
    cluster.move(namespace, home)


async def test_a_script_that_meets_a_key_on_its_way_is_a_refusal_of_its_own(
    cluster: Cluster, link_to: LinkTo, namespace
):
    link = link_to(cluster.settings(), namespace=namespace)
    base = f"{{{namespace}}}"
    await link.change(("SET", base, "v"))
    home = cluster.master_of(namespace)
    target = cluster.other_than(home)
    cluster.begin_move(namespace, target)
    script = "return redis.call('GET', KEYS[1] .. ':missing')"
    [fate] = await link.change(("EVAL", script, 1, base))
    cluster.move_keys(namespace, home, target)
    cluster.finish_move(namespace, target)
    cluster.move(namespace, home)
    assert fate is None or (isinstance(fate, Refused) and fate.code == "NOTLOCAL"), fate


async def test_a_cluster_that_is_down_is_named_waited_for_without_storming_and_used_again(link_to: LinkTo):
    with Cluster() as cluster:
        name = "a"
        home = cluster.master_of(name)
        async with Proxy(home.port) as proxy:
            link = link_to(cluster.settings(), seconds=3, namespace=name)
            await link.change(("SET", "{a}", "v"))
            others = [node for node in cluster.masters if node is not home]
            for node in others:
                node.kill()
            cluster.wait_until_down()
            with pytest.raises(Unavailable, match="the cluster is down") as caught:
                await link.change(("SET", "{a}", "w"))
            assert home.address in caught.value.text
            before = int(home.info()["total_connections_received"])
            answers = await asyncio.gather(*(link.ask(("GET", "{a}")) for _ in range(100)), return_exceptions=True)
            assert {type(answer) for answer in answers} == {Unavailable}
            assert int(home.info()["total_connections_received"]) - before < 100
            for node in others:
                node.start()
            assert await once_it_works(lambda: link.change(("SET", "{a}", "w"))) == [b"OK"]
            assert await link.ask(("GET", "{a}")) == [b"w"]
            assert proxy.accepted == 0


async def test_a_master_that_dies_is_replaced_by_its_replica_and_found(link_to: LinkTo):
    with Cluster(replicas=1) as cluster:
        link = link_to(cluster.settings(), namespace="a")
        assert await link.change(("SET", "{a}", "v"), ("WAIT", 1, 10_000)) == [b"OK", 1]
        home = cluster.master_of("a")
        home.kill()
        fates = [fate for [fate] in await asyncio.gather(*(link.change(("INCR", "{a}:n")) for _ in range(20)))]
        [replica] = cluster.replicas[cluster.masters.index(home)]
        assert link.facts.address == replica.address
        applied = sum(fate is not LOST for fate in fates)
        assert await link.ask(("GET", "{a}"), ("GET", "{a}:n")) == [b"v", b"%d" % applied]
        home.start()
        assert await link.change(("SET", "{a}", "w")) == [b"OK"]
        assert link.facts.address == replica.address


async def test_a_failover_by_hand_is_followed(link_to: LinkTo):
    with Cluster(replicas=1) as cluster:
        link = link_to(cluster.settings(), namespace="a")
        await link.change(("SET", "{a}", 0))
        home = cluster.master_of("a")
        [replica] = cluster.replicas[cluster.masters.index(home)]
        writing = [asyncio.create_task(link.change(("INCR", "{a}"))) for _ in range(5)]
        replica.say("CLUSTER", "FAILOVER")
        while link.facts.address != replica.address:
            writing.append(asyncio.create_task(link.change(("INCR", "{a}"))))
            await writing[-1]
        fates = [fate for [fate] in await asyncio.gather(*writing)]
        assert LOST not in fates
        assert await link.ask(("GET", "{a}")) == [b"%d" % len(fates)]


async def test_the_whole_cluster_away_is_named(link_to: LinkTo):
    with Cluster() as cluster:
        link = link_to(cluster.settings(), seconds=1, namespace="a")
        await link.open()
        for node in cluster.masters:
            node.kill()
        with pytest.raises(Unavailable) as caught:
            await link.ask(("PING",))
        assert "127.0.0.1" in caught.value.text
        for node in cluster.masters:
            node.start()
        assert await once_it_works(lambda: link.change(("SET", "{a}", "w"))) == [b"OK"]
