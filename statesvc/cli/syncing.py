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

Entry = tuple[str, dict[str, Any]]
"""A kind, and a record of it."""


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
        frames = Frames(session.greeting.get("limits"))
        for batch in [records] if mode == "replace" else frames.of(records):
            scope = {"nodeId": node} if node else None
            report.add(session.ask("sync", kind=talk.kind, mode=mode, scope=scope, **{talk.records: batch}))
    show_one(report.shown(), talk.format)
    if report.rejected:
        click.get_current_context().exit(CONFLICT)


class Frames:
    """Cuts records into requests well inside the limits of a frame, so that none holds up others for long."""

    RECORDS = 500
    BYTES = 1 << 20
    VALUES = 100_000

    def __init__(self, limits: dict[str, int] | None) -> None:
        given = limits or {}
        self._bytes = min(self.BYTES, given.get("frameBytes", self.BYTES) // 2)
        self._values = min(self.VALUES, given.get("frameValues", self.VALUES) // 2)

    def of(self, records: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """The records of one kind."""
        for _, batch in self.by_kind(("", record) for record in records):
            yield batch

    def by_kind(self, entries: Iterable[Entry]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Records of many kinds; a request has one, and no record twice."""
        batch: list[dict[str, Any]] = []
        names: set[Any] = set()
        size = values = 0
        kind = ""
        for its_kind, record in entries:
            text, name = json.dumps(record), str(record.get("uuid", record.get("id")))
            its_values = sum(map(text.count, ",[{"))
            full = len(batch) == self.RECORDS or size + len(text) > self._bytes or values + its_values > self._values
            if batch and (full or its_kind != kind or name in names):
                yield kind, batch
                batch, names, size, values = [], set(), 0, 0
            kind = its_kind
            batch.append(record)
            names.add(name)
            size, values = size + len(text), values + its_values
        if batch:
            yield kind, batch


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
