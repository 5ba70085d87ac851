"""What an agent sees of the package: its names, its signatures, its weight."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import statesvc_client
from statesvc_client import Job, NotCached, StateStore, blocking
from statesvc_client.backoff import Backoff
from tests.client.conftest import RealDaemon, held, plain_environment


@pytest.fixture
def offline() -> StateStore:
    """A store that was not entered: writes wait, the cache shows them."""
    return StateStore.connect("/nonexistent/statesvc.sock")


def test_importing_the_package_takes_in_neither_asyncio_nor_the_adapter():
    script = "import sys, statesvc_client\nprint([name for name in ('asyncio', 'msgspec') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], env=plain_environment(), capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_had():
    for name in statesvc_client.__all__:
        assert getattr(statesvc_client, name) is not None
    with pytest.raises(AttributeError):
        statesvc_client.no_such_name  # noqa: B018


def test_both_faces_offer_the_same():
    def names(face: type) -> set[str]:
        return {name for name in dir(face) if not name.startswith("_")}

    assert names(blocking.StateStore) - names(StateStore) == {"start"}
    assert names(StateStore) <= names(blocking.StateStore)


def test_fields_come_as_keywords_as_a_dict_or_both(offline):
    offline.create({"uuid": "j", "a": 1})
    offline.update("j", b=2)
    offline.update("j", {"c": 3})
    offline.update("j", {"d": 4, "a": None}, e=5)
    offline.update("j", Job(uuid="j", f=6))
    assert offline.get("j") == {"uuid": "j", "b": 2, "c": 3, "d": 4, "e": 5, "f": 6}


def test_a_field_may_have_any_name(offline):
    offline.create({"uuid": "j"})
    offline.update("j", id=1, patch=2, self=3, fields=4, more=5)
    offline.update("j", {"set": 1, "inc": 2, "append": 3, "upsert": 4, "kind": 5, "if_revision": 6})
    assert held(offline, "j") == {
        "uuid": "j", "id": 1, "patch": 2, "self": 3, "fields": 4, "more": 5,
        "set": 1, "inc": 2, "append": 3, "upsert": 4, "kind": 5, "if_revision": 6,
    }  # fmt: skip


def test_counters_and_lists_have_short_forms(offline):
    offline.create({"uuid": "j"})
    offline.increment("j", tries=1)
    offline.increment("j", {"/deep/n": 2}, tries=1)
    offline.append("j", log=["a"])
    offline.append("j", {"log": ["b"]})
    assert held(offline, "j") == {"uuid": "j", "tries": 2, "deep": {"n": 2}, "log": ["a", "b"]}


def test_mistakes_are_told_where_they_are_made(offline):
    with pytest.raises(TypeError, match="mapping of fields"):
        offline.create("job-1")
    with pytest.raises(TypeError, match="name is a string"):
        offline.update("j", {1: 2})
    with pytest.raises(TypeError, match="goes into the patch"):
        offline.update("j", inc=5)
    with pytest.raises(ValueError, match="needs an uuid"):
        offline.create({"status": "PENDING"})
    with pytest.raises(ValueError, match="when_full"):
        StateStore.connect("/x", when_full="drop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="107 bytes"):
        StateStore.connect("/x" * 100)
    with pytest.raises(ValueError, match="needs data"):
        StateStore.spawn("sqlite")
    with pytest.raises(TypeError):
        StateStore.connect("/x", no_such_option=1)  # type: ignore[call-arg]
    assert offline.counters.queued == 0


def test_a_store_that_knows_nothing_says_so(offline):
    with pytest.raises(NotCached):
        offline.get("j")
    with pytest.raises(LookupError):
        offline.get("j", "volume")
    assert (len(offline), list(offline), "j" in offline, bool(offline)) == (0, [], False, True)


def test_counters_are_a_snapshot(offline):
    before = offline.counters
    offline.create({"uuid": "j"})
    assert (before.queued, offline.counters.queued, offline.counters["queued"]) == (0, 1, 1)


def test_back_off_doubles_its_range_up_to_the_cap_and_starts_over():
    backoff = Backoff(0.05, 5.0, draw=lambda: 1.0)
    waits = [backoff.next() for _ in range(10)]
    assert waits[:4] == [0.05, 0.1, 0.2, 0.4]
    assert waits[-1] == 5.0
    backoff.reset()
    assert backoff.next() == 0.05
    assert Backoff(0.05, 5.0, draw=lambda: 0.0).next() == 0.0


def test_it_runs_on_uvloop_too(daemon: RealDaemon):
    uvloop = pytest.importorskip("uvloop")

    async def agent() -> int:
        async with StateStore.connect(daemon.path, connect_seconds=30) as state:
            state.create({"uuid": "j"})
            for _ in range(500):
                state.increment("j", n=1)
            await state.flush(30)
            return int((await state.call("get", jobId="j"))["job"]["n"])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(agent()) == 500


async def test_another_kind_has_the_short_forms_too(scripted):
    async with StateStore.connect(scripted.path, connect_seconds=30, kinds=("job", "volume"), warm=False) as state:
        volumes = state.kind("volume")
        volumes.create({"id": "v"})
        volumes.increment("v", uses=2)
        state.increment("v", uses=1, kind="volume")
        volumes.append("v", {"users": ["a"]})
        state.append("v", users=["b"], kind="volume")
        assert volumes.get("v") == {"id": "v", "uses": 3, "users": ["a", "b"]}
        assert await volumes.fetch("v") == volumes.get("v")
