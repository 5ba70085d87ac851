"""Region, endpoint, credentials: from where they come, how they are renewed, and that nobody gets to see them."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import ipaddress
import json
import logging
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from statesvc import logs
from statesvc.backends.dynamodb import calls as calls_module
from statesvc.backends.dynamodb import clock as clock_module
from statesvc.backends.dynamodb import identity
from statesvc.backends.dynamodb.access import Access, Found, find, read_url
from statesvc.backends.dynamodb.calls import Calls
from statesvc.backends.dynamodb.clock import ServiceClock
from statesvc_client.errors import BadRequest, Unavailable
from tests.dynamodb.asking import ENDS_SECONDS, answering, calling, get, put, until
from tests.dynamodb.servers import InThread, refusal
from tests.dynamodb.serving import Reply, Request

FOUND = Reply(200, b'{"Item": {}}')
SECRETS = ("very-secret-key", "very-secret-token")


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name in (
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_DYNAMODB",
        "AWS_CA_BUNDLE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def log_lines(monkeypatch) -> Iterator[io.StringIO]:
    """What is logged, at every level there is."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    monkeypatch.setattr(logs, "_write", None)
    # What other tests said before anything was set up is not about this one.
    logs._early.clear()
    stream = io.StringIO()
    logs.configure("debug", "json", stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def identify(monkeypatch: pytest.MonkeyPatch, key: str = "AKIAFROMENVIRONMENT0") -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS[0])
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRETS[1])


