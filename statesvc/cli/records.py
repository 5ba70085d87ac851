"""The verbs on one record: ping, create, update, get, delete. Must not know sockets, frames or tables."""

from __future__ import annotations

import time
from typing import IO, Any

import click

from statesvc.cli import fields
from statesvc.cli.options import Talk, kind_option, talks
from statesvc.cli.output import show_one

_FILE = click.File("rb")
_if_revision = click.option(
    "--if-revision", type=click.IntRange(0), metavar="N", help="Only when the record is at this revision."
)


@click.command("ping")
@talks
def ping_command(talk: Talk) -> None:
    """Ask the daemon whether it is there, and what it runs on."""
    with talk.open() as session:
        began = time.perf_counter()
        session.ask("ping")
        spent = round((time.perf_counter() - began) * 1000, 3)
    about = {name: session.greeting.get(name) for name in ("version", "protocol", "backend", "durability")}
    show_one({**about, "milliseconds": spent}, talk.format)


@click.command("create")
@click.argument("words", nargs=-1, metavar="[ID] [FIELD=VALUE]...")
@click.option("-f", "--file", type=_FILE, help="A file with the record as a JSON object; - is standard input.")
@click.option("--status", help="The status, as text.")
@click.option("--command", help="The command of a job, as text.")
@click.option("--node", "nodeId", help="The nodeId, as text.")
@click.option("--set", "assigned", multiple=True, metavar="FIELD=VALUE", help="The same as FIELD=VALUE.")
@kind_option
@talks
def create_command(
    talk: Talk,
    *,
    words: tuple[str, ...],
    file: IO[bytes] | None,
    assigned: tuple[str, ...],
    **texts: str | None,
) -> None:
    """Make a record that is not there yet.

    A VALUE is JSON when it is JSON (42, true, null, {"a": 1}, "42") and text otherwise. A first word
    without = is the id; without one, the id is the record's own field (uuid for jobs, id for other kinds).
    """
    id_, rest = (words[0], words[1:]) if words and "=" not in words[0] else (None, words)
    record = fields.record_in(file) if file else {}
    record |= fields.pairs((*rest, *assigned))
    record |= _given(texts)
    id_ = id_ or record.get(talk.id_field)
    if not isinstance(id_, str) or not id_:
        raise click.UsageError(f"give an ID, or a record with the field {talk.id_field} (a text)")
    record[talk.id_field] = id_
    with talk.open() as session:
        reply = session.ask("create", kind=talk.kind, **{talk.id: id_, talk.record: record})
    show_one(reply.get(talk.record, record), talk.format)


@click.command("update")
@click.argument("id_", metavar="ID")
@click.argument("words", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("-f", "--file", type=_FILE, help="A file with a merge patch as a JSON object; - is standard input.")
@click.option("--status", help="The new status, as text.")
@click.option("--set", "assigned", multiple=True, metavar="PATH=VALUE", help="Assign, whatever was there.")
@click.option("--inc", multiple=True, metavar="PATH=NUMBER", help="Add to a number.")
@click.option("--append", multiple=True, metavar="PATH=VALUE", help="Add to a list: an item, or a list of them.")
@click.option("--upsert", is_flag=True, default=None, help="Make the record when it is not there.")
@_if_revision
@click.option("--token", type=click.IntRange(1), metavar="N", help="Only while the lease with this token holds.")
@kind_option
@talks
def update_command(
    talk: Talk, *, id_: str, if_revision: int | None, token: int | None, upsert: bool | None, **changes: Any
) -> None:
    """Change a record.

    FIELD=VALUE and a file are a merge patch (RFC 7396): objects are merged, null removes. A PATH is a field's
    name or a JSON Pointer such as /metadata/progress. A VALUE is JSON when it is JSON, and text otherwise.
    """
    wanted = _wanted(talk, **changes)
    if not wanted:
        raise click.UsageError("nothing to change; give FIELD=VALUE, --status, --set, --inc, --append or --file")
    with talk.open() as session:
        wanted |= {talk.id: id_, "ifRevision": if_revision, "token": token, "upsert": upsert}
        reply = session.ask("update", kind=talk.kind, **wanted)
    show_one(reply.get(talk.record, {}), talk.format)


def _wanted(
    talk: Talk,
    *,
    words: tuple[str, ...],
    file: IO[bytes] | None,
    status: str | None,
    assigned: tuple[str, ...],
    inc: tuple[str, ...],
    append: tuple[str, ...],
) -> dict[str, Any]:
    """The parts of an update that say something."""
    parts = {
        talk.record: (fields.record_in(file) if file else {}) | fields.pairs(words) | _given({"status": status}),
        "set": fields.pairs(assigned, option="--set"),
        "inc": fields.pairs(inc, fields.number, "--inc"),
        "append": fields.pairs(append, fields.items, "--append"),
    }
    return {name: part for name, part in parts.items() if part}


@click.command("get")
@click.argument("id_", metavar="ID")
@click.option("--show-secrets", is_flag=True, help="With json or jsonl, print secretEnvironment too.")
@kind_option
@talks
def get_command(talk: Talk, *, id_: str, show_secrets: bool) -> None:
    """Print one record."""
    with talk.open() as session:
        reply = session.ask("get", kind=talk.kind, **{talk.id: id_})
    show_one(reply.get(talk.record, {}), talk.format, show_secrets)


@click.command("delete")
@click.argument("id_", metavar="ID")
@_if_revision
@kind_option
@talks
def delete_command(talk: Talk, *, id_: str, if_revision: int | None) -> None:
    """Remove a record."""
    with talk.open() as session:
        session.ask("delete", kind=talk.kind, ifRevision=if_revision, **{talk.id: id_})
    show_one({"deleted": id_}, talk.format)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
