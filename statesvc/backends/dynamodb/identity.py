"""The credentials in use: found once, renewed before they end, looked for anew when they are refused.

Owns when botocore is asked, and that it is asked in threads, one at a time. Must not know requests.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from statesvc_client.errors import Unavailable

from ... import logs
from .access import Access, freeze, has_ended, load, wants_renewal
from .signing import Credentials

if TYPE_CHECKING:
    from botocore.credentials import Credentials as Source  # type: ignore[import-untyped]

log = logs.get(__name__)

LOOK_SECONDS = 1.0
"""How often credentials are asked whether it is time to renew them, and how soon a search that failed is made again."""

RENEW_SECONDS = 15.0
"""How soon a renewal that brought nothing new is tried again, while the credentials are still good: they are renewed
ten minutes and more before they end."""

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Like asyncio.to_thread, in a thread nobody waits for at the end: metadata that hang hold up no exit."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, problem: BaseException | None) -> None:
        if result.cancelled():
            return
        if problem is not None:
            result.set_exception(problem)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, problem = None, None
        try:
            value = work()
        except BaseException as raised:  # noqa: BLE001 - it is raised where the result is waited for
            problem = raised
        try:
            loop.call_soon_threadsafe(settle, value, problem)
        except RuntimeError:  # the loop is closed: nobody wants to know any more
            pass

    threading.Thread(target=run, name="dynamodb-access", daemon=True).start()
    return await result


class Identity:
    """Hands out credentials. Belongs to one event loop."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._source: Source | None = None
        self._held: Credentials | None = None
        self._look_at = 0.0
        self._search: asyncio.Task[Credentials] | None = None
        self._failed: tuple[float, Unavailable] | None = None

    def ready(self) -> Credentials | None:
        """The credentials, when there is nothing to wait for."""
        now = asyncio.get_running_loop().time()
        if self._held is None or now < self._look_at or self._source is None:
            return self._held
        self._look_at = now + LOOK_SECONDS
        if wants_renewal(self._source):
            self._look_at = now + RENEW_SECONDS
            self._begin(self._renew)
            if has_ended(self._source):
                self._held = None
        return self._held

    async def wait(self) -> Credentials:
        """The credentials, once they are there; raises `Unavailable` when they cannot be had."""
        held = self.ready()
        if held is not None:
            return held
        if self._failed is not None and asyncio.get_running_loop().time() < self._failed[0]:
            raise Unavailable(self._failed[1].text)
        return await asyncio.shield(self._begin(self._find if self._source is None else self._renew))

    async def other_than(self, refused: Credentials) -> Credentials | None:
        """What the chain has now, after the service refused these; None when it has nothing else."""
        if self._held is refused:
            found = await asyncio.shield(self._begin(self._find))
        else:
            found = await self.wait()
        return None if found == refused else found

    def close(self) -> None:
        if self._search is not None:
            self._search.cancel()

    def _begin(self, work: Callable[[], Credentials]) -> asyncio.Task[Credentials]:
        """One search at a time; whoever comes meanwhile waits for that one."""
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._searched(work))
            # Its failure is told to those who wait for it; a renewal ahead of time has nobody waiting.
            self._search.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._search

    async def _searched(self, work: Callable[[], Credentials]) -> Credentials:
        loop = asyncio.get_running_loop()
        try:
            found = await in_thread(work)
        except Unavailable as problem:
            self._failed = (loop.time() + LOOK_SECONDS, problem)
            log.warning("dynamodb_credentials_not_had", why=problem.text)
            raise
        self._failed = None
        if self._source is not None and wants_renewal(self._source):
            log.warning("dynamodb_credentials_not_had", why="they end soon, and could not be renewed yet")
        # The very same object where nothing changed: what is signed with it is cached by identity.
        if self._held is None or self._held != found:
            self._held = found
        return self._held

    def _find(self) -> Credentials:
        source = load(self._access)
        found = freeze(source)
        self._source = source
        return found

    def _renew(self) -> Credentials:
        return self._find() if self._source is None else freeze(self._source)
