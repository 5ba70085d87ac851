"""`statesvc sync`: a file of records to requests, the reports added up. Must not know the rules of a sync."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import IO, Any

import click

from statesvc.cli import fields
from statesvc.cli.failures import CONFLICT
from statesvc.cli.options import Talk, kind_option, talks
from statesvc.cli.output import show_one

# Well inside the limits of a frame, so that one request never holds up the daemon's other clients for long.
_FRAME_RECORDS = 500
_FRAME_BYTES = 1 << 20
_FRAME_VALUES = 100_000


@click.command("sync")
@click.argument("file", type=click.File("rb"))
@click.option("--mode", type=click.Choice(["merge", "replace"]), default="merge", show_default=True)
@click.option("--node", help="The nodeId whose records are meant; replace needs it.")
@kind_option
@talks
def sync_command(talk: Talk, *, file: IO[bytes], mode: str, node: str | None) -> None:
    """Bring many records forward at once, from a FILE (- is standard input).

    The file holds a JSON array of records, or a record a line. merge creates what is missing and updates what
    moved; replace also deletes the node's records that are not in the file, and goes as one request. Exits 4
    when some were rejected; sending the same file again is safe.
    """
    if mode == "replace" and not node:
        raise click.UsageError("--mode replace needs --node: only that node's records may be deleted")
    records = fields.records_in(file)
    if not records:
        raise click.UsageError(f"{fields.name_of(file)}: holds no records")
    report = _Report(str(record.get(talk.id_field)) for record in records)
    with talk.open() as session:
        for batch in [records] if mode == "replace" else _batches(records):
            scope = {"nodeId": node} if node else None
            report.add(session.ask("sync", kind=talk.kind, mode=mode, scope=scope, **{talk.records: batch}))
    show_one(report.shown(), talk.format)
    if report.rejected:
        click.get_current_context().exit(CONFLICT)


def _batches(records: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    size = values = 0
    for record in records:
        text = json.dumps(record)
        size, values = size + len(text), values + sum(map(text.count, ",[{"))
        if batch and (len(batch) == _FRAME_RECORDS or size > _FRAME_BYTES or values > _FRAME_VALUES):
            yield batch
            batch, size, values = [], len(text), sum(map(text.count, ",[{"))
        batch.append(record)
    yield batch


class _Report:
    """What became of the records, over all requests."""

    def __init__(self, sent: Iterable[Any]) -> None:
        self._sent = set(sent)
        self.applied = 0
        self.unchanged = 0
        self.rejected: list[Any] = []
        self.missing: dict[str, None] = {}

    def add(self, reply: dict[str, Any]) -> None:
        self.applied += reply.get("applied", 0)
        self.unchanged += reply.get("unchanged", 0)
        self.rejected += reply.get("rejected", [])
        # One request does not know what the others carry: missing is what none of them did.
        self.missing |= {id_: None for id_ in reply.get("missing", []) if id_ not in self._sent}

    def shown(self) -> dict[str, Any]:
        return {
            "applied": self.applied,
            "unchanged": self.unchanged,
            "rejected": self.rejected,
            "missing": list(self.missing),
        }
