"""Records what a real process does to a folder: its system calls, as strace sees them.

Owns strace and the reading of what it writes. Must not know what the process is for. Every call that could change a
file is either understood or refused: a recording is exact, or there is none. At the end what the calls lead to is
compared with what is in the folder.

A write counts from its return on, and a sync covers what had returned when it began. That is the strictest reading:
what is in flight may be lost.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .disk import Disk
from .operations import (
    ROOT,
    File,
    Image,
    Naming,
    Note,
    Operation,
    Recording,
    Sync,
    Truncate,
    Write,
    decoded,
    is_memory,
    read_image,
)

UNDERSTOOD = (
    *("open", "openat", "close", "dup", "dup2", "dup3", "fcntl", "lseek", "mmap"),
    *("write", "pwrite64", "ftruncate", "fsync", "fdatasync"),
    *("rename", "renameat", "renameat2", "unlink", "unlinkat", "linkat", "mkdir", "mkdirat", "rmdir"),
)
REFUSED = (
    *("creat", "openat2", "writev", "pwritev", "pwritev2", "truncate", "fallocate", "copy_file_range", "sendfile"),
    *("splice", "sync_file_range", "sync", "syncfs", "link", "symlink", "symlinkat", "io_uring_setup", "io_submit"),
)
"""They could change a file as well. Nothing of ours uses them on a store; if that changes, a recording says so."""

STORE = "store"
NOTES = "notes"
"""What is recorded lies in folders side by side, each with the store and a file for what is said about it."""

_CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+|\?)", re.DOTALL)
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')

SECONDS = 300


class NotExact(Exception):
    """Something was done that this does not understand, or the outcome is not what the calls lead to."""


def run_traced(command: Sequence[str], trace: Path, kill_at_sync: int = 0) -> None:
    """Run Python under strace; with `kill_at_sync` it is killed as one of its threads enters that sync."""
    calls = ",".join(f"?{name}" for name in (*UNDERSTOOD, *REFUSED))
    strace = ["strace", "-f", "-qq", "-xx", "-s", "100000000", "-o", str(trace), "-e", f"trace={calls}"]
    # With the filter in the kernel strace is faster, but injects nothing.
    inject = [f"--inject=fsync,fdatasync:signal=KILL:when={kill_at_sync}"] if kill_at_sync else ["--seccomp-bpf"]
    done = subprocess.run(
        [*strace, *inject, sys.executable, *command], capture_output=True, timeout=SECONDS, check=False
    )
    if done.returncode != (-9 if kill_at_sync else 0):
        raise NotExact(f"the process that was traced ended with {done.returncode}: {done.stderr.decode()[-2000:]}")


class Place:
    """One folder with a store in it: the names in it as the process sees them, and what was done so far."""

    def __init__(self, folder: Path, before: Image) -> None:
        self.folder = folder
        self.before = before
        self.operations: list[Operation] = []
        self.files: dict[File, str] = {ROOT: "the folder"}
        self._tree: dict[File, dict[str, File]] = {ROOT: {}}
        for path, content in before.items():
            parent, name = self.find(path)
            self.add(parent, name, is_folder=content is None)

    def add(self, parent: File, name: str, *, is_folder: bool) -> File:
        file = len(self.files)
        self.files[file] = self._called(parent, name)
        self._tree[parent][name] = file
        if is_folder:
            self._tree[file] = {}
        return file

    def _called(self, parent: File, name: str) -> str:
        return name if parent == ROOT else f"{self.files[parent]}/{name}"

    def find(self, path: str) -> tuple[File, str]:
        """The folder a path leads to, and the name in it."""
        *folders, name = path.split("/")
        at = ROOT
        for each in folders:
            at = self._tree[at][each]
        return at, name

    def at(self, parent: File, name: str) -> File | None:
        return self._tree[parent].get(name)

    def name(self, what: str, *changes: tuple[File, str, File | None]) -> None:
        for parent, name, file in changes:
            if file is None:
                self._tree[parent].pop(name, None)
            else:
                self._tree[parent][name] = file
                self.files[file] = self._called(parent, name)
        self.operations.append(Naming(what, changes))

    def recording(self, name: str, durability: str, said: tuple[Note, ...] = ()) -> Recording:
        """What was done, once it is shown to lead to what is there."""
        made = Recording(name, durability, self.before, self.files, self.operations, said)
        disk = Disk(made)
        for operation in made.operations:
            disk.take(operation)
        if (expected := disk.everything()) != (found := read_image(self.folder)):
            differing = {path for path in {*expected, *found} if expected.get(path) != found.get(path)}
            raise NotExact(f"the calls recorded do not lead to what is in {sorted(differing)}")
        return made


class Handle:
    """An open file: which one, and where it is written next."""

    def __init__(self, place: Place, file: File | None) -> None:
        self.place = place
        self.file = file
        """None for the file of notes."""
        self.offset = 0


class Call(NamedTuple):
    """A system call that began; `arguments` as strace shows them."""

    name: str
    arguments: str
    handle: Handle | None
    covers: int


class Tracer:
    """Follows the processes that were run one after the other, through everything they opened below one folder."""

    def __init__(self, base: Path, before: dict[str, Image]) -> None:
        """`before`: what is in the store of each folder below `base` that is recorded."""
        self._base = str(base) + "/"
        self.places = {name: Place(base / name / STORE, image) for name, image in before.items()}
        self._handles: dict[int, Handle] = {}

    def read(self, trace: Path) -> None:
        """Take in what one process did. It is over: nothing it had open is open any more."""
        self._handles.clear()
        under_way: dict[str, Call] = {}
        with trace.open() as lines:
            for line in lines:
                thread, _, text = line.rstrip("\n").partition(" ")
                self._line(thread, text.lstrip(), under_way)

    def _line(self, thread: str, text: str, under_way: dict[str, Call]) -> None:
        if text.startswith(("+++", "---")):
            return
        if text.startswith("<..."):
            begun = under_way.pop(thread)
            rest = text[text.index("resumed>") + len("resumed>") :]
            if (found := _CALL.match(f"{begun.name}({begun.arguments}{rest}")) is not None:
                self._returned(begun._replace(arguments=found[2]), found[3])
        elif text.endswith("<unfinished ...>"):
            name, _, arguments = text.removesuffix(" <unfinished ...>").partition("(")
            under_way[thread] = self._entered(name, arguments)
        elif (found := _CALL.match(text)) is not None:
            self._returned(self._entered(found[1], found[2]), found[3])
        elif "(" in text:
            raise NotExact(f"a line of strace's that says nothing: {text[:200]}")

    def _entered(self, name: str, arguments: str) -> Call:
        """What a descriptor stands for is looked up now: its number may be another's before we hear of the end."""
        number = arguments.partition(",")[0]
        if name == "mmap":
            number = arguments.split(", ")[4]
        handle = self._handles.get(int(number)) if number.isdecimal() else None
        if name == "close":
            self._handles.pop(int(number), None)
        return Call(name, arguments, handle, 0 if handle is None else len(handle.place.operations))

    def _returned(self, call: Call, result: str) -> None:
        if result in ("?", "-1"):
            return
        texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(call.arguments)]
        if call.name in REFUSED:
            if call.handle is not None or any(text.startswith(self._base.encode()) for text in texts):
                raise NotExact(f"{call.name} is not understood")
        elif (by_name := getattr(self, f"_{call.name}", None)) is not None:
            by_name(call, [text.decode() for text in texts], int(result))
        elif call.handle is not None:
            self._on_handle(call, texts, int(result))

    # --- calls by name -------------------------------------------------------------------------------------------

    def _find(self, path: str, folder: Handle | None = None) -> tuple[Place, File, str] | None:
        """Where a path leads; None when nobody is interested."""
        if folder is not None and folder.file is not None and not path.startswith("/"):
            return None if is_memory(path) else (folder.place, folder.file, path)
        if not path.startswith(self._base):
            return None
        name, _, inside = path.removeprefix(self._base).partition("/")
        kind, _, below = inside.partition("/")
        if kind != STORE or not below or is_memory(below) or name not in self.places:
            return None
        place = self.places[name]
        return place, *place.find(below)

    def _openat(self, call: Call, paths: list[str], number: int) -> None:
        path = paths[0]
        self._handles.pop(number, None)
        if path.startswith(self._base):
            name, _, inside = path.removeprefix(self._base).partition("/")
            if name in self.places and inside in (STORE, NOTES):
                self._handles[number] = Handle(self.places[name], ROOT if inside == STORE else None)
                return
        if (found := self._find(path, call.handle)) is None:
            return
        place, parent, name = found
        file = place.at(parent, name)
        if file is None:
            file = place.add(parent, name, is_folder=False)
            place.name("create", (parent, name, file))
        elif "O_TRUNC" in call.arguments:
            place.operations.append(Truncate(file, 0))
        if "O_APPEND" in call.arguments:
            raise NotExact(f"{name} is opened for appending, which is not understood")
        self._handles[number] = Handle(place, file)

    def _open(self, call: Call, paths: list[str], number: int) -> None:
        self._openat(call, paths, number)

    def _two_names(self, call: Call, paths: list[str]) -> tuple[Place, tuple[File, str], tuple[File, str]] | None:
        """Where a file is and where it comes to; None when nobody is interested."""
        folders = [self._handles.get(int(text)) if text.isdecimal() else None for text in without_texts(call.arguments)]
        one, two = self._find(paths[0], folders[0]), self._find(paths[1], folders[2] if len(folders) > 2 else None)
        if one is None or two is None:
            if one is not two:
                raise NotExact(f"moved across the edge of the folder: {paths}")
            return None
        return one[0], one[1:], two[1:]

    def _renameat2(self, call: Call, paths: list[str], _: int) -> None:
        if (found := self._two_names(call, paths)) is not None:
            place, before, behind = found
            place.name("rename", (*before, None), (*behind, place.at(*before)))

    _rename = _renameat = _renameat2

    def _linkat(self, call: Call, paths: list[str], _: int) -> None:
        if (found := self._two_names(call, paths)) is not None:
            place, before, behind = found
            place.name("link", (*behind, place.at(*before)))

    def _unlinkat(self, call: Call, paths: list[str], _: int) -> None:
        if (found := self._find(paths[0], call.handle)) is not None:
            place, parent, name = found
            place.name("unlink", (parent, name, None))

    _unlink = _rmdir = _unlinkat

    def _mkdirat(self, call: Call, paths: list[str], _: int) -> None:
        if (found := self._find(paths[0], call.handle)) is not None:
            place, parent, name = found
            place.name("mkdir", (parent, name, place.add(parent, name, is_folder=True)))

    _mkdir = _mkdirat

    # --- calls on what is open -----------------------------------------------------------------------------------

    def _on_handle(self, call: Call, texts: list[bytes], result: int) -> None:
        handle = call.handle
        assert handle is not None
        if call.name.startswith("dup") or (call.name == "fcntl" and "F_DUPFD" in call.arguments):
            self._handles[result] = handle
        elif call.name == "lseek":
            handle.offset = result
        elif handle.file is None:
            self._note(handle.place, call, texts)
        else:
            handle.place.operations.extend(_done(call, handle, handle.file, texts, result))

    def _note(self, place: Place, call: Call, texts: list[bytes]) -> None:
        if call.name == "write":
            place.operations.append(decoded(texts[0]))


def without_texts(arguments: str) -> list[str]:
    return re.sub(_TEXT, "", arguments).split(", ")


def _done(call: Call, handle: Handle, file: File, texts: list[bytes], result: int) -> Iterator[Operation]:
    numbers = without_texts(call.arguments)
    match call.name:
        case "write":
            yield Write(file, handle.offset, texts[0][:result])
            handle.offset += result
        case "pwrite64":
            yield Write(file, int(numbers[-1]), texts[0][:result])
        case "ftruncate":
            yield Truncate(file, int(numbers[1]))
        case "fsync" | "fdatasync":
            yield Sync(file, call.covers)
        case "mmap" if "PROT_WRITE" in call.arguments and "MAP_SHARED" in call.arguments:
            raise NotExact(f"{handle.place.files[file]} is written through memory, which nobody can see")
