"""Starts of a daemon under umask 000, raced by another user of the machine: never a connect, never a wider mode.

Owns the ways a daemon is started here, and what a stranger may have seen of it. Must not know how the daemon makes its
socket and folders, nor how the stranger looks. Needs root, to be two users.

    python -m tests.faults.raced_starts --starts 1000 [--seed 1] [-o json]

A start counts when the daemon came to serve, not when it refused to begin. The stranger has to be refused at each of
them while it serves; how often it looked before, while the socket was being made, is told as well.

The folders are as careless as they may be: open for all to look into, one even for all to write to (sticky, like /tmp).
Some starts end by SIGTERM, some by SIGKILL, which leaves names behind for the next one. Of some every step is held open
for a moment (strace delays the call), so that a gap of microseconds would be hit for sure.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.daemon.harness import ROOT, Client, Daemon, environment, until
from tests.faults import program
from tests.faults.raced_starts_stranger import Found, Orders, Tally
from tests.faults.strangers import STRANGER

AGENTS = 54400
"""A group that may connect, and that the stranger is not in."""

DRAINED, UNSAFE = 0, 73

STORE = ("lock", "log.db", "log.db-wal", "log.db-shm", "state.db", "state.db-wal", "watermark", "state.watermark")

HELD_CALLS = "bind,listen,chmod,fchmodat,chown,fchownat,rename,mkdir"
HELD_MICROSECONDS = 10_000

MOST_TRIES = 20
"""Starts for each that is to serve: of those whose names are squatted many refuse to begin."""

LEAST_MET, LEAST_RACED = 0.9, 0.5
"""Of the starts that served: in which the stranger met the socket, and in which it looked while it was being made. On a
busy machine it may sleep through some."""

MEETING_SECONDS = 10.0
"""That a daemon which serves is left there for the stranger to come by."""

REFUSED_CONNECTS = frozenset({"ENOENT", "EACCES"})
"""Anything else, even ECONNREFUSED, is said only to who was allowed to write to the socket's file."""


@dataclass(frozen=True)
class Setting:
    """A way to be careless: how the folder is left, and what must hold all the same."""

    name: str
    share: int
    """Of the starts, in twentieths."""
    folder_mode: int = 0o755
    socket: str = "s.sock"
    data: str = "data"
    data_there: bool = False
    socket_mode: int = 0o600
    group: int | None = None
    stranger_gid: int = STRANGER
    squatted: bool = False
    held: bool = False


SETTINGS = (
    Setting("folders that all may look into", 5, data_there=True),
    Setting("folders the daemon makes", 4, socket="run/s.sock", data="var/lib/data"),
    # The stranger is in the daemon's own group: a mode that is opened before the group is given would let it in.
    Setting("a socket for a group", 3, socket_mode=0o660, group=AGENTS, stranger_gid=0, data_there=True),
    Setting("a folder that all may write to", 4, folder_mode=0o1777, squatted=True),
    Setting("every step held open", 4, data="var/lib/data", socket_mode=0o660, group=AGENTS, stranger_gid=0, held=True),
)


@dataclass
class Round:
    """What one setting has shown."""

    setting: str
    served: int = 0
    raced: int = 0
    """Of those that served, in which the stranger looked before they did."""
    met: int = 0
    """Of those that served, in which the stranger came to the socket while they did."""
    seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    found: Found = field(default_factory=Found)
    breaches: list[str] = field(default_factory=list)

    @property
    def starts(self) -> int:
        return self.ends.total()

    def figures(self) -> dict[str, Any]:
        modes = sorted({seen.split()[2] for seen in self.found.modes if " socket " in seen})
        return {
            "served": self.served,
            "raced": self.raced,
            "met": self.met,
            "refused": self.starts - self.served,
            "looks": self.found.looks,
            "connected": self.found.connects["connected"],
            "seconds": round(self.seconds, 1),
            "modes": " ".join(modes),
        }


# --- one setting ---------------------------------------------------------------------------------------------------


