"""The daemon as a process, and lean clients that speak its lines.

Owns how a daemon is started, watched and ended by these tests. Must not know what a test expects of it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]

SECONDS = 30.0
"""How long anything may take that is expected to happen; a loaded machine is not a failure."""

Reply = dict[str, Any]


def until(true: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """Look again and again until `true()` is; the deadline is a failure."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"after {seconds:g} s still waiting for: {what}"
        time.sleep(0.005)
    return found


def environment(**settings: object) -> dict[str, str]:
    """Ours, without what would configure a daemon, and with what should: limits__clients=3 and the like."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("STATESVC_", "JOBLET_"))}
    given = {f"STATESVC_{name.upper()}": str(value) for name, value in settings.items()}
    return {**plain, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}", **given}


class Client:
    """One connection: lines out, lines in, in the caller's own thread."""

    def __init__(self, path: Path | str, timeout: float = SECONDS) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(timeout)
            self.sock.connect(str(path))
        except BaseException:
            self.sock.close()
            raise
        self._chunks: list[bytes] = []
        self._lines: deque[bytes] = deque()

    def send(self, *requests: dict[str, Any]) -> None:
        self.sock.sendall(b"".join(json.dumps(request).encode() + b"\n" for request in requests))

    def send_raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def replies(self) -> list[Reply]:
        """What has arrived, at least one reply; an empty list when the daemon has closed the connection."""
        self._fill()
        lines, self._lines = self._lines, deque()
        return [json.loads(line) for line in lines]

    def _fill(self) -> bool:
        """Wait until there is a whole line; False when the daemon has closed the connection."""
        while not self._lines:
            data = self.sock.recv(1 << 18)
            if not data:
                return False
            self._chunks.append(data)
            if b"\n" in data:
                *whole, rest = b"".join(self._chunks).split(b"\n")
                self._lines += whole
                self._chunks = [rest]
        return True

    def reply(self) -> Reply:
        """The next reply; ConnectionError when there is none any more."""
        if not self._fill():
            raise ConnectionError("the daemon closed the connection")
        return json.loads(self._lines.popleft())

    def ask(self, op: str, **fields: Any) -> Reply:
        self.send({"op": op, **fields})
        return self.reply()

    def hello(self, client: str | None = None, ack: str = "each") -> Reply:
        return self.ask("hello", **({"client": client} if client else {}), ack=ack)

    def is_closed(self) -> bool:
        """Whether the daemon has ended the connection; what it said before is thrown away."""
        try:
            while self.sock.recv(1 << 20):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Daemon:
    """`statesvc serve` as a process of its own, ended by its pid."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        backend: str = "sqlite",
        data: Path | None = None,
        under: Sequence[str] = (),
        program: str = "",
        settings: Mapping[str, object] | None = None,
        **popen: Any,
    ) -> None:
        """`under` is a program that runs it (strace, sh); `program` is Python that changes something of it and then
        calls its main; `settings` are keys of the configuration."""
        self.folder = folder
        self.socket = folder / "s.sock"
        self.data = data or folder / "data"
        self.stderr_file = folder / f"stderr-{time.monotonic_ns()}"
        self._settings = settings or {}
        self._popen = popen
        self.command = [
            *under, sys.executable, *(["-c", program] if program else ["-m", "statesvc"]), "serve",
            "--socket", str(self.socket), "--backend", backend,
            *(["--data", str(self.data)] if backend == "sqlite" else []), *flags,
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    # --- its life --------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start, without waiting."""
        env = {**environment(**self._settings), **self._popen.get("env", {})}
        options = {name: value for name, value in self._popen.items() if name != "env"}
        with self.stderr_file.open("ab") as stderr:
            self.process = subprocess.Popen(self.command, env=env, stdout=stderr, stderr=stderr, **options)
        return self

    def serving(self) -> Self:
        """Start, and wait until a ping is answered and the engine has opened."""
        self.start()
        self.wait_for_ping()
        until(self._serves, "the engine to open")
        return self

    def wait_for_ping(self) -> None:
        until(self._pings, f"a ping to be answered by {self.socket}")

    def _pings(self) -> bool:
        if self.has_ended:
            raise AssertionError(f"the daemon ended with {self.exit_code()}: {self.stderr}")
        try:
            with Client(self.socket) as client:
                return bool(client.ask("ping")["success"])
        except (OSError, ConnectionError):
            return False

    def _serves(self) -> bool:
        with Client(self.socket) as client:
            reply = client.ask("get", jobId="nobody")
        return reply["code"] == "not_found"

    def connect(self) -> Client:
        return Client(self.socket)

    @property
    def pid(self) -> int:
        """Of the daemon itself, also when it runs under strace, which stays its parent."""
        assert self.process is not None
        proc = Path(f"/proc/{self.process.pid}")
        if (proc / "comm").read_text().strip() != "strace":
            return self.process.pid
        children = (proc / "task" / proc.name / "children").read_text().split()
        return int(children[0]) if children else self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait(SECONDS)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.exit_code()

    def exit_code(self) -> int:
        assert self.process is not None
        return self.process.wait(SECONDS)

    @property
    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    # --- what can be seen of it ------------------------------------------------------------------------------------

    @property
    def stderr(self) -> str:
        return self.stderr_file.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its log lines of one name."""
        lines = (json.loads(line) for line in self.stderr.splitlines() if line.startswith("{"))
        return [line for line in lines if line["event"] == name]

    def rss_bytes(self) -> int:
        """Memory in use now."""
        return self._status_bytes("VmRSS")

    def peak_bytes(self) -> int:
        """The most memory it ever had, or has had since its peak was reset."""
        return self._status_bytes("VmHWM")

    def reset_peak(self) -> None:
        """From here on the peak is that of what is to come: what was before can hide no growth."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _status_bytes(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextmanager
def serving(folder: Path, *flags: str, **options: Any) -> Iterator[Daemon]:
    """A daemon that serves, killed when the block ends if it is still there."""
    with Daemon(folder, *flags, **options) as daemon:
        yield daemon.serving()


def refused(folder: Path, *flags: str, **options: Any) -> tuple[int, str]:
    """The exit code and the words of a daemon that is expected not to serve."""
    with Daemon(folder, *flags, **options) as daemon:
        code = daemon.start().exit_code()
        return code, daemon.stderr


def activated(folder: Path, *paths: Path) -> list[str]:
    """The daemon below a supervisor that listens at these paths and starts it with the first client."""
    listening = [word for path in paths for word in ("--listen", str(path))]
    return [
        "systemd-socket-activate", *listening, "-E", "PYTHONPATH", sys.executable, "-m", "statesvc", "serve",
        "--announce", "--socket", str(folder / "unused.sock"), "--data", str(folder / "data"),
    ]  # fmt: skip
