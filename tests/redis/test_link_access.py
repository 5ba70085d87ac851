"""How settings, URLs and files of secrets are read: what they mean, and words that name the fault and no secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from statesvc.backends.redis.access import Address, access_of, read_endpoints, read_secret, read_url
from statesvc.backends.redis.faults import Trouble
from statesvc.config.model import Redis, Secret, assemble
from tests.redis.servers import settings_from_url


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:6379", ["localhost:6379"]),
        ("db.example", ["db.example:6379"]),
        ("a:1, b:2,c", ["a:1", "b:2", "c:6379"]),
        ("[::1]:7000,[fe80::2]", ["[::1]:7000", "[fe80::2]:6379"]),
        ("/run/redis/redis.sock", ["/run/redis/redis.sock"]),
    ],
)
def test_endpoints_are_hosts_and_ports_or_a_path(text: str, addresses: list[str]):
    assert [str(address) for address in read_endpoints(text)] == addresses


@pytest.mark.parametrize(
    "text",
    ["", " , ", ":6379", "host:port", "host:0", "host:70000", "host:" + "1" * 5000, "::1", "[::1", "[::1]x:1", "a b:1"],
)
def test_what_is_no_endpoint_is_refused_by_name(text: str):
    with pytest.raises(ValueError, match=r"storage\.redis\.endpoint: "):
        read_endpoints(text)


@pytest.mark.parametrize(
    "text", ["redis://:hunter2@db:6379", "hunter2@db:6379", "u:hun,ter2@db:6379,hunter2@db:6379", "u:hun@ter2@db:6379"]
)
def test_what_stands_in_front_of_an_at_sign_is_never_shown(text: str):
    with pytest.raises(ValueError, match=r"'\.\.\.@db:6379' is not host:port") as caught:
        read_endpoints(text)
    assert "hun" not in str(caught.value)
    assert "ter2" not in str(caught.value)


def test_sentinels_have_a_port_of_their_own():
    access = access_of(Redis(endpoint="a,b:1", sentinel_master="main"))
    assert access.endpoints == (Address("a", 26_379), Address("b", 1))


@pytest.mark.parametrize(
    ("url", "values"),
    [
        ("redis://host:7000/2", {"endpoint": "host:7000", "db": 2}),
        ("redis://host", {"endpoint": "host"}),
        ("redis://u:p%40ss@host:1", {"endpoint": "host:1", "username": "u", "password": "p@ss"}),
        ("redis://:only@host:1/0", {"endpoint": "host:1", "password": "only", "db": 0}),
        ("rediss://host:1?tls_ca_file=/ca.pem", {"endpoint": "host:1", "tls": True, "tls_ca_file": Path("/ca.pem")}),
        ("unix:///run/redis.sock?db=4", {"endpoint": "/run/redis.sock", "db": 4}),
        ("unix://u:p@/run/redis.sock", {"endpoint": "/run/redis.sock", "username": "u", "password": "p"}),
        (
            "redis://a:1,b:2?sentinel_master=main&namespace=n&timeout_seconds=2.5",
            {"endpoint": "a:1,b:2", "sentinel_master": "main", "namespace": "n", "timeout_seconds": 2.5},
        ),
        ("redis://[::1]:7000/1", {"endpoint": "[::1]:7000", "db": 1}),
    ],
)
def test_a_url_stands_for_settings(url: str, values: dict[str, object]):
    assert read_url(url) == values


@pytest.mark.parametrize(
    "url",
    [
        "http://u:verysecret@host",
        "host:6379",
        "redis://u:verysecret@",
        "redis://u:verysecret@host:port",
        "redis://u:verysecret@host:1/db",
        "redis://u:verysecret@host:1?what=x",
        "redis://u:verysecret@host:1?wait_replicas=many",
        "redis://u:verysecret@[host:1",
    ],
)
def test_a_url_that_is_none_is_refused_without_its_password(url: str):
    with pytest.raises(ValueError) as caught:
        read_url(url)
    assert "verysecret" not in str(caught.value)


def test_settings_of_a_url_can_be_assembled():
    redis = assemble(settings_from_url("rediss://u:p@host:1/2?namespace=n")).storage.redis
    assert (redis.endpoint, redis.username, redis.password, redis.db) == ("host:1", "u", Secret("p"), 2)
    assert redis.tls


def test_a_password_is_the_files_text_without_its_line_break(tmp_path: Path):
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text(" pass word \r\n")
    assert read_secret(str(file), "storage.redis.password_file") == " pass word "


def test_a_password_file_is_read_each_time(tmp_path: Path):
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("first\n")
    identity = access_of(Redis(username="u", password_file=file)).identity
    assert identity.auth() == ("AUTH", "u", "first")
    file.write_text("second\n")
    assert identity.auth() == ("AUTH", "u", "second")
    assert "second" not in repr(identity)


def test_without_a_password_or_a_user_nothing_is_said():
    assert access_of(Redis()).identity.auth() is None
    assert access_of(Redis(password=Secret("p"))).identity.auth() == ("AUTH", "p")


def test_files_that_hold_no_password_are_named(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "large").write_bytes(b"s" * 5000)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("large", "binary"):
        (tmp_path / name).chmod(0o600)
    for name in ("missing", "pipe", "large", "binary"):
        with pytest.raises(Trouble) as caught:
            read_secret(str(tmp_path / name), "storage.redis.password_file")
        assert caught.value.lasting
        assert caught.value.reason.startswith(f"storage.redis.password_file: {tmp_path / name}")
        assert "sss" not in caught.value.reason


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_a_password_file_of_ours_or_for_a_group_is_read(tmp_path: Path, mode: int):
    file = tmp_path / "password"
    file.write_text("tr0ub4dor")
    file.chmod(mode)
    assert read_secret(str(file), "storage.redis.password_file") == "tr0ub4dor"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o602])
def test_a_password_file_that_all_may_read_or_others_may_change_is_refused_and_not_shown(tmp_path: Path, mode: int):
    file = tmp_path / "password"
    file.write_text("tr0ub4dor")
    file.chmod(mode)
    with pytest.raises(Trouble) as caught:
        read_secret(str(file), "storage.redis.password_file")
    assert caught.value.lasting
    reason = f"storage.redis.password_file: {file} holds a secret and has mode {mode:04o}; run: chmod 600 {file}"
    assert caught.value.reason == reason
