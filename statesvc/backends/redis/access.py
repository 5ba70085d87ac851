"""How a server is reached: addresses, who we say we are, TLS, and how long anything may take.

Owns the reading of the settings and of URLs, of the files secrets and certificates are in. Must not know connections.
Secrets are read anew for each connection, so that a changed file counts from the next one on, and are never kept.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from ... import addresses
from .faults import Trouble

if TYPE_CHECKING:
    from statesvc.config.model import Redis

PORT = 6379
SENTINEL_PORT = 26_379

SECRET_BYTES = 4096
"""More than any password; a wrong path must not read a whole disk."""

LONGEST_CONNECT_SECONDS = 2.0
"""A server on the other side of the world answers in a third of this."""


class Address(Struct, frozen=True):
    """Where a server listens: a host and a port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Identity(Struct, frozen=True):
    """Who we say we are. `secret` reads the password; "" when there is none."""

    user: str
    secret: Callable[[], str]

    def auth(self) -> tuple[str, ...] | None:
        """The command that says so; None when there is nothing to say."""
        secret = self.secret()
        if not self.user and not secret:
            return None
        return ("AUTH", self.user, secret) if self.user else ("AUTH", secret)


class Tls(Struct, frozen=True):
    """Certificates. Without a CA file the authorities the machine trusts are asked."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def stamp(self) -> tuple[object, ...]:
        """Changes whenever one of the files does."""
        return tuple(_stamp(path) for path in (self.ca_file, self.cert_file, self.key_file))

    def context(self) -> ssl.SSLContext:
        """Checks the server's certificate and host name. With a CA file only its authorities count."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.key_file:
                _check_private(os.stat(self.key_file), self.key_file, "storage.redis.tls_key_file")
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as error:  # ssl.SSLError is one
            files = ", ".join(path for path in (self.ca_file, self.cert_file, self.key_file) if path)
            reason = error.strerror or "not a certificate or key that can be read"
            raise Trouble(f"storage.redis.tls_*_file: {files}: {reason}", lasting=True) from error
        return context


class Access(Struct, frozen=True, kw_only=True):
    """Everything needed to reach the master of a namespace."""

    endpoints: tuple[Address, ...]
    """The server, or nodes of its Cluster, or Sentinels when `sentinel_master` is set."""
    identity: Identity
    db: int = 0
    tls: Tls | None = None
    sentinel_master: str = ""
    sentinel_identity: Identity
    timeout_seconds: float = 5.0

    @property
    def connect_seconds(self) -> float:
        """What one connection may take until it is usable: half a call's time, so that a call can try twice."""
        return min(self.timeout_seconds / 2, LONGEST_CONNECT_SECONDS)


def access_of(settings: Redis) -> Access:
    """What `storage.redis` says. Raises ValueError, in words, when the endpoint cannot be one."""
    default_port = SENTINEL_PORT if settings.sentinel_master else PORT
    files = (settings.tls_ca_file, settings.tls_cert_file, settings.tls_key_file)
    password = settings.password.reveal() if settings.password else ""
    return Access(
        endpoints=read_endpoints(settings.endpoint, default_port),
        identity=Identity(settings.username, _secret(settings.password_file, "password_file", password)),
        db=settings.db,
        tls=Tls(*(str(file) if file else None for file in files)) if settings.tls else None,
        sentinel_master=settings.sentinel_master,
        sentinel_identity=Identity(
            settings.sentinel_username, _secret(settings.sentinel_password_file, "sentinel_password_file")
        ),
        timeout_seconds=settings.timeout_seconds,
    )


def read_endpoints(text: str, default_port: int = PORT) -> tuple[Address, ...]:
    """The addresses in `storage.redis.endpoint`, in their order."""
    try:
        return tuple(Address(*each) for each in addresses.read_endpoints(text, default_port))
    except ValueError as problem:
        raise ValueError(f"storage.redis.endpoint: {problem}") from None


