"""What failures mean: the server's error replies and the network's errors, told apart once.

Owns which failures pass by themselves, which are an answer, and the words they become. Must not know connections or
what a command was for. A server's text may repeat what it was sent, so it never reaches a client.
"""

from __future__ import annotations

import re
import ssl
from enum import Enum
from typing import Final

from msgspec import Struct
from redis.exceptions import InvalidResponse, RedisError, ResponseError

from statesvc_client.errors import Internal, NoSpace, StateError, Unavailable


class Fate(Enum):
    """What is known of a command that got no reply."""

    LOST = "lost"


LOST: Final = Fate.LOST
"""In place of a reply: the command was sent and its answer never came; it may have been applied, or may not."""


class Refused(Struct, frozen=True):
    """An error reply. The command was not carried out; a script may have been carried out up to the error."""

    code: str
    """The first word of the reply: OOM, NOSCRIPT, NOPERM, ERR, or what a script of ours begins its own errors with."""
    text: str
    """What came behind the code: for logs and for the engine, never for clients."""


ELSEWHERE = frozenset({"MOVED", "READONLY", "UNBLOCKED", "MASTERDOWN", "CLUSTERDOWN", "LOADING", "NOAUTH"})
"""This server is not, or no longer, one to work with: nothing was applied, and the master is to be looked for again."""

LATER = frozenset({"ASK", "TRYAGAIN", "BUSY", "NOREPLICAS"})
"""The right server, at the wrong moment: nothing was applied, and the same connection may be asked again."""

NOT_NOW = ELSEWHERE | LATER

IDENTITY = frozenset({"NOAUTH", "WRONGPASS", "NOPERM", "DENIED"})
"""The server does not take us for somebody who may: it takes a person to put that right."""

# Before Redis 7 a script's error comes wrapped: "Error running script (call to f_<sha>): @user_script:1: ... -CODE ..."
_WRAPPED = re.compile(r"Error running script .*?@user_script: ?\d+: -?([A-Z][A-Z-]+) (.*)", re.DOTALL)
_NOT_LOCAL = "ttempted to access a non local key"

_NO_RIGHT = re.compile(r"ACL failure in script|user executing the script can't run this command")
"""What a script is told of a command its user has no right to; the words differ between versions."""

_CODE = re.compile(r"[A-Z][A-Z0-9-]*")


def refused(error: RedisError) -> Refused:
    """The error reply that redis-py made an exception of."""
    text = str(error)
    if error.status_code is not None:
        return _unwrapped(Refused(error.status_code, text))
    code, _, rest = text.partition(" ")
    return _unwrapped(Refused(code, rest)) if _CODE.fullmatch(code) else Refused("ERR", text)


def _unwrapped(reply: Refused) -> Refused:
    if reply.code != "ERR":
        return reply
    if _NOT_LOCAL in reply.text:
        return Refused("NOTLOCAL", reply.text)
    if _NO_RIGHT.search(reply.text):
        return Refused("NOPERM", reply.text)
    wrapped = _WRAPPED.match(reply.text)
    return Refused(wrapped[1], wrapped[2]) if wrapped else reply


def is_error_reply(error: RedisError) -> bool:
    """Whether the server said it, and the connection can go on. The rest are failures of the connection itself."""
    return error.status_code is not None or isinstance(error, ResponseError)


