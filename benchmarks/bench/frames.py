"""Jobs of about 200 bytes, and the frames that carry them, as bytes made beforehand.

Owns what is sent. Must not know who sends it. A frame is open: `{"op":…` without its closing brace, so that whoever
sends it can number it as the adapter does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

TEAMS = 20
NODES = 10
STATES = ("PENDING", "RUNNING", "COMPLETED", "FAILED")
PAGE = 100
"""Records of a list page."""


def job(number: int, status: str = "PENDING", **more: Any) -> dict[str, Any]:
    """What an agent knows of a job, without its id."""
    return {
        "command": "python", "args": ["train.py", "--epochs", "10"], "status": status,
        "nodeId": f"node-{number % NODES}", "labels": {"team": f"t{number % TEAMS}", "env": "prod"}, "priority": 5,
        "image": "ml:1.2.3", "resources": {"cpu": 2, "memory": 4096}, **more,
    }  # fmt: skip


def compact(value: object) -> bytes:
    return msgspec.json.encode(value)


def body(id: str, number: int, status: str = "PENDING", **more: Any) -> bytes:
    """The job as it is kept, in any store."""
    return compact({"uuid": id, **job(number, status, **more)})


def create(id: str, number: int, status: str = "PENDING", **more: Any) -> bytes:
    return b'{"op":"create","jobId":"%b","job":%b' % (id.encode(), body(id, number, status, **more))


def update(id: str, status: str = "RUNNING") -> bytes:
    """A change of status, with what an agent learns at that moment."""
    return b'{"op":"update","jobId":"%b","job":{"status":"%b","pid":4242}' % (id.encode(), status.encode())


def progress(id: str, number: int) -> bytes:
    """A change that may come at any time."""
    return b'{"op":"update","jobId":"%b","job":{"progress":%d}' % (id.encode(), number)


def get(id: str) -> bytes:
    return b'{"op":"get","jobId":"%b"' % id.encode()


def page(**filter: Any) -> bytes:
    return b'{"op":"list","limit":%d,"filter":%b' % (PAGE, compact(filter))


def every_index() -> list[bytes]:
    """Pages by everything that is compared: engines make some indexes when they are first asked for."""
    return [page(status="PENDING"), page(nodeId="node-1"), page(labels={"team": "t1"}), page()]


def creates(ids: Iterable[str]) -> list[bytes]:
    return [create(id, number) for number, id in enumerate(ids)]


def names(prefix: str, round: int, count: int) -> list[str]:
    """Ids nobody has used in an earlier round."""
    return [f"{prefix}-{round}-{number}" for number in range(count)]
