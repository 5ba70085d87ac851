"""A master and its replica that are reached through proxies: the network between them and others can be cut.

Owns which of those who speak to a server are cut off from it: the daemons, the sentinels, its replica. Must not know
what they say. Both servers announce the port of their proxy, so that nobody ever goes past it; the tests themselves do.
"""

from __future__ import annotations

from typing import Any, Literal

from tests.fleet.proxies import Proxy
from tests.redis.servers import SentinelPair, Server

Side = Literal["daemon", "sentinel", "replica"]


def side(first: bytes) -> Side:
    """Who speaks on a connection: all but a replica give themselves a name first."""
    if b"sentinel-" in first:
        return "sentinel"
    return "daemon" if b"statesvc:" in first else "replica"


class PartitionedPair(SentinelPair):
    """A Sentinel pair with a network that can be cut."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._proxies: dict[Server, Proxy] = {}

    def port_of(self, server: Server) -> int:
        return self._proxies[server].port

    def _start_both(self) -> None:
        super()._start_both()
        for server in (self.first, self.second):
            proxy = self._proxies[server] = Proxy(server.port, side).__enter__()
            server._options |= {"replica_announce_port": proxy.port}
            server.say("CONFIG", "SET", "replica-announce-port", proxy.port)

    def stop(self) -> None:
        for proxy in self._proxies.values():
            proxy.__exit__()
        self._proxies.clear()
        super().stop()

    def cut_off(self, server: Server, *sides: Side) -> None:
        """Nothing of those sides, or of anybody, reaches the server, and nothing of it reaches them."""
        self._proxies[server].hang(*sides)

    def heal(self, server: Server, *, late: bool) -> None:
        """What was on its way arrives `late`, or never: then the connections it was on are gone."""
        if not late:
            self._proxies[server].cut()
        self._proxies[server].calm()
