"""F3: a damaged store given to the real daemon: what it ends with, or what it serves.

Owns the conversation. Must not know where the damage is.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.daemon.harness import Client, Daemon, until
from tests.faults.flips_reading import KEYS, Content, Expected, Named, Verdict
from tests.faults.flips_stores import CLIENT, RESENT

CORRUPT = 65

SORTS = ("createdAt", "updatedAt", "startedAt", "completedAt", "scheduledAt", "priority", "status", "id")
FILTERS: tuple[dict[str, Any], ...] = (
    {}, {"status": "PENDING"}, {"nodeId": "n1"}, {"owner": "me"}, {"labels": {"of": "a"}}, {"prefix": "t"},
)  # fmt: skip


def as_a_process(data: Path, folder: Path, expected: Expected) -> Verdict:
    """Start the daemon on a folder of data; `folder` is for its socket and what it says."""
    folder.mkdir(mode=0o700)
    try:
        with Daemon(folder, data=data) as daemon:
            daemon.start()
            until(lambda: daemon.process is None or daemon.process.poll() is not None or _answers(daemon), "an answer")
            if daemon.process is not None and daemon.process.poll() is not None:
                return _ended(daemon)
            with daemon.connect() as client:
                found = read_socket(client)
            return _judged(daemon, found, expected)
    finally:
        shutil.rmtree(folder)


def _answers(daemon: Daemon) -> bool:
    try:
        with daemon.connect() as client:
            return client.ask("get", jobId="nobody").get("code") != "unavailable"
    except (OSError, ConnectionError):
        return False


def _ended(daemon: Daemon) -> Verdict:
    code, told = daemon.exit_code(), daemon.events("data_corrupt")
    if code == CORRUPT and told:
        return Verdict("refused", str(told[0]))
    return Verdict("WRONG", f"ended with {code}: {daemon.stderr[-300:]}")


def read_socket(client: Client) -> Content:
    """Every record, every order, every history, and a write that is sent again."""
    assert client.hello(CLIENT)["success"]
    found: Content = {}
    for kind, name in KEYS:
        found[f"record {kind} {name}"] = client.ask("get", kind=kind, id=name)
        found[f"history {kind} {name}"] = client.ask("history", kind=kind, id=name)
    for sort in SORTS:
        for descending in (False, True):
            found[f"list {sort} {descending}"] = client.ask("list", sortBy=sort, sortDesc=descending, count=True)
    for query in FILTERS:
        found[f"list {query}"] = client.ask("list", filter=query)
    client.send({**RESENT, "again": True})
    found["sent again"] = client.reply()
    return {name: _told(reply) for name, reply in found.items()}


def _told(reply: dict[str, Any]) -> Any:
    if reply.get("code") in ("internal", "unavailable"):
        return Named(str(reply["error"]))
    # A cursor names where the list was made, and that is all the log knows: it must be the same too.
    return {name: value for name, value in reply.items() if name not in ("requestId", "now")}


def _judged(daemon: Daemon, found: Content, expected: Expected) -> Verdict:
    torn = sum(line["bytes"] for line in daemon.events("torn_tail") if line["file"] == "log.db")
    against = expected.torn if expected.torn is not None and torn == expected.torn_bytes else expected.whole
    wrong = [name for name, value in found.items() if not isinstance(value, Named) and value != against[name]]
    if wrong:
        return Verdict("WRONG", f"{', '.join(wrong)}: {found[wrong[0]]} instead of {against[wrong[0]]}"[:600])
    if any(isinstance(value, Named) for value in found.values()):
        return Verdict("reported", next(value.text for value in found.values() if isinstance(value, Named)))
    if against is not expected.whole:
        return Verdict("torn tail", f"{torn} bytes")
    warned = [name for name in ("state_made_again", "watermark_damaged", "torn_tail") if daemon.events(name)]
    return Verdict("repaired", ", ".join(warned)) if warned else Verdict("no effect")
