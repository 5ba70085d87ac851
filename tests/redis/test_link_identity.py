"""Users and passwords: what a server says to the wrong ones, and how a changed one is taken up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statesvc.backends.redis.link import Refused, as_error
from statesvc.config.model import Secret
from statesvc_client.errors import Unavailable
from tests.redis.conftest import LinkTo, once_it_works
from tests.redis.proxies import Proxy
from tests.redis.servers import Server


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with Server(password="default-pass") as server:
        server.say("ACL", "SETUSER", "agent", "on", ">agent-pass", "~*", "+@all")
        server.say("ACL", "SETUSER", "narrow", "on", ">narrow-pass", "~mine:*", "+@all", "-config", "-client|kill")
        server.say("ACL", "SETUSER", "blind", "on", ">blind-pass", "~*", "+@all", "-info")
        yield server


def _as(server: Server, user: str, password: str) -> dict[str, object]:
    values = {"storage.redis.endpoint": server.address, "storage.redis.username": user}
    return values | ({"storage.redis.password": Secret(password)} if password else {})


@pytest.mark.parametrize(
    ("user", "password", "words"),
    [
        ("", "", r"it wants a password; set storage\.redis\.password_file"),
        ("", "not-this-one", r"does not accept the user name and password; check storage\.redis\.username"),
        ("agent", "not-this-one", r"does not accept the user name and password"),
        ("blind", "blind-pass", r"access rules forbid the user a command .* \(INFO\)"),
    ],
)
async def test_who_is_not_let_in_is_told_what_to_do(guarded: Server, link_to: LinkTo, user, password, words):
    link = link_to(_as(guarded, user, password))
    with pytest.raises(Unavailable, match=words) as caught:
        await link.open()
    assert guarded.address in caught.value.text
    assert not password or password not in caught.value.text


async def test_a_password_nobody_asked_for_is_named(server: Server, link_to: LinkTo):
    link = link_to(_as(server, "", "needless"))
    with pytest.raises(Unavailable, match="has no password for the default user"):
        await link.open()


async def test_a_user_of_the_access_rules_is_let_in(guarded: Server, link_to: LinkTo):
    link = link_to(_as(guarded, "agent", "agent-pass"))
    await link.open()
    assert await link.ask(("ACL", "WHOAMI")) == [b"agent"]


async def test_what_a_user_may_not_do_is_a_refusal_and_what_it_may_not_know_is_not_told(
    guarded: Server, link_to: LinkTo
):
    link = link_to(_as(guarded, "narrow", "narrow-pass"))
    await link.open()
    assert link.facts.fsync is None
    assert link.facts.aof is False, "INFO tells that much"
    fates = await link.change(("SET", "theirs:1", "v"), ("SET", "mine:1", "v"))
    assert fates[1] == b"OK"
    assert isinstance(fates[0], Refused)
    assert fates[0].code == "NOPERM"
    error = as_error(fates[0], link.facts.address)
    assert error.code == "unavailable"
    assert "theirs" not in error.text


async def test_a_wrong_password_is_told_at_once_and_not_tried_again_and_again(guarded: Server, link_to: LinkTo):
    async with Proxy(guarded.port) as proxy:
        link = link_to(_as(guarded, "agent", "wrong") | {"storage.redis.endpoint": proxy.address})
        for _ in range(100):
            with pytest.raises(Unavailable, match="does not accept"):
                await link.ask(("PING",))
        assert proxy.accepted < 20


async def test_a_password_file_that_changed_counts_from_the_next_connection_on(link_to: LinkTo, tmp_path: Path):
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("first-pass\n")
    with Server(password="first-pass") as server:
        async with Proxy(server.port) as proxy:
            link = link_to({"storage.redis.endpoint": proxy.address, "storage.redis.password_file": file})
            await link.open()
            server.say("CONFIG", "SET", "requirepass", "second-pass")
            server.password = "second-pass"
            made = proxy.accepted
            for _ in range(100):
                assert await link.ask(("PING",)) == [b"PONG"], "a connection that was let in stays"
                with pytest.raises(Unavailable, match="does not accept"):
                    await link.change(("SET", "k", "v"))
            assert proxy.accepted < made + 20
            proxy.cut()
            with pytest.raises(Unavailable, match="does not accept"):
                await link.ask(("PING",))
            file.write_text("second-pass\n")
            assert await once_it_works(lambda: link.ask(("PING",))) == [b"PONG"]
            assert await link.change(("SET", "k", "v")) == [b"OK"]


async def test_a_user_that_is_taken_away_is_told_so_and_works_again_when_it_is_back(link_to: LinkTo):
    with Server() as server:
        server.say("ACL", "SETUSER", "agent", "on", ">agent-pass", "~*", "+@all")
        link = link_to(_as(server, "agent", "agent-pass"))
        await link.open()
        server.say("ACL", "DELUSER", "agent")
        with pytest.raises(Unavailable, match="does not accept"):
            await link.ask(("PING",))
        server.say("ACL", "SETUSER", "agent", "on", ">agent-pass", "~*", "+@all")
        assert await once_it_works(lambda: link.change(("SET", "k", "v"))) == [b"OK"]
        assert await link.ask(("GET", "k")) == [b"v"]