class Witness:
    """An endpoint that notes as whom, where and when it was called."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Reply | None:
        self.requests.append(request)
        return FOUND

    @property
    def keys(self) -> list[str]:
        return [request.headers["authorization"].split("Credential=")[1].split("/")[0] for request in self.requests]

    @property
    def regions(self) -> list[str]:
        return [request.headers["authorization"].split("/")[2] for request in self.requests]


class Fixed:
    """An endpoint that says one thing."""

    def __init__(self, reply: Reply | None) -> None:
        self._reply = reply

    def __call__(self, _: Request) -> Reply | None:
        return self._reply


async def one_call(url: str = "", region: str = "") -> None:
    async with calling(url, region=region) as calls:
        await calls.call("GetItem", get("jobs", "job-1"))


# --- region and endpoint ----------------------------------------------------------------------------------------------


def test_the_region_is_the_configured_one_before_all_others(monkeypatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert find(Access(region="eu-north-1")).region == "eu-north-1"


def test_the_region_comes_from_either_variable(monkeypatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-2")
    assert find(Access()).region == "eu-west-2"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert find(Access()).region == "eu-west-1"


def test_the_region_comes_from_the_profile(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default]\nregion = eu-south-1\n[profile other]\nregion = ap-east-1\n")
    assert find(Access()).region == "eu-south-1"
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert find(Access()).region == "ap-east-1"


def test_without_a_region_it_is_said_where_it_was_looked_for() -> None:
    with pytest.raises(Unavailable, match=r"no region.*storage\.dynamodb\.region, AWS_REGION.*instance's metadata"):
        find(Access())


def test_the_endpoint_is_that_of_the_region() -> None:
    assert find(Access(region="eu-central-1")).url == "https://dynamodb.eu-central-1.amazonaws.com"
    assert find(Access(region="cn-north-1")).url == "https://dynamodb.cn-north-1.amazonaws.com.cn"
    assert find(Access(region="eu-central-1")).tls is not None


def test_the_endpoint_comes_from_variables_and_profile(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "[default]\nservices = ours\n[services ours]\ndynamodb =\n  endpoint_url = http://profile:1\n"
    )
    access = Access(region="us-east-1")
    assert find(access).url == "http://profile:1"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all:2/")
    assert find(access).url == "http://all:2"
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://dynamodb:3")
    assert find(access).url == "http://dynamodb:3"
    assert find(Access(region="us-east-1", endpoint="http://configured:4")).url == "http://configured:4"


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://host", "http://", "http://u:password@host", "http://h:x", "http://[h", "http://a b"],
)
def test_an_endpoint_that_is_none_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(Unavailable, match=r"storage\.dynamodb\.endpoint: not of the form") as caught:
        find(Access(region="us-east-1", endpoint=url))
    assert "password" not in caught.value.text


def test_a_proxy_of_the_environment_is_taken(monkeypatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert find(Access(region="us-east-1")).proxy == "http://proxy:3128"
    monkeypatch.setenv("NO_PROXY", "amazonaws.com")
    assert find(Access(region="us-east-1")).proxy is None


async def test_a_proxy_of_the_environment_is_gone_through(monkeypatch) -> None:
    identify(monkeypatch)
    witness = Witness()
    with answering(witness) as played:
        monkeypatch.setenv("HTTP_PROXY", played.url)
        await one_call("http://dynamodb.test:8000", "us-east-1")
    assert [request.path.rstrip("/") for request in witness.requests] == ["http://dynamodb.test:8000"]


# --- credentials ------------------------------------------------------------------------------------------------------


async def test_credentials_of_the_environment(monkeypatch) -> None:
    identify(monkeypatch)
    witness = Witness()
    with answering(witness) as played:
        await one_call(played.url, "eu-west-1")
    assert witness.keys == ["AKIAFROMENVIRONMENT0"]
    assert witness.regions == ["eu-west-1"]
    assert witness.requests[0].headers["x-amz-security-token"] == SECRETS[1]


async def test_credentials_of_a_profile(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[ours]\naws_access_key_id = AKIAFROMPROFILE\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_PROFILE", "ours")
    witness = Witness()
    with answering(witness) as played:
        await one_call(played.url, "eu-west-1")
    assert witness.keys == ["AKIAFROMPROFILE"]


async def test_a_profile_that_is_not_there_is_told() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_PROFILE", "nobody")
        with pytest.raises(Unavailable, match="ProfileNotFound"):
            await one_call("http://127.0.0.1:1", "eu-west-1")


async def test_without_credentials_it_is_said_where_they_were_looked_for() -> None:
    calls = Calls(Access(region="us-east-1", endpoint="http://127.0.0.1:1"))
    with pytest.raises(Unavailable, match=r"no credentials.*AWS_ACCESS_KEY_ID.*profile.*metadata"):
        await calls.open()


async def test_opening_works_once_the_credentials_are_there(monkeypatch) -> None:
    with answering(Witness()) as played:
        calls = Calls(Access(region="us-east-1", endpoint=played.url))
        with pytest.raises(Unavailable):
            await calls.open()
        identify(monkeypatch)
        await calls.open()
        assert await calls.call("GetItem", get("jobs", "job-1")) == {"Item": {}}
        await calls.close()


class Metadata:
    """The instance's metadata, second version: nothing is told without a token. Each look gives other credentials."""

    def __init__(self) -> None:
        self.given = 0
        self.away = False

    def __call__(self, request: Request) -> Reply | None:
        if self.away:
            return Reply(500, b"")
        if request.method == "PUT" and request.path == "/latest/api/token":
            return Reply(200, b"the-token", {"x-aws-ec2-metadata-token-ttl-seconds": "21600"})
        if request.headers.get("x-aws-ec2-metadata-token") != "the-token":
            return Reply(401, b"")
        folder = "/latest/meta-data/iam/security-credentials"
        if request.path.startswith("/latest/meta-data/placement/availability-zone"):
            return Reply(200, b"eu-west-3a")
        if request.path.rstrip("/") == folder:
            return Reply(200, b"the-role")
        if request.path == f"{folder}/the-role":
            return self._credentials()
        return Reply(404, b"")

    def _credentials(self) -> Reply:
        self.given += 1
        until_ = dt.datetime.now(dt.UTC) + dt.timedelta(hours=6)
        told = {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": f"ASIAROLE{self.given:04}",
            "SecretAccessKey": SECRETS[0],
            "Token": SECRETS[1],
            "Expiration": until_.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "LastUpdated": "2025-01-01T00:00:00Z",
        }
        return Reply(200, json.dumps(told).encode(), {"content-type": "text/plain"})


@pytest.fixture
def metadata(monkeypatch) -> Iterator[Metadata]:
    served = Metadata()
    with answering(served) as played:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", played.url + "/")
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        yield served