class Place:
    """Where daemons of one setting live, and who else is there."""

    def __init__(self, setting: Setting, base: Path) -> None:
        self.setting = setting
        self.base = base
        base.chmod(0o755)
        self.folder = base / "open"
        self.folder.mkdir()
        self.folder.chmod(setting.folder_mode)
        self.socket = self.folder / setting.socket
        self.data = self.folder / setting.data
        if setting.data_there:
            self.data.mkdir()
            self.data.chmod(0o755)
        self.bait = base / "bait"
        self.bait.write_text("precious")
        self.bait.chmod(0o600)

    def daemon(self) -> Daemon:
        """One to be started under the most careless umask there is."""
        settings: dict[str, object] = {"access__socket_mode": f"{self.setting.socket_mode:04o}"}
        if self.setting.group is not None:
            settings["access__socket_group"] = self.setting.group
        under = ("strace", "-f", "-qq", "-o", "/dev/null", "--seccomp-bpf", "-e", f"trace={HELD_CALLS}", "-e",
                 f"inject={HELD_CALLS}:delay_exit={HELD_MICROSECONDS}") if self.setting.held else ()  # fmt: skip
        daemon = Daemon(
            self.base, "--socket", str(self.socket), data=self.data, under=under, settings=settings, umask=0
        )
        daemon.socket = self.socket
        return daemon

    def orders(self, seed: int) -> Orders:
        setting, sock = self.setting, str(self.socket)
        folders = [*self._made(self.socket.parent), *self._made(self.data)]
        lock = f"{sock}.lock"
        squats = [sock, f"{sock}~", lock, str(self.data)] if setting.squatted else []
        return Orders(
            uid=STRANGER,
            gid=setting.stranger_gid,
            sockets=[sock, f"{sock}~"],
            private=[lock, *(str(self.data / name) for name in STORE), *([] if setting.squatted else folders)],
            closed=[str(self.data)] if setting.squatted else [str(self.folder), str(self.data), *folders],
            squats=squats,
            bait=str(self.bait),
            seed=seed,
        )

    def _made(self, folder: Path) -> list[str]:
        """The folders on the way there that the daemon makes."""
        if folder == self.folder or self.setting.data_there:
            return []
        return [str(each) for each in (folder, *folder.parents) if self.folder in each.parents]

    def clear(self) -> None:
        """Take away what was made, so that the next start makes it again."""
        for name in ("run", "var"):
            shutil.rmtree(self.folder / name, ignore_errors=True)


@contextmanager
def a_stranger(orders: Orders, found: Found) -> Iterator[Tally]:
    """Another user at work for as long as the block takes, with how far it is; `found` is filled with what it tells at
    the end."""
    shared = os.memfd_create("looks")
    os.truncate(shared, mmap.PAGESIZE)
    orders = replace(orders, tally=shared)
    command = [sys.executable, "-m", "tests.faults.raced_starts_stranger", json.dumps(asdict(orders))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment(), pass_fds=[shared], **pipes) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdin is not None
        try:
            tally = Tally(shared)
            os.close(shared)
            assert stranger.stdout.readline() == "looking\n"
            yield tally
            stranger.stdin.close()
            told = json.loads(stranger.stdout.read())
        finally:
            stranger.kill()
    for name, value in told.items():
        setattr(found, name, Counter(value) if isinstance(value, dict) else value)


def start_and_end(daemon: Daemon, number: int, stranger: Tally, round_: Round) -> None:
    """One life of the daemon: it serves, meets the stranger and ends as told by a signal, or does not want to begin."""
    before = stranger.get()
    daemon.start()
    try:
        code = until(lambda: _serves_or_ended(daemon), "the daemon to serve or to end")
        if code != "serves":
            round_.ends[f"refused {code}"] += 1
            return
        serving = stranger.get()
        round_.served += 1
        round_.raced += serving.looks > before.looks
        round_.met += _comes_by(stranger, serving.met)
        daemon.signal(number)
        round_.ends[f"{signal.Signals(number).name} {daemon.exit_code()}"] += 1
    finally:
        daemon.kill()


def _comes_by(stranger: Tally, met: int) -> bool:
    """Whether it meets more than that. What a killed daemon left behind is not met by mistake: another one serves."""
    deadline = time.monotonic() + MEETING_SECONDS
    while stranger.get().met == met:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _serves_or_ended(daemon: Daemon) -> str:
    assert daemon.process is not None
    code = daemon.process.poll()
    if code is not None:
        return str(code)
    try:
        with Client(daemon.socket) as client:
            return "serves" if client.ask("ping")["success"] else ""
    except (OSError, ConnectionError):
        return ""


