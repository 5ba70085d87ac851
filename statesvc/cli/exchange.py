"""`statesvc export` and `statesvc import`: everything as JSON lines, {"kind": ..., "record": {...}} each.

Must not know how records are found or brought forward: an export is lists, an import is syncs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp
from typing import IO, Any

import click

from statesvc.cli import fields
from statesvc.cli.failures import CONFLICT
from statesvc.cli.options import Talk, talking
from statesvc.cli.output import show_table, show_value, visible
from statesvc.cli.progress import Meter
from statesvc.cli.session import Session
from statesvc.cli.syncing import Entry, Frames
from statesvc.process.folders import sync_folder

_PAGE = 1000

# What the daemon keeps about itself: it means nothing in another store.
_OWN_KIND = "_statesvc"

# One page or one frame of many records may take its time.
_TIMEOUT_SECONDS = 60.0


# --- export --------------------------------------------------------------------------------------------------------


@click.command("export")
@click.option("--kind", "kinds", multiple=True, help="Only this kind; give it again for more than one.")
@click.option("--secrets", is_flag=True, help="With secretEnvironment; the file is then for its owner alone.")
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(dir_okay=False, readable=False),
    default="-",
    help="The file; - is standard output.",
)
@talking(timeout=_TIMEOUT_SECONDS, prints=False)
def export_command(talk: Talk, *, kinds: tuple[str, ...], secrets: bool, file: str) -> None:
    """Print all records of all kinds as JSON lines.

    That is what import takes. The records are read page by page while others write: for the state at one moment,
    use snapshot save. A file gets its name when it is complete; a device or a pipe is written to as it is.
    """
    with talk.open() as session, _written(file, secrets) as out, Meter("exporting", "records") as meter:
        counts = _counts(session, kinds)
        done = 0
        for kind in sorted(counts):
            for page in _pages(session, kind):
                out.write(b"".join(_line(kind, record, secrets) for record in page))
                done += len(page)
                meter.told(done, max(done, sum(counts.values())))
    click.echo(f"exported {done:,} records", err=True)


def _counts(session: Session, kinds: tuple[str, ...]) -> dict[str, int]:
    counts: dict[str, int] = session.ask("stats", kind="*").get("counts") or {}
    if kinds:
        return {kind: counts.get(kind, 0) for kind in kinds}
    return {kind: count for kind, count in counts.items() if kind != _OWN_KIND}


def _pages(session: Session, kind: str) -> Iterator[list[dict[str, Any]]]:
    cursor = None
    limit = min(_PAGE, session.greeting.get("limits", {}).get("listLimit", _PAGE))
    while True:
        reply = session.ask("list", kind=kind, sortBy="id", sortDesc=False, limit=limit, cursor=cursor)
        yield reply.get("jobs", reply.get("records", []))
        cursor = reply.get("nextCursor")
        if not cursor:
            return


def _line(kind: str, record: dict[str, Any], secrets: bool) -> bytes:
    # Escaped to ASCII: a lone surrogate has no UTF-8, and would not survive otherwise.
    return json.dumps({"kind": kind, "record": visible(record, secrets)}, separators=(",", ":")).encode() + b"\n"


@contextmanager
def _written(file: str, secrets: bool) -> Iterator[IO[bytes]]:
    """Where to write to; a file has another name until all is well."""
    if file in ("-", "/dev/stdout"):
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif os.path.exists(file) and not os.path.isfile(file):
        # A device or a pipe is written to, not replaced.
        with _refusal_named(file):
            descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        with open(descriptor, "wb") as out:
            yield out
    else:
        # A link stays one: what it points to is replaced.
        with _replaced(os.path.realpath(file), secrets) as out:
            yield out


@contextmanager
def _replaced(file: str, secrets: bool) -> Iterator[IO[bytes]]:
    folder = os.path.dirname(file)
    with _refusal_named(file):
        descriptor, part = mkstemp(".part", os.path.basename(file), folder)
    try:
        with open(descriptor, "wb") as out:
            yield out
            out.flush()
            os.fsync(descriptor)
            os.fchmod(descriptor, 0o600 if secrets else 0o666 & ~_umask())
        os.replace(part, file)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    with _refusal_named(file):
        sync_folder(Path(folder))


@contextmanager
def _refusal_named(file: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise click.FileError(file, problem.strerror) from None


def _umask() -> int:
    os.umask(mask := os.umask(0o077))
    return mask


# --- import --------------------------------------------------------------------------------------------------------


@click.command("import")
@click.argument("file", type=click.File("rb"))
@click.option("--dry-run", is_flag=True, help="Read the whole file and count; change nothing, ask no daemon.")
@talking(timeout=_TIMEOUT_SECONDS)
def import_command(talk: Talk, *, file: IO[bytes], dry_run: bool) -> None:
    """Bring in the records of an export.

    FILE is - for standard input. What is missing is made, with the times it had; what moved on in the file is
    updated; what the daemon knows better is rejected and named on stderr. Leases do not come along. Doing it again
    changes nothing. Exits 4 when some were rejected.
    """
    reports: dict[str, _Report] = {}
    if dry_run:
        for kind, _ in _entries(file):
            reports.setdefault(kind, _Report()).records += 1
    else:
        with talk.open() as session, Meter("importing", "records") as meter:
            _bring_in(session, _entries(file), reports, meter)
    _show(reports, talk.format, dry_run)
    if any(report.rejected for report in reports.values()):
        click.get_current_context().exit(CONFLICT)


class _Report:
    """What became of the records of one kind."""

    def __init__(self) -> None:
        self.records = 0
        self.applied = 0
        self.unchanged = 0
        self.rejected = 0

    def add(self, sent: int, reply: dict[str, Any]) -> None:
        self.records += sent
        self.applied += reply.get("applied", 0)
        self.unchanged += reply.get("unchanged", 0)
        self.rejected += len(reply.get("rejected") or [])


def _entries(file: IO[bytes]) -> Iterator[Entry]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield _entry(line, f"{fields.name_of(file)}, line {number}")


def _entry(line: bytes, where: str) -> Entry:
    try:
        value = fields.strict_json(line)
    except ValueError as problem:
        raise click.UsageError(f"{where}: not JSON: {problem}") from None
    kind, record = (value.get("kind"), value.get("record")) if isinstance(value, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(record, dict):
        raise click.UsageError(f'{where}: must be {{"kind": ..., "record": {{...}}}}, as export makes them')
    return kind, record


def _bring_in(session: Session, entries: Iterable[Entry], reports: dict[str, _Report], meter: Meter) -> None:
    frames = Frames(session.greeting.get("limits"))
    done = 0
    for kind, records in frames.by_kind(entries):
        reply = session.ask("sync", kind=kind, **{"jobs" if kind == "job" else "records": records})
        reports.setdefault(kind, _Report()).add(len(records), reply)
        for rejected in reply.get("rejected") or []:
            name = rejected.get("jobId", rejected.get("id"))
            click.echo(f"{kind} {name}: {rejected.get('code')}: {rejected.get('error')}", err=True)
        done += len(records)
        meter.told(done, 0)


def _show(reports: dict[str, _Report], format: str, dry_run: bool) -> None:
    names = ("records",) if dry_run else ("records", "applied", "unchanged", "rejected")
    told = {kind: {name: getattr(report, name) for name in names} for kind, report in sorted(reports.items())}
    if format == "table":
        headings = ["KIND", *(name.upper() for name in names)]
        show_table(headings, [[kind, *counts.values()] for kind, counts in told.items()], headings[1:])
    else:
        show_value(told, format)
