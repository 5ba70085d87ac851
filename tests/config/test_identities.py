"""Who may connect, from names and numbers."""

from __future__ import annotations

import os

from statesvc.config import Access
from statesvc.config.identities import allowed_gids, allowed_uids, socket_gid, socket_mode


def test_nobody_named_means_the_daemons_own_user_and_root():
    assert allowed_uids(Access()) == {os.geteuid(), 0}
    assert allowed_gids(Access()) == frozenset()


def test_whoever_is_named_replaces_the_default():
    assert allowed_uids(Access(uids=("root", 1234))) == {0, 1234}
    assert allowed_uids(Access(gids=("root",))) == frozenset()
    assert allowed_gids(Access(gids=("root", 77))) == {0, 77}


def test_the_sockets_mode_is_octal_and_its_group_a_number_or_a_name():
    assert socket_mode(Access(socket_mode="0660")) == 0o660
    assert socket_gid(Access(socket_group="root")) == 0
    assert socket_gid(Access(socket_group=12)) == 12
    assert socket_gid(Access()) is None