async def test_region_and_credentials_of_the_instance(metadata: Metadata) -> None:
    witness = Witness()
    with answering(witness) as played:
        await one_call(played.url)
    assert witness.keys == ["ASIAROLE0001"]
    assert witness.regions == ["eu-west-3"]
    assert witness.requests[0].headers["x-amz-security-token"] == SECRETS[1]


def end_in(calls: Calls, seconds: float) -> None:
    """Let the credentials in use end then, and be looked at now."""
    assert calls._parts is not None
    used: Any = calls._parts.identity
    used._source._expiry_time = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    used._look_at = 0.0


async def test_credentials_of_a_role_are_renewed_before_they_end(metadata: Metadata) -> None:
    witness = Witness()
    with answering(witness) as played:
        async with calling(played.url) as calls:
            for turn in (2, 3):
                end_in(calls, 300)
                async with asyncio.timeout(ENDS_SECONDS):
                    while f"ASIAROLE{turn:04}" not in witness.keys:
                        await calls.call("GetItem", get("jobs", "job-1"))
    # No call waited for the renewal: those that came first still used what was there.
    assert witness.keys[0] == "ASIAROLE0001"
    assert sorted(witness.keys) == witness.keys


async def test_credentials_that_ended_are_waited_for(metadata: Metadata) -> None:
    witness = Witness()
    with answering(witness) as played:
        async with calling(played.url) as calls:
            await calls.call("GetItem", get("jobs", "job-1"))
            end_in(calls, -3600)
            await asyncio.gather(*(calls.call("GetItem", get("jobs", "job-1")) for _ in range(5)))
    assert witness.keys == ["ASIAROLE0001", *["ASIAROLE0002"] * 5]
    assert metadata.given == 2


async def test_credentials_that_ended_and_cannot_be_renewed_are_told(metadata: Metadata, monkeypatch) -> None:
    monkeypatch.setattr(identity, "LOOK_SECONDS", 0.0)
    with answering(Witness()) as played:
        async with calling(played.url) as calls:
            metadata.away = True
            end_in(calls, -3600)
            with pytest.raises(Unavailable, match="could not be had") as caught:
                await calls.call("PutItem", put("jobs", "job-1"))
            assert caught.value.outcome == "not_applied"
            metadata.away = False
            await calls.call("GetItem", get("jobs", "job-1"))


async def test_credentials_that_cannot_be_renewed_yet_are_used_to_their_end(metadata: Metadata, monkeypatch) -> None:
    witness = Witness()
    with answering(witness) as played:
        async with calling(played.url) as calls:
            metadata.away = True
            end_in(calls, 300)
            for _ in range(3):
                await calls.call("GetItem", get("jobs", "job-1"))
    assert witness.keys == ["ASIAROLE0001"] * 3


async def test_credentials_that_are_refused_are_looked_for_anew(monkeypatch) -> None:
    identify(monkeypatch, "AKIAOLD")
    witness = Witness()

    def answer(request: Request) -> Reply | None:
        witness(request)
        if witness.keys[-1] == "AKIAOLD":
            return refusal("ExpiredTokenException", "The security token included in the request is expired")
        return FOUND

    with answering(answer) as played:
        async with calling(played.url) as calls:
            identify(monkeypatch, "AKIANEW")
            await calls.call("GetItem", get("jobs", "job-1"))
            await calls.call("GetItem", get("jobs", "job-1"))
    assert witness.keys == ["AKIAOLD", "AKIANEW", "AKIANEW"]


@pytest.mark.parametrize("code", ["UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException"])
async def test_credentials_nobody_accepts_are_told_and_not_tried_for_ever(monkeypatch, code: str) -> None:
    identify(monkeypatch)
    with answering(lambda _: refusal(code, "no", status=400)) as played:
        async with calling(played.url) as calls:
            with pytest.raises(Unavailable, match=f"does not accept the credentials .{code}") as caught:
                await calls.call("PutItem", put("jobs", "job-1"))
            assert calls.made["PutItem"] == 1
    assert caught.value.outcome == "not_applied"


