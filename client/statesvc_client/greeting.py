"""The first words on a connection: who is calling, and what the daemon says about itself.

Owns `hello`. Must not know what is said afterwards.
"""

from __future__ import annotations

from typing import Any

import msgspec

from . import wire
from .connection import Asking
from .errors import Internal, StateError, from_reply
from .options import Options
from .wire import Received


def hello(options: Options, client: str | None, ack: str) -> dict[str, Any]:
    """Without a client the writes that follow are not numbered."""
    message: dict[str, Any] = {"op": "hello", "name": options.name, "ack": ack, "protocol": wire.PROTOCOL}
    if client is not None:
        message["client"] = client
    if options.node_id is not None:
        message["nodeId"] = options.node_id
    if boot_id:
        message["bootId"] = boot_id
    return message


async def greet(asking: Asking, options: Options, client: str | None, ack: str, seconds: float) -> Received:
    """Open the connection and say hello. Raises `OSError`, `TimeoutError`, or the `StateError` the daemon answers."""
    await asking.open(seconds)
    reply = decoded(await asking.ask(hello(options, client, ack)))
    if not reply.success:
        raise error_of(reply)
    return reply


def decoded(line: bytes) -> Received:
    """A line as a reply; what is no reply at all means that this is no daemon of ours."""
    try:
        return wire.decode_reply(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Internal(f"the other side does not speak this protocol: {problem}", outcome="unknown") from None


def error_of(reply: Received) -> StateError:
    return from_reply(reply.code or "internal", reply.error or "no reason given", reply.outcome)


def _read_boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


boot_id = _read_boot_id()
