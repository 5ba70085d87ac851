"""Who is not let in stays out: the kernel's word about a peer counts, whatever the mode of the socket's file."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.harness import Client, Daemon, serving, until
from tests.faults.strangers import STRANGER, ask_as, needs_root

OPEN_TO_ALL = {"access__socket_mode": "0666"}
OVERFLOW = 65534

ADMIN_QUESTIONS = ("snapshot", "restore", "check", "sweep", "freeze", "thaw")


@pytest.fixture(autouse=True)
def _all_may_look(folder) -> None:
    """The folder keeps nobody away: what is tried here is what stands behind it."""
    folder.chmod(0o755)


def asked(uid: int, path: Path, op: str = "get", gid: int | None = None, groups: tuple[int, ...] = ()) -> str:
    """The code of the answer, `ok`, or the error that kept the stranger from asking."""
    question = {"op": op, "jobId": "job-1", **({"path": "snapshots/none"} if op == "restore" else {})}
    reply = json.loads(ask_as(uid, path, json.dumps(question), gid=gid, groups=groups))
    return reply.get("refused") or reply.get("code") or "ok"


# --- who may connect -----------------------------------------------------------------------------------------------


@needs_root
def test_a_foreign_user_cannot_connect(folder):
    with serving(folder, backend="memory") as daemon:
        assert asked(STRANGER, daemon.socket) == "PermissionError"


@needs_root
def test_a_foreign_user_is_denied_even_when_the_socket_is_open_to_all(folder):
    with serving(folder, backend="memory", settings=OPEN_TO_ALL) as daemon:
        answer = ask_as(STRANGER, daemon.socket)
        assert '"code":"denied"' in answer
        assert f"uid {STRANGER}" in answer
        assert daemon.events("peer_denied")[0]["uid"] == STRANGER
        for op in ("ping", "hello", "list", "create", "health", *ADMIN_QUESTIONS):
            assert asked(STRANGER, daemon.socket, op) == "denied"
        with daemon.connect() as client:
            assert client.ask("ping")["success"]


@needs_root
@pytest.mark.parametrize("seconds", [0.05, 3600.0])
def test_a_foreign_user_who_comes_again_and_again_is_told_of_once_in_a_while_and_counted(folder, seconds):
    program = f"from statesvc import server; server.DENIED_SECONDS = {seconds}; from statesvc.cli import main; main()"
    with Daemon(folder, backend="memory", program=program, settings=OPEN_TO_ALL).serving() as daemon:
        for _ in range(5):
            assert asked(STRANGER, daemon.socket) == "denied"

        def times_told() -> int:
            return sum(line.get("again", 1) for line in daemon.events("peer_denied"))

        until(lambda: times_told() == (5 if seconds < 1 else 1), "every refusal to be told of")


@needs_root
def test_a_user_who_is_listed_may_connect(folder):
    with serving(folder, backend="memory", settings={**OPEN_TO_ALL, "access__uids": f"0,{STRANGER}"}) as daemon:
        assert asked(STRANGER, daemon.socket) == "not_found"
        assert asked(STRANGER + 1, daemon.socket) == "denied"


@needs_root
def test_a_member_of_a_listed_group_may_connect_and_nobody_else(folder):
    agents = STRANGER + 7
    access = {"access__socket_mode": "0660", "access__socket_group": agents, "access__uids": 0, "access__gids": agents}
    with serving(folder, backend="memory", settings=access) as daemon:
        assert asked(STRANGER, daemon.socket, gid=agents) == "not_found"
        assert asked(STRANGER, daemon.socket, groups=(agents,)) == "not_found"
        assert asked(STRANGER, daemon.socket) == "PermissionError"
        daemon.socket.chmod(0o666)
        assert asked(STRANGER, daemon.socket) == "denied"
        assert asked(STRANGER, daemon.socket, gid=0) == "denied", "the daemon's own group was not listed"


@needs_root
@pytest.mark.parametrize("listed", [{"access__uids": f"0,{OVERFLOW}"}, {"access__uids": 0, "access__gids": OVERFLOW}])
def test_the_overflow_user_is_denied_even_when_it_is_listed(folder, listed):
    with serving(folder, backend="memory", settings={**OPEN_TO_ALL, **listed}) as daemon:
        assert asked(OVERFLOW, daemon.socket) == "denied"
        assert asked(STRANGER, daemon.socket, gid=OVERFLOW) == "denied"


# --- connections that change hands ---------------------------------------------------------------------------------

# Connects as the first, hands the connection to a child of the other, which says with its question to be a third.
_HAND_OVER = """
import os, socket, struct, sys
path, first, then, claimed = sys.argv[1], *map(int, sys.argv[2:])
def become(uid):
    os.setgroups([]); os.setresgid(uid, uid, 0); os.setresuid(uid, uid, 0)
