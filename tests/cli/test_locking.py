"""lock against real daemons, with real commands, signals and lost leases."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from statesvc.cli.session import Session
from tests.cli.running import daemon, ended, eventually, line_of, plain_environment, run, started, told_by

# Says that it runs, then waits for its input to end; SIGTERM ends it with 9, SIGUSR1 is told.
PATIENT = "trap 'exit 9' TERM; trap 'echo usr1' USR1; echo running; while :; do read line || sleep 0.05; done"

# Does not mind SIGTERM.
STUBBORN = "trap '' TERM; echo running; while :; do sleep 0.05; done"


# Leaves the terminal's group, so that only what is passed on reaches it, and tells what does.
OUTSIDER = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, lambda number, _: print(signal.Signals(number).name, flush=True))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
os.setsid()
print("under", os.getppid(), flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def lock(served):
    """`statesvc lock` on the shared daemon, in a process of its own."""
    return lambda *words, **options: started("lock", "--socket", str(served), *words, **options)


@pytest.fixture
def holder(served):
    """Takes and gives back locks in this process."""
    with Session(served, 20) as session:
        yield session


def take(session: Session, name: str) -> int:
    reply = session.ask("claim", kind="lock", id=name, holder="another", ttl=60)
    return reply["records"][0]["lease"]["token"]


def lease_of(path, name: str) -> dict:
    """Empty when nobody has it."""
    with Session(path, 20) as session:
        return session.ask("get", kind="lock", id=name)["record"].get("lease", {})


def test_the_command_runs_under_the_lock_and_its_exit_code_is_ours(lock, served):
    with lock("plain", "--", "sh", "-c", "echo $STATESVC_LOCK_NAME $STATESVC_LOCK_TOKEN; exit 7") as locked:
        answer = ended(locked)
    assert (answer.code, answer.out, answer.err) == (7, "plain 1\n", "")
    assert lease_of(served, "plain") == {}


def test_while_the_command_runs_nobody_else_gets_the_lock(lock, served):
    with lock("held", "--", "sh", "-c", PATIENT) as locked:
        line_of(locked)
        assert lease_of(served, "held")["holder"].endswith(f":{locked.pid}")
        with lock("held", "--wait", "0", "--", "echo", "mine") as second:
            refused = ended(second)
        with lock("held", "--wait", "0.05", "-E", "1", "--", "echo", "mine") as third:
            assert ended(third).code == 1
    assert (refused.code, refused.out, refused.err) == (75, "", "held is held by another\n")


def test_it_waits_for_the_lock_and_tokens_grow(lock, holder):
    token = take(holder, "turn")
    with lock("turn", "--", "sh", "-c", "echo $STATESVC_LOCK_TOKEN") as waiting:
        assert told_by(waiting) == "turn is held by another: waiting\n"
        holder.ask("release", kind="lock", id="turn", token=token)
        answer = ended(waiting)
    assert (answer.code, answer.out) == (0, f"{token + 1}\n")


def test_standard_input_is_the_commands(lock):
    with lock("input", "--", "cat", stdin=-1) as locked:
        assert locked.communicate("hello\n", timeout=20)[0] == "hello\n"


def test_a_command_that_a_signal_ended_exits_as_in_a_shell(lock):
    with lock("killed", "--", "sh", "-c", "kill -KILL $$") as locked:
        assert ended(locked).code == 128 + signal.SIGKILL


@pytest.mark.parametrize(("command", "code"), [("no-such-command-here", 127), ("/dev/null", 126)])
def test_a_command_that_cannot_be_run_gives_the_lock_back(lock, served, command, code):
    with lock("none", "--", command) as locked:
        answer = ended(locked)
    assert answer.code == code
    assert answer.err.startswith(f"{command}: ")
    assert lease_of(served, "none") == {}


def test_signals_reach_the_command_once(lock, served):
    with lock("signals", "--", "sh", "-c", PATIENT, stdin=-3) as locked:
        assert line_of(locked) == "running\n"
        locked.send_signal(signal.SIGUSR1)
        assert line_of(locked) == "usr1\n"
        locked.send_signal(signal.SIGTERM)
        answer = ended(locked)
    assert (answer.code, answer.out) == (9, "")
    assert lease_of(served, "signals") == {}


def test_what_the_terminal_sends_to_the_whole_group_is_not_passed_on(served):
    """The command has it already, as a member of the group; this one has left it, and must not hear of it."""
    words = [
        sys.executable,
        "-m",
        "statesvc",
        "lock",
        "tty",
        "--socket",
        str(served),
        "--",
        sys.executable,
        "-c",
        OUTSIDER,
    ]
    on_a_terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    with subprocess.Popen(
        [sys.executable, "-c", on_a_terminal, *words],
        env=plain_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as terminal:
        try:
            assert terminal.stdin is not None
            under = int(shown_on(terminal, b"under ").split()[1])
            terminal.stdin.write(b"\x03")
            shown_on(terminal, b"^C")
            os.kill(under, signal.SIGUSR1)
            # Signals are taken in the order of their numbers: one that was passed on would stand before this.
            assert shown_on(terminal, b"SIGUSR1").split() == [b"SIGUSR1"]
            os.kill(under, signal.SIGTERM)
            assert terminal.wait(20) == 3
        finally:
            terminal.kill()


def shown_on(terminal: subprocess.Popen[bytes], expected: bytes) -> bytes:
    """What the terminal shows next, until the line with this, or this itself, is complete."""
    assert terminal.stdout is not None
    shown = b""
    while expected not in shown or not shown.endswith((b"\n", b"^C")):
        data = terminal.stdout.read(4096)
        assert data, shown
        shown += data
    return shown


def test_the_lease_is_renewed_for_as_long_as_the_command_runs(lock, served):
    with lock("renewed", "--ttl", "0.3", "--", "sh", "-c", PATIENT) as locked:
        line_of(locked)
        eventually(lambda: lease_of(served, "renewed").get("beat", 0) >= 5)
        assert lease_of(served, "renewed")["token"] == 1
        assert locked.poll() is None


def test_a_lost_lock_ends_the_command_and_exits_74(lock, holder):
    with lock("lost", "--ttl", "0.3", "--", "sh", "-c", PATIENT) as locked:
        line_of(locked)
        holder.ask("delete", kind="lock", id="lost")
        answer = ended(locked)
    assert answer.code == 74
    assert answer.err.startswith("the lock lost was lost: ")


def test_a_command_that_does_not_end_when_the_lock_is_lost_is_killed(lock, holder):
    with lock("stubborn", "--ttl", "0.3", "--grace", "0.2", "--", "sh", "-c", STUBBORN) as locked:
        line_of(locked)
        holder.ask("delete", kind="lock", id="stubborn")
        assert ended(locked).code == 74


def test_a_lock_lost_between_renewals_is_noticed_at_the_end(lock, holder):
    with lock("late", "--ttl", "3600", "--", "sh", "-c", PATIENT) as locked:
        line_of(locked)
        holder.ask("delete", kind="lock", id="late")
        locked.send_signal(signal.SIGTERM)
        assert ended(locked).code == 74


def test_the_lock_outlives_a_restart_of_the_daemon(tmp_path):
    path = tmp_path / "s.sock"
    flags = ("--data", str(tmp_path / "data"))
    words = ("lock", "steady", "--ttl", "30", "--timeout", "0.5", "--socket", str(path), "--", "sh", "-c", PATIENT)
    with daemon(path, *flags) as first, started(*words) as locked:
        line_of(locked)
        first.terminate()
        first.wait(20)
        with daemon(path, *flags):
            locked.send_signal(signal.SIGTERM)
            answer = ended(locked)
            assert lease_of(path, "steady") == {}
    assert answer.code == 9


def test_a_daemon_away_for_longer_than_the_ttl_counts_as_a_lost_lock(tmp_path):
    path = tmp_path / "s.sock"
    words = ("lock", "away", "--ttl", "0.5", "--socket", str(path), "--", "sh", "-c", PATIENT)
    with daemon(path, "--backend", "memory") as first, started(*words) as locked:
        line_of(locked)
        first.terminate()
        answer = ended(locked)
    assert answer.code == 74
    assert "the daemon did not answer for 0.5 seconds" in answer.err


def test_a_stopped_daemon_counts_as_away(tmp_path):
    path = tmp_path / "s.sock"
    words = ("lock", "away", "--ttl", "0.5", "--socket", str(path), "--", "sh", "-c", PATIENT)
    with daemon(path, "--backend", "memory") as first, started(*words) as locked:
        line_of(locked)
        first.send_signal(signal.SIGSTOP)
        try:
            # Ended with the daemon still stopped: giving back is not tried for a lock that is lost.
            assert ended(locked).code == 74
        finally:
            first.send_signal(signal.SIGCONT)


def test_without_a_daemon_nothing_is_run(tmp_path):
    with started("lock", "x", "--socket", str(tmp_path / "none.sock"), "--", "echo", "ran") as locked:
        answer = ended(locked)
    assert (answer.code, answer.out) == (5, "")
    assert answer.err.startswith("unavailable: ")


def test_it_keeps_waiting_for_the_lock_while_the_daemon_restarts(tmp_path):
    path = tmp_path / "s.sock"
    flags = ("--data", str(tmp_path / "data"))
    with daemon(path, *flags) as first:
        with Session(path, 20) as session:
            token = take(session, "queue")
        with started("lock", "queue", "--wait", "60", "--socket", str(path), "--", "echo", "mine") as waiting:
            assert told_by(waiting) == "queue is held by another: waiting\n"
            first.terminate()
            assert told_by(waiting).endswith("trying again\n")
            first.wait(20)
            with daemon(path, *flags), Session(path, 20) as session:
                session.ask("release", kind="lock", id="queue", token=token)
                answer = ended(waiting)
    assert (answer.code, answer.out) == (0, "mine\n")


def test_killed_without_a_chance_the_command_ends_as_well(lock):
    with lock("orphan", "--", "sh", "-c", "echo running; while :; do sleep 0.05; done") as locked:
        line_of(locked)
        locked.kill()
        # Its output ends when the last process that could write to it does.
        assert locked.communicate(timeout=20)[0] == ""


def test_what_runs_under_a_lock_may_be_another_statesvc(lock, tmp_path):
    file = tmp_path / "c.yml"
    file.write_text("state: {backend: memory}\n")
    inner = [sys.executable, "-m", "statesvc", "config", "show", "-o", "json", "--config", str(file)]
    with lock("nested", "--", *inner) as locked:
        answer = ended(locked)
    assert (answer.code, json.loads(answer.out)["backend"]) == (0, "memory")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lock", "x"], "Missing argument"),
        (["lock", "x", "--ttl", "0", "--", "true"], "--ttl"),
        (["lock", "x", "-E", "256", "--", "true"], "--conflict-exit-code"),
    ],
)
def test_a_wrong_usage_exits_2_and_says_what_is_wrong(tmp_path, words, told):
    answer = run(*words[:1], "--socket", str(tmp_path / "none.sock"), *words[1:])
    assert answer.code == 2
    assert told in answer.err
