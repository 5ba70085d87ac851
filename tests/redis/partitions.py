"""A master and its replica that are reached through proxies: the network between them and others can be cut.

Owns which of those who speak to a server are cut off from it: the daemons, the sentinels, its replica. Must not know
what they say. Both servers announce the port of their proxy, so that nobody ever goes past it; the tests themselves do.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Literal

from tests.fleet.proxies import Proxy
from tests.redis.servers import SentinelPair, Server

Side = Literal["daemon", "sentinel", "replica"]

ANNOUNCED = "announced.conf"
"""In a server's own folder, read whenever it starts: the port of its proxy is known only once it has a port itself."""


def side(first: bytes) -> Side:
    """Who speaks on a connection: all but a replica give themselves a name first."""
    if b"sentinel-" in first:
        return "sentinel"
    return "daemon" if b"statesvc:" in first else "replica"


class PartitionedPair(SentinelPair):
    """A Sentinel pair with a network that can be cut."""

    def __init__(self, **options: Any) -> None:
        super().__init__(include=ANNOUNCED, **options)
        self._proxies: dict[Server, Proxy] = {}
        self._network = ExitStack()

    def port_of(self, server: Server) -> int:
        return self._proxies[server].port

    def _start_both(self) -> None:
        for server in (self.first, self.second):
            (server.folder / ANNOUNCED).touch()
        super()._start_both()
        for server in (self.first, self.second):
            proxy = self._proxies[server] = self._network.enter_context(Proxy(server.port, side))
            (server.folder / ANNOUNCED).write_text(f"replica-announce-port {proxy.port}\n")
            server.say("CONFIG", "SET", "replica-announce-port", proxy.port)

    def stop(self) -> None:
        self._network.close()
        super().stop()

    def cut_off(self, server: Server, *sides: Side) -> None:
        """Nothing of those sides, or of anybody, reaches the server, and nothing of it reaches them."""
        self._proxies[server].hang(*sides)

    def heal(self, server: Server, *, late: bool) -> None:
        """What was on its way arrives `late`, or never: then the connections it was on are gone."""
        if not late:
            self._proxies[server].cut()
        self._proxies[server].calm()
