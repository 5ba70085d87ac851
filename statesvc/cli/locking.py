"""`statesvc lock`: a command run under a lock, and stopped should the lock be lost. Must not know how a lock is kept.

Signals are not handled but waited for, together with the end of the command, in one place: no handler runs between two
lines of ours. What the terminal sends to the whole group has reached the command already and is not passed on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import click

from statesvc.cli.failures import LEASE_LOST, NOTHING_FREE
from statesvc.cli.holding import Held, Line, Wanted, now, take
from statesvc.cli.leases import default_holder
from statesvc.cli.options import Talk, talking
from statesvc.config.sources import LOCK_NAME, LOCK_TOKEN
from statesvc_client.errors import LeaseLost, NotFound, StateError

_PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH}
)
_AWAITED = _PASSED_ON | {signal.SIGCHLD}

# As shells have it.
_NOT_FOUND, _NOT_EXECUTABLE, _SIGNALLED = 127, 126, 128

_PR_SET_PDEATHSIG = 1


@click.command("lock")
@click.argument("name")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...")
@click.option(
    "--ttl",
    type=click.FloatRange(0.1, 604_800),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the lock stays ours when nothing is heard of us; it is renewed three times in that.",
)
@click.option("--wait", type=click.FloatRange(0), metavar="SECONDS", help="Give up after so long; never if not given.")
@click.option("--hold", type=click.FloatRange(0), metavar="SECONDS", help="How long after a lapse nobody may take it.")
@click.option("--holder", help="Who holds the lock; user@host:pid when not given.")
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="When the lock is lost: how long the command may take to end after SIGTERM.",
)
@click.option(
    "-E",
    "--conflict-exit-code",
    type=click.IntRange(0, 255),
    default=NOTHING_FREE,
    show_default=True,
    metavar="N",
    help="What to exit with when the lock was not free in time.",
)
@talking(prints=False)
def lock_command(
    talk: Talk,
    *,
    name: str,
    command: tuple[str, ...],
    ttl: float,
    wait: float | None,
    hold: float | None,
    holder: str | None,
    grace: float,
    conflict_exit_code: int,
) -> None:
    """Run a command under a lock, and exit as it exits.

    The command finds the lock in STATESVC_LOCK_NAME and its fencing token in STATESVC_LOCK_TOKEN. Signals are passed
    on to it. Should the lock be lost while it runs (the daemon away for longer than --ttl, somebody took it), it gets
    SIGTERM and, after --grace, SIGKILL.

    Exit codes: the command's own, 128 + N when signal N ended it, 126 or 127 when it cannot be run, 75 when the lock
    was not free in time, 74 when the lock was lost.
    """
    wanted = Wanted(name, holder or f"{default_holder()}:{os.getpid()}", ttl, hold)
    line = Line(talk.open, talk.timeout)
    held = take(line, wanted, wait, partial(os.kill, os.getpid(), signal.SIGCHLD))
    if held is None:
        click.echo(f"{name} is held by another", err=True)
        sys.exit(conflict_exit_code)
    with _signals_awaited() as before:
        environment = os.environ | {LOCK_NAME: name, LOCK_TOKEN: str(held.token)}
        code = _run(command, environment, held, grace, before)
    lost = _given_back(held)
    line.close()
    if lost is not None:
        click.echo(f"the lock {name} was lost: {lost}", err=True)
        code = LEASE_LOST
    sys.exit(code)


@contextmanager
def _signals_awaited() -> Iterator[set[int]]:
    """Signals wait for us to ask for them. Yields those that were blocked before: the command is to have it so."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)}
    try:
        yield before
    finally:
        # What came for a command that has ended is nobody's business any more.
        while signal.sigtimedwait(_AWAITED, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(command: tuple[str, ...], environment: dict[str, str], held: Held, grace: float, mask: set[int]) -> int:
    try:
        # Running what it is given is its work. No other thread runs yet: what happens before exec is safe.
        prepare = partial(_prepare, mask, ctypes.CDLL(None))
        child = subprocess.Popen(command, env=environment, preexec_fn=prepare)  # noqa: PLW1509, S603
    except OSError as problem:
        click.echo(f"{command[0]}: {problem.strerror}", err=True)
        return _NOT_FOUND if isinstance(problem, FileNotFoundError) else _NOT_EXECUTABLE
    held.keep()
    code = _awaited(child, held, grace)
    return code if code >= 0 else _SIGNALLED - code


def _prepare(mask: set[int], libc: ctypes.CDLL) -> None:
    """In the command's process, before it begins."""
    # Killed ourselves, we can neither renew nor stop it: it must not go on as if it had the lock.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _awaited(child: subprocess.Popen[bytes], held: Held, grace: float) -> int:
    kill_at: float | None = None
    while (code := child.poll()) is None:
        if held.lost is not None and kill_at is None:
            child.terminate()
            kill_at = now() + grace
        left = 1.0 if kill_at is None else kill_at - now()
        if left <= 0:
            child.kill()
        arrived = signal.sigtimedwait(_AWAITED, min(1.0, max(0.01, left)))
        # A positive code says that the kernel sent it, for the terminal: to all of the group, the command included.
        if arrived is not None and arrived.si_signo in _PASSED_ON and arrived.si_code <= 0:
            child.send_signal(arrived.si_signo)
    return code


def _given_back(held: Held) -> str | None:
    """Why the lock was lost, if it was."""
    try:
        held.give_back()
    except (LeaseLost, NotFound) as lost:
        return lost.text
    except StateError as problem:
        click.echo(f"the lock could not be given back, and will lapse: {problem.text}", err=True)
    return held.lost