become(first)
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(20)
sock.connect(path)
os.setresuid(0, 0, 0); os.setresgid(0, 0, 0)
if os.fork() == 0:
    become(then)
    try:
        claim = struct.pack("3i", os.getpid(), claimed, claimed)
        sock.sendmsg([b'{"op":"get","jobId":"job-1"}\\n'], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, claim)])
    except (BrokenPipeError, ConnectionResetError):
        pass
    print(sock.makefile().readline(), flush=True)
    os._exit(0)
os.wait()
"""


def handed_over(path: Path, first: int, then: int, claimed: int | None = None) -> str:
    """The code heard by a process of the user `then`, who says to be `claimed`, on a connection of the user `first`."""
    users = [str(first), str(then), str(then if claimed is None else claimed)]
    command = [sys.executable, "-c", _HAND_OVER, str(path), *users]
    return str(json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)["code"])


@needs_root
def test_a_connection_belongs_to_who_made_it_whoever_holds_it_now(folder):
    """As the kernel has it: root may hand a connection on, and a stranger's stays a stranger's in root's hands."""
    with serving(folder, backend="memory", settings=OPEN_TO_ALL) as daemon:
        assert handed_over(daemon.socket, first=0, then=STRANGER) == "not_found"
        assert handed_over(daemon.socket, first=STRANGER, then=0) == "denied"


@needs_root
def test_credentials_that_a_peer_sends_along_change_nothing(folder):
    """SCM_CREDENTIALS are of who sends, and root may say there what it likes; who connected is SO_PEERCRED."""
    with serving(folder, backend="memory", settings=OPEN_TO_ALL) as daemon:
        assert handed_over(daemon.socket, first=STRANGER, then=0, claimed=0) == "denied"
        assert handed_over(daemon.socket, first=0, then=0, claimed=STRANGER) == "not_found"


def test_descriptors_that_a_peer_passes_are_not_taken(folder):
    with serving(folder, backend="memory") as daemon, daemon.connect() as client:
        line = b'{"op":"ping"}\n'
        with open(os.devnull, "rb") as passed:
            descriptors = len(os.listdir(f"/proc/{daemon.pid}/fd"))
            socket.send_fds(client.sock, [line], [passed.fileno()] * 20)
            assert client.reply()["success"]
            assert len(os.listdir(f"/proc/{daemon.pid}/fd")) == descriptors, "nobody can fill our table of files"


# --- what only some may do -----------------------------------------------------------------------------------------


@needs_root
def test_what_concerns_everything_is_for_admins_alone(folder):
    guest, admin = STRANGER, STRANGER + 1
    access = {**OPEN_TO_ALL, "access__uids": f"0,{guest},{admin}", "access__admin_uids": admin}
    with serving(folder, settings=access) as daemon:
        for op in ADMIN_QUESTIONS:
            assert asked(guest, daemon.socket, op) == "denied"
            assert asked(admin, daemon.socket, op) != "denied"
        assert asked(guest, daemon.socket) == "not_found"


@needs_root
def test_an_admin_who_may_not_connect_is_denied(folder):
    access = {**OPEN_TO_ALL, "access__uids": 0, "access__admin_uids": STRANGER}
    with serving(folder, backend="memory", settings=access) as daemon:
        assert asked(STRANGER, daemon.socket, "freeze") == "denied"
        with Client(daemon.socket) as client:
            assert client.ask("create", job={"uuid": "job-1"})["success"], "nothing was frozen"


# --- files ---------------------------------------------------------------------------------------------------------


def test_the_files_of_a_store_are_for_its_owner_alone(folder):
    with serving(folder, umask=0) as daemon, daemon.connect() as client:
        assert client.ask("create", job={"uuid": "job-1"})["success"]
        assert client.ask("snapshot")["success"]
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (daemon.data, *daemon.data.rglob("*"))}
        assert {path.name for path in modes} >= {"data", "log.db", "log.db-wal", "lock", "snapshots"}
        assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}
        assert daemon.socket.stat().st_mode & 0o777 == 0o600
