"""The one error of this package, and the words it uses. Must not know how values are found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from statesvc.addresses import without_login

_SHOWN_CHARS = 80


class BadConfiguration(Exception):
    """Everything that is wrong with the configuration, one problem a line."""

    exit_code = 78

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def unknown_key(key: str, origin: str, known: Iterable[str]) -> str:
    nearest = nearest_key(key, known)
    advice = f"; did you mean {nearest}?" if nearest else ""
    return f"{key if key.isprintable() else repr(key)}: unknown key ({origin}){advice}"


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """The known key most like `key`, by its whole name or, when in the wrong section, by its last part."""
    import difflib

    by_name = {each: each for each in known}
    if close := difflib.get_close_matches(key, by_name, 1, 0.75):
        return close[0]
    by_last_part = {each.rpartition(".")[2]: each for each in by_name}
    close = difflib.get_close_matches(key.rpartition(".")[2], by_last_part, 1, 0.75)
    return by_last_part[close[0]] if close else None


def unfit_value(key: str, value: Any, allowed: str, origin: str, secret: bool) -> str:
    return f"{key}: {'[hidden]' if secret else shown(value)} is not allowed ({origin}); it takes {allowed}"


def shown(value: Any) -> str:
    """A value as it may be printed: short, on one line, and nothing of it that may be a password in an address."""
    text = repr(without_login(str(value))) if not isinstance(value, bool | int | float | None) else str(value).lower()
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
