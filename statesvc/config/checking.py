"""One value against one annotation of the model: the value in its final type, or what would be allowed.

Must not know any key by name, nor where a value came from. The checking itself is msgspec's, in its strict
mode: "yes" is not a number, true is not 1, and 12 is not a text; whoever wrote that in a file meant something
else. What is added is the words: what is allowed, not only that something was not.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from statesvc.config.model import Secret

_BOOLEANS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


class Unfit(Exception):
    """The value is not what the annotation asks for; the text says what is."""


def checked(annotation: Any, value: Any) -> Any:
    """`value` as the type `annotation` names, or Unfit."""
    try:
        if isinstance(value, str | Path):
            # Bytes that are no UTF-8 come from flags and the environment as half characters, which nobody can send on.
            str(value).encode()
        return msgspec.convert(value, annotation, strict=True, dec_hook=_own_type)
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise Unfit(described(annotation)) from None


def _own_type(wanted: type, value: Any) -> Any:
    if wanted is Path and isinstance(value, Path):
        value = str(value)
    if isinstance(value, str) and (wanted is Secret or (value and "\0" not in value)):
        return wanted(value)
    raise ValueError


def from_text(annotation: Any, text: str) -> Any:
    """What a text from the environment stands for; an unreadable one stays text, and `checked` refuses it."""
    kinds = _kinds(annotation)
    if get_origin(annotation) is tuple:
        return _list_from_text(get_args(annotation)[0], text)
    if get_origin(annotation) is Mapping:
        return _read(msgspec.json.decode, text)
    if types.NoneType in kinds and not text:
        return None
    if bool in kinds:
        return _BOOLEANS.get(text.lower(), text)
    if int in kinds:
        return _read(int, text)
    return _read(float, text) if float in kinds else text


def _list_from_text(item: Any, text: str) -> Any:
    if text.lstrip().startswith("["):
        return _read(msgspec.json.decode, text)
    return [from_text(item, part.strip()) for part in text.split(",") if part.strip()]


def _read(reader: Any, text: str) -> Any:
    try:
        return reader(text)
    except (ValueError, RecursionError):
        return text


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """The plain types inside: that of a number or text, or those of each choice."""
    if get_origin(annotation) is Annotated:
        return (get_args(annotation)[0],)
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(kind for part in get_args(annotation) for kind in _kinds(part))
    return (annotation,)


_PLAIN = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    Secret: "a text (put it in quotes)",
    types.NoneType: "null",
}


def described(annotation: Any) -> str:
    """What is allowed, in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return parts[1].description or f"{_PLAIN[parts[0]]} from {parts[1].ge:.12g} to {parts[1].le:.12g}"
    if origin is Literal:
        return "one of: " + ", ".join(parts)
    if origin in (Union, types.UnionType):
        return " or ".join(described(part) for part in parts)
    if origin is tuple:
        return f"a list, each item {described(parts[0])}"
    if origin is Mapping:
        return f"a mapping of names, each to {described(parts[1])}"
    return _PLAIN[annotation]
