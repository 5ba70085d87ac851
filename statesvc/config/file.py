"""A YAML file to the mapping below its key `state:`. Must not know which keys there are.

The one module that imports yaml; it is itself imported only when there is a file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from statesvc.config.problems import BadConfiguration

ROOT = "state"

# Joblet's file has many other sections, so other names at the top are no error. These are ours alone.
_MISPLACED = frozenset({"backend", "socket", "durability", "require_backend", "drain_seconds"})

# What is made of the file: our section, and what is merged into the top, where that may come from.
_READ = (ROOT, "<<")
_UNREAD = yaml.ScalarNode("tag:yaml.org,2002:null", "")

MOST_BYTES = 1 << 20
"""More than any configuration; a wrong path must not read a whole disk."""

MOST_VALUES = 100_000
"""Of our section, each alias counted as all it stands for: a few lines of them can stand for more than memory holds."""

# What yaml raises, beside its own errors, for a scalar that looks like a date or a number and is none.
_NOT_READ = (ValueError, ArithmeticError, LookupError, AttributeError)


class _Loader(yaml.SafeLoader):
    """SafeLoader that says where a value is that it cannot make, and refuses what YAML would take without a word.

    That is a key given twice, of which YAML keeps the last, and aliases without end. Sections of others are not made.
    """

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if isinstance(node, yaml.MappingNode):
            node.value = [(key, value if key.value in _READ else _UNREAD) for key, value in node.value]
        if node is not None:
            _count(node, {})
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            made = super().construct_object(node, deep)
            if isinstance(node, yaml.ScalarNode):
                # Half a character and a number of thousands of digits can be neither used nor shown.
                str(made).encode()
        except _NOT_READ:
            text = f"cannot be read as {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark) from None
        return made

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    text = f"the key {key.value!r} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, text, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _count(node: yaml.Node, counted: dict[yaml.Node, int]) -> int:
    """How many values the node stands for. Raises when they are too many, or when it is within itself."""
    if node not in counted:
        counted[node] = MOST_VALUES
        counted[node] = 1 + sum(_count(below, counted) for below in _below(node))
    if counted[node] > MOST_VALUES:
        text = f"stands for more than {MOST_VALUES} values"
        raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)
    return counted[node]


def _below(node: yaml.Node) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return chain.from_iterable(node.value)
    return node.value if isinstance(node, yaml.SequenceNode) else ()


class Section(NamedTuple):
    """What stands below `state:`, and the file it was read from: that very one, whatever has its name by now."""

    values: Mapping[Any, Any]
    status: os.stat_result


def read_section(file: Path) -> Section:
    """The section of the file; without values when it has none."""
    text, status = _read(file)
    return Section(_below_root(file, _parsed(file, text)), status)


def _below_root(file: Path, whole: Any) -> Mapping[Any, Any]:
    if whole is None:
        return {}
    if not isinstance(whole, dict):
        raise BadConfiguration([f"{file}: must be a mapping with the section '{ROOT}:'"])
    if ROOT not in whole and (lost := sorted(_MISPLACED & {str(name) for name in whole})):
        raise BadConfiguration([f"{lost[0]}: belongs below the section '{ROOT}:' (file {file})"])
    section = whole.get(ROOT)
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise BadConfiguration([f"{ROOT}: must be a section with keys of its own (file {file})"])
    return section


def _read(file: Path) -> tuple[str, os.stat_result]:
    try:
        content, status = _content(file)
        text = content.decode()
    except OSError as error:
        raise BadConfiguration([f"{file}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise BadConfiguration([f"{file}: not a YAML file in UTF-8: {error.reason}"]) from None
    if len(content) > MOST_BYTES:
        raise BadConfiguration([f"{file}: longer than the {MOST_BYTES} bytes a configuration may have"])
    if not content and stat.S_ISFIFO(status.st_mode):
        # Whoever should have written failed, or is not there; the defaults are not what was meant.
        raise BadConfiguration([f"{file}: a pipe through which nothing came"])
    return text, status


def _content(file: Path) -> tuple[bytes, os.stat_result]:
    # O_NONBLOCK: to open a pipe that nobody writes to must not stop the daemon.
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
        os.set_blocking(opened.fileno(), True)
        return opened.read(MOST_BYTES + 1), os.fstat(opened.fileno())


def _parsed(file: Path, text: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - _Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadConfiguration([f"{file}{where}: {error.problem or error.context}"]) from None
    except yaml.YAMLError as error:
        raise BadConfiguration([f"{file}: not a YAML file in UTF-8: {str(error).splitlines()[0]}"]) from None
    except RecursionError:
        raise BadConfiguration([f"{file}: nested too deeply"]) from None
