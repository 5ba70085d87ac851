"""Pages of a list, taken from a daemon that others write to meanwhile."""

from __future__ import annotations

import threading

import pytest

from tests.daemon.harness import Client, Daemon, serving

JOBS = 1500


def write_meanwhile(daemon: Daemon, place: int, stop: threading.Event) -> None:
    """Touch the records that are counted; create and delete others. Moves between states: see tests/socket."""
    with daemon.connect() as client:
        client.hello()
        number = 0
        while not stop.is_set():
            number += 1
            name, other = f"job-{(number * 37 + place) % JOBS:04d}", f"other-{place}-{number}"
            client.send(
                {"op": "update", "jobId": name, "inc": {"touched": 1}, "job": {"labels": {"at": str(number)}}},
                {"op": "create", "job": {"uuid": other, "status": "PENDING"}},
                {"op": "delete", "jobId": other if number % 2 else "nobody"},
            )
            for _ in range(3):
                client.reply()


def pages(client: Client, **fields: object) -> list[str]:
    """The ids of all pages, in the order they came."""
    found: list[str] = []
    cursor: dict[str, object] = {}
    while True:
        page = client.ask("list", limit=70, **fields, **cursor)
        assert page["success"], page
        found += [job["uuid"] for job in page["jobs"]]
        if "nextCursor" not in page:
            return found
        cursor = {"cursor": page["nextCursor"]}


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_pages_by_creation_and_by_id_neither_skip_nor_repeat_while_others_write(folder, backend):
    with serving(folder, backend=backend) as daemon, daemon.connect() as client:
        client.hello()
        client.send(*({"op": "create", "job": {"uuid": f"job-{n:04d}", "status": "PENDING"}} for n in range(JOBS)))
        assert all(client.reply()["success"] for _ in range(JOBS))
        stop = threading.Event()
        writers = [threading.Thread(target=write_meanwhile, args=(daemon, place, stop)) for place in range(2)]
        for writer in writers:
            writer.start()
        try:
            for order in ({}, {"sortDesc": False}, {"sortBy": "id"}, {"filter": {"status": "PENDING"}}):
                found = pages(client, **order)
                assert len(found) == len(set(found)), f"repeated: {order}"
                assert {f"job-{n:04d}" for n in range(JOBS)} <= set(found), f"skipped: {order}"
        finally:
            stop.set()
            for writer in writers:
                writer.join()
