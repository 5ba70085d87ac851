"""F4: a disk that is full or fails under a daemon, and clients that send again what was not taken.

Owns how the faults are made (a small file system, strace's injection) and the account that each client keeps of its
writes. Must not know what a daemon is expected to do about it.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.harness import SECONDS, Client, Daemon, Reply, serving, until

SYNCS = "fsync,fdatasync"
WRITES = "pwrite64,write"

PAD = "x" * 500


# --- faults --------------------------------------------------------------------------------------------------------


@contextmanager
def mounted(place: Path, megabytes: int, files: int = 1000) -> Iterator[Path]:
    """A file system of its own size; a test is skipped where nobody may mount one."""
    place.mkdir()
    size = f"size={megabytes}m,nr_inodes={files}"
    command = ["mount", "-t", "tmpfs", "-o", f"{size},mode=0700", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill_up(place: Path) -> Path:
    """Take all the space there is; removing the file gives it back."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                pass
    return ballast


def use_up_files(place: Path) -> Path:
    """Make all the files that may be made there; removing the folder gives them back."""
    ballast = place / "ballast"
    ballast.mkdir()
    try:
        for number in count():
            (ballast / str(number)).touch()
    except OSError:
        pass
    return ballast


def failing(folder: Path, files: tuple[str, ...], *faults: str, **options: Any) -> Daemon:
    """A daemon, not started, whose system calls on some files of its data folder fail as told."""
    return Daemon(folder, under=under_faults(folder, files, *faults), **options)


def under_faults(folder: Path, files: tuple[str, ...], *faults: str) -> list[str]:
    """What comes before a command whose system calls on these files are to fail."""
    data = folder / "data"
    return [
        "strace", "-f", "-qq", "-o", str(folder / "trace"), "-y",
        *(part for file in files for part in ("-P", str(data / file))),
        "-e", f"trace={SYNCS},{WRITES}", *(part for fault in faults for part in ("-e", f"inject={fault}")),
    ]  # fmt: skip


@contextmanager
def failing_from_now(daemon: Daemon, files: tuple[str, ...], fault: str) -> Iterator[None]:
    """The same for a daemon that serves already, to its end."""
    with _traced(daemon, files, fault) as strace:
        yield
        strace.wait(SECONDS)


@contextmanager
def failing_for_a_while(daemon: Daemon, files: tuple[str, ...], fault: str) -> Iterator[None]:
    """The same until the block ends."""
    with _traced(daemon, files, fault) as strace:
        try:
            yield
        finally:
            strace.terminate()


@contextmanager
def _traced(daemon: Daemon, files: tuple[str, ...], fault: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        "strace", "-f", "-qq", "-o", str(daemon.folder / "trace"), "-y", "-p", str(daemon.pid),
        *(part for file in files for part in ("-P", str(daemon.data / file))),
        "-e", f"trace={SYNCS},{WRITES}", "-e", f"inject={fault}",
    ]  # fmt: skip
    with subprocess.Popen(command) as strace:
        until(lambda: _is_traced(daemon.pid), "strace to take hold of the daemon")
        yield strace


