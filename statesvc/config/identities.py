"""Names of users and groups to numbers, for the part of the configuration that says who may connect.

Reads the host's user database and nothing else; must not know how a socket is made or a peer is checked.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Iterator

from statesvc.config.model import Access, NumberOrName


def allowed_uids(access: Access) -> frozenset[int]:
    """The uids that may connect. Nobody named at all means: whoever runs the daemon, and root."""
    if not access.uids and not access.gids:
        return frozenset({os.geteuid(), 0})
    return frozenset(uid(each) for each in access.uids)


def admin_uids(access: Access) -> frozenset[int]:
    """The uids that may snapshot, restore, check, sweep, freeze and thaw: whoever runs the daemon, root, the listed."""
    return frozenset({os.geteuid(), 0, *(uid(each) for each in access.admin_uids)})


def allowed_gids(access: Access) -> frozenset[int]:
    return frozenset(gid(each) for each in access.gids)


def socket_mode(access: Access) -> int:
    return int(access.socket_mode, 8)


def socket_gid(access: Access) -> int | None:
    return None if access.socket_group is None else gid(access.socket_group)


def uid(user: NumberOrName) -> int:
    return user if isinstance(user, int) else pwd.getpwnam(user).pw_uid


def gid(group: NumberOrName) -> int:
    return group if isinstance(group, int) else grp.getgrnam(group).gr_gid


def unknown(access: Access) -> Iterator[tuple[str, str]]:
    """(key, problem) for names this host does not have: better told now than at the first connect."""
    for key, users in (("access.uids", access.uids), ("access.admin_uids", access.admin_uids)):
        for user in users:
            if _is_missing(uid, user):
                yield key, f"{key}: there is no user {user!r} on this host"
    for group in access.gids:
        if _is_missing(gid, group):
            yield "access.gids", f"access.gids: there is no group {group!r} on this host"
    owner = access.socket_group
    if owner is not None and _is_missing(gid, owner):
        yield "access.socket_group", f"access.socket_group: there is no group {owner!r} on this host"


def _is_missing(look_up: Callable[[NumberOrName], int], name: NumberOrName) -> bool:
    try:
        look_up(name)
    except (KeyError, ValueError):  # the second for what cannot be a name: it holds a NUL, or half a character
        return True
    return False
