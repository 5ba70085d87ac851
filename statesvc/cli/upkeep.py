"""`statesvc check`, `sweep`, `freeze` and `thaw`: looking after a store. Must not know what can be wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from statesvc.cli import offline
from statesvc.cli.failures import DATA_CORRUPT
from statesvc.cli.options import LONG_WORK_SECONDS, Talk, talking, talks
from statesvc.cli.output import show_one, show_value
from statesvc.cli.progress import Meter


@click.command("check")
@click.option("--repair", is_flag=True, help="Make again what can be made again, and say what was done.")
@click.option(
    "--offline", "without_daemon", is_flag=True, help="Without a daemon, for a store that can no longer be opened."
)
@offline.data_option
@talking(timeout=LONG_WORK_SECONDS)
def check_command(talk: Talk, *, repair: bool, without_daemon: bool, data: Path | None) -> None:
    """Verify what is stored, and print every problem.

    A problem is one line. Exits 0 when there is none, 65 when there are some, with --repair when some remain. With
    --offline: 74 when the disk fails or is full, 75 while a daemon has the folder.
    """
    if data is not None and not without_daemon:
        raise click.UsageError("--data goes with --offline: a daemon knows its folder")
    found = _checked_offline(data, repair) if without_daemon else _checked(talk, repair)
    if talk.format == "table":
        _show_findings(found)
    else:
        show_value(found, talk.format)
    if found["problems"]:
        click.get_current_context().exit(DATA_CORRUPT)


def _checked(talk: Talk, repair: bool) -> dict[str, Any]:
    with talk.open() as session, Meter("checking", "records") as meter:
        reply = session.ask_for_work("check", meter.told, repair=repair or None)
    found = {name: reply.get(name) or [] for name in ("problems", "repaired")}
    return {**found, **(reply.get("done") or {}), **({"truncated": True} if reply.get("truncated") else {})}


def _checked_offline(data: Path | None, repair: bool) -> dict[str, Any]:
    repaired = offline.repair(data) if repair else []
    return {"problems": offline.check(data), "repaired": repaired}


def _show_findings(found: dict[str, Any]) -> None:
    for text in found["repaired"]:
        click.echo(f"repaired: {text}")
    for text in found["problems"]:
        click.echo(text)
    for text in found.get("notes", []):
        click.echo(f"may be meant so: {text}", err=True)
    more = ", and more than are shown" if found.get("truncated") else ""
    click.echo(f"problems: {len(found['problems'])}{more}", err=True)


@click.command("sweep")
@talking(timeout=LONG_WORK_SECONDS)
def sweep_command(talk: Talk) -> None:
    """Do the background duties now, and say what was done.

    Lapsed leases, due records, ownership, retention, space.
    """
    with talk.open() as session, Meter("sweeping", "steps") as meter:
        reply = session.ask_for_work("sweep", meter.told)
    show_one(reply.get("done") or {}, talk.format)


@click.command("freeze")
@talking(timeout=LONG_WORK_SECONDS)
def freeze_command(talk: Talk) -> None:
    """Refuse writes until thaw.

    Also over restarts of the daemon. Reads go on. On an engine that several daemons share it returns when all of them
    heed it.
    """
    with talk.open() as session:
        session.ask("freeze")
    show_one({"frozen": True}, talk.format)


@click.command("thaw")
@talks
def thaw_command(talk: Talk) -> None:
    """Take writes again."""
    with talk.open() as session:
        session.ask("thaw")
    show_one({"frozen": False}, talk.format)
