"""`statesvc serve`: flags to settings, then the server. Must not know how the daemon works.

The server is imported after the settings are known to be good, and nothing is imported here that it does not
need: an agent starts this command and expects an answer on the socket a few hundred milliseconds later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from statesvc.cli.paths import A_PATH
from statesvc.config import KNOWN_BACKENDS, Settings, load


def _complete_backend(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in KNOWN_BACKENDS if name.startswith(begun)]


# A wrong value is left to the configuration, which exits 78 and says what is allowed, whatever its source.
@click.command("serve")
@click.option("--socket", type=A_PATH, help="Where to listen.")
@click.option(
    "--backend", metavar="NAME", shell_complete=_complete_backend, help="sqlite (default), memory, redis or dynamodb."
)
@click.option("--data", type=A_PATH, help="The folder of the sqlite files.")
@click.option("--durability", metavar="LEVEL", help="disk (default) or os.")
@click.option("--config", type=A_PATH, help="The configuration file.")
@click.option("--require-backend", is_flag=True, default=None, help="Exit 69 when the engine cannot be opened.")
@click.option("--drain-seconds", type=float, metavar="SECONDS", help="How long requests may take to finish at the end.")
@click.option("--log-level", metavar="LEVEL", help="debug, info (default), warning or error.")
@click.option("--log-format", metavar="FORMAT", help="auto (default), json or text.")
@click.option("--parent-fd", type=click.IntRange(0), metavar="N", help="End when this descriptor reads as closed.")
@click.option("--announce/--no-announce", default=None, help="Print the socket and a line to try; on a terminal.")
@click.pass_context
def serve_command(ctx: click.Context, /, parent_fd: int | None, announce: bool | None, **flags: Any) -> None:
    """Run the daemon in the foreground.

    Flags beat the environment (STATESVC_SOCKET and so on), which beats the configuration file. Exit codes: 0
    drained, 65 data corrupt, 69 engine unavailable, 73 unsafe path, 74 I/O failure, 75 another instance is
    running, 78 bad configuration.
    """
    loaded = load(_dotted(flags), serving=True)
    settings = loaded.settings
    _warn_of_hidden(loaded.hidden)
    wanted = sys.stdout.isatty() if announce is None else announce
    ctx.exit(_run(settings, parent_fd, partial(_announce, settings.backend) if wanted else None))


def _dotted(flags: dict[str, Any]) -> dict[str, Any]:
    """log_level is a key of a section; the others are named as in the file."""
    return {name.replace("log_", "log."): value for name, value in flags.items()}


def _warn_of_hidden(places: Sequence[Path]) -> None:
    from statesvc import logs

    for place in places:
        logs.get(__name__).warning("configuration_not_seen", path=str(place), why="for want of permission")


def _announce(backend: str, path: str) -> None:
    click.echo(f"statesvc serves {backend} on {path}")
    click.echo(f"try: statesvc create job-1 --status PENDING --command 'echo hi' --socket {path}")


def _run(settings: Settings, parent_fd: int | None, announce: Callable[[str], None] | None) -> int:
    from statesvc import logs
    from statesvc.process.errors import PathFailure
    from statesvc.server import run

    try:
        return run(settings, parent_fd=parent_fd, announce=announce)
    except OSError as failed:
        raise PathFailure(failed) from failed
    finally:
        # A start that failed early leaves lines that nobody has written yet.
        if not logs.is_configured():
            logs.configure(settings.log.level, settings.log.format)
        logs.finish()
