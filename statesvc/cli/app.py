"""The command `statesvc`: its subcommands by name, and the one place where a failure becomes an exit code.

Must not know what a subcommand does. Their modules are imported when they are called, so that `serve` does
not load what `list` needs, nor the other way round.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import click

from statesvc import failpoints
from statesvc.cli.failures import exit_code_of, explained
from statesvc.process.descriptors import fill_standard_streams

# In the order of the help: the daemon, the verbs as a record lives, the rest.
COMMANDS = {
    "serve": "statesvc.cli.serve",
    "init": "statesvc.cli.preparing",
    "ping": "statesvc.cli.records",
    "create": "statesvc.cli.records",
    "update": "statesvc.cli.records",
    "get": "statesvc.cli.records",
    "list": "statesvc.cli.listing",
    "delete": "statesvc.cli.records",
    "sync": "statesvc.cli.syncing",
    "watch": "statesvc.cli.watching",
    "history": "statesvc.cli.watching",
    "emit": "statesvc.cli.leases",
    "claim": "statesvc.cli.leases",
    "renew": "statesvc.cli.leases",
    "release": "statesvc.cli.leases",
    "cancel": "statesvc.cli.leases",
    "retry": "statesvc.cli.leases",
    "lock": "statesvc.cli.locking",
    "stats": "statesvc.cli.measuring",
    "stuck": "statesvc.cli.measuring",
    "health": "statesvc.cli.measuring",
    "snapshot": "statesvc.cli.snapshots",
    "export": "statesvc.cli.exchange",
    "import": "statesvc.cli.exchange",
    "migrate": "statesvc.cli.migrate",
    "check": "statesvc.cli.upkeep",
    "sweep": "statesvc.cli.upkeep",
    "freeze": "statesvc.cli.upkeep",
    "thaw": "statesvc.cli.upkeep",
    "config": "statesvc.cli.configuration",
    "version": "statesvc.cli.about",
    "completion": "statesvc.cli.about",
}


class Commands(click.Group):
    """A group that imports a subcommand's module when the subcommand is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as failure:
            code = exit_code_of(failure)
            if code is None:
                raise
            click.echo(explained(failure), err=True)
            ctx.exit(code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """Remember what a job agent did: the daemon, and commands that talk to it."""
    failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))


def main() -> None:
    """What the installed command and `python -m statesvc` run."""
    fill_standard_streams()
    cli(prog_name="statesvc")
