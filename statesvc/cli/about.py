"""`statesvc version` and `statesvc completion`. Must not know anything else."""

from __future__ import annotations

import platform

import click
from click.shell_completion import get_completion_class

from statesvc import __version__
from statesvc_client import wire


@click.command("version")
def version_command() -> None:
    """Print the version."""
    click.echo(f"statesvc {__version__} (protocol {wire.PROTOCOL}, Python {platform.python_version()})")


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print what makes a shell complete this command.

    \b
    bash: statesvc completion bash > ~/.local/share/bash-completion/completions/statesvc
    zsh:  statesvc completion zsh > a file _statesvc in a folder of $fpath
    fish: statesvc completion fish > ~/.config/fish/completions/statesvc.fish
    """
    completion = get_completion_class(shell)
    if completion is None:
        raise click.ClickException(f"click cannot complete for {shell}")
    click.echo(completion(ctx.find_root().command, {}, "statesvc", "_STATESVC_COMPLETE").source())