def _is_traced(pid: int) -> bool:
    """Whether every thread has its tracer."""
    return all("TracerPid:\t0\n" not in file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/status"))


def calls(folder: Path, names: str = SYNCS) -> list[str]:
    """The traced calls of these names, each behind its thread: a line for its begin and end, or one for either."""
    wanted = re.compile(rf"\b({names.replace(',', '|')})(\(| resumed>)")
    return [line for line in (folder / "trace").read_text().splitlines() if wanted.search(line)]


def was_injected(folder: Path) -> bool:
    """Whether a call was made to fail at all."""
    return any("(INJECTED)" in line for line in calls(folder, f"{SYNCS},{WRITES}"))


def synced_again(folder: Path) -> list[str]:
    """Syncs of a file that began after one that was made to fail on it."""
    begun: dict[str, str] = {}
    failed: set[str] = set()
    again = []
    for line in calls(folder):
        thread = line.split()[0]
        if found := re.search(r"\(\d+<([^>]+)>", line):
            begun[thread] = found[1]
            if found[1] in failed:
                again.append(line)
        if "(INJECTED)" in line:
            failed.add(begun[thread])
    assert failed, "no sync was made to fail"
    return again


def written_before_the_first_sync(folder: Path) -> int:
    """Bytes from the front of the one traced file on that were written before it was synced."""
    upto = 0
    for line in calls(folder, f"{SYNCS},{WRITES}"):
        if "sync(" in line:
            break
        if found := re.search(r"pwrite64\(.*, (\d+), (\d+)(?:\)| <unfinished)", line):
            size, place = int(found[1]), int(found[2])
            upto = max(upto, place + size) if place <= upto else upto
    return upto


# --- clients -------------------------------------------------------------------------------------------------------


class Persistent:
    """A client with a few counters of its own. It knows of every write whether it was taken, and sends again, in their
    order, those that were not and those it cannot tell of."""

    WINDOW = 8
    COUNTERS = 3

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self.name = name
        self.sent = 0
        self.undecided: deque[int] = deque()
        self.refusals: list[Reply] = []
        """Every reply that was no success."""
        self.after_refusal = 0
        """Writes of one connection that were acknowledged though one before them was not."""
        self.duplicates = 0
        self._may_count: Counter[int] = Counter()
        """Of each write, how often it was sent without being told `not_applied`."""

    def write(self, most: int) -> None:
        """Write on one connection until so many are sent and decided, one is refused, or the connection ends."""
        last = self.sent + most
        try:
            with Client(self._path) as client:
                client.hello(self.name)
                self._may_count.update(self.undecided)
                client.send(*(self._request(seq, again=True) for seq in self.undecided))
                self._go_on(client, last)
        except OSError:
            pass

    def _go_on(self, client: Client, last: int) -> None:
        owed, refused = len(self.undecided), False
        while owed or (self.sent < last and not refused):
            if not refused:
                owed += self._send_more(client, last)
            replies = client.replies()
            if not replies:
                return
            for reply in replies:
                refused = self._take(reply, refused=refused) or refused
            owed -= len(replies)

    def _send_more(self, client: Client, last: int) -> int:
        first, beyond = self.sent + 1, min(last, self.sent + self.WINDOW - len(self.undecided)) + 1
        self.undecided.extend(range(first, beyond))
        self.sent = max(self.sent, beyond - 1)  # before it is known how far they come
        self._may_count.update(range(first, beyond))
        client.send(*(self._request(seq) for seq in range(first, beyond)))
        return max(0, beyond - first)

    def _take(self, reply: Reply, *, refused: bool) -> bool:
        """Note an answer; whether it was a refusal."""
        if not reply["success"]:
            self.refusals.append(reply)
            self._may_count[reply["requestId"]] -= reply["outcome"] == "not_applied"
            return True
        self.after_refusal += refused
        self.duplicates += bool(reply.get("duplicate"))
        self.undecided.remove(reply["requestId"])
        return False

    def _request(self, seq: int, **more: Any) -> dict[str, Any]:
        floor = self.undecided[0] if self.undecided else seq
        return {
            "op": "update", "jobId": f"{self.name}-{seq % self.COUNTERS}", "upsert": True, "inc": {"n": 1},
            "job": {"pad": PAD, "newest": seq}, "seq": seq, "floor": min(floor, seq), "requestId": seq, **more,
        }  # fmt: skip

    def persist(self) -> None:
        """Send again until everything is taken."""

        def done() -> bool:
            self.write(0)
            return not self.undecided

        until(done, f"the writes of {self.name} to be taken")

    def wrong(self, client: Client) -> list[str]:
        """Counters that are not what the decided writes make, each applied once and in its order, with some of those
        whose fate is open, and none that was told not to be applied whenever it was sent."""
        return [problem for number in range(self.COUNTERS) if (problem := self._judge(number, client))]

    def _judge(self, number: int, client: Client) -> str:
        name = f"{self.name}-{number}"
        job = client.ask("get", jobId=name).get("job", {"n": 0, "revision": 0, "newest": 0})
        n, revision, newest = job["n"], job["revision"], job["newest"]
        mine = [seq for seq in range(1, self.sent + 1) if seq % self.COUNTERS == number]
        applied, others = mine[:n], mine[n:]
        if not len(applied) == n == revision or newest != (applied or [0])[-1]:
            return (
                f"{name} is {n} at revision {revision}, the newest being {newest}; sent were {len(mine)} to {mine[-1:]}"
            )
        lost = [seq for seq in others if seq not in self.undecided]
        lied_about = [seq for seq in applied if seq in self.undecided and not self._may_count[seq]]
        return f"{name} is {n}: lost {lost}, told not to be applied {lied_about}" if lost or lied_about else ""


class Load:
    """Several such clients at once."""

    def __init__(self, daemon: Daemon, clients: int = 3, path: Path | None = None) -> None:
        """`path` is where they connect, if that is not the daemon's own socket."""
        self.clients = [Persistent(path or daemon.socket, f"client-{number}") for number in range(clients)]

    def write(self, most: int) -> None:
        """All of them write until each has enough, is refused or cut off."""
        threads = [threading.Thread(target=client.write, args=(most,)) for client in self.clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @property
    def refusals(self) -> list[Reply]:
        return [reply for client in self.clients for reply in client.refusals]

    def persist(self) -> None:
        for client in self.clients:
            client.persist()

    def wrong(self, daemon: Daemon) -> list[str]:
        with daemon.connect() as asking:
            asking.hello()
            return [problem for client in self.clients for problem in client.wrong(asking)]

    def assert_each_write_comes_out_once(self, folder: Path) -> None:
        """After a restart on a sound disk: what was acknowledged is there, and the rest turns into what it is."""
        with serving(folder) as daemon:
            assert not (wrong := self.wrong(daemon)), wrong
            self.persist()
            assert not (wrong := self.wrong(daemon)), wrong
            assert daemon.stop() == 0
