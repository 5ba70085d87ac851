"""Daemons as processes, several on one namespace.

Owns how a fleet is started and ended, and how settings get to it. Must not know what is done with it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from statesvc import backends
from statesvc.config.model import Secret, assemble
from tests.daemon.harness import Daemon, until
from tests.dynamodb import servers as dynamodb

Values = Mapping[str, Any]
"""Settings by dotted name."""


def daemon(folder: Path, backend: str, values: Values, *flags: str, env: Mapping[str, str] | None = None) -> Daemon:
    """One daemon, not started, that lives in `folder`."""
    folder.mkdir(mode=0o700, exist_ok=True)
    settings = {name.replace(".", "__"): _text(value) for name, value in values.items()}
    if backend != "sqlite":
        settings.setdefault("data", str(folder / "data"))
    return Daemon(folder, "--log-format", "json", *flags, backend=backend, settings=settings, env=dict(env or {}))


def _text(value: Any) -> str:
    return value.reveal() if isinstance(value, Secret) else str(value)


@contextmanager
def fleet(
    folder: Path, backend: str, values: Values, number: int, *, env: Mapping[str, str] | None = None
) -> Iterator[list[Daemon]]:
    """So many daemons that serve one namespace; killed in the end if they are still there."""
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(daemon(folder / str(place), backend, values, env=env)) for place in range(number)
        ]
        for each in daemons:
            each.start()
        for each in daemons:
            each.wait_for_ping()
            until(each._serves, "the engine to open")
        yield daemons


# --- what they share -------------------------------------------------------------------------------------------------


def a_namespace() -> str:
    """One that nobody else uses."""
    return f"t-{uuid.uuid4().hex[:12]}"


def dynamodb_values(endpoint: str, **more: Any) -> dict[str, Any]:
    """Settings that reach an endpoint, with tables of their own, made as `statesvc init` makes them."""
    tables = dynamodb.own_tables()
    given = {"endpoint": endpoint, "region": dynamodb.REGION, "table_name": tables.jobs, **more}
    values = {f"storage.dynamodb.{name}": value for name, value in given.items()}
    asyncio.run(_make_tables({**values, "backend": "dynamodb"}))
    return values


async def _make_tables(values: Values) -> None:
    engine = backends.make(assemble(values))
    try:
        await engine.prepare(dry_run=False)
    finally:
        await engine.close()