async def test_a_clock_that_is_wrong_is_corrected_for(monkeypatch) -> None:
    identify(monkeypatch)
    ahead = 7200
    moments: list[dt.datetime] = []

    def answer(request: Request) -> Reply:
        now = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=ahead)
        signed = dt.datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%S%z")
        moments.append(signed)
        if abs(now - signed) < dt.timedelta(minutes=5):
            return FOUND
        reply = refusal("InvalidSignatureException", "Signature expired: it is now earlier than")
        reply.headers["date"] = formatdate(now.timestamp(), usegmt=True)
        return reply

    with answering(answer) as played:
        async with calling(played.url) as calls:
            await calls.call("GetItem", get("jobs", "job-1"))
            await calls.call("GetItem", get("jobs", "job-1"))
    assert len(moments) == 3


@pytest.mark.parametrize("jump", [-90 * 86_400, 3650 * 86_400])
async def test_the_time_of_the_service_is_known_from_every_reply_and_goes_on_by_itself(monkeypatch, jump: int) -> None:
    identify(monkeypatch)
    real, ahead = time.time, 7200

    def answer(_: Request) -> Reply:
        return Reply(200, FOUND.body, {"date": formatdate(real() + ahead, usegmt=True)})

    with answering(answer) as played:
        async with calling(played.url) as calls:
            assert calls.now() == pytest.approx(real(), abs=60), "ours, until it is known"
            await calls.call("GetItem", get("jobs", "job-1"))
            assert calls.now() == pytest.approx(real() + ahead, abs=60)
            monkeypatch.setattr(time, "time", lambda: real() + jump)
            assert calls.now() == pytest.approx(real() + ahead, abs=60)


def test_dates_that_are_cut_to_seconds_do_not_make_the_clock_go_back_and_forth(monkeypatch) -> None:
    passed, took, began = 0.0, 0.3, 1_800_000_000.7
    monkeypatch.setattr(clock_module, "elapsed", lambda: passed)
    clock, seen = ServiceClock(), []
    for step in range(2000):
        passed = step * 0.37
        made = began + passed - took * (step % 4) / 4
        clock.learn(formatdate(int(made), usegmt=True), took)
        seen.append(clock.now() - passed)
        assert clock.now() == pytest.approx(began + passed, abs=1 + took)
    assert len(set(seen[1000:])) == 1, "it has come to rest"


@pytest.mark.parametrize("date", [None, "", "yesterday", "Mon, 99 Foo 2026 00:00:00 GMT"])
def test_a_date_nobody_can_read_tells_nothing(date: str | None) -> None:
    clock = ServiceClock()
    clock.learn(date, 0.1)
    assert clock.now() == pytest.approx(time.time(), abs=60)


# --- secrets ----------------------------------------------------------------------------------------------------------


async def test_no_text_and_no_line_of_the_log_has_a_secret(monkeypatch, metadata: Metadata, log_lines) -> None:
    monkeypatch.setattr(calls_module, "AWAY_AFTER", 1)
    texts: list[str] = []
    replies: list[Reply | None] = [
        refusal("AccessDeniedException", "not authorized to perform: dynamodb:PutItem"),
        refusal("UnrecognizedClientException", "The security token included in the request is invalid."),
        refusal("ProvisionedThroughputExceededException", ""),
        refusal("ValidationException", "no"),
        Reply(500, b"oh"),
        None,
    ]
    for reply in replies:
        for key in ("AKIAFROMENVIRONMENT0", None):
            if key is not None:
                identify(monkeypatch, key)
            else:
                monkeypatch.delenv("AWS_ACCESS_KEY_ID")
            with answering(Fixed(reply)) as played:
                async with calling(played.url, region="us-east-1", seconds=0.2) as calls:
                    with pytest.raises(Exception) as caught:
                        await calls.call("PutItem", put("jobs", "job-1"))
            problem: BaseException | None = caught.value
            while problem is not None:
                texts += [str(problem), repr(problem), repr(vars(problem))]
                problem = problem.__cause__ or problem.__context__
    told = log_lines.getvalue() + "".join(texts)
    assert "dynamodb_away" in told
    for secret in SECRETS:
        assert secret not in told