_WORDS = {
    "MOVED": "it says that another node keeps the namespace",
    "ASK": "the namespace's slot is being moved to another node",
    "TRYAGAIN": "the namespace's slot is being moved to another node",
    "NOTLOCAL": "the namespace's slot is being moved to another node",
    "NOSCRIPT": "it has forgotten a script, and there was no time to send it again",
    "READONLY": "it is a replica and takes no writes",
    "UNBLOCKED": "it has become a replica",
    "MASTERDOWN": "it is a replica that has lost its master",
    "NOREPLICAS": "it has fewer replicas than its min-replicas-to-write asks for",
    "CLUSTERDOWN": "the cluster is down",
    "LOADING": "it is still loading its data",
    "BUSY": "it is busy with a script",
    "NOAUTH": "it wants a password; set storage.redis.password_file",
    "WRONGPASS": "it does not accept the user name and password; check storage.redis.username and the password's file",
    "NOPERM": "its access rules forbid the user a command or a key that is needed; `statesvc init` lists them",
    "DENIED": "its protected mode refuses other hosts; give it a password or an address to listen on",
    "MAXCLIENTS": "it has reached its maxclients",
    "NOPASSWORD": "it has no password for the default user; take storage.redis.password_file away or set one there",
    "NODB": "it has no database of that number (storage.redis.db)",
    "OOM": "its memory is full (maxmemory)",
    "MISCONF": "it cannot save to its disk and takes no writes (see its log)",
}

_PLAIN_ERRORS = {
    "max number of clients": "MAXCLIENTS",
    "without any password configured": "NOPASSWORD",
    "DB index is out of range": "NODB",
    "SELECT is not allowed": "NODB",
}
"""What servers say under the code ERR, by a part of it."""

_FULL = frozenset({"OOM", "MISCONF"})
_SERVICE = NOT_NOW | IDENTITY | {"NOTLOCAL", "NOSCRIPT", "MAXCLIENTS"}


def words(reply: Refused) -> str:
    """Why the server did not do it, without a word of what it was sent."""
    if reply.code == "ERR":
        for part, code in _PLAIN_ERRORS.items():
            if part in reply.text:
                return _WORDS[code]
    return _WORDS.get(reply.code, f"it answered with the error {reply.code}")


def as_error(reply: Refused, server: str) -> StateError:
    """The error a client is told when a command was refused for good. It was not applied."""
    text = f"redis at {server}: {words(reply)}"
    if reply.code in _FULL:
        return NoSpace(text)
    return Unavailable(text) if reply.code in _SERVICE else Internal(text)


class Trouble(Exception):
    """Something between us and a usable master. `lasting` does not pass by waiting: somebody has to act."""

    def __init__(
        self,
        reason: str,
        *,
        lasting: bool = False,
        elsewhere: bool = False,
        reply: Refused | None = None,
        error: StateError | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lasting = lasting
        self.elsewhere = elsewhere
        """Whether it says that the server is not, or no longer, one to work with, on any connection."""
        self.reply = reply
        """The refusal that was met, if it was one."""
        self.error = error
        """What the engine itself had against the server, if it was that."""


def trouble_of(reply: Refused, server: str, *, during: str = "") -> Trouble:
    """What a refusal tells of the server. `during` names the step when the connection was not in use yet.

    Who is refused then has the wrong settings; who is refused later may be let in again on a new connection.
    """
    lasting = reply.code in IDENTITY or (reply.code == "ERR" and words(reply) != _WORDS["MAXCLIENTS"])
    behind = f" ({during})" if during else ""
    return Trouble(
        f"redis at {server}: {words(reply)}{behind}",
        lasting=lasting and bool(during),
        elsewhere=reply.code in ELSEWHERE and reply.code not in IDENTITY,
        reply=reply,
    )


def broken(error: BaseException, server: str, *, doing: str) -> Trouble:
    """A connection that could not be made, or that broke."""
    if isinstance(error, InvalidResponse):
        return Trouble(f"redis at {server}: {doing}: what it says is not Redis's protocol (check storage.redis.tls)")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = cause.verify_message or "it cannot be verified"
            return Trouble(f"redis at {server}: its certificate is not accepted: {why}", lasting=True)
        if isinstance(cause, ssl.SSLError):
            return Trouble(f"redis at {server}: TLS failed ({cause.reason or 'no reason given'})")
        if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, TimeoutError):
            return Trouble(f"redis at {server}: {doing}: {cause.strerror}")
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, TimeoutError):
        return Trouble(f"redis at {server}: {doing}: no answer in time")
    return Trouble(f"redis at {server}: {doing}: the connection was closed")
