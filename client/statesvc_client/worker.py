"""Workers: a record that says who works, held by a lease as its heartbeat, with a state for each routine.

Owns registering, the status and the paths of routine state. Must not know queues or how leases are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import claiming
from .adapter_errors import LeaseHeld, NotCached
from .claiming import TTL_SECONDS
from .errors import InvalidTransition
from .face import Face, Record
from .greeting import boot_id
from .holding import AsyncHolding, BlockingHolding, Holding, OnLost
from .patch import lookup
from .writes import pointer

REGISTER_SECONDS = 60.0
"""How long a worker waits for its name: an earlier process of that name may have died with the lease held."""


class Routine:
    """The state of one routine of a worker. Writes are guarded by the worker's lease, and return at once."""

    def __init__(self, worker: _Worker, name: str) -> None:
        self._worker = worker
        self.name = name

    def get(self, key: str | None = None, default: Any = None) -> Any:
        """What is stored under a key, own writes included; without a key, everything, or None when nothing is."""
        names = ["state", self.name] if key is None else ["state", self.name, key]
        found = lookup(self._worker.record, names)
        return default if found is None else found

    def update(self, patch: Mapping[str, Any] | None = None, /, **values: Any) -> None:
        """Merge values in; None removes one, dicts merge."""
        self._worker.update({"state": {self.name: {**(patch or {}), **values}}})

    def set(self, key: str, value: Any) -> None:
        """Put a value in place of what is there, None and dicts too."""
        self._worker.update(set={pointer("state", self.name, key): value})

    def inc(self, key: str, amount: float = 1) -> None:
        """Add to a number. Adds up whoever else adds meanwhile: the daemon does it."""
        self._worker.update(inc={pointer("state", self.name, key): amount})

    def append(self, key: str, *values: Any) -> None:
        """Extend a list."""
        self._worker.update(append={pointer("state", self.name, key): list(values)})


class _Worker(Holding):
    """A worker of a name."""

    def __init__(
        self,
        store: Face,
        id: str,
        fields: Mapping[str, Any],
        *,
        status: str = "running",
        ttl: float = TTL_SECONDS,
        wait: float | None = REGISTER_SECONDS,
        on_lost: OnLost | None = None,
    ) -> None:
        super().__init__(store, "worker", id, on_lost)
        node = self._core.options.node_id
        self._fields = {"bootId": boot_id, **({} if node is None else {"nodeId": node}), **fields}
        self._first_status = status
        self._ttl = ttl
        self._wait = wait

    @property
    def record(self) -> Record:
        """The worker's record as this agent knows it, own writes included."""
        record = self._store.get(self.id, "worker")
        if record is None:
            raise NotCached(f"worker {self.id!r} was deleted")
        return record

    @property
    def status(self) -> str:
        return str(self.record.get("status"))

    def set_status(self, status: str) -> None:
        """starting, running, paused, draining, stopping, stopped or failed; the daemon knows which may follow."""
        self.update(status=status)

    @property
    def routines(self) -> dict[str, Any]:
        """The states of all routines."""
        state: dict[str, Any] = self.record.get("state") or {}
        return state

    def routine(self, name: str) -> Routine:
        return Routine(self, name)

    async def _enter(self) -> None:
        try:
            claimed = await self._claim({**self._fields, "status": self._first_status})
        except InvalidTransition:
            # An earlier process died in a state that does not lead here, while stopping for one.
            claimed = await self._claim(self._fields)
        if claimed is None:
            raise LeaseHeld(f"worker {self.id} is at work elsewhere; waited {self._wait:g} s for its name")
        self._hold(claimed.lease)
        if claimed.record.get("status") != self._first_status:
            self.update(status="stopped")
            self.update(status=self._first_status)

    async def _claim(self, fields: dict[str, Any]) -> claiming.Claimed | None:
        request = {"kind": "worker", "id": self.id, "holder": self.id, "record": fields}
        return await claiming.claim(self._core, request, self._ttl, self._wait)

    async def _end(self, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            await self._give_back({"error": claiming.told(error)}, status="failed")
        else:
            await self._give_back(status="stopped")


class Worker(_Worker, AsyncHolding):
    """`async with state.worker("worker-1") as worker:`"""

    async def stop(self, status: str = "stopped") -> None:
        """End by hand: the last status, and the lease given back."""
        await self._give_back(status=status)


class BlockingWorker(_Worker, BlockingHolding):
    """`with state.worker("worker-1") as worker:`"""

    def stop(self, status: str = "stopped") -> None:
        """End by hand: the last status, and the lease given back."""
        self._run(self._give_back(status=status))
