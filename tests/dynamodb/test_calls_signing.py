"""Signatures are botocore's, byte for byte."""

from __future__ import annotations

import datetime as dt
from unittest import mock

import pytest
from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import ReadOnlyCredentials  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from statesvc.backends.dynamodb.signing import Credentials, Signer

URLS = [
    "https://dynamodb.eu-central-1.amazonaws.com",
    "https://dynamodb.eu-central-1.amazonaws.com:443",
    "http://localhost:8000",
    "http://127.0.0.1:4566/some/path~with-things",
    "http://[::1]:8000",
    "https://VPCE-1.dynamodb.eu-central-1.vpce.amazonaws.com",
]


def by_botocore(url, region, credentials, operation, body, now) -> dict[str, str]:
    headers = {"X-Amz-Target": f"DynamoDB_20120810.{operation}", "Content-Type": "application/x-amz-json-1.0"}
    request = AWSRequest("POST", url if url.count("/") > 2 else url + "/", headers=headers, data=body)
    with mock.patch("botocore.auth.get_current_datetime", return_value=dt.datetime.fromtimestamp(now, dt.UTC)):
        SigV4Auth(ReadOnlyCredentials(*credentials), "dynamodb", region).add_auth(request)
    return {name: str(value) for name, value in request.headers.items()}


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("token", [None, "a-session-token+/=", "one  with   spaces"])
def test_a_signature_is_the_one_botocore_makes(url: str, token: str | None) -> None:
    credentials = Credentials("AKIAEXAMPLE", "secret/key+of=ours", token)
    signer = Signer(url, "eu-central-1")
    for operation, body in [("PutItem", b'{"a":1}'), ("TransactWriteItems", b"{}" * 1000), ("DescribeTable", b"")]:
        ours = signer.headers(operation, body, credentials, 1_700_000_000)
        theirs = by_botocore(url, "eu-central-1", credentials, operation, body, 1_700_000_000)
        assert ours["Authorization"] == theirs["Authorization"]
        assert ours["X-Amz-Date"] == theirs["X-Amz-Date"]
        assert ours.get("X-Amz-Security-Token") == theirs.get("X-Amz-Security-Token")


visible = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)


@given(
    body=st.binary(max_size=300),
    secret=visible,
    token=st.none() | visible,
    operation=st.sampled_from(["GetItem", "Query", "BatchWriteItem"]),
    region=st.sampled_from(["us-east-1", "cn-north-1", "us-gov-west-1"]),
    now=st.integers(0, 4_000_000_000),
)
def test_so_are_those_of_any_body_secret_and_time(body, secret, token, operation, region, now) -> None:
    credentials = Credentials("AKIAEXAMPLE", secret, token)
    ours = Signer(URLS[0], region).headers(operation, body, credentials, now)
    assert ours["Authorization"] == by_botocore(URLS[0], region, credentials, operation, body, now)["Authorization"]


def test_the_key_follows_the_day_and_the_credentials() -> None:
    signer = Signer(URLS[2], "us-east-1")
    first, second = Credentials("A", "first"), Credentials("A", "second")
    for credentials in (first, second, first):
        for now in (86_399, 86_400, 86_399):
            ours = signer.headers("GetItem", b"{}", credentials, now)["Authorization"]
            assert ours == by_botocore(URLS[2], "us-east-1", credentials, "GetItem", b"{}", now)["Authorization"]


def test_credentials_never_show_themselves() -> None:
    shown = f"{Credentials('AKIA', 'the-secret', 'the-token')} {Credentials('AKIA', 'the-secret', 'the-token')!r}"
    assert "the-" not in shown
    assert "AKIA" not in shown