def raced(setting: Setting, starts: int, seed: int, progress: Callable[[str], None] = lambda _: None) -> Round:
    """So many starts that serve in one setting, and what a stranger got out of them."""
    round_ = Round(setting.name)
    choice = random.Random(seed)
    began = time.monotonic()
    with program.scratch() as base:
        place = Place(setting, base)
        daemon = place.daemon()
        with a_stranger(place.orders(seed), round_.found) as stranger:
            while round_.served < starts and round_.starts < starts * MOST_TRIES:
                number = choice.choice((signal.SIGTERM, signal.SIGTERM, signal.SIGKILL))
                start_and_end(daemon, number, stranger, round_)
                if number == signal.SIGTERM:
                    place.clear()
                progress(f"{setting.name}: {round_.served} of {starts}")
        round_.breaches = breaches(place, round_) + shows_too_little(setting, round_, starts)
        if round_.breaches:
            round_.breaches.append(f"the daemon said last: {daemon.stderr[-500:]}")
    round_.seconds = time.monotonic() - began
    return round_


# --- what must hold ------------------------------------------------------------------------------------------------


def breaches(place: Place, round_: Round) -> list[str]:
    """Every promise that was broken, in words."""
    found, setting = round_.found, place.setting
    problems = [f"{n} connects ended with {how}" for how, n in found.connects.items() if how not in REFUSED_CONNECTS]
    problems += [f"the stranger could open {what}" for what in found.opened]
    problems += [f"{n} things of the stranger at {name} were touched" for name, n in found.touched.items() if n]
    problems += _too_wide(setting, found)
    problems += [f"{n} starts ended with: {how}" for how, n in round_.ends.items() if not _is_proper(setting, how)]
    if place.bait.read_text() != "precious" or place.bait.stat().st_mode & 0o777 != 0o600:
        problems.append("what a squatted name led to was changed")
    return problems


def shows_too_little(setting: Setting, round_: Round, starts: int) -> list[str]:
    """Why the silence of a round says nothing."""
    found = round_.found
    done = {**round_.figures(), "refused connects": found.connects["EACCES"], "squats": found.squatted}
    least: dict[str, float] = {"served": max(1, starts), "refused connects": 1, "squats": int(setting.squatted)}
    least |= {"met": LEAST_MET * round_.served, "raced": LEAST_RACED * round_.served}
    return program.too_little(done, least)


def _too_wide(setting: Setting, found: Found) -> Iterator[str]:
    for seen, times in found.modes.items():
        name, kind, mode, gid = seen.split()
        allowed = {"socket": setting.socket_mode, "folder": 0o700, "file": 0o600}.get(kind, 0)
        if kind == "folder" and setting.data_there:
            continue  # we left it open on purpose
        if int(mode, 8) & ~allowed:
            yield f"{name}, a {kind}, was seen with mode {mode} {times} times"
        if kind == "socket" and setting.group is not None and int(mode, 8) & 0o070 and int(gid) != setting.group:
            yield f"{name} was seen open to the group {gid} {times} times"


def _is_proper(setting: Setting, end: str) -> bool:
    proper = {f"SIGTERM {DRAINED}", f"SIGKILL {-signal.SIGKILL}"}
    if setting.held:
        proper.add(f"SIGKILL {128 + signal.SIGKILL}")
    return end in proper or (setting.squatted and end == f"refused {UNSAFE}")


# --- the program ---------------------------------------------------------------------------------------------------


def options() -> ArgumentParser:
    parser = program.options("raced_starts", __doc__, seed=1)
    parser.add_argument("--starts", type=int, default=1000, help="that come to serve")
    return parser


def main() -> int:
    asked = options().parse_args()
    if os.geteuid() != 0:
        return program.cannot("only root can act as another user")
    if not shutil.which("strace"):
        return program.cannot("strace is not installed")
    whole = sum(setting.share for setting in SETTINGS)
    rounds = []
    for place, setting in enumerate(SETTINGS, 1):
        starts = max(1, -(-asked.starts * setting.share // whole))
        rounds.append(raced(setting, starts, asked.seed + place, program.NowAndThen()))
    attempts: Counter[str] = sum((round_.found.connects for round_ in rounds), Counter())
    figures = {
        **{round_.setting: round_.figures() for round_ in rounds},
        "starts that served": sum(round_.served for round_ in rounds),
        "raced by the stranger": sum(round_.raced for round_ in rounds),
        "met by the stranger": sum(round_.met for round_ in rounds),
        "starts that were refused": sum(round_.starts - round_.served for round_ in rounds),
        **{f"connects that ended with {how}": times for how, times in attempts.most_common()},
    }
    broken = [f"{each.setting}: {breach}" for each in rounds for breach in each.breaches]
    return program.ended(asked, figures, broken, least={"starts that served": max(1, asked.starts)})


if __name__ == "__main__":
    sys.exit(main())
