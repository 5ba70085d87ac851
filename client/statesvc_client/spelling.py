"""How known fields are spelled: one table for both sides.

Owns the names of the fields a kind knows and finding them in any case. Must not know what a field means. The daemon
puts known names right before it stores a record; the client does the same when a write is made, so that its cache shows
what will be stored and a change of `Status` is taken for what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from .errors import BadRequest
from .wire import printable

MANAGED = frozenset(
    {
        "uid", "revision", "createdAt", "updatedAt", "startedAt", "completedAt",
        "expiresAt", "lease", "cancelRequested",
    }
)  # fmt: skip
"""Fields the daemon writes; a client's are ignored."""

SECRET = "secretEnvironment"  # noqa: S105 - the name of a field, not a secret
"""Shown to whoever reads the record, and nowhere else."""

COMMON = (*sorted(MANAGED), "status", "nodeId", "owner", "labels", SECRET)
"""Fields every kind knows, beside its id."""

QUEUE_FIELDS = (
    "priority", "scheduledAt", "startAfter", "dependsOn", "onDependencyFailure", "timeout", "maxRetries",
    "retryCount", "retryDelay", "dedupeKey",
)  # fmt: skip
"""Fields the queue of a kind goes by."""

JOB_FIELDS = (
    "uuid", "name", "type", "command", "args", "pid", "exitCode", "error", "environment",
    "startTime", "endTime", "scheduledTime", "cgroupPath", "limits", "network", "volumes", "runtime", "uploads",
    "workingDirectory", "workflowUuid", "dependencies", "gpuIndices", "gpuCount", "gpuMemoryMb", "tags",
    *QUEUE_FIELDS, "metadata", "data",
)  # fmt: skip

FIELDS_OF: Mapping[str, tuple[str, ...]] = {
    "job": JOB_FIELDS,
    "task": ("name", "type", "handler", "result", "error", *QUEUE_FIELDS, "metadata", "data"),
    "volume": ("name", "type", "size", "path", "usedBytes", "freeBytes", "totalBytes"),
    "mount": ("volume", "path", "readOnly"),
    "network": ("name", "type", "cidr", "bridge", "gateway", "reserved"),
    "ip": ("network", "address"),
    "worker": ("flowId", "bootId", "state"),
    "kv": ("value",),
    "lock": ("info",),
    "operation": ("info", "error"),
}
"""Fields a declared kind knows beside those every kind knows."""

JOB_ID_ALIASES = ("jobId", "job_uuid")

MOST_FINE, LONGEST_FINE = 4096, 64
"""Names remembered for each kind, and how long they may be: they come from clients, so there is a bound."""


class Spelling(NamedTuple):
    """The known names of a kind."""

    known: frozenset[str]
    """In their own spelling."""
    by_lower_case: Mapping[str, str]
    fine: set[str]
    """Names that need no other spelling, as far as they were met: the known ones, and a number of others."""

    def of(self, name: str) -> str:
        return name if name in self.known else self.by_lower_case.get(name.lower(), name)

    def of_fields(self, given: dict[str, Any]) -> dict[str, Any]:
        """The same fields with known names in their own spelling; the very same dict when they are."""
        fine = self.fine
        if given.keys() <= fine:
            return given
        for name in given:
            if name not in self.known and name.lower() in self.by_lower_case:
                return self._renamed(given)
        if len(fine) < MOST_FINE:
            fine.update(islice((name for name in given if len(name) <= LONGEST_FINE), MOST_FINE - len(fine)))
        return given

    def _renamed(self, given: dict[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, value in given.items():
            known = self.of(name)
            if known in fields:
                raise BadRequest(f"{printable(known)} is given twice, in two spellings")
            fields[known] = value
        return fields

    def of_path(self, path: str) -> str:
        """The same path, a name or a JSON Pointer, with a known top-level name in its own spelling."""
        if not path.startswith("/"):
            return self.of(path)
        top, slash, rest = path[1:].partition("/")
        return f"/{self.of(top)}{slash}{rest}"


@cache
def spelling(id_field: str, fields: tuple[str, ...] = (), id_aliases: tuple[str, ...] = ()) -> Spelling:
    """Kinds that know the same names share one: the others may be named by clients."""
    known = frozenset({id_field, *COMMON, *fields})
    by_lower_case = {name.lower(): name for name in known}
    return Spelling(known, by_lower_case | {alias.lower(): id_field for alias in id_aliases}, set(known))


JOB = spelling("uuid", JOB_FIELDS, JOB_ID_ALIASES)
PLAIN = spelling("id")
_DECLARED = {"job": JOB} | {name: spelling("id", fields) for name, fields in FIELDS_OF.items() if name != "job"}


def of_kind(kind: str) -> Spelling:
    return _DECLARED.get(kind, PLAIN)
