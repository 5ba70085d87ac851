"""The verbs on leases and the queue: claim, renew, release, cancel, retry, emit. Must not know who may have a lease."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Any

import click

from statesvc.cli import fields
from statesvc.cli.failures import NOTHING_FREE
from statesvc.cli.filters import filter_of, filter_options_but_status
from statesvc.cli.options import Talk, kind_option, talks
from statesvc.cli.output import LEASE_COLUMNS, show_one, show_pages

# As the wire has them.
_TTL = click.FloatRange(0.1, 7 * 86_400)
_DELAY = click.FloatRange(0, 366 * 86_400)

_words = click.argument("words", nargs=-1, metavar="[FIELD=VALUE]...")
_token_option = click.option(
    "--token", type=click.IntRange(1), required=True, metavar="N", help="The token the claim gave."
)


def default_holder() -> str:
    """Who holds what is claimed here: the user, on this host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


@click.command("claim")
@click.argument("words", nargs=-1, metavar="[ID] [FIELD=VALUE]...")
@click.option("--holder", help="Who is to hold the lease; user@host when not given.")
@click.option("--ttl", type=_TTL, metavar="SECONDS", help="How long the lease lasts without a renewal.")
@click.option(
    "--wait",
    type=click.FloatRange(0, 3600),
    default=0.0,
    metavar="SECONDS",
    help="How long to wait until something is free.",
)
@click.option("--hold", type=_DELAY, metavar="SECONDS", help="How long after a lapse nobody else may take it.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many records; one when not given.")
@click.option("--status", "claimed_as", help="The status to move to; the kind's claimed one (RUNNING) when not given.")
@filter_options_but_status
@click.option("--show-secrets", is_flag=True, help="With json or jsonl, print secretEnvironment too.")
@kind_option
@talks
def claim_command(
    talk: Talk,
    *,
    words: tuple[str, ...],
    holder: str | None,
    wait: float,
    show_secrets: bool,
    **asked: Any,
) -> None:
    """Take a lease on a record, or on the best of a queue.

    Without an ID it is the best that is ready and passes the filter. A record named by ID is made when it is not
    there, and keeps its status. FIELD=VALUE are a merge patch that comes with the claim. The token to renew and
    release with is in the record's lease. Exits 75 when nothing was free.
    """
    id_, rest = (words[0], words[1:]) if words and "=" not in words[0] else (None, words)
    wanted = filter_of(asked)
    if id_ and wanted:
        raise click.UsageError("give an ID or a filter, not both")
    with talk.open(talk.timeout + wait) as session:
        reply = session.ask(
            "claim",
            kind=talk.kind,
            filter=wanted,
            holder=holder or default_holder(),
            wait=wait or None,
            **{talk.id: id_, talk.record: fields.pairs(rest) or None},
            status=asked["claimed_as"],
            **{name: asked[name] for name in ("ttl", "hold", "limit")},
        )
    taken = reply.get(talk.records, [])
    show_pages([taken] if taken or talk.format == "json" else [], talk.format, show_secrets, LEASE_COLUMNS)
    if not taken:
        click.echo(f"{id_} is held by another" if id_ else "nothing is ready", err=True)
        click.get_current_context().exit(NOTHING_FREE)


@click.command("renew")
@click.argument("id_", metavar="ID")
@_words
@_token_option
@click.option(
    "--ttl", type=_TTL, metavar="SECONDS", help="How long the lease lasts from now on; as before if not given."
)
@kind_option
@talks
def renew_command(talk: Talk, *, id_: str, words: tuple[str, ...], token: int, ttl: float | None) -> None:
    """Keep a lease, and report progress.

    FIELD=VALUE are a merge patch. Prints the lease and whether somebody asked to cancel. Exits 4 when it is lost.
    """
    with talk.open() as session:
        patch = {talk.record: fields.pairs(words) or None}
        reply = session.ask("renew", kind=talk.kind, token=token, ttl=ttl, **{talk.id: id_}, **patch)
    kept = {"cancelRequested": False} | {
        name: reply[name] for name in ("lease", "cancelRequested", "revision") if name in reply
    }
    show_one(kept, talk.format)


@click.command("release")
@click.argument("id_", metavar="ID")
@_words
@_token_option
@click.option("--status", help="How it ended; FAILED and TIMEOUT are tried again by the record's retry policy.")
@click.option("--delay", type=_DELAY, metavar="SECONDS", help="Back to the queue, but not before so long.")
@kind_option
@talks
def release_command(
    talk: Talk, *, id_: str, words: tuple[str, ...], token: int, status: str | None, delay: float | None
) -> None:
    """Give a lease back.

    Without --status a job goes back to its queue. FIELD=VALUE are a merge patch, such as exitCode=0.
    """
    with talk.open() as session:
        given = {talk.id: id_, talk.record: fields.pairs(words) or None}
        reply = session.ask("release", kind=talk.kind, token=token, status=status, delay=delay, **given)
    show_one(reply.get(talk.record, {}), talk.format)


@click.command("cancel")
@click.argument("id_", metavar="ID")
@kind_option
@talks
def cancel_command(talk: Talk, *, id_: str) -> None:
    """End a job that waits, or ask for the end of one that runs."""
    _show_changed(talk, "cancel", id_)


@click.command("retry")
@click.argument("id_", metavar="ID")
@kind_option
@talks
def retry_command(talk: Talk, *, id_: str) -> None:
    """Put a failed job back into its queue."""
    _show_changed(talk, "retry", id_)


def _show_changed(talk: Talk, op: str, id_: str) -> None:
    with talk.open() as session:
        reply = session.ask(op, kind=talk.kind, **{talk.id: id_})
    show_one(reply.get(talk.record, {}), talk.format)


@click.command("emit")
@click.argument("id_", metavar="ID")
@click.argument("type_", metavar="TYPE")
@click.option("--message", help="What to say.")
@click.option("--data", metavar="JSON", help="Any JSON value to go with it.")
@kind_option
@talks
def emit_command(talk: Talk, *, id_: str, type_: str, message: str | None, data: str | None) -> None:
    """Add an event of your own to a record's history.

    Watchers see it. TYPE is any name that the daemon does not use itself.
    """
    event: dict[str, Any] = {"type": type_}
    if message is not None:
        event["message"] = message
    if data is not None:
        event["data"] = _json(data)
    with talk.open() as session:
        reply = session.ask("emit", kind=talk.kind, event=event, **{talk.id: id_})
    show_one({name: reply[name] for name in ("cursor", "revision") if name in reply}, talk.format)


def _json(text: str) -> Any:
    try:
        return fields.strict_json(text)
    except ValueError as problem:
        raise click.UsageError(f"--data: {text!r} is not JSON: {problem}; a text needs quotes of its own") from None