# --- secrets ---------------------------------------------------------------------------------------------------


def _secret(file: Path | None, key: str, given: str = "") -> Callable[[], str]:
    if file is None:
        return lambda: given
    return lambda: read_secret(str(file), f"storage.redis.{key}")


def read_secret(path: str, key: str) -> str:
    """The password in a file, without the line break at its end."""
    try:
        # O_NONBLOCK: a path that is a pipe without a writer must not stop the daemon.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise Trouble(f"{key}: {path} is not a file", lasting=True)
            _check_private(found, path, key)
            content = os.read(descriptor, SECRET_BYTES + 1)
        finally:
            os.close(descriptor)
        secret = content.decode().rstrip("\r\n")
    except OSError as error:
        raise Trouble(f"{key}: {path}: {error.strerror}", lasting=True) from None
    except UnicodeDecodeError:
        raise Trouble(f"{key}: {path} does not hold UTF-8 text", lasting=True) from None
    if len(content) > SECRET_BYTES:
        raise Trouble(f"{key}: {path} holds more than the {SECRET_BYTES} bytes a password may have", lasting=True)
    return secret


def _check_private(found: os.stat_result, path: str, key: str) -> None:
    """A secret that everybody can read, or others can change, is none. A group may read it: some are handed out so."""
    if found.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        mode = stat.S_IMODE(found.st_mode)
        raise Trouble(f"{key}: {path} holds a secret and has mode {mode:04o}; run: chmod 600 {path}", lasting=True)


def _stamp(path: str | None) -> object:
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size)


# --- URLs ------------------------------------------------------------------------------------------------------

_TEXTS = (
    "namespace",
    "password_file",
    "sentinel_master",
    "sentinel_username",
    "sentinel_password_file",
    "tls_ca_file",
    "tls_cert_file",
    "tls_key_file",
    "durability",
)
_FILES = frozenset(name for name in _TEXTS if name.endswith("_file"))
_NUMBERS: dict[str, Callable[[str], float]] = {
    "db": int,
    "wait_replicas": int,
    "wait_seconds": float,
    "timeout_seconds": float,
}


def read_url(url: str) -> dict[str, Any]:
    """The values of `storage.redis` that a URL stands for, by the names of their keys.

    redis://[user:password@]host:port[,host:port...][/db], rediss:// for TLS, unix://[user:password@]/path.
    Other keys follow as a query: ?namespace=agents&sentinel_master=main. Raises ValueError; no text holds a password.
    """
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in {"redis", "rediss", "unix"}:
        raise ValueError("a Redis URL begins with redis://, rediss:// or unix://")
    parts = urlsplit(f"//{rest}")
    user_info, at, hosts = parts.netloc.rpartition("@")
    values: dict[str, Any] = {}
    if at:
        user, _, password = user_info.partition(":")
        values |= {"username": unquote(user), "password": unquote(password)}
    if scheme == "unix":
        values["endpoint"] = unquote(parts.path)
    else:
        values |= {"endpoint": unquote(hosts), "tls": scheme == "rediss"}
        if parts.path.strip("/"):
            values["db"] = _db(parts.path.strip("/"))
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        values[name] = _queried(name, text)
    read_endpoints(values["endpoint"])
    return {name: value for name, value in values.items() if value != "" and value is not False}


def _db(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"a Redis URL ends with the number of a database; {text[:40]!r} is none")
    return int(text)


def _queried(name: str, text: str) -> Any:
    if name in _TEXTS:
        return Path(text) if name in _FILES else text
    if name not in _NUMBERS:
        known = ", ".join(sorted((*_TEXTS, *_NUMBERS)))
        raise ValueError(f"a Redis URL takes no {name[:40]!r}; it takes {known}")
    try:
        return _NUMBERS[name](text)
    except ValueError:
        raise ValueError(f"{name} of a Redis URL is a number; {text[:40]!r} is none") from None
