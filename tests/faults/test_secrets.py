"""Canaries: secrets of the configuration are nowhere, and a job's `secretEnvironment` only where it may be.

A real daemon lives through all it can, at the most talkative level of its log, with errors on purpose; then everything
that was said or written is searched.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.harness import ROOT, Daemon, refused, serving, until
from tests.dynamodb.servers import MADE_UP, InThread, refusal
from tests.dynamodb.serving import Reply, Request
from tests.faults.canaries import Ears, canary
from tests.faults.strangers import STRANGER, needs_root
from tests.redis.servers import Server

USAGE, UNREACHABLE, BAD_CONFIGURATION = 2, 5, 78

SEEN = {"get", "list", "claim"}
"""The ops whose replies show `secretEnvironment` (docs/PROTOCOL.md)."""


def private(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


# --- secrets of the configuration ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "given_in",
    [
        "the configuration file",
        pytest.param("a file of its own", marks=pytest.mark.long),
        pytest.param("the environment", marks=pytest.mark.long),
    ],
)
def test_the_password_of_redis_is_nowhere(folder, given_in):
    ears, password, wrong = Ears(), canary("password"), canary("wrong")
    with Server(password=password) as server:
        redis = {"endpoint": server.address, "namespace": "canaries", "timeout_seconds": 1.0}
        variables, holders = {}, [folder / "statesvc.yml"]
        if given_in == "the configuration file":
            redis["password"] = password
        elif given_in == "a file of its own":
            holders.append(private(folder / "password", password))
            redis["password_file"] = str(folder / "password")
        else:
            variables["STATESVC_STORAGE__REDIS__PASSWORD"] = password
        state = {"backend": "redis", "log": {"level": "debug"}, "storage": {"redis": redis}}
        config = private(folder / "statesvc.yml", json.dumps({"state": state}))
        with Daemon(folder, "--config", str(config), backend="redis", env=variables).serving() as daemon:
            live_through_it(ears, daemon)
            given = f"redis://:{password}@{server.address}/0?namespace=canaries"
            assert moved(ears, folder / "moved", given) == 0
            assert moved(ears, folder / "nonsense", given + "&nonsense=1") == USAGE
            server.say("CONFIG", "SET", "requirepass", wrong)
            assert moved(ears, folder / "refused", given) == UNREACHABLE
            server.password = wrong
            server.say("CLIENT", "KILL", "TYPE", "normal")
            with daemon.connect() as client:
                until(lambda: "does not accept" in str(ears.ask(client, "health")), "the refusal to be known")
                ears.ask(client, "get", jobId="job-1")
                server.kill()
                ears.ask(client, "create", job={"uuid": "job-2"})
            ears.process(daemon, environ=not variables)
            for words in (
                ("config", "show", "--origin"),
                ("config", "show", "-o", "json"),
                ("config", "check"),
                ("init",),
            ):
                ears.command(*words, STATESVC_CONFIG=str(config), **variables)
            assert daemon.stop() == 0
        ears.files(folder, but=holders)
    assert ears.who_said(password, wrong) == set()
    assert len(ears.everybody) > 15


def moved(ears: Ears, target: Path, source: str) -> int:
    """The exit code of a move from an address with the password in it."""
    return ears.command("migrate", "--from", source, "--to", f"sqlite:{target}").returncode


def live_through_it(ears: Ears, daemon: Daemon) -> None:
    with daemon.connect() as client:
        for op in ("ping", "hello", "health", "stats", "list", "stuck"):
            ears.ask(client, op)
        ears.ask(client, "create", job={"uuid": "job-1"})
        ears.ask(client, "frobnicate")
        ears.ask(client, "get")


@pytest.mark.slow
@pytest.mark.parametrize(
    "given_in",
    [
        "a profile",
        pytest.param("the environment", marks=pytest.mark.long),
        pytest.param("a container", marks=pytest.mark.long),
    ],
)
def test_the_credentials_of_dynamodb_are_nowhere(folder, given_in):
    ears = Ears()
    key, token, pass_word = canary("key"), canary("token"), canary("authorization")

    def play(request: Request) -> Reply:
        """Gives credentials to who asks for them, and accepts none."""
        if request.method == "GET":
            given = {"AccessKeyId": "AKIACANARY", "SecretAccessKey": key, "Token": token}
            return Reply(200, json.dumps({**given, "Expiration": "2099-01-01T00:00:00Z"}).encode())
        return refusal("UnrecognizedClientException", "The security token included in the request is invalid.")

    with InThread(play) as endpoint:
        # Some are looked for in places that take their time: none of it may count as a daemon that does not start.
        chain = {name: MADE_UP[name] for name in ("AWS_CONFIG_FILE", "AWS_EC2_METADATA_DISABLED")}
        holders = []
        if given_in == "the environment":
            names = {"AWS_ACCESS_KEY_ID": "AKIACANARY", "AWS_SECRET_ACCESS_KEY": key, "AWS_SESSION_TOKEN": token}
            chain |= {**names, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
        elif given_in == "a profile":
            text = f"[default]\naws_access_key_id=AKIACANARY\naws_secret_access_key={key}\naws_session_token={token}\n"
            holders.append(private(folder / "credentials", text))
            chain["AWS_SHARED_CREDENTIALS_FILE"] = str(folder / "credentials")
        else:
            host = endpoint.url.removeprefix("http://")
            chain |= {"AWS_SHARED_CREDENTIALS_FILE": os.devnull, "AWS_CONTAINER_AUTHORIZATION_TOKEN": pass_word}
            chain["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = f"http://{host}/credentials"
        settings = {
            "storage__dynamodb__endpoint": endpoint.url, "storage__dynamodb__region": "eu-west-1",
            "storage__dynamodb__timeout_seconds": 2, "log__level": "debug",
        }  # fmt: skip
        with Daemon(folder, backend="dynamodb", settings=settings, env=chain).start() as daemon:
            daemon.wait_for_ping()
            until(lambda: daemon.events("engine_unavailable"), "the refusal")
            assert "UnrecognizedClientException" in daemon.stderr or "credentials" in daemon.stderr
            live_through_it(ears, daemon)
            ears.process(daemon, environ=given_in == "a profile")
            variables = {f"STATESVC_{name.upper()}": str(value) for name, value in settings.items()}
            for words in (("config", "show", "--origin"), ("init", "--backend", "dynamodb")):
                ears.command(*words, **variables, **chain)
            assert daemon.stop() == 0
        ears.files(folder, but=holders)
    assert ears.who_said(key, token, pass_word) == set()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622, 0o666])
def test_a_configuration_file_that_is_too_open_is_refused_before_anything_is_touched(folder, mode):
    password = canary("password")
    config = private(folder / "statesvc.yml", json.dumps({"state": {"storage": {"redis": {"password": password}}}}))
    config.chmod(mode)
    code, said = refused(folder, "--config", str(config))
    assert (code, password in said, "Traceback" in said) == (BAD_CONFIGURATION, False, False)
    assert f"mode {mode:04o}" in said
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("stderr")) == ["statesvc.yml"]


@needs_root
def test_a_configuration_file_of_another_user_is_refused_before_anything_is_touched(folder):
    config = private(folder / "statesvc.yml", "state: {access: {uids: [0, 1]}}")
    os.chown(config, STRANGER, STRANGER)
    code, said = refused(folder, "--config", str(config))
    assert code == BAD_CONFIGURATION
    assert f"{config}: belongs to uid {STRANGER}" in said
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("stderr")) == ["statesvc.yml"]


def test_a_password_file_that_all_may_read_is_named_and_not_used(folder):
    password = canary("password")
    file = private(folder / "password", password)
    file.chmod(0o644)
    with Server(password=password) as server:
        settings = {"storage__redis__endpoint": server.address, "storage__redis__password_file": file}
        with Daemon(folder, backend="redis", settings=settings).start() as daemon:
            daemon.wait_for_ping()
            (line,) = until(lambda: daemon.events("engine_unavailable"), "the refusal")
            assert f"storage.redis.password_file: {file} holds a secret and has mode 0644" in line["why"]
            assert password not in daemon.stderr
            file.chmod(0o600)
            until(lambda: daemon.events("serving"), "the file that was put right to be used")


# --- secrets of jobs -----------------------------------------------------------------------------------------------

PLANTED = """
import statesvc.store.store as module

