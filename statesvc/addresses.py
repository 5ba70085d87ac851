"""How the address of a server is written: host:port, the path of a Unix socket, a URL of the web.

Read by the configuration, which refuses what is none before anything is started, and by the engines. Must not know
either, nor any key. What stands in front of an @ is never shown: it may be a password.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

_HOST_AND_PORT = re.compile(r"(?:\[([^][@/\s\0]+)\]|([^][:@/\s\0]+))(?::([0-9]{0,5}))?")


class Endpoint(NamedTuple):
    """A host and a port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""


def read_endpoints(text: str, default_port: int) -> list[Endpoint]:
    """host:port, several with commas between them, or a path. Raises ValueError, in words that follow a key's name."""
    if text.startswith("/"):
        return [Endpoint(path=text)]
    if "@" in text:
        raise ValueError(f"{without_login(text)!r} is not host:port; a user and a password have keys of their own")
    endpoints = [_endpoint(part.strip(), default_port) for part in text.split(",") if part.strip()]
    if not endpoints:
        raise ValueError("empty; give host:port or the path of a Unix socket")
    return endpoints


def _endpoint(text: str, default_port: int) -> Endpoint:
    found = _HOST_AND_PORT.fullmatch(text)
    port = int((found and found[3]) or default_port)
    if not found or port not in range(1, 65_536):
        raise ValueError(f"{text!r} is not host:port; an IPv6 address goes in [ ]")
    return Endpoint(found[1] or found[2], port)


def is_web_address(url: str) -> bool:
    """Whether it is of the form http://host:port or https://host, without a user, a password or a query."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return (
        usable
        and url.isprintable()
        and " " not in url
        and "@" not in parts.netloc
        and not parts.query
        and not parts.fragment
    )


def without_login(text: str) -> str:
    """What may be shown of a text that should have been an address."""
    _, at, address = text.rpartition("@")
    return f"...@{address}" if at else text
