"""What the tests of the seeds ask again and again, and how they wait without sleeping for luck."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from tests.socket.talking import PATIENCE, Daemon, Json, Talker

Found = TypeVar("Found")


async def until(look: Callable[[], Awaitable[Found]], what: str) -> Found:
    """Look again and again until there is something; the deadline is a failure."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not (found := await look()):
        assert asyncio.get_running_loop().time() < deadline, f"still waiting for: {what}"
        await asyncio.sleep(0.02)
    return found


def a_time(seconds: float = 0.0) -> str:
    """Now, or so many seconds from now, as the wire has it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


async def called(daemon: Daemon, name: str) -> Talker:
    """A connection whose `hello` gave a name for people: whoever claims on it holds under that name."""
    talker = await daemon.talker()
    await talker.hello(f"client of {name}", name=name)
    return talker


async def record(client: Talker, kind: str, id: str) -> Json:
    reply = await client.ok("get", kind=kind, id=id)
    found: Json = reply["job"] if kind == "job" else reply["record"]
    return found


async def job(client: Talker, id: str) -> Json:
    return await record(client, "job", id)


async def ids(client: Talker, kind: str = "job", **fields: Any) -> list[str]:
    """The ids a list finds, in its order."""
    reply = await client.ok("list", kind=kind, **fields)
    return [found["uuid"] for found in reply["jobs"]] if kind == "job" else [one["id"] for one in reply["records"]]


async def total(client: Talker, kind: str, **filter: Any) -> int:
    """How many records a filter lets pass."""
    reply = await client.ok("list", kind=kind, filter=filter, count=True, limit=1)
    counted: int = reply["total"]
    return counted


async def claim(client: Talker, kind: str = "job", **fields: Any) -> Json | None:
    """The one record a claim got, or None."""
    reply = await client.ok("claim", kind=kind, **{"holder": "holder-1", **fields})
    found: list[Json] = reply["jobs"] if kind == "job" else reply["records"]
    assert len(found) <= 1
    return found[0] if found else None


async def taken(client: Talker, kind: str = "job", **fields: Any) -> Json:
    """The one record a claim has to get."""
    found = await claim(client, kind, **fields)
    assert found is not None, f"nothing could be claimed: {kind} {fields}"
    return found


async def token(client: Talker, kind: str = "job", **fields: Any) -> int:
    """The fencing token of a claim that has to succeed."""
    given: int = (await taken(client, kind, **fields))["lease"]["token"]
    return given


async def has_status(client: Talker, id: str, status: str, kind: str = "job") -> Json:
    """The record, once it has come to this status; the daemon is asked to do its duties meanwhile."""

    async def look() -> Json | None:
        await client.ok("sweep")
        found = await record(client, kind, id)
        return found if found["status"] == status else None

    found = await until(look, f"{kind} {id} to become {status}")
    assert found is not None
    return found


async def followed(client: Talker, **fields: Any) -> str:
    """Begin a watch on this connection; the cursor it begins at."""
    begun: str = (await client.ok("watch", requestId="w", **fields))["cursor"]
    return begun


async def event(client: Talker) -> Json:
    """The next event of the watch on this connection."""
    line = await client.receive()
    assert "event" in line, line
    happened: Json = line["event"]
    return happened


async def history(client: Talker, id: str, kind: str = "job") -> list[Json]:
    events: list[Json] = (await client.ok("history", kind=kind, id=id))["events"]
    return events


async def submit(client: Talker, name: str, **fields: Any) -> Json:
    reply = await client.ok("create", job={"uuid": name, "status": "QUEUED", **fields})
    submitted: Json = reply["job"]
    return submitted


async def run(client: Talker, status: str = "COMPLETED", **fields: Any) -> Json:
    """What a worker does with the next job: take it, end it."""
    held = await taken(client)
    reply = await client.ok("release", jobId=held["uuid"], token=held["lease"]["token"], status=status, **fields)
    ended: Json = reply["job"]
    return ended
