"""The master found through Sentinel: at the start, after it was killed, and when it was cut off without a word."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from statesvc.backends.redis.access import Address
from statesvc.backends.redis.link import LOST
from statesvc_client.errors import Unavailable
from tests.redis.conftest import FAILING_SECONDS, LinkTo, once_it_works
from tests.redis.servers import SentinelPair


@pytest.fixture
def pair() -> Iterator[SentinelPair]:
    """One to break."""
    with SentinelPair() as pair:
        yield pair


@pytest.fixture(scope="module")
def whole() -> Iterator[SentinelPair]:
    """One that every test leaves as it was."""
    with SentinelPair() as pair:
        yield pair


async def test_after_the_master_was_killed_the_link_finds_the_new_one(pair: SentinelPair, link_to: LinkTo):
    link = link_to(pair.settings())
    await link.open()
    assert link.facts.address == pair.first.address
    assert await link.change(("SET", "k", "v"), ("WAIT", 1, 10_000)) == [b"OK", 1]
    before = link.facts.replid
    old = pair.kill_master()
    writes = [link.change(("RPUSH", "l", number)) for number in range(20)]
    fates = [fate for [fate] in await asyncio.gather(*writes)]
    assert link.facts.address == pair.second.address
    assert (link.facts.role, link.facts.replid2) == ("master", before)
    assert await link.ask(("GET", "k"), ("LLEN", "l")) == [b"v", sum(fate is not LOST for fate in fates)]
    # The old one comes back as a replica, and nobody takes it for the master.
    pair.wait_for_failover(old)
    old.start()
    assert await link.change(("SET", "k", "w")) == [b"OK"]
    assert pair.second.say("GET", "k") == b"w"


async def test_a_master_that_hangs_is_replaced_and_its_late_answers_count_for_nothing(
    pair: SentinelPair, link_to: LinkTo
):
    link = link_to(pair.settings(), seconds=2)
    await link.change(("SET", "k", "v"), ("WAIT", 1, 10_000))
    pair.first.pause()
    try:
        assert await link.change(("SET", "k", "late")) == [LOST]
        assert await once_it_works(lambda: link.ask(("GET", "k"))) == [b"v"]
        assert link.facts.address == pair.second.address
    finally:
        pair.first.resume()
    assert await link.ask(("GET", "k")) == [b"v"]


async def test_a_sentinel_that_is_away_or_hangs_is_passed_over(whole: SentinelPair, link_to: LinkTo):
    whole.sentinels[0].kill()
    whole.sentinels[1].pause()
    try:
        link = link_to(whole.settings(), seconds=10)
        await link.open()
        assert link.facts.address == whole.first.address
    finally:
        whole.sentinels[1].resume()
        whole.sentinels[0].start()


async def test_a_switch_that_no_connection_tells_of_is_noticed(pair: SentinelPair, link_to: LinkTo, monkeypatch):
    """Sentinel ends the connections of a master it deposes, if it reaches it. One that is cut off goes on answering."""
    monkeypatch.setattr("statesvc.backends.redis.link.RECHECK_SECONDS", 0.05)
    link = link_to(pair.settings())
    await link.open()
    first = link.facts.address

    async def another(_: Address) -> Address:
        return Address("127.0.0.1", pair.second.port)

    monkeypatch.setattr(link._places, "_told_by", another)
    pair.second.say("REPLICAOF", "NO", "ONE")
    async with asyncio.timeout(60):
        while link.facts.address == first:
            await link.ask(("PING",))
            await asyncio.sleep(0.01)
    assert link.facts.address == pair.second.address


async def test_a_name_that_no_sentinel_knows_is_named(whole: SentinelPair, link_to: LinkTo):
    link = link_to(whole.settings(sentinel_master="other"), seconds=FAILING_SECONDS)
    with pytest.raises(Unavailable, match=r"no sentinel tells where 'other' is: .*storage\.redis\.sentinel_master"):
        await link.open()


async def test_when_no_sentinel_answers_all_are_named_until_one_is_back(whole: SentinelPair, link_to: LinkTo):
    for sentinel in whole.sentinels:
        sentinel.kill()
    link = link_to(whole.settings(), seconds=FAILING_SECONDS)
    try:
        with pytest.raises(Unavailable) as caught:
            await link.open()
        assert all(sentinel.address in caught.value.text for sentinel in whole.sentinels)
    finally:
        for sentinel in whole.sentinels:
            sentinel.start()
    assert await once_it_works(lambda: link.ask(("PING",))) == [b"PONG"]


async def test_servers_and_sentinels_have_passwords_of_their_own(link_to: LinkTo, tmp_path: Path):
    (tmp_path / "sentinel").touch(0o600)
    (tmp_path / "sentinel").write_text("sentinel-pass\n")
    with SentinelPair(sentinels=1, password="server-pass", sentinel_password="sentinel-pass") as pair:
        link = link_to(pair.settings(sentinel_password_file=tmp_path / "sentinel"))
        await link.open()
        assert await link.change(("SET", "k", "v")) == [b"OK"]
        with pytest.raises(Unavailable, match="it wants a password") as caught:
            await link_to(pair.settings()).open()
        assert pair.sentinels[0].address in caught.value.text
        pair.kill_master()
        assert await once_it_works(lambda: link.change(("SET", "k", "w"))) == [b"OK"]
        assert link.facts.address == pair.second.address
