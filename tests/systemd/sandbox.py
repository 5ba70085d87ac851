"""Runs a command as a unit would: its filters of system calls, its network, its view of /proc, none of its privileges.

Owns what of a unit can be done without systemd, read from its own file. Must not know the daemon. Needs root, and
libseccomp, which systemd brings along. A call that the unit forbids ends the process (SIGSYS) instead of failing, so
that whoever runs to the end under this has not even tried one.

    python -m tests.systemd.sandbox systemd/statesvc.service [drop-in ...] -- command ...

Left out is what changes which files are seen (ProtectSystem and the like): the tests' own folders would be gone.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

Service = dict[str, list[str]]
"""Every setting of [Service], with its values as the last empty one left them."""

_libc = ctypes.CDLL(None, use_errno=True)

_CLONE_NEWNS, _CLONE_NEWNET = 0x20000, 0x40000000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _LAST_CAPABILITY = 24, 38, 63

_ALLOW, _KILL_PROCESS = 0x7FFF0000, 0x80000000
_ERRNO = 0x00050000
_EAFNOSUPPORT = 97
_EQUAL, _MASKED_EQUAL = 4, 7

# SQLite gives a file it makes to the owner of the database when it runs as root, as it does here and under no unit.
_ASKED_BY_ROOT_ONLY = {"fchown"}

_FAMILIES = 64  # more than the kernel has
_PROT_WRITE, _PROT_EXEC = 2, 4


def read_service(files: Sequence[Path]) -> Service:
    """As systemd.syntax(7) has it: lists grow, an empty value clears them."""
    service: Service = {}
    section = ""
    for line in (line.strip() for file in files for line in file.read_text().splitlines()):
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            service[name] = [*service.get(name, []), value] if value else []
    return service


def is_on(service: Service, name: str) -> bool:
    return service.get(name, [""])[-1:] == ["yes"]


# --- which calls ---------------------------------------------------------------------------------------------------


def allowed_calls(service: Service) -> set[str]:
    """The names that SystemCallFilter= leaves; what is always permitted is among them."""
    allowed = set(calls_of("@default"))
    for value in service["SystemCallFilter"]:
        named = {call for word in value.lstrip("~").split() for call in calls_of(word)}
        allowed = allowed - named if value.startswith("~") else allowed | named
    return allowed | set(calls_of("@default"))


def calls_of(word: str) -> Iterator[str]:
    if not word.startswith("@"):
        yield word
        return
    command = ["systemd-analyze", "--no-pager", "syscall-filter", word]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    for name in (line.strip() for line in listed):
        if name and not name.startswith("#"):
            yield from calls_of(name)


# --- the kernel ----------------------------------------------------------------------------------------------------


class _Compared(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


class Filter:
    """A seccomp filter, made of rules and then put in force."""

    def __init__(self, otherwise: int) -> None:
        self._lib = ctypes.CDLL("libseccomp.so.2")
        self._lib.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._lib.seccomp_init(ctypes.c_uint32(otherwise)))

    def rule(self, action: int, call: str, *compared: tuple[int, int, int, int]) -> None:
        number = self._lib.seccomp_syscall_resolve_name(call.encode())
        if number < 0:
            return  # not on this architecture
        array = (_Compared * len(compared))(*(_Compared(*each) for each in compared))
        made = self._lib.seccomp_rule_add_array(self._context, ctypes.c_uint32(action), number, len(compared), array)
        assert made == 0, f"no rule for {call}: {os.strerror(-made)}"

    def put_in_force(self) -> None:
        loaded = self._lib.seccomp_load(self._context)
        assert loaded == 0, os.strerror(-loaded)


def filters(service: Service, calls: set[str]) -> Iterator[Filter]:
    """What SystemCallFilter=, RestrictAddressFamilies= and MemoryDenyWriteExecute= stand for."""
    if is_on(service, "MemoryDenyWriteExecute"):
        memory = Filter(_ALLOW)
        both = _PROT_WRITE | _PROT_EXEC
        memory.rule(_KILL_PROCESS, "mmap", (2, _MASKED_EQUAL, both, both))
        memory.rule(_KILL_PROCESS, "mprotect", (2, _MASKED_EQUAL, _PROT_EXEC, _PROT_EXEC))
        memory.rule(_KILL_PROCESS, "pkey_mprotect", (2, _MASKED_EQUAL, _PROT_EXEC, _PROT_EXEC))
        yield memory
    sockets = Filter(_ALLOW)
    families = {getattr(socket, name) for value in service["RestrictAddressFamilies"] for name in value.split()}
    for family in range(_FAMILIES):
        if family not in families:
            sockets.rule(_ERRNO | _EAFNOSUPPORT, "socket", (0, _EQUAL, family, 0))
    yield sockets
    named = Filter(_KILL_PROCESS)
    for call in sorted(calls | _ASKED_BY_ROOT_ONLY):
        named.rule(_ALLOW, call)
    yield named  # the last one: it does not allow for another


def enter(service: Service) -> None:
    """Become what the unit makes of its process."""
    calls = allowed_calls(service)
    spaces = _CLONE_NEWNS | (_CLONE_NEWNET if is_on(service, "PrivateNetwork") else 0)
    _call(_libc.unshare, spaces)
    _call(_libc.mount, b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)
    if service.get("ProcSubset") == ["pid"]:
        _call(_libc.mount, b"proc", b"/proc", b"proc", ctypes.c_ulong(0), b"subset=pid")
    os.umask(int(service["UMask"][-1], 8))
    for capability in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # those the kernel does not know are none
    _call(_libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for each in list(filters(service, calls)):
        each.put_in_force()


def _call(function: ctypes._CFuncPtr, *arguments: object) -> None:  # type: ignore[name-defined]
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main() -> None:
    split = sys.argv.index("--")
    enter(read_service([Path(name) for name in sys.argv[1:split]]))
    command = sys.argv[split + 1 :]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
