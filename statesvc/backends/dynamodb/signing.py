"""Signing requests: Amazon's Signature Version 4, for the one form of request DynamoDB takes.

Owns the headers that prove who sends a request. Must not know where credentials come from, nor sockets.

botocore's signer takes 0.15 ms a request, 0.11 ms with everything cached that it lets one cache: half as much as the
rest of a call. Here it is 0.01 ms, because method, path, query and the names of the headers never change. A test
compares signatures with botocore's, byte for byte.
"""

from __future__ import annotations

import hashlib
import hmac
from time import gmtime, strftime
from typing import NamedTuple
from urllib.parse import quote, urlsplit

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET = "DynamoDB_20120810"

_PORTS = {"http": 80, "https": 443}


class Credentials(NamedTuple):
    """Never shown: neither printed nor logged."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return "Credentials([hidden])"


class _Day(NamedTuple):
    """What stays the same for one day and one identity."""

    credentials: Credentials
    date: str
    key: bytes


class Signer:
    """Signs what is sent to one endpoint of one region."""

    def __init__(self, url: str, region: str) -> None:
        parts = urlsplit(url)
        self.host = host_of(url)
        # The path as the service sees it, quoted once: all but S3 are signed so.
        self._path = quote(parts.path or "/", safe="/~")
        self._scope = f"{region}/dynamodb/aws4_request"
        self._region = region
        self._day: _Day | None = None

    def headers(self, operation: str, body: bytes, credentials: Credentials, now: float) -> dict[str, str]:
        """Everything to be sent with `body`, at the time `now` of the service's clock, in seconds since 1970."""
        moment = strftime("%Y%m%dT%H%M%SZ", gmtime(now))
        target = f"{TARGET}.{operation}"
        day = self._day_of(credentials, moment[:8])
        if credentials.token is None:
            token_line, names = "", "content-type;host;x-amz-date;x-amz-target"
        else:
            # In the order of the alphabet: security-token comes between date and target.
            token_line = f"x-amz-security-token:{' '.join(credentials.token.split())}\n"
            names = "content-type;host;x-amz-date;x-amz-security-token;x-amz-target"
        canonical = (
            f"POST\n{self._path}\n\n"
            f"content-type:{CONTENT_TYPE}\nhost:{self.host}\nx-amz-date:{moment}\n{token_line}x-amz-target:{target}\n\n"
            f"{names}\n{hashlib.sha256(body).hexdigest()}"
        )
        scope = f"{day.date}/{self._scope}"
        to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(day.key, to_sign.encode(), "sha256").hex()
        headers = {
            "Host": self.host,
            "Content-Type": CONTENT_TYPE,
            "X-Amz-Date": moment,
            "X-Amz-Target": target,
            "Authorization": (
                f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
                f"SignedHeaders={names}, Signature={signature}"
            ),
        }
        if credentials.token is not None:
            headers["X-Amz-Security-Token"] = credentials.token
        return headers

    def _day_of(self, credentials: Credentials, date: str) -> _Day:
        day = self._day
        if day is None or day.date != date or day.credentials is not credentials:
            key = f"AWS4{credentials.secret_key}".encode()
            for part in (date, self._region, "dynamodb", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            day = self._day = _Day(credentials, date, key)
        return day


def host_of(url: str) -> str:
    """The Host header of requests to an address: without the port where it is the usual one."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if ":" in host:
        host = f"[{host}]"
    return host if parts.port in {None, _PORTS.get(parts.scheme)} else f"{host}:{parts.port}"
