"""docs/CLI.md, made from the commands themselves: `python -m statesvc.cli.manual > docs/CLI.md`.

Must not know any command by name. A test compares the file with what this module makes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from statesvc.cli.app import cli

_OPENING = """\
# The command line

Made from the commands by `python -m statesvc.cli.manual`; a test keeps it true.

`statesvc serve` runs the daemon; the other verbs talk to it over its socket.

**Output.** Verbs that print records take `-o table`, `-o json` (a record indented, a list as one array) and
`-o jsonl` (an object a line). Without `-o` it is a table on a terminal and jsonl elsewhere. Events are an object
a line in both, since `watch` has no end. A job's `secretEnvironment` is never in a table, and in JSON only with
`--show-secrets`.

**Long work** (`snapshot`, `check`, `sweep`, `export`, `import`, `migrate`) shows on stderr how far it is: a bar on a
terminal, a line every few seconds elsewhere; `migrate -o json` is quiet.

**Errors** are one line on stderr, `CODE: text`, with the codes of the protocol.

| exit code | of client verbs |
|---|---|
| 0 | done |
| 1 | any other error; `health` of a daemon that is not ready; `init --dry-run` that found something missing |
| 2 | wrong usage |
| 3 | `not_found`, `gone` |
| 4 | `conflict`, `exists`, `invalid_transition`, `lease_lost`; `sync`, `import`: some rejected; `migrate`: not empty |
| 5 | no daemon, no answer in time, `unavailable`, `busy`, `no_space` |
| 65 | `check`, `init`: something is wrong, or remains so; `migrate`: source and target differ in the end |
| 69 | `init`: the engine cannot be reached |
| 73 | `--offline`, `migrate`: a path that is not safe to use |
| 74 | `lock`: the lock was lost while the command ran; `--offline`: the disk failed |
| 75 | `claim`, `lock`: nothing was free; `--offline`, `migrate`: a daemon has the folder |
| 130 | `migrate` was interrupted: the same command goes on |

| exit code | of `serve` |
|---|---|
| 0 | drained |
| 65 | data corrupt |
| 69 | engine unavailable (only with `--require-backend`) |
| 73 | unsafe path |
| 74 | I/O failure |
| 75 | another instance is running |
| 78 | bad configuration; also of `config show`, `config check`, `init` and `migrate` |
"""


def manual() -> str:
    """The whole page."""
    context = click.Context(cli, info_name="statesvc")
    return _OPENING + "".join(f"\n{part}" for part in _sections(cli, context))


def _sections(command: click.Command, context: click.Context) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield _section(command, context)
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None:
            yield from _sections(below, click.Context(below, info_name=name, parent=context))


def _section(command: click.Command, context: click.Context) -> str:
    pieces = " ".join(command.collect_usage_pieces(context))
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    options = [param for param in command.params if isinstance(param, click.Option)]
    table = "".join(f"| {_names(option)} | {_meaning(option)} |\n" for option in options)
    heading = f"## {context.command_path}\n\n```\n{context.command_path} {pieces}\n```\n\n{text}\n"
    return heading + (f"\n| option | |\n|---|---|\n{table}" if table else "")


def _names(option: click.Option) -> str:
    both = [*option.opts, *option.secondary_opts]
    takes = "" if option.is_flag else f" {_metavar(option)}"
    return f"`{', '.join(both)}{takes}`".replace("|", "\\|")


def _metavar(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(option.type.choices)
    return option.metavar or option.type.name.upper()


def _meaning(option: click.Option) -> str:
    notes = [option.help or ""]
    if option.show_default and not option.is_flag:
        notes.append(f"Default: {option.default}.")
    if option.envvar:
        notes.append(f"Environment: `{option.envvar}`.")
    if option.multiple:
        notes.append("May be repeated.")
    return " ".join(note for note in notes if note).replace("|", "\\|")


if __name__ == "__main__":
    click.echo(manual(), nl=False)
