"""From a failure to one line on stderr and an exit code. Must not know which command failed.

Client verbs exit 1 for an error, 3 for not found, 4 for a conflict and 5 when the daemon is not available;
click exits 2 for a wrong usage. `serve` exits with the code its exception carries.
"""

from __future__ import annotations

import re

import click

from statesvc_client.errors import StateError

ERROR, NOT_FOUND, CONFLICT, UNAVAILABLE = 1, 3, 4, 5

# As in sysexits.h, for what is no failure of a request: problems in the data, a disk that fails, a lock lost, nothing
# to be had just now.
DATA_CORRUPT, IO_FAILURE, LEASE_LOST, NOTHING_FREE = 65, 74, 74, 75

EXIT_CODES = {
    "not_found": NOT_FOUND,
    "gone": NOT_FOUND,
    "conflict": CONFLICT,
    "exists": CONFLICT,
    "invalid_transition": CONFLICT,
    "lease_lost": CONFLICT,
    "unavailable": UNAVAILABLE,
    "busy": UNAVAILABLE,
    "no_space": UNAVAILABLE,
}

_OP_PREFIX = re.compile(r"^[A-Z]+_ERROR: ")


def exit_code_of(failure: Exception) -> int | None:
    """The code to exit with; None when click knows better, or when a bug should show its traceback."""
    if isinstance(failure, click.ClickException | click.exceptions.Exit):
        return None
    if isinstance(failure, StateError):
        return EXIT_CODES.get(failure.code, ERROR)
    code = getattr(failure, "exit_code", None)
    return code if isinstance(code, int) else None


def explained(failure: Exception) -> str:
    """`CODE: text` for what the daemon refused; the text alone, every line of it marked, for the rest."""
    if isinstance(failure, StateError):
        return _refusal(failure)
    return "\n".join(f"statesvc: {line}" for line in str(failure).splitlines() or [type(failure).__name__])


def _refusal(failure: StateError) -> str:
    line = f"{failure.code}: {_OP_PREFIX.sub('', failure.text)}"
    if isinstance(failure.record, dict) and "revision" in failure.record:
        line += f" (the record is at revision {failure.record['revision']})"
    if failure.outcome == "unknown":
        line += " (the outcome is unknown: get the record before you try again)"
    return line
