"""Records to a terminal or a pipe: tables for people, JSON for programs. Must not know whose they are.

A job's secretEnvironment is in no table ever, and in JSON only when the caller asked for secrets.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

FORMATS = ("table", "json", "jsonl")

# What a table shows behind the id: fields, or a field of the lease.
RECORD_COLUMNS = ("status", "nodeId", "revision", "createdAt", "updatedAt", "command")
LEASE_COLUMNS = ("status", "lease.token", "lease.holder", "expiresAt", "command")
LOCK_COLUMNS = ("lease.holder", "lease.token", "expiresAt", "revision", "updatedAt")
_HEADINGS = {
    "nodeId": "NODE",
    "createdAt": "CREATED",
    "updatedAt": "UPDATED",
    "expiresAt": "EXPIRES",
    "lease.token": "TOKEN",
    "lease.holder": "HOLDER",
}
_CELL_CHARS = 40
_SUBSECOND = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+")
# ID first, however the kind calls it.
_ID_FIELDS = ("uuid", "id")


def chosen_format(given: str | None) -> str:
    """A table for a terminal, an object a line for a pipe, unless told otherwise."""
    return given or ("table" if sys.stdout.isatty() else "jsonl")


def show_one(record: dict[str, Any], format: str, secrets: bool = False) -> None:
    """A single record: a line a field, or one JSON object."""
    if format == "table":
        shown = visible(record)
        width = max((len(name) for name in shown), default=0)
        for name, value in shown.items():
            click.echo(f"{_plain(name):<{width}}  {_cell(value)}")
    else:
        _write_json(visible(record, secrets), indent=2 if format == "json" else None)


def show_value(value: Any, format: str) -> None:
    """What is no record, for programs: indented, or on one line."""
    _write_json(value, indent=2 if format == "json" else None)


def show_pages(
    pages: Iterable[list[dict[str, Any]]],
    format: str,
    secrets: bool = False,
    columns: Sequence[str] = RECORD_COLUMNS,
) -> None:
    """Many records, a page at a time as they arrive."""
    if format == "table":
        _show_records(pages, columns)
    elif format == "jsonl":
        for page in pages:
            for record in page:
                _write_json(visible(record, secrets))
    else:
        _show_array(pages, secrets)


def visible(record: dict[str, Any], secrets: bool = False) -> dict[str, Any]:
    """The record without its secrets. They are left out, not replaced: what is shown may be sent back."""
    return record if secrets else {name: value for name, value in record.items() if not _is_secret(name)}


def _is_secret(name: str) -> bool:
    return name.lower().replace("_", "") == "secretenvironment"


def _show_array(pages: Iterable[list[dict[str, Any]]], secrets: bool) -> None:
    before = "[\n"
    for page in pages:
        for record in page:
            click.echo(before, nl=False)
            _write_json(visible(record, secrets), newline=False)
            before = ",\n"
    click.echo("[]" if before == "[\n" else "\n]")


def _write_json(value: Any, indent: int | None = None, newline: bool = True) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        data = text.encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8, but JSON can spell it
        data = json.dumps(value, indent=indent).encode()
    click.echo(data, nl=newline)


def _show_records(pages: Iterable[list[dict[str, Any]]], columns: Sequence[str]) -> None:
    """Widths are those of the first page: later pages are not waited for."""
    headings = ["ID", *(_HEADINGS.get(name, name.upper()) for name in columns)]
    widths: list[int] = []
    for page in pages:
        rows = [_row(record, columns) for record in page]
        if not widths:
            widths = _widths([headings, *rows])
            click.echo(_table_line(headings, widths))
        for row in rows:
            click.echo(_table_line(row, widths))


def show_table(headings: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[str] = ()) -> None:
    """A table of anything; the columns named in `numbers` are set to the right."""
    table = [list(headings), *([_cell(value) for value in row] for row in rows)]
    widths = _widths(table)
    for line in table:
        set_right = [
            cell.rjust(width) if heading in numbers else cell
            for heading, cell, width in zip(headings, line, widths, strict=True)
        ]
        click.echo(_table_line(set_right, widths))


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _row(record: dict[str, Any], columns: Sequence[str]) -> list[str]:
    id_ = next((record[name] for name in _ID_FIELDS if name in record), "")
    cells = [_column(record, name) for name in columns]
    return [
        _plain(str(id_)),
        *(cell if len(cell) <= _CELL_CHARS else cell[: _CELL_CHARS - 1] + "…" for cell in cells),
    ]


def _column(record: dict[str, Any], name: str) -> str:
    field, _, below = name.partition(".")
    value = record.get(field)
    if below:
        value = value.get(below) if isinstance(value, dict) else None
        return "-" if value is None else _cell(value)
    return _cell(value) if field in record else "-"


def show_event(event: dict[str, Any], format: str) -> None:
    """One event on one line, whatever the format: a stream has no end that an array could be closed at."""
    if format == "table":
        click.echo(_fitting(_event_line(event)))
        return
    record = event.get("record")
    _write_json({**event, "record": visible(record)} if isinstance(record, dict) else event)


def _event_line(event: dict[str, Any]) -> str:
    """Time, type, id, from -> to, message."""
    moved = f"{event.get('from', '')} -> {event.get('to', '')}".strip() if "from" in event or "to" in event else ""
    said = [_cell(event[name]) for name in ("message", "data") if name in event]
    parts = [_cell(event.get("at", "")), f"{_plain(event.get('type', '')):<9}", _plain(event.get("id", "")), moved]
    return "  ".join(part for part in (*parts, *said) if part).rstrip()


def _table_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    line = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
    return _fitting(line)


def _fitting(line: str) -> str:
    """No longer than the terminal is wide."""
    most = shutil.get_terminal_size((0, 0)).columns if sys.stdout.isatty() else 0
    return line if not most or len(line) <= most else line[: most - 1] + "…"


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _plain(_SUBSECOND.sub(r"\1", text))


def _plain(text: str) -> str:
    """What came from outside must not move a terminal's cursor or break a row."""
    return text if text.isprintable() else ascii(text)[1:-1]
