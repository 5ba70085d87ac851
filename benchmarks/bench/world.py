"""What is measured: real daemons, the peers that are found, an echo; each in a folder that goes with it.

Owns starting and ending. Must not know what is measured on them. Daemons run as an agent's would: their own process,
default settings; every index that is compared is in use from the start. Large stores are filled once and kept for all
measures that want them.
"""

from __future__ import annotations

import functools
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from tests.daemon.harness import Daemon, environment, serving
from tests.redis import servers

from . import frames
from .lines import Talker
from .redis_peer import RedisPeer
from .shape import Failed
from .sizes import Size

FILL_DEPTH = 256
FILL_CHUNK = 10_240
"""Frames made before they are sent: bounds what the filler takes itself."""


@functools.cache
def has_redis() -> bool:
    """Whether a Redis-compatible server is to be found."""
    try:
        servers.binary()
    except ImportError:
        return False
    return True


class World:
    """Everything of one run of the program."""

    def __init__(self, size: Size, folder: Path | None = None, tell: Callable[[str], None] = lambda _: None) -> None:
        self.size = size
        self.tell = tell
        self.folder = Path(tempfile.mkdtemp(prefix="sb-", dir=folder))
        """Short, because sockets live below it."""
        self._numbers = itertools.count()
        self._stack = ExitStack()
        self._stores: dict[tuple[str, int], Store] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def a_folder(self) -> Path:
        """An empty one."""
        folder = self.folder / str(next(self._numbers))
        folder.mkdir(mode=0o700)
        return folder

    # --- for one measure -------------------------------------------------------------------------------------------

    @contextmanager
    def daemon(self, backend: str) -> Iterator[Daemon]:
        """A daemon with an empty store, at its default settings; on sqlite that is `durability: disk`."""
        folder = self.a_folder()
        with serving(folder, backend=backend) as served:
            ask_for_every_index(str(served.socket))
            yield served
        shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def redis(self, *, always: bool = False) -> Iterator[servers.Server]:
        """A server that keeps nothing, or one that syncs every write and never rewrites its file meanwhile."""
        synced = {"appendonly": "yes", "appendfsync": "always", "auto_aof_rewrite_percentage": 0}
        options: dict[str, Any] = synced if always else {}
        with servers.Server(**options) as server:
            yield server

    @contextmanager
    def echo(self) -> Iterator[str]:
        """The path of its socket."""
        path = str(self.a_folder() / "e")
        command = [sys.executable, "-m", "benchmarks.bench.echo", path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), cwd=self.folder) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"listening\n"
                yield path
            finally:
                process.kill()

    @contextmanager
    def agent(self, path: str, *words: str) -> Iterator[Agent]:
        """An agent with the adapter on a daemon's socket; the words are those of agent.py."""
        command = [sys.executable, "-m", "benchmarks.bench.agent", path, *words]
        with subprocess.Popen(
            command, env=environment(), cwd=self.folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            try:
                agent = Agent(process)
                agent.hear()
                yield agent
            finally:
                process.kill()

    # --- for several -----------------------------------------------------------------------------------------------

    def store(self, backend: str, jobs: int) -> Store:
        """A daemon with so many jobs; filled when it is first asked for."""
        if (backend, jobs) not in self._stores:
            self.tell(f"filling {backend} with {jobs:,} jobs")
            self._stores[backend, jobs] = self._stack.enter_context(Store(self, backend, jobs))
        return self._stores[backend, jobs]

    def redis_store(self, jobs: int) -> AbstractContextManager[servers.Server]:
        """The same jobs with the same indexes in Redis."""
        return self._filled_redis(jobs)

    @contextmanager
    def _filled_redis(self, jobs: int) -> Iterator[servers.Server]:
        self.tell(f"filling Redis with {jobs:,} jobs")
        with self.redis() as server:
            peer = RedisPeer(server.socket_path)
            peer.fill(jobs)
            peer.close()
            yield server


class Agent:
    """A process that does what it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._answers = process.stdin, process.stdout

    def told(self, **order: Any) -> Any:
        """What it answers to an order; everything it wrote must have been taken."""
        print(json.dumps(order), file=self._orders, flush=True)
        heard = self.hear()
        if heard["refused"]:
            raise Failed(f"{len(heard['refused'])} writes were refused: {heard['refused'][0]}")
        return heard["answer"]

    def hear(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise Failed("the agent has ended")
        heard: dict[str, Any] = json.loads(line)
        return heard


class Store:
    """A daemon whose store holds `job-0`, `job-1` and so on. It may be ended early, and its files used by another."""

    def __init__(self, world: World, backend: str, jobs: int) -> None:
        self.backend = backend
        self.jobs = jobs
        self.folder = world.a_folder()
        self.daemon = Daemon(self.folder, backend=backend)
        self._filled = False

    @property
    def path(self) -> str:
        return str(self.daemon.socket)

    def __enter__(self) -> Self:
        self.daemon.serving()
        fill(self.path, self.jobs, "filler")
        return self

    def __exit__(self, *_: object) -> None:
        self.daemon.kill()

    def end(self) -> None:
        """Drained and closed; the files stay."""
        if self.daemon.process is not None and self.daemon.process.poll() is None:
            self.daemon.stop()

    def again(self) -> None:
        """Serving, whether it was ended or not."""
        if self.daemon.process is None or self.daemon.process.poll() is not None:
            self.daemon.serving()


def ask_for_every_index(path: str) -> None:
    """So that all are there, and kept, while something is measured. Answered once all that was written is in them."""
    with Talker(path, "asker") as talker:
        for head in frames.every_index():
            talker.ask(head + b"}\n")


def fill(path: str, jobs: int, client: str, status: str | None = None) -> float:
    """Create jobs as an agent does, numbered, a reply for each; returns the seconds. Status: in turn, if not given."""
    began = time.perf_counter()
    with Talker(path, client) as talker:
        for first in range(0, jobs, FILL_CHUNK):
            numbers = range(first, min(jobs, first + FILL_CHUNK))
            heads = [
                frames.create(f"job-{number}", number, status or frames.STATES[number % len(frames.STATES)])
                for number in numbers
            ]
            talker.seconds(talker.writes(heads, FILL_DEPTH))
    ask_for_every_index(path)
    return time.perf_counter() - began
