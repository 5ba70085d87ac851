"""Starts of a daemon under umask 000, raced by another user of the machine: never a connect, never a wider mode.

Owns the ways a daemon is started here, and what a stranger may have seen of it. Must not know how the daemon makes its
socket and folders, nor how the stranger looks. Needs root, to be two users.

    python -m tests.faults.raced_starts --starts 1000 [--seed 1] [-o json]

The folders are as careless as they may be: open for all to look into, one even for all to write to (sticky, like /tmp).
Some starts end by SIGTERM, some by SIGKILL, which leaves names behind for the next one. Of some every step is held open
for a moment (strace delays the call), so that a gap of microseconds would be hit for sure.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.daemon.harness import ROOT, Client, Daemon, environment, until
from tests.faults import program
from tests.faults.raced_starts_stranger import Found, Orders
from tests.faults.strangers import STRANGER

AGENTS = 54400
"""A group that may connect, and that the stranger is not in."""

DRAINED, UNSAFE = 0, 73

STORE = ("lock", "log.db", "log.db-wal", "log.db-shm", "state.db", "state.db-wal", "watermark", "state.watermark")

HELD_CALLS = "bind,listen,chmod,fchmodat,chown,fchownat,rename,mkdir"
HELD_MICROSECONDS = 10_000

MORE_STARTS = 10

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
    starts: int = 0
    seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    found: Found = field(default_factory=Found)
    breaches: list[str] = field(default_factory=list)

    @property
    def has_served(self) -> bool:
        return any(not how.startswith("refused") for how in self.ends)

    def figures(self) -> dict[str, Any]:
        refused = sum(n for how, n in self.ends.items() if how.startswith("refused"))
        modes = sorted({seen.split()[2] for seen in self.found.modes if " socket " in seen})
        return {
            "starts": self.starts,
            "served": self.starts - refused,
            "refused": refused,
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
def a_stranger(orders: Orders, found: Found) -> Iterator[Callable[[], bool]]:
    """Another user at work for as long as the block takes, with whether it has met a socket by now; `found` is filled
    with what it tells at the end."""
    command = [sys.executable, "-m", "tests.faults.raced_starts_stranger", json.dumps(asdict(orders))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment(), **pipes) as stranger:
        heard = stranger.stdout
        assert heard is not None
        assert stranger.stdin is not None
        try:
            assert heard.readline() == "looking\n"
            yield lambda: bool(select.select([heard], [], [], 0)[0])  # there is a line that nobody has read
            stranger.stdin.close()
            told = json.loads(heard.read().splitlines()[-1])
        finally:
            stranger.kill()
    for name, value in told.items():
        setattr(found, name, Counter(value) if isinstance(value, dict) else value)


def start_and_end(daemon: Daemon, number: int) -> str:
    """How one life of the daemon went: it served and ended as told by the signal, or it did not want to begin."""
    daemon.start()
    try:
        code = until(lambda: _serves_or_ended(daemon), "the daemon to serve or to end")
        if code != "serves":
            return f"refused {code}"
        daemon.signal(number)
        return f"{signal.Signals(number).name} {daemon.exit_code()}"
    finally:
        daemon.kill()


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
    """So many starts in one setting, and what a stranger got out of them. There are some more when none of them has
    served or the stranger slept: that would show nothing."""
    round_ = Round(setting.name)
    choice = random.Random(seed)
    began = time.monotonic()
    with program.scratch() as base:
        place = Place(setting, base)
        daemon = place.daemon()
        with a_stranger(place.orders(seed), round_.found) as has_met:
            while round_.starts < starts or (
                not (round_.has_served and has_met()) and round_.starts < starts + MORE_STARTS
            ):
                number = choice.choice((signal.SIGTERM, signal.SIGTERM, signal.SIGKILL))
                round_.ends[start_and_end(daemon, number)] += 1
                round_.starts += 1
                if number == signal.SIGTERM:
                    place.clear()
                progress(f"{setting.name}: {round_.starts} of {starts}")
        round_.breaches = breaches(place, round_)
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
    if not found.connects["EACCES"]:
        problems.append("the stranger never met a socket: nothing was shown")
    if setting.squatted and not found.squatted:
        problems.append("the stranger never squatted: nothing was shown")
    return problems


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


def settings_here() -> Sequence[Setting]:
    """Those that can be tried on this machine."""
    return [setting for setting in SETTINGS if not setting.held or shutil.which("strace")]


def options() -> ArgumentParser:
    parser = program.options("raced_starts", __doc__, seed=1)
    parser.add_argument("--starts", type=int, default=1000)
    return parser


def main() -> int:
    asked = options().parse_args()
    if os.geteuid() != 0:
        return program.cannot("only root can act as another user")
    chosen = settings_here()
    whole = sum(setting.share for setting in chosen)
    rounds = []
    for place, setting in enumerate(chosen, 1):
        starts = max(1, round(asked.starts * setting.share / whole))
        rounds.append(raced(setting, starts, asked.seed + place, program.NowAndThen()))
    attempts: Counter[str] = sum((round_.found.connects for round_ in rounds), Counter())
    figures = {
        **{round_.setting: round_.figures() for round_ in rounds},
        "starts": sum(round_.starts for round_ in rounds),
        **{f"connects that ended with {how}": times for how, times in attempts.most_common()},
    }
    return program.ended(asked, figures, [f"{each.setting}: {breach}" for each in rounds for breach in each.breaches])


if __name__ == "__main__":
    sys.exit(main())
