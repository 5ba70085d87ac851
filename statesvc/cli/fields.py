"""What people type as name=value, and files of records, to JSON values. Must not know what they are for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import IO, Any

import click

from statesvc_client.patch import shown, steps
from statesvc_client.spelling import SECRET


def value_of(text: str) -> Any:
    """JSON when it is JSON (42, true, null, {"a": 1}, "42"), otherwise the text itself."""
    try:
        return strict_json(text)
    except ValueError:
        return text


def strict_json(text: str | bytes) -> Any:
    """JSON without the NaN and Infinity that Python adds to it."""
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def pairs(given: Iterable[str], read: Callable[[str], Any] = value_of, option: str | None = None) -> dict[str, Any]:
    """name=value, each; the first = ends the name."""
    result: dict[str, Any] = {}
    for each in given:
        name, sign, text = each.partition("=")
        if not sign or not name:
            raise click.UsageError(f"{f'{option}: ' if option else ''}{each!r} is not of the form name=value")
        try:
            result[name] = read(text)
        except ValueError:
            path = shown(steps(name))
            told = "what was given" if path == SECRET else repr(text)
            raise click.UsageError(f"{option or path}: {told} is not what {path} can take") from None
    return result


def number(text: str) -> int | float:
    value = strict_json(text)
    if type(value) not in (int, float):
        raise ValueError(f"{text!r} is not a number")
    return value  # type: ignore[no-any-return]


def items(text: str) -> list[Any]:
    """What to append: a JSON list is its items, anything else is one item."""
    value = value_of(text)
    return value if isinstance(value, list) else [value]


def name_of(file: IO[bytes]) -> str:
    return str(getattr(file, "name", "the input"))


def record_in(file: IO[bytes]) -> dict[str, Any]:
    """The one JSON object a file holds."""
    try:
        value = strict_json(file.read())
    except ValueError as problem:
        raise click.UsageError(f"{name_of(file)}: not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise click.UsageError(f"{name_of(file)}: must hold one JSON object, a record")
    return value


def records_in(file: IO[bytes]) -> list[dict[str, Any]]:
    """The records of a file: a JSON array, an object with `jobs` or `records`, or an object a line."""
    text = file.read()
    try:
        value = strict_json(text)
    except ValueError:
        value = _lines(text, name_of(file))
    if isinstance(value, dict):
        value = next((value[name] for name in ("jobs", "records") if name in value), [value])
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise click.UsageError(f"{name_of(file)}: must hold records: a JSON array of objects, or an object a line")
    return value


def _lines(text: bytes, name: str) -> list[Any]:
    values = []
    for number_, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                values.append(strict_json(line))
            except ValueError as problem:
                raise click.UsageError(f"{name}, line {number_}: not JSON: {problem}") from None
    return values
