"""What the client verbs share: --kind, --socket, --timeout and -o, and the `Talk` they add up to.

Must not know what a verb asks for or prints.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from statesvc.cli.output import FORMATS, chosen_format
from statesvc.cli.paths import A_PATH
from statesvc.cli.session import Session

Verb = Callable[..., None]

DEFAULT_TIMEOUT_SECONDS = 10.0

LONG_WORK_SECONDS = 3600.0
"""How long work on everything that is stored may take, unless --timeout says otherwise."""


class Talk:
    """Where the daemon is, how to print, and the wire's names, which for jobs are the ones Joblet uses."""

    def __init__(self, kind: str, socket: Path | None, timeout: float, output: str | None) -> None:
        job = kind == "job"
        self.kind = kind
        self.id = "jobId" if job else "id"
        self.record = "job" if job else "record"
        self.records = "jobs" if job else "records"
        self.id_field = "uuid" if job else "id"
        self.format = chosen_format(output)
        self._socket = socket
        self.timeout = timeout

    def open(self, timeout: float | None = None, client: str | None = None, *, introduced: bool = True) -> Session:
        """A session with the patience asked for, unless another is given. Who names itself can send writes again."""
        path = self._socket or _configured_socket()
        return Session(path, timeout or self.timeout, client, introduced=introduced)


kind_option = click.option("--kind", default="job", show_default=True, help="What kind of record.")

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    help="How to print; a table on a terminal, jsonl (an object a line) elsewhere.",
)

_socket_option = click.option(
    "--socket",
    type=A_PATH,
    envvar="STATESVC_SOCKET",
    show_envvar=True,
    help="The daemon's socket; from the configuration when not given.",
)


def _timeout_option(seconds: float) -> Callable[[Verb], Verb]:
    return click.option(
        "--timeout",
        type=click.FloatRange(0, 86_400, min_open=True),
        default=seconds,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for an answer.",
    )


def talking(*, timeout: float = DEFAULT_TIMEOUT_SECONDS, prints: bool = True) -> Callable[[Verb], Verb]:
    """Gives a verb the options for daemon and output, as one `Talk` in front of its other arguments.

    A verb that does long work has more patience; one that `prints` nothing to choose a format for has no -o.
    """

    def with_options(verb: Verb) -> Verb:
        @functools.wraps(verb)
        def with_talk(
            *, socket: Path | None, timeout: float, output: str | None = None, kind: str = "job", **others: Any
        ) -> None:
            verb(Talk(kind, socket, timeout, output), **others)

        return _socket_option(_timeout_option(timeout)(output_option(with_talk) if prints else with_talk))

    return with_options


talks = talking()


def _configured_socket() -> Path:
    from statesvc.config import BadConfiguration, load

    try:
        return load({}).settings.socket
    except BadConfiguration as problem:
        raise click.ClickException(f"{problem}\n(give --socket to do without the configuration)") from None
