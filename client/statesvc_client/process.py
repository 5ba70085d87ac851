"""The daemon as a subprocess: started, watched, started again, and ended with its parent.

Owns the process, its log lines and the pipe that tells it of our end. Must not know the protocol: whether the daemon
serves is told from outside. A thread does the waiting, so that any event loop, or none, can be the agent's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from .adapter_errors import SpawnFailed
from .backoff import Backoff

LINE_BYTES = 64 * 1024
"""The longest line of the daemon's log passed on in one piece."""

TAIL_LINES = 20
"""Last lines kept, to say why a start failed."""

RETRIED_EXITS = frozenset({74, 75})
"""I/O failure and another instance: may pass by themselves. Other refusals to start do not."""

Log = Callable[[str], object]


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class Daemon:
    """One daemon, kept running until stopped."""

    def __init__(
        self,
        *,
        backend: str,
        data: str | os.PathLike[str] | None,
        socket: str | os.PathLike[str] | None = None,
        command: Sequence[str] | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        log: Log | None = None,
        start_seconds: float = 10.0,
        stop_seconds: float = 10.0,
    ) -> None:
        if backend == "sqlite" and data is None:
            raise ValueError('backend "sqlite" needs data=, the folder of its files')
        self.start_seconds = start_seconds
        self.stop_seconds = stop_seconds
        self.exits = 0
        self.failure: SpawnFailed | None = None
        """Why there is no point in waiting for the first start."""
        self.on_start: Callable[[], None] = lambda: None
        self._folder = None if socket is not None else tempfile.mkdtemp(prefix="statesvc-")
        self.socket = os.fspath(socket) if socket is not None else os.path.join(str(self._folder), "state.sock")
        self._command = [*(command or (sys.executable, "-m", "statesvc")), "serve", "--socket", self.socket]
        self._command += ["--backend", backend, *(("--data", os.fspath(data)) if data is not None else ()), *args]
        self._env = None if env is None else {**os.environ, **env}
        self._log = log or _to_stderr
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._backoff = Backoff(0.05, 5.0)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._served = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._parent_read = self._parent_write = -1
        self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder or "", ignore_errors=True)

    @property
    def pid(self) -> int | None:
        """The running daemon's process id."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        # The write end stays with us alone: closed on exec, and closed in a forked child. When we die, however we die,
        # the kernel closes it and the daemon reads the end of the pipe.
        self._parent_read, self._parent_write = os.pipe()
        self._thread = threading.Thread(target=self._keep_running, name="statesvc-daemon", daemon=True)
        self._thread.start()

    def served(self) -> None:
        """It answered: the next failure is a new one."""
        self._served = True
        self._backoff.reset()

    # --- the thread ------------------------------------------------------------------------------------------------

    def _keep_running(self) -> None:
        while not self._stopping.is_set():
            code = self._run_once()
            if self._stopping.is_set():
                return
            self.exits += 1
            if not self._served and code not in RETRIED_EXITS and code >= 0:
                self.failure = SpawnFailed(self._why(code), code)
                self.on_start()
                return
            wait = self._backoff.next()
            self._say(f"the daemon ended ({_described(code)}); starting it again in {wait:.2f} s")
            self._stopping.wait(wait)

    def _run_once(self) -> int:
        """Start it and stay with it until it ends; returns how."""
        with self._lock:
            if self._stopping.is_set():
                return 0
            try:
                process = self._process = self._started()
            except OSError as problem:
                self._say(f"cannot start {self._command[0]}: {problem}")
                return 127
        self.on_start()
        if process.stdout is not None:
            self._pass_on(process.stdout)
            process.stdout.close()
        return process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - the agent names the command
            [*self._command, "--parent-fd", str(self._parent_read)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(self._parent_read,),
            env=self._env,
            # Ctrl-C goes to the whole foreground group; the agent decides when its daemon ends, after its last write.
            process_group=0,
        )

    def _pass_on(self, output: IO[bytes]) -> None:
        while line := output.readline(LINE_BYTES):
            self._say(line.decode("utf-8", "replace").rstrip("\r\n"))

    def _say(self, line: str) -> None:
        self._tail.append(line)
        try:
            self._log(f"[STATE] {line}")
        except Exception:  # noqa: BLE001, S110 - a broken log sink must not end the daemon's supervision
            pass

    def _why(self, code: int) -> str:
        said = "\n".join(f"  {line}" for line in self._tail)
        return f"the daemon did not start ({_described(code)}): {' '.join(self._command)}\n{said}"

    def did_not_serve(self, problem: Exception | None) -> SpawnFailed:
        said = "\n".join(f"  {line}" for line in self._tail)
        return SpawnFailed(f"the daemon did not serve within {self.start_seconds:g} s: {problem}\n{said}")

    def check_is_ours(self, listener: int) -> None:
        """Raise unless this process is the daemon we started, or was started by it (a wrapper as `command`).

        Somebody else's daemon on our path may keep other data, and keep it elsewhere, and would look like success.
        """
        ours = self.pid
        if ours is None or not _is_below(listener, ours):
            raise ConnectionRefusedError(
                f"{self.socket} is served by process {listener}, not by the daemon started here "
                f"(process {ours or 'none'}): end that one, or use connect()"
            )

    # --- the end ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """SIGTERM, wait, SIGKILL: by its own id, within the deadline. Blocks."""
        self._stopping.set()
        with self._lock:
            process = self._process
        if process is not None:
            self._end(process)
        if self._thread is not None:
            self._thread.join(self.stop_seconds)
        self._close_pipe()
        self._remove_folder()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            try:
                process.send_signal(signal_number)
                process.wait(self.stop_seconds)
                return
            except subprocess.TimeoutExpired:
                self._say(f"the daemon did not end within {self.stop_seconds:g} s; killing it")

    def _close_pipe(self) -> None:
        for fd in (self._parent_read, self._parent_write):
            if fd >= 0:
                os.close(fd)
        self._parent_read = self._parent_write = -1

    def abandon_in_child(self) -> None:
        """After a fork: the daemon is the parent's child, and must not live on because we hold its pipe."""
        self._close_pipe()
        self._remove_folder.detach()


def _is_below(pid: int, ancestor: int) -> bool:
    """Whether a process is another one, or among its descendants."""
    while pid > 1:
        if pid == ancestor:
            return True
        pid = _parent_of(pid)
    return False


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name in brackets may hold anything, brackets too; what follows the last one is plain.
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _described(code: int) -> str:
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
