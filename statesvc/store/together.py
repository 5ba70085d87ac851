"""Changes to many records at a time.

Owns that one record that cannot be changed does not keep the others from it. Must not know what the changes are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from statesvc_client.errors import Refusal, RequestFault

from .. import logs

log = logs.get(__name__)


async def all_done(changes: Iterable[Awaitable[bool]]) -> int:
    """Do them together, so that they go into one commit; returns how many changed something. A failure of the engine is
    raised once all have been tried."""
    done = 0
    failure: BaseException | None = None
    for result in await asyncio.gather(*changes, return_exceptions=True):
        if isinstance(result, (Refusal, RequestFault)):
            log.warning("duty_refused", why=result.text)
        elif isinstance(result, BaseException):
            failure = failure or result
        else:
            done += result
    if failure is not None:
        raise failure
    return done


async def in_order(changes: Iterable[Awaitable[None]]) -> None:
    """Do them together, begun in their order. All of them have ended when the first failure is raised."""
    for result in await asyncio.gather(*changes, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
