"""The two ends of a move: from what a person names to a store that is open.

Owns the spelling of addresses. Must not know what is moved, nor how. Everything heavy is imported when it is used.

    FILE                     a configuration file: the engine it chooses, and the socket of its daemon
    sqlite:PATH              a data folder
    redis://HOST/DB?namespace=NAME, rediss://, redis+unix:///PATH?namespace=NAME
    dynamodb://TABLE?region=NAME&endpoint=URL
    unix:PATH                the socket of a running daemon, whatever its engine
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from statesvc.addresses import without_login
from statesvc.config.model import DAY_SECONDS, Settings

if TYPE_CHECKING:
    from statesvc.backends.port import Row
    from statesvc.moving.holdings import Holding
    from statesvc.moving.sources import Source
    from statesvc.moving.target import Target

# What stands in the environment is about one daemon, and a move is between two. A password stands nowhere else.
_PASSWORD = "STATESVC_STORAGE__REDIS__PASSWORD"  # noqa: S105 - the name of a variable

EXPIRING_SECONDS = 3600
"""A record that vanishes from the target by its age within this time is not moved."""


class End(NamedTuple):
    """One end of a move, as it was named."""

    shown: str
    settings: Settings | None
    """None for a daemon's socket: its engine is its own affair."""
    socket: Path | None
    """Where a daemon that has this store listens, as far as is known."""


def read(text: str) -> End:
    """What an address means. Raises `BadConfiguration` or a usage error in words."""
    scheme, colon, rest = text.partition(":")
    if scheme == "unix" and colon:
        return End(f"unix:{_path(rest, text)}", None, _path(rest, text))
    if scheme == "sqlite" and colon:
        return End(f"sqlite:{_path(rest, text)}", _settings("sqlite", {"data": _path(rest, text)}, text), None)
    if scheme in ("redis", "rediss", "redis+unix") and rest.startswith("//"):
        from statesvc.backends.redis.access import read_url

        return _of_url("redis", text, read_url, text.removeprefix("redis+") if scheme == "redis+unix" else text)
    if scheme == "dynamodb" and rest.startswith("//"):
        from statesvc.backends.dynamodb.access import read_url as read_table_url

        return _of_url("dynamodb", text, read_table_url, text)
    return _of_file(text)


def _path(rest: str, text: str) -> Path:
    path = rest.removeprefix("//") if rest.startswith("///") else rest
    if not path:
        raise click.UsageError(f"{text}: a path is missing behind the colon")
    return Path(path)


def _of_url(backend: str, text: str, read_url: Callable[[str], dict[str, Any]], url: str) -> End:
    from statesvc_client.errors import BadRequest

    try:
        values = read_url(url)
    except (ValueError, BadRequest) as problem:
        raise click.UsageError(str(problem)) from None
    settings = _settings(backend, {f"storage.{backend}.{name}": value for name, value in values.items()}, "the address")
    return End(_without_password(text), settings, None)


def _without_password(url: str) -> str:
    scheme, slashes, rest = url.partition("//")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"


def _settings(backend: str, values: dict[str, Any], origin: str) -> Settings:
    from statesvc.config.sources import from_values

    return from_values({"backend": backend, **values}, origin)


def _of_file(text: str) -> End:
    from statesvc.config import load

    if not os.path.exists(text):
        raise click.UsageError(
            f"{without_login(text)}: no such file, and no address: name a configuration file, or sqlite:PATH, "
            "redis://..., dynamodb://..., unix:SOCKET"
        )
    settings = load({"config": text}, {_PASSWORD: os.environ[_PASSWORD]} if _PASSWORD in os.environ else {}).settings
    return End(f"{text} ({settings.backend})", settings, settings.socket)


# --- opening -------------------------------------------------------------------------------------------------------


async def open_source(end: End, socket: Path | None) -> Source:
    """The store at this end, to read from. One that a daemon has to itself is read through that daemon."""
    from statesvc.process.errors import AlreadyRunning

    settings = end.settings
    if settings is None:
        return await _served(end.socket or Path())
    if settings.backend == "memory":
        return await _served(socket or end.socket or Path())
    if settings.backend == "sqlite":
        _check_there(settings.data)
    try:
        return await _opened_source(settings)
    except AlreadyRunning as running:
        daemon = socket or end.socket
        if daemon is None:
            raise click.UsageError(f"{running}\n(give --socket: it is then read through its daemon)") from None
        return await _served(daemon, settings.data)


async def _opened_source(settings: Settings) -> Source:
    from statesvc.moving.sources import OpenedSource

    return OpenedSource(await _held(settings))


async def _served(socket: Path, data: Path | None = None) -> Source:
    from statesvc.moving.sources import ServedSource

    source = ServedSource(socket)
    await source.open()
    if data is not None and source.epoch != _epoch_of(data):
        await source.close()
        raise click.UsageError(f"the daemon on {socket} serves another store than the one in {data}: give its --socket")
    return source


def _check_there(folder: Path) -> None:
    """A folder that is only read from is not made."""
    from statesvc.backends.sqlite.paths import Paths

    paths = Paths.below(folder)
    try:
        is_there = any(path.exists() for path in (paths.log, paths.state, paths.incoming))
    except PermissionError:
        raise click.UsageError(f"{folder} may not be looked into by uid {os.geteuid()}") from None
    if not is_there:
        raise click.UsageError(f"{folder} holds no store: there is neither log.db nor state.db in it")


def _epoch_of(folder: Path) -> str | None:
    """What a folder says of itself while a daemon has it."""
    from statesvc.backends.sqlite.files import open_reader
    from statesvc.backends.sqlite.paths import Paths

    db = open_reader(Paths.below(folder).log)
    try:
        found = db.execute("SELECT value FROM fact WHERE name = 'epoch'").get
    finally:
        db.close()
    return str(found) if found else None


async def open_target(end: End) -> Target:
    """The store at this end, to write to."""
    from statesvc.moving.target import Target

    if end.settings is None or end.settings.backend == "memory":
        raise click.UsageError(
            f"{end.shown} cannot be moved to: name the engine, not a daemon. "
            "Into a daemon in memory a snapshot is restored: statesvc snapshot"
        )
    return Target(await _held(end.settings), _expiring(end.settings))


async def _held(settings: Settings) -> Holding:
    from statesvc import backends
    from statesvc.moving.holdings import Holding
    from statesvc.store.kinds import Kinds

    holding = Holding(backends.make(settings), Kinds(settings.lifecycles), settings.data)
    return await holding.open(lambda what: click.echo(f"statesvc: {what}", err=True))


def _expiring(settings: Settings) -> Callable[[Row], bool]:
    """DynamoDB forgets ended jobs by their age, which may be less than what they were kept for until now."""
    options = settings.storage.dynamodb
    if settings.backend != "dynamodb" or not options.ttl_enabled or not options.ttl_days:
        return lambda _: False
    before = int((time.time() + EXPIRING_SECONDS - options.ttl_days * DAY_SECONDS) * 1_000_000_000)
    return lambda row: row.kind == "job" and (row.keys.completed or before + 1) <= before and not row.deleted
