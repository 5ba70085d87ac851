"""A YAML file to the mapping below its key `state:`. Must not know which keys there are.

The one module that imports yaml; it is itself imported only when there is a file.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from statesvc.config.problems import BadConfiguration

ROOT = "state"

# Joblet's file has many other sections, so other names at the top are no error. These are ours alone.
_MISPLACED = frozenset({"backend", "socket", "durability", "require_backend", "drain_seconds"})


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where YAML would keep the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    text = f"the key {key.value!r} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, text, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


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
        with file.open(encoding="utf-8") as opened:
            return opened.read(), os.fstat(opened.fileno())
    except OSError as error:
        raise BadConfiguration([f"{file}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise BadConfiguration([f"{file}: not a YAML file in UTF-8: {error.reason}"]) from None


def _parsed(file: Path, text: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - _Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadConfiguration([f"{file}{where}: {error.problem or error.context}"]) from None
    except yaml.YAMLError as error:
        raise BadConfiguration([f"{file}: not a YAML file in UTF-8: {error}"]) from None
    except RecursionError:
        raise BadConfiguration([f"{file}: nested too deeply"]) from None
