"""What a supervisor of systemd's kind is told and what it hands over: sd_notify, the watchdog, sockets.

Owns the variables NOTIFY_SOCKET, WATCHDOG_* and LISTEN_*. Knows only the names of the daemon's states.
Each variable is taken out of the environment when it is read, so that no child believes it was meant.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from statesvc.process.errors import BadInheritance

# The first descriptor that a supervisor passes on; fixed by sd_listen_fds(3).
FIRST_INHERITED_FD = 3

Environment = MutableMapping[str, str]


class Notifier:
    """Tells the supervisor how we are. Without one, or when it does not listen, every call is a no-op.

    A notification never blocks and never raises: a daemon must not fail because its supervisor is slow. One that was
    not taken is lost, but for the one a supervisor waits for without end: see `ready_again`.
    """

    __slots__ = ("_address", "_not_taken")

    def __init__(self, address: str | None) -> None:
        self._address = _socket_address(address)
        self._not_taken: str | None = None
        """The status of a READY that the supervisor had no room for."""

    @classmethod
    def from_environment(cls, environment: Environment | None = None) -> Notifier:
        variables = os.environ if environment is None else environment
        return cls(variables.pop("NOTIFY_SOCKET", None))

    def ready(self, status: str = "") -> bool:
        taken = self._send("READY=1", *_status(status))
        self._not_taken = None if taken else status
        return taken

    def ready_again(self) -> None:
        """Say READY once more if it was not taken. To be called every so often, until the daemon stops."""
        if self._not_taken is not None:
            self.ready(self._not_taken)

    def stopping(self, status: str = "") -> bool:
        return self._send("STOPPING=1", *_status(status))

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
    """Seconds between two calls of `Notifier.alive`: a third of what is tolerated, so that one may be lost.

    None: no watchdog.
    """
    variables = os.environ if environment is None else environment
    tolerated = _whole_number("WATCHDOG_USEC", variables.pop("WATCHDOG_USEC", ""))
    meant_for = _whole_number("WATCHDOG_PID", variables.pop("WATCHDOG_PID", ""))
    if not tolerated or meant_for not in (None, os.getpid()):
        return None
    return tolerated / 3 / 1_000_000


def activated_socket(
    environment: Environment | None = None, *, first: int = FIRST_INHERITED_FD
) -> socket.socket | None:
    """The socket passed on by socket activation; None when there is none, or none meant for us."""
    variables = os.environ if environment is None else environment
    meant_for = _whole_number("LISTEN_PID", variables.pop("LISTEN_PID", ""))
    count = _whole_number("LISTEN_FDS", variables.pop("LISTEN_FDS", "")) or 0
    names = variables.pop("LISTEN_FDNAMES", "")
    variables.pop("LISTEN_PIDFDID", None)
    if meant_for != os.getpid() or count == 0:
        return None
    if count > 1:
        named = f" ({', '.join(names.split(':'))})" if names else ""
        raise BadInheritance(
            f"LISTEN_FDS={count}: {count} sockets{named} were passed on, but one is served; "
            "leave one ListenStream= in the socket unit"
        )
    return _adopt(first)


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
