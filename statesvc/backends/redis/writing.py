"""Scripts that change a namespace outside of commits: their answers, and what follows when nobody knows the answer.

Owns those answers. Must not know what the scripts are for. Each of these scripts may be sent again without harm.
"""

from __future__ import annotations

from typing import Any

from statesvc_client.errors import Unavailable

from . import calling
from .faults import LOST, Refused, as_error
from .link import sends_until
from .meta import FORMAT, too_new
from .namespace import Namespace
from .scripting import Argument


async def change(namespace: Namespace, name: str, *arguments: Argument) -> Any:
    """The reply of a script. Raises when it was refused, and with outcome `unknown` when its answer was lost."""
    link, until = namespace.link, sends_until(namespace.until())
    [reply] = await calling.run(link.change, until, name, namespace.key, [arguments])
    if reply is LOST:
        raise Unavailable(f"redis at {link.server}: the answer was lost", outcome="unknown")
    if isinstance(reply, Refused):
        raise as_error(reply, link.server)
    return reply


async def change_store(
    namespace: Namespace, name: str, *arguments: Argument, epoch: str | None = None
) -> list[Any] | None:
    """The same for a script that begins with format and epoch; None when the epoch is another one by now."""
    word, *rest = await change(namespace, name, FORMAT, epoch or namespace.known.epoch, *arguments)
    if word == b"format":
        raise too_new(namespace.name, int(rest[0]))
    if word == b"epoch":
        await namespace.learn()
        return None
    return [word, *rest]
