"""Where values come from: flags over environment over file over defaults; one message for all that is wrong.

Must not know what a key means; the model does. yaml is imported only when there is a file to read: a daemon
started with flags alone, as an agent starts it, has its socket up before yaml would be loaded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from statesvc import failpoints
from statesvc.config import identities
from statesvc.config.checking import Unfit, checked, from_text
from statesvc.config.model import Leaf, Secret, Settings, assemble, contradictions, leaves, value_at
from statesvc.config.problems import BadConfiguration, unfit_value, unknown_key

if TYPE_CHECKING:
    from statesvc.config.file import Section

USUAL_FILES = (Path("/etc/statesvc/statesvc.yml"), Path("/opt/joblet/config/joblet-config.yml"))

ROOT = 0

# Variables with the prefix that are no keys.
LOCK_NAME = "STATESVC_LOCK_NAME"
LOCK_TOKEN = "STATESVC_LOCK_TOKEN"  # noqa: S105 - a fencing token is a number for everybody to see
BOOT_ID = "STATESVC_BOOT_ID"  # told by the unit, read by the sqlite engine
RESERVED_VARIABLES = frozenset({"STATESVC_CONFIG", LOCK_NAME, LOCK_TOKEN, BOOT_ID, failpoints.VARIABLE})
PREFIX = "STATESVC_"

# What Joblet's agent and its own daemon keep in the same section. None of it concerns this daemon; a key
# named here covers everything below it.
JOBLET_KEYS_WITHOUT_EFFECT = frozenset(
    {
        "buffer_size",
        "reconnect_delay",
        "pool",
        "pool_size",
        "client",
        "local",
        "storage.dynamodb.batch_size",
        "storage.dynamodb.batch_interval",
    }
)


class Loaded(NamedTuple):
    """The settings in force, and for every dotted key where its value came from."""

    settings: Settings
    origins: dict[str, str]
    file: Path | None
    hidden: tuple[Path, ...] = ()
    """Usual places that could not be looked at, and so did not count."""


class Given(NamedTuple):
    """A value somebody gave, not checked yet."""

    key: str
    value: Any
    origin: str


def load(flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, *, serving: bool = False) -> Loaded:
    """The settings in force. `flags`: dotted keys, and `config` for the file; None means not given.

    Whoever is `serving` obeys the file, which must then be of its own user or root's: it says who may connect.
    """
    known = dict(leaves())
    sections = _sections(known)
    problems: list[str] = []
    file, hidden = _find_file(flags.get("config"), environ)
    winners: dict[str, Given] = {}
    for given in _everything_given(file, environ, flags, known, problems, serving=serving):
        if given.key in known:
            winners[given.key] = given
        elif given.key in sections:
            problems.append(f"{given.key}: must be a section with keys of its own ({given.origin})")
        else:
            problems.append(unknown_key(given.key, given.origin, [*known, *sections]))
    settings = _settings(winners, known, problems)
    if problems:
        raise BadConfiguration(problems)
    origins = {key: winners[key].origin if key in winners else "default" for key in known}
    return Loaded(settings, origins, file, hidden)


def from_values(values: Mapping[str, Any], origin: str) -> Settings:
    """The defaults with these values (by dotted key) put in, and nothing else: no file, no environment."""
    known = dict(leaves())
    problems = [unknown_key(key, origin, list(known)) for key in values if key not in known]
    winners = {key: Given(key, value, origin) for key, value in values.items() if key in known}
    settings = _settings(winners, known, problems)
    if problems:
        raise BadConfiguration(problems)
    return settings


def _everything_given(
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
    known: Mapping[str, Leaf],
    problems: list[str],
    *,
    serving: bool,
) -> Iterator[Given]:
    """Lowest rank first, so that what comes later wins."""
    if file is not None:
        from statesvc.config.file import read_section

        section = read_section(file)
        problems.extend(_in_wrong_hands(file, section.status, serving=serving))
        yield from _from_file(file, section, known, problems)
    yield from _from_environment(environ, known)
    for key, value in flags.items():
        if key != "config" and value is not None:
            yield Given(key, value, f"flag {flag_name(key)}")


def flag_name(key: str) -> str:
    return "--" + key.replace(".", "-").replace("_", "-")


def variable_name(key: str) -> str:
    return PREFIX + key.replace(".", "__").upper()


def _find_file(flag: Any, environ: Mapping[str, str]) -> tuple[Path | None, tuple[Path, ...]]:
    """The file that counts, and the usual places before it that could not be looked at. A named file must be there."""
    named = (
        (flag, "flag --config"),
        (environ.get("STATESVC_CONFIG"), "environment STATESVC_CONFIG"),
        (environ.get("JOBLET_CONFIG_PATH"), "environment JOBLET_CONFIG_PATH"),
    )
    for name, origin in named:
        if name:
            if _look(name) == "missing":
                raise BadConfiguration([f"{name}: there is no such configuration file ({origin})"])
            return Path(name), ()
    return _usual_file()


def _usual_file() -> tuple[Path | None, tuple[Path, ...]]:
    """The usual places may be empty, or in a folder that we may not look into: what is there is not meant for us."""
    hidden: list[Path] = []
    for place in USUAL_FILES:
        look = _look(place)
        if look == "there":
            return place, tuple(hidden)
        if look == "hidden":
            hidden.append(place)
    return None, tuple(hidden)


def _look(place: str | Path) -> Literal["there", "missing", "hidden"]:
    try:
        os.stat(place)
    except PermissionError:
        return "hidden"
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return "missing"
    except OSError:
        pass  # whoever reads it is told why it cannot be
    return "there"


def _in_wrong_hands(file: Path, status: os.stat_result, *, serving: bool) -> Iterator[str]:
    """Why the file cannot be trusted. Its folder does not matter: what others put in its place would be theirs."""
    if serving and status.st_uid not in (os.geteuid(), ROOT):
        yield f"{file}: belongs to uid {status.st_uid}; the daemon obeys files of uid {os.geteuid()} and of root only"
    if stat.S_ISREG(status.st_mode) and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield f"{file}: can be changed by others (mode {stat.S_IMODE(status.st_mode):04o}); run: chmod go-w {file}"


def _from_file(file: Path, section: Section, known: Mapping[str, Leaf], problems: list[str]) -> Iterator[Given]:
    for given in _flattened(section.values, "", f"file {file}", _sections(known)):
        problems.extend(_exposed_secret(given, file, section.status, known))
        yield given


def _sections(known: Mapping[str, Leaf]) -> set[str]:
    """Every proper beginning of a key: limits, storage, storage.sqlite ..."""
    return {key[:dot] for key in known for dot in range(len(key)) if key[dot] == "."}


def _flattened(section: Mapping[Any, Any], prefix: str, origin: str, sections: set[str]) -> Iterator[Given]:
    for name, value in section.items():
        key = f"{prefix}{name}"
        if key in JOBLET_KEYS_WITHOUT_EFFECT or (key in sections and value is None):
            continue
        if key in sections and isinstance(value, Mapping):
            yield from _flattened(value, f"{key}.", origin, sections)
        else:
            yield Given(key, value, origin)


def _exposed_secret(given: Given, file: Path, status: os.stat_result, known: Mapping[str, Leaf]) -> Iterable[str]:
    if not given.value or given.key not in known or not _is_secret(known[given.key]):
        return
    mode = status.st_mode & 0o777
    if mode & 0o077:
        yield (
            f"{given.key}: {file} holds a secret and can be opened by others (mode {mode:04o}); "
            f"run: chmod 600 {file}, or use {given.key}_file or ${variable_name(given.key)}"
        )


def _from_environment(environ: Mapping[str, str], known: Mapping[str, Leaf]) -> Iterator[Given]:
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name in RESERVED_VARIABLES:
            continue
        key = name.removeprefix(PREFIX).lower().replace("__", ".")
        value = from_text(known[key].annotation, text) if key in known else text
        yield Given(key, value, f"environment {name}")


def _settings(winners: Mapping[str, Given], known: Mapping[str, Leaf], problems: list[str]) -> Settings:
    values: dict[str, Any] = {}
    for key, value, origin in winners.values():
        try:
            values[key] = checked(known[key].annotation, value)
        except Unfit as unfit:
            problems.append(unfit_value(key, value, str(unfit), origin, _is_secret(known[key])))
    settings = assemble(values)
    for key, text in (*contradictions(settings), *identities.unknown(settings.access)):
        problems.append(f"{text} ({winners[key].origin if key in winners else 'default'})")
    return settings


def _is_secret(leaf: Leaf) -> bool:
    return Secret in getattr(leaf.annotation, "__args__", ())


def as_plain(settings: Settings) -> dict[str, Any]:
    """Every dotted key with a value that JSON and YAML can hold; secrets hidden."""
    return {key: plain(value_at(settings, key)) for key, _ in leaves()}


def plain(value: Any) -> Any:
    if isinstance(value, Secret):
        return repr(value) if value else ""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return {name: plain(item) for name, item in value.items()} if isinstance(value, Mapping) else value
