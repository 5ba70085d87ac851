"""A store's folder while no daemon has it: checked, repaired, or filled from a snapshot when it no longer opens.

Owns the order of a restore without a daemon. Must not know what is wrong with a store, nor how a snapshot is read.
Everything heavy is imported when it is used.

    restoring-TIME/   the new store, filled and closed; nothing else was touched so far
    damaged-TIME/     second names of all the old files
    incoming/         the new store, about to take their place: the next start would bring that to its end
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from statesvc.cli.failures import DATA_CORRUPT, IO_FAILURE
from statesvc.cli.paths import A_PATH
from statesvc.cli.session import Told

if TYPE_CHECKING:
    from statesvc.backends.sqlite import SqliteEngine
    from statesvc.config import Settings


class Damaged(Exception):
    """A store that cannot be made fit to be served."""

    exit_code = DATA_CORRUPT


class Broken(Exception):
    """A disk that fails: what there is of the store is not known."""

    exit_code = IO_FAILURE


data_option = click.option("--data", type=A_PATH, help="The data folder; from the configuration when not given.")


def settings_for(data: Path | None) -> Settings:
    """The configuration, for work on files: only sqlite has some."""
    from statesvc.config import load

    settings = load({"data": data}).settings
    if settings.backend != "sqlite":
        raise click.UsageError(f"--offline works on the files of sqlite, and the backend is {settings.backend}")
    return settings


def below_data(data: Path | None, path: Path) -> Path:
    """A path that is meant from the data folder."""
    from statesvc.config import load

    return load({"data": data}).settings.data / path


def check(data: Path | None) -> list[str]:
    """Every problem of a store, a sentence each."""
    from statesvc.backends.sqlite.offline import check_folder

    settings = settings_for(data)
    with _failures_told():
        return check_folder(settings.data, settings.durability)


def repair(data: Path | None) -> list[str]:
    """Everything that was done, or could not be, a sentence each."""
    from statesvc.backends.sqlite.offline import repair_folder

    settings = settings_for(data)
    with _failures_told():
        return repair_folder(settings.data, settings.durability)


@contextmanager
def _failures_told() -> Iterator[None]:
    """In one line, with an exit code."""
    from statesvc.backends.port import DataCorrupt, EngineBroken
    from statesvc_client.errors import Internal, NoSpace

    try:
        yield
    except DataCorrupt as corrupt:
        raise Damaged(str(corrupt)) from None
    except EngineBroken as broken:
        raise Broken(str(broken)) from None
    except (NoSpace, Internal) as failed:
        raise Broken(failed.text) from None
    except BrokenPipeError:
        raise
    except OSError as failed:
        why = failed.strerror or failed
        raise Broken(f"{failed.filename or 'the store'}: {why}; check the disk, then try again") from None


def restore(data: Path | None, path: Path, told: Told) -> dict[str, Any]:
    """Put a snapshot in the place of a store, whatever state that is in. Its files are kept beside it."""
    from asyncio import run

    from statesvc.backends.sqlite import from_settings

    settings = settings_for(data)
    owner = from_settings(settings)
    owner.own()
    try:
        with _failures_told():
            return _restored(settings, settings.data / path, told)
    finally:
        run(owner.close())


def _restored(settings: Settings, path: Path, told: Told) -> dict[str, Any]:
    from asyncio import run

    from statesvc.backends.sqlite import SqliteEngine, restoring
    from statesvc.backends.sqlite.paths import Paths

    paths = Paths.below(settings.data)
    stamp = restoring.stamp()
    new = restoring.restoring_at(paths, stamp)
    restoring.clear_restoring(paths)
    try:
        done = run(_fill(SqliteEngine(new), settings, path, told))
        kept = _keep_old_files(paths, settings.data / f"damaged-{stamp}")
        os.rename(new, paths.incoming)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    restoring.declare_complete(paths, paths.log, paths.state)
    restoring.put_in_place(paths)
    return {**done, "path": str(path)} | ({"earlierFiles": str(kept)} if kept else {})


async def _fill(engine: SqliteEngine, settings: Settings, path: Path, told: Told) -> dict[str, Any]:
    from statesvc.store.administration import Administration
    from statesvc.store.kinds import Kinds
    from statesvc.store.store import Store

    try:
        await engine.open()
        store = Store(engine, kinds=Kinds(settings.lifecycles))
        store.start()
        try:
            return await Administration(store, path.parent).restore(path.name, told)
        finally:
            await store.stop()
    finally:
        await engine.close()


def _keep_old_files(paths: Any, aside: Path) -> Path | None:
    """Give every file of the old store a second name in a folder of its own: the first is about to be taken."""
    from statesvc.process.folders import sync_folder

    there = [file for file in paths.files if file.exists()]
    if not there and not paths.incoming.exists():
        return None
    aside.mkdir(mode=0o700)
    for file in there:
        os.link(file, aside / file.name)
    if paths.incoming.exists():
        os.rename(paths.incoming, aside / paths.incoming.name)
    # The second names are on the disk before the first ones go; that of the folder itself goes there with `incoming`.
    sync_folder(aside)
    return aside
