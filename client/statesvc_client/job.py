"""Job: a record written down with keywords instead of a dict.

Owns nothing but that convenience. Must not know the lifecycle: the daemon checks what a status may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType


class Job(Mapping[str, Any]):
    """The fields that were given, and no others: `Job(uuid="job-1", status="PENDING", command="echo hi")`.

    Any further keyword is a field of the user's own. Reads like a mapping and by attribute.
    """

    __slots__ = ("_fields",)

    def __init__(
        self,
        uuid: str,
        status: str | UnsetType = UNSET,
        command: str | UnsetType = UNSET,
        **fields: Any,
    ) -> None:
        given = {"uuid": uuid, "status": status, "command": command, **fields}
        self._fields = {name: value for name, value in given.items() if value is not UNSET}

    def to_dict(self) -> dict[str, Any]:
        return dict(self._fields)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Any:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "_fields")[name]
        except KeyError:
            raise AttributeError(f"this job was given no field {name!r}") from None

    def __repr__(self) -> str:
        # Not every field: a job may carry secrets, and a repr ends up in logs.
        status = f", status={self._fields['status']!r}" if "status" in self._fields else ""
        return f"Job(uuid={self._fields['uuid']!r}{status}, {len(self._fields)} fields)"