def planted(self, request, caller, **options):
    secret = request.job or request.record
    raise RuntimeError("planted")

module.Store.write_now = planted
"""


@pytest.mark.slow
def test_the_secret_environment_of_a_job_is_in_what_get_list_and_claim_show_and_in_private_files(folder):
    ears, secret = Ears(), canary("variable")
    job = {"uuid": "job-1", "status": "QUEUED", "secretEnvironment": {"KEY": secret}}
    with serving(folder, "--log-level", "debug") as daemon, daemon.connect() as client, daemon.connect() as watcher:
        watcher.hello("watcher")
        assert ears.ask(watcher, "watch", kind="job")["success"]
        client.hello("agent")
        write_all_there_is(ears, client, job, secret)
        ears.ask(client, "snapshot", path="snapshots/canaries")
        for op, fields in reads().items():
            ears.ask(client, op.split()[0], **fields)
        commands(ears, daemon, folder)
        client.send_raw(b'{"op":"create","job":{"uuid":"torn","secretEnvironment":{"K":"%b"' % secret.encode() + b"\n")
        ears.hear("a torn frame", client.reply())
        with daemon.connect() as other:
            other.send({"op": "create", "job": [{"secretEnvironment": {"KEY": secret}}]})
            ears.hear("a job that is none", other.reply())
        ears.process(daemon)
        last = ears.ask(client, "emit", jobId="job-1", event={"type": "last"})
        assert last["success"]
        while True:
            told = watcher.reply()
            ears.hear("an event", told)
            if told["event"]["type"] == "last":
                break
        files = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}
        ears.files(folder)
        assert daemon.stop() == 0
        ears.hear("the end of the log", daemon.stderr)

    shown = ears.who_said(secret)
    assert {who for who in shown if not who.startswith("file ")} == SEEN | {
        "statesvc get job-1 -o json --show-secrets",
        "statesvc export --secrets",
    }
    kept = {who.removeprefix("file ") for who in shown if who.startswith("file ")}
    assert {"all.jsonl", "data/snapshots/canaries"} & kept == {"all.jsonl"}, "a snapshot is compressed"
    assert "plain.jsonl" not in kept
    assert {name for name in kept if files[folder / name] & 0o077} == set(), "in files of their owner's alone"
    assert not any(name.startswith("stderr") for name in kept)


def write_all_there_is(ears: Ears, client: Any, job: dict[str, Any], secret: str) -> None:
    """Every write, well and badly, with the secret in it."""
    ears.ask(client, "create", job=job, seq=1)
    ears.ask(client, "create", job=job, seq=1, again=True)
    ears.ask(client, "create", job=job, seq=2)
    ears.ask(client, "create", job={**job, "uuid": "job-2", "status": "nonsense"}, seq=3)
    ears.ask(client, "create", job={**job, "uuid": "job-2", "labels": 7}, seq=4)
    ears.ask(client, "update", jobId="job-1", set={"/secretEnvironment/KEY": secret}, seq=5)
    ears.ask(client, "update", jobId="job-1", job={"a": 1, "secretEnvironment": {"B": secret}}, ifRevision=99, seq=6)
    ears.ask(client, "update", jobId="job-1", inc={"/secretEnvironment/KEY": 1}, seq=7)
    ears.ask(client, "update", jobId="job-1", append={"/secretEnvironment/KEY": [1]}, seq=8)
    ears.ask(client, "txn", ops=[{"op": "create", "kind": "kv", "record": {"id": "k", **job}}], seq=9)
    taken = ears.ask(client, "claim", kind="job", filter={"status": "QUEUED"}, holder="worker", ttl=60, seq=10)
    (taken_job,) = taken["jobs"]
    token = taken_job["lease"]["token"]
    ears.ask(client, "renew", kind="job", jobId="job-1", token=token, seq=11)
    ears.ask(client, "renew", kind="job", jobId="job-1", token=token + 1, seq=12)
    ears.ask(client, "emit", jobId="job-1", event={"type": "note", "message": "nothing secret"}, seq=13)
    ears.ask(client, "cancel", jobId="job-1", seq=14)
    ears.ask(client, "release", kind="job", jobId="job-1", token=token, status="FAILED", seq=15)
    ears.ask(client, "retry", jobId="job-1", seq=16)
    ears.ask(client, "sync", jobs=[{**job, "status": "RUNNING"}], seq=17)
    ears.ask(client, "sync", jobs=[{**job, "status": "nonsense"}], seq=18)
    ears.ask(client, "delete", jobId="job-1", ifRevision=1, seq=19)


def reads() -> dict[str, dict[str, Any]]:
    """What can be asked, by op; a word behind the op keeps two of a kind apart."""
    return {
        "get": {"jobId": "job-1"},
        "list": {},
        "list where": {"filter": {"where": {"/secretEnvironment/KEY": "x"}}},
        "history": {"jobId": "job-1"},
        "stats": {},
        "stats by": {"by": "secretEnvironment"},
        "stuck": {},
        "health": {},
        "check": {},
        "sweep": {},
        "ping": {},
        "hello": {"client": "agent"},
    }


def commands(ears: Ears, daemon: Daemon, folder: Path) -> None:
    """What people see of it."""
    at = ("--socket", str(daemon.socket))
    for words in (
        ("get", "job-1"), ("get", "job-1", "-o", "json"), ("list",), ("list", "-o", "json"), ("list", "-o", "jsonl"),
        ("history", "job-1"), ("history", "job-1", "-o", "json"), ("stats",), ("health",), ("check",), ("stuck",),
        ("export",), ("get", "job-1", "-o", "json", "--show-secrets"), ("export", "--secrets"),
        ("snapshot", "inspect", str(daemon.data / "snapshots" / "canaries")),
    ):  # fmt: skip
        run = ears.command(*words, STATESVC_SOCKET=str(daemon.socket))
        assert run.returncode == 0, (words, run.stderr)
    for name, more in (("plain.jsonl", ()), ("all.jsonl", ("--secrets",))):
        assert ears.command("export", "-o", str(folder / name), *more, *at).returncode == 0


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_mistake_of_ours_is_logged_with_its_traceback_and_without_what_was_written(folder, log_format):
    """A traceback shows lines of code, never values."""
    ears, secret = Ears(), canary("variable")
    (folder / "sitecustomize.py").write_text(PLANTED)
    env = {"PYTHONPATH": f"{folder}:{ROOT}:{ROOT / 'client'}"}
    flags = ("--log-level", "debug", "--log-format", log_format)
    with Daemon(folder, *flags, backend="memory", env=env).serving() as daemon, daemon.connect() as client:
        reply = ears.ask(client, "create", job={"uuid": "job-1", "secretEnvironment": {"KEY": secret}})
        assert reply["code"] == "internal"
        assert daemon.stop() == 0
        assert "Traceback" in daemon.stderr
        assert "RuntimeError" in daemon.stderr
        ears.hear("the log", daemon.stderr)
    assert ears.who_said(secret) == set()
