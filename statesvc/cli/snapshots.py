"""`statesvc snapshot save|restore|inspect`. Must not know what is in a snapshot's file, nor how a store is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from statesvc.cli import offline
from statesvc.cli.options import LONG_WORK_SECONDS, Talk, output_option, talking
from statesvc.cli.output import chosen_format, show_one
from statesvc.cli.paths import A_PATH
from statesvc.cli.progress import Meter
from statesvc_client.errors import NotFound


@click.group("snapshot")
def snapshot_command() -> None:
    """Save everything into one file, or replace everything by one."""


@snapshot_command.command("save")
@click.argument("path", required=False)
@talking(timeout=LONG_WORK_SECONDS)
def save_command(talk: Talk, *, path: str | None) -> None:
    """Write everything there is into one file, while the daemon goes on.

    PATH lies below the daemon's data folder; without one it is snapshots/TIME.snapshot.
    """
    with talk.open() as session, Meter("saving", "rows") as meter:
        reply = session.ask_for_work("snapshot", meter.told, path=path)
    show_one(reply.get("done") or {}, talk.format)


@snapshot_command.command("restore")
@click.argument("path")
@click.option(
    "--offline", "without_daemon", is_flag=True, help="Without a daemon, for a store that can no longer be opened."
)
@offline.data_option
@talking(timeout=LONG_WORK_SECONDS)
def restore_command(talk: Talk, *, path: str, without_daemon: bool, data: Path | None) -> None:
    """Replace everything by what a snapshot holds: all of it or nothing.

    PATH lies below the daemon's data folder. The whole file is verified first. The epoch changes: watches and cursors
    of before are gone.

    With --offline the files of the old store, whatever state they are in, are kept in damaged-TIME inside the data
    folder; PATH may then be an absolute one anywhere. Exits 75 while a daemon has the folder.
    """
    if data is not None and not without_daemon:
        raise click.UsageError("--data goes with --offline: a daemon knows its folder")
    with Meter("restoring", "bytes") as meter:
        if without_daemon:
            done = offline.restore(data, Path(path), meter.told)
        else:
            with talk.open() as session:
                reply = session.ask_for_work("restore", meter.told, path=path)
            done = {**(reply.get("done") or {}), "epoch": reply.get("epoch")}
    show_one(done, talk.format)


@snapshot_command.command("inspect")
@click.argument("path", type=A_PATH)
@offline.data_option
@output_option
def inspect_command(path: Path, data: Path | None, output: str | None) -> None:
    """Verify a snapshot and say what it holds. No daemon is asked.

    PATH is looked for as it is, then below the data folder.
    """
    from statesvc.store.snapshots import inspect

    try:
        summary = inspect(path)
    except NotFound:
        summary = inspect(offline.below_data(data, path))
    show_one(_told(summary), chosen_format(output))


def _told(summary: Any) -> dict[str, Any]:
    from msgspec import to_builtins

    header, footer = to_builtins(summary.header), to_builtins(summary.footer)
    return {**header, **footer, "bytes": summary.bytes}
