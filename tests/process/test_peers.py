"""Who is at the other end, and whether that one may talk."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from statesvc.process.listener import listen
from statesvc.process.peers import Access, Peer, peer_credentials

CONNECT_AS = """
import os, socket, sys
path, uid, gid, *groups = sys.argv[1:]
os.setgroups([int(g) for g in groups]); os.setgid(int(gid)); os.setuid(int(uid))
s = socket.socket(socket.AF_UNIX)
s.connect(path)
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(socket_folder: Path) -> str:
    socket_folder.chmod(0o755)
    return str(socket_folder / "s.sock")


def accept_from(listening, program) -> Peer:
    assert program.stdout.readline() == "connected\n"
    connection, _ = listening.sock.accept()
    with connection:
        return peer_credentials(connection)


def test_a_peer_is_known_by_pid_uid_and_groups():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = peer_credentials(ours)
    assert (peer.pid, peer.uid) == (os.getpid(), os.geteuid())
    assert peer.gids == {os.getegid(), *os.getgroups()}


def test_another_user_is_seen_as_what_it_is_and_refused(path, start, stranger):
    with listen(path, mode=0o666) as listening:
        program = start(CONNECT_AS, path, stranger, stranger + 1, stranger + 2, stranger + 3)
        peer = accept_from(listening, program)
    assert peer == Peer(program.pid, stranger, frozenset({stranger + 1, stranger + 2, stranger + 3}))
    assert not Access(uids={os.geteuid(), 0}).allows(peer)


def test_a_member_of_an_allowed_group_may_connect_by_primary_and_by_other_groups(path, start, stranger):
    with listen(path, mode=0o666) as listening:
        peer = accept_from(listening, start(CONNECT_AS, path, stranger, stranger + 1, stranger + 2))
    assert Access(uids=(), gids={stranger + 1}).allows(peer)
    assert Access(uids=(), gids={stranger + 2}).allows(peer)
    assert not Access(uids=(), gids={stranger}).allows(peer)


def test_more_groups_than_can_be_asked_for_give_no_access_by_those(path, start, stranger):
    groups = range(60000, 60300)
    with listen(path, mode=0o666) as listening:
        peer = accept_from(listening, start(CONNECT_AS, path, stranger, stranger + 1, *groups))
    assert peer.gids == {stranger + 1}


def test_the_overflow_ids_are_never_allowed_even_when_listed():
    access = Access(uids={65534, 7}, gids={65534, 8})
    assert not access.allows(Peer(1, 65534, frozenset({8})))
    assert not access.allows(Peer(1, 9, frozenset({65534})))
    assert access.allows(Peer(1, 7, frozenset()))
    assert repr(access) == "Access(uids=[7], gids=[8])"