def test_botocore_is_kept_from_writing_down_what_it_is_told() -> None:
    logging.getLogger("botocore").setLevel(logging.DEBUG)
    find(Access(region="us-east-1", endpoint="http://127.0.0.1:1"))
    assert not logging.getLogger("botocore.parsers").isEnabledFor(logging.ERROR)


# --- the log ----------------------------------------------------------------------------------------------------------


async def test_the_log_says_once_that_it_is_away_and_that_it_is_back(monkeypatch, log_lines) -> None:
    identify(monkeypatch)
    with answering(Witness()) as played:
        async with calling(played.url) as calls:
            played.go_away()
            waiting = asyncio.create_task(calls.call("GetItem", get("jobs", "job-1")))
            await until(lambda: calls.repeated["refused"] > calls_module.AWAY_AFTER + 2)
            played.come_back()
            await waiting
            await calls.call("GetItem", get("jobs", "job-1"))
    events = re.findall(r'"event": ?"(dynamodb_\w+)"', log_lines.getvalue())
    assert events == ["dynamodb_away", "dynamodb_back"]


async def test_the_log_says_once_a_minute_that_calls_are_throttled(monkeypatch, log_lines) -> None:
    identify(monkeypatch)
    replies = [refusal("ThrottlingException", "slow down")] * 5 + [FOUND]

    def answer(_: Request) -> Reply:
        return replies.pop(0)

    with answering(answer) as played:
        async with calling(played.url) as calls:
            await calls.call("GetItem", get("jobs", "job-1"))
            assert calls.repeated["throttled"] == 5
    assert re.findall(r'"event": ?"(dynamodb_\w+)"', log_lines.getvalue()) == ["dynamodb_throttled"]


# --- TLS --------------------------------------------------------------------------------------------------------------


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """One that only we trust, for 127.0.0.1, and a server's context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "played endpoint")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = folder / "key.pem"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, private)
    return path, context


async def test_a_certificate_has_to_be_trusted(monkeypatch, tmp_path: Path) -> None:
    identify(monkeypatch)
    path, context = certificate(tmp_path)
    witness = Witness()
    with InThread(witness, context) as played:
        async with calling(played.url) as calls:
            with pytest.raises(Unavailable, match=r"certificate of .* is not one to be trusted .see AWS_CA_BUNDLE"):
                await calls.call("PutItem", put("jobs", "job-1"))
        assert witness.requests == []
        monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
        await one_call(played.url, "us-east-1")
    assert witness.keys == ["AKIAFROMENVIRONMENT0"]


def test_a_bundle_that_is_not_there_is_named(monkeypatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere/bundle.pem")
    with pytest.raises(Unavailable, match=r"/nowhere/bundle\.pem cannot be read"):
        find(Access(region="us-east-1"))


# --- addresses --------------------------------------------------------------------------------------------------------


def test_an_address_names_the_table_and_what_else_there_is() -> None:
    assert read_url("dynamodb://joblet-jobs") == {"table_name": "joblet-jobs"}
    url = "dynamodb://Jobs_1.x?region=eu-west-1&endpoint=http%3A%2F%2Flocalhost%3A8000&companion=other"
    assert read_url(url) == {
        "table_name": "Jobs_1.x",
        "region": "eu-west-1",
        "endpoint": "http://localhost:8000",
        "companion_table": "other",
    }
    assert read_url("dynamodb://t?endpoint=http://localhost:8000")["endpoint"] == "http://localhost:8000"


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://",
        "dynamo://jobs",
        "dynamodb://jobs/more",
        "dynamodb://jobs?colour=red",
        "dynamodb://jobs?region=a&region=b",
        "dynamodb://key:very-secret-key@jobs",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_url(url)
    assert "very-secret" not in caught.value.text


def test_the_drivers_load_when_it_is_opened_and_not_before() -> None:
    """The daemon's socket is up by then: together they take half a second to import."""
    look = "import sys, statesvc.backends.dynamodb; print({'aiohttp', 'botocore'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_what_was_found_shows_no_secrets(monkeypatch) -> None:
    identify(monkeypatch)
    found = find(Access(region="us-east-1"))
    assert isinstance(found, Found)
    assert not any(secret in repr(found) for secret in SECRETS)
