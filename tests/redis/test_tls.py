"""TLS: whom the link believes, what it shows of itself, and words for each way it can fail.

The servers of the tests need not be built with TLS: a proxy speaks it before them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statesvc_client.errors import Unavailable
from tests.redis.certificates import Authority
from tests.redis.conftest import FAILING_SECONDS, LinkTo, once_it_works
from tests.redis.proxies import Proxy, Said, Scripted, bulk
from tests.redis.servers import Server, dotted


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def _settings(address: str, authority: Authority | None, **values: Any) -> dict[str, Any]:
    ca = {"tls_ca_file": authority.cert} if authority else {}
    return dotted({"endpoint": address, "tls": True} | ca | values)


async def test_a_server_of_the_authority_is_believed(server: Server, link_to: LinkTo, authority: Authority, namespace):
    async with Proxy(server.port, tls=authority.serving(authority.sign("server", "127.0.0.1"))) as proxy:
        link = link_to(_settings(proxy.address, authority))
        await link.open()
        large = b"x" * 3_000_000
        assert await link.change(("SET", namespace, large), ("STRLEN", namespace)) == [b"OK", len(large)]
        assert await link.ask(("GET", namespace)) == [large]
        proxy.cut()
        assert await link.change(("DEL", namespace)) == [1]


async def test_the_host_name_is_checked(server: Server, link_to: LinkTo, authority: Authority):
    async with Proxy(server.port, tls=authority.serving(authority.sign("server", "localhost"))) as proxy:
        link = link_to(_settings(proxy.address, authority))
        with pytest.raises(
            Unavailable, match=r"redis at 127\.0\.0\.1:\d+: its certificate is not accepted: .*127\.0\.0\.1"
        ):
            await link.open()
        await link_to(_settings(f"localhost:{proxy.port}", authority)).open()


@pytest.mark.parametrize("with_ca", [True, False])
async def test_a_server_of_another_authority_is_not_believed(
    server, link_to: LinkTo, authority, tmp_path: Path, with_ca
):
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    async with Proxy(server.port, tls=other.serving(other.sign("server", "127.0.0.1"))) as proxy:
        link = link_to(_settings(proxy.address, authority if with_ca else None))
        with pytest.raises(Unavailable, match="its certificate is not accepted"):
            await link.open()
        assert proxy.accepted <= 2, "that does not pass by trying"


async def test_a_server_that_wants_to_know_its_clients_is_shown_a_certificate(
    server, link_to: LinkTo, authority: Authority
):
    tls = authority.serving(authority.sign("server", "127.0.0.1"), clients_too=True)
    ours = authority.sign("client")
    async with Proxy(server.port, tls=tls) as proxy:
        with pytest.raises(Unavailable, match=r"TLS failed \(.*CERTIFICATE_REQUIRED\)|closed|reset"):
            await link_to(_settings(proxy.address, authority), seconds=FAILING_SECONDS).open()
        files = {"tls_cert_file": ours.cert, "tls_key_file": ours.key}
        ours.key.chmod(0o644)
        with pytest.raises(Unavailable, match=r"tls_key_file: .* holds a secret and has mode 0644"):
            await link_to(_settings(proxy.address, authority, **files)).open()
        ours.key.chmod(0o600)
        link = link_to(_settings(proxy.address, authority, **files))
        assert await link.ask(("PING",)) == [b"PONG"]


async def test_a_server_without_tls_is_named(server: Server, link_to: LinkTo, authority: Authority):
    with pytest.raises(Unavailable, match=rf"redis at {server.address}: (TLS failed|cannot connect with TLS)"):
        await link_to(_settings(server.address, authority), seconds=FAILING_SECONDS).open()


async def test_files_that_are_missing_or_hold_something_else_are_named(
    server, link_to: LinkTo, authority, tmp_path: Path
):
    with pytest.raises(Unavailable, match=r"tls_\*_file: .*nowhere\.pem: No such file"):
        await link_to(dotted({"endpoint": server.address, "tls": True, "tls_ca_file": tmp_path / "nowhere.pem"})).open()
    (tmp_path / "text").touch(0o600)
    (tmp_path / "text").write_text("no certificate")
    files = {"tls_cert_file": tmp_path / "text", "tls_key_file": tmp_path / "text"}
    with pytest.raises(Unavailable, match=r"tls_\*_file: .*text"):
        await link_to(_settings(server.address, authority, **files)).open()


async def test_an_authority_that_changed_counts_from_the_next_connection_on(server, link_to: LinkTo, tmp_path: Path):
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.cert.read_bytes())
    async with (
        Proxy(server.port, tls=old.serving(old.sign("server", "127.0.0.1"))) as before,
        Proxy(server.port, tls=new.serving(new.sign("server", "127.0.0.1"))) as after,
    ):
        link = link_to(_settings(f"{before.address},{after.address}", None, tls_ca_file=trusted))
        await link.open()
        before.hangs_up = True
        before.cut()
        with pytest.raises(Unavailable, match="its certificate is not accepted"):
            await link.ask(("PING",))
        trusted.write_bytes(new.cert.read_bytes())
        assert await once_it_works(lambda: link.ask(("PING",))) == [b"PONG"]


async def test_sentinels_are_asked_over_tls_as_well(server: Server, link_to: LinkTo, authority: Authority):
    tls = authority.serving(authority.sign("server", "127.0.0.1"))
    async with Proxy(server.port, tls=tls) as proxy:

        def answer(command: Said) -> bytes | None:
            if command[0] != b"SENTINEL":
                return None
            return b"*2\r\n" + bulk(b"127.0.0.1") + bulk(b"%d" % proxy.port)

        async with Scripted(answer, tls=tls) as sentinel:
            link = link_to(_settings(sentinel.address, authority, sentinel_master="main"))
            await link.open()
            assert link.facts.address == proxy.address
            assert sentinel.said == [(b"SENTINEL", b"get-master-addr-by-name", b"main")]
