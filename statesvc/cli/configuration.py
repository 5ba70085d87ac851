"""`statesvc config`: what is in force, where it came from, whether a file is good. Must not know any key."""

from __future__ import annotations

import json
from pathlib import Path

import click

from statesvc.cli.paths import A_PATH
from statesvc.config import Loaded, load
from statesvc.config.sources import as_plain


@click.group("config")
def config_command() -> None:
    """Show and check the configuration."""


@config_command.command("show")
@click.option("--config", type=A_PATH, help="The configuration file.")
@click.option("--origin", is_flag=True, help="Say for each key where its value came from.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def show_command(config: Path | None, origin: bool, output: str) -> None:
    """Print every key with the value in force. Secrets are hidden."""
    loaded = load({"config": config})
    _tell_hidden(loaded)
    if output == "json":
        click.echo(json.dumps(_for_programs(loaded, origin), indent=2))
    else:
        _show_to_people(loaded, origin)


def _tell_hidden(loaded: Loaded) -> None:
    """Beside the answer: whoever may look into those places may get another one."""
    for place in loaded.hidden:
        click.echo(f"statesvc: {place}: not looked at, for want of permission", err=True)


def _for_programs(loaded: Loaded, origin: bool) -> dict[str, object]:
    values = as_plain(loaded.settings)
    if not origin:
        return values
    return {key: {"value": value, "origin": loaded.origins[key]} for key, value in values.items()}


def _show_to_people(loaded: Loaded, origin: bool) -> None:
    lines = {key: f"{key}: {json.dumps(value)}" for key, value in as_plain(loaded.settings).items()}
    width = max(map(len, lines.values())) if origin else 0
    for key, line in lines.items():
        click.echo(f"{line:<{width}}  # {loaded.origins[key]}" if origin else line)


@config_command.command("check")
@click.argument("file", type=A_PATH, required=False)
def check_command(file: Path | None) -> None:
    """Check FILE, or whatever would be used. Exits 78 and lists every problem when it is not good.

    The environment counts too, as it would for the daemon.
    """
    loaded = load({"config": file})
    _tell_hidden(loaded)
    click.echo(f"good: {loaded.file}" if loaded.file else "good: no file, defaults and environment only")
