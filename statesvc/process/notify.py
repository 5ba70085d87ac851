"""What a supervisor of systemd's kind is told and what it hands over: sd_notify, the watchdog, sockets.

Owns the variables NOTIFY_SOCKET, WATCHDOG_* and LISTEN_*. Knows only the names of the daemon's states.
Each variable is taken out of the environment when it is read, so that no child believes it was meant.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import NamedTuple

from statesvc.process.errors import BadInheritance

# The first descriptor that a supervisor passes on; fixed by sd_listen_fds(3).
FIRST_INHERITED_FD = 3

# Descriptors we are ready to take; a unit of ours has one.
MAX_INHERITED_FDS = 64

Environment = MutableMapping[str, str]


class Notifier:
    """Tells the supervisor how we are. Without one, or when it does not listen, every call is a no-op.

    A notification never blocks and never raises: a daemon must not fail because its supervisor is slow.
    """

    __slots__ = ("_address",)

    def __init__(self, address: str | None) -> None:
        self._address = _socket_address(address)

    @classmethod
    def from_environment(cls, environment: Environment | None = None) -> Notifier:
        variables = os.environ if environment is None else environment
        return cls(variables.pop("NOTIFY_SOCKET", None))

    @property
    def present(self) -> bool:
        """Whether somebody asked to be told."""
        return self._address is not None

    def ready(self, status: str = "") -> bool:
        return self._send("READY=1", *_status(status))

    def stopping(self, status: str = "") -> bool:
        return self._send("STOPPING=1", *_status(status))

    def status(self, text: str) -> bool:
        return self._send(*_status(text))

    def alive(self) -> bool:
        """Feed the watchdog; see `watchdog_interval` for how often."""
        return self._send("WATCHDOG=1")

    def _send(self, *assignments: str) -> bool:
        if self._address is None:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(assignments).encode(), socket.MSG_NOSIGNAL, self._address)
        except OSError:
            return False
        return True


def watchdog_interval(environment: Environment | None = None) -> float | None:
    """Seconds between two calls of `Notifier.alive`: half of what is tolerated. None: no watchdog."""
    variables = os.environ if environment is None else environment
    tolerated = _whole_number("WATCHDOG_USEC", variables.pop("WATCHDOG_USEC", ""))
    meant_for = _whole_number("WATCHDOG_PID", variables.pop("WATCHDOG_PID", ""))
    if not tolerated or meant_for not in (None, os.getpid()):
        return None
    return tolerated / 2 / 1_000_000


class InheritedSocket(NamedTuple):
    """A socket from the supervisor, with the name its unit gives it (FileDescriptorName=), or "unknown"."""

    name: str
    sock: socket.socket


def activated_sockets(
    environment: Environment | None = None, *, first: int = FIRST_INHERITED_FD
) -> list[InheritedSocket]:
    """The sockets passed on by socket activation; empty when there are none, or none meant for us."""
    variables = os.environ if environment is None else environment
    meant_for = _whole_number("LISTEN_PID", variables.pop("LISTEN_PID", ""))
    count = _whole_number("LISTEN_FDS", variables.pop("LISTEN_FDS", "")) or 0
    names = variables.pop("LISTEN_FDNAMES", "").split(":")
    variables.pop("LISTEN_PIDFDID", None)
    if meant_for != os.getpid():
        return []
    if count > MAX_INHERITED_FDS:
        raise BadInheritance(f"LISTEN_FDS={count}: at most {MAX_INHERITED_FDS} sockets can be taken over")
    names += ["unknown"] * (count - len(names))
    return [InheritedSocket(name or "unknown", _adopt(first + i)) for i, name in enumerate(names[:count])]


def _adopt(fd: int) -> socket.socket:
    try:
        os.set_inheritable(fd, False)
        return socket.socket(fileno=fd)
    except OSError as error:
        raise BadInheritance(f"descriptor {fd}, passed on by LISTEN_FDS, is no socket: {error.strerror}") from error


def _socket_address(address: str | None) -> str | None:
    """Where to send: a path, or `@name` for the abstract namespace. Others (vsock) are not for us."""
    if not address or address[0] not in "/@":
        return None
    return "\0" + address[1:] if address[0] == "@" else address


def _status(text: str) -> list[str]:
    # A newline would begin the next assignment.
    return [f"STATUS={' '.join(text.split())}"] if text else []


def _whole_number(name: str, text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise BadInheritance(f"{name}={text!r} is not a whole number; unset it or start through the supervisor")
    return int(text)
