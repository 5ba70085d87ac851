"""Statistics: counts by any field, durations, and the bound on distinct values."""

from __future__ import annotations

import pytest

from tests.socket.talking import Daemon, Talker


async def fill(daemon: Daemon, talker: Talker, *jobs: dict) -> None:
    for number, job in enumerate(jobs):
        await talker.ok("create", job={"uuid": f"job-{number}", **job})
    await daemon.caught_up()


async def test_records_are_counted_by_status_unless_told_otherwise(daemon: Daemon):
    client = await daemon.client(None)
    await fill(daemon, client, {"status": "RUNNING"}, {"status": "running"}, {"status": "QUEUED"}, {})
    reply = await client.ok("stats")
    assert (reply["total"], reply["counts"]) == (4, {"RUNNING": 2, "QUEUED": 1, "": 1})
    assert "truncated" not in reply


@pytest.mark.parametrize(
    ("by", "counts"),
    [
        ("nodeId", {"n1": 2, "n2": 1, "": 1}),
        ("NODEID", {"n1": 2, "n2": 1, "": 1}),
        ("/metadata/team", {"red": 1, "blue": 1, "": 2}),
        ("exitCode", {"0": 1, "1.5": 1, "true": 1, "": 1}),
        ("args", {'["a","b"]': 1, "": 3}),
        ("owner", {"": 4}),
    ],
)
async def test_any_field_can_be_counted_by(daemon: Daemon, by: str, counts: dict):
    client = await daemon.client(None)
    await fill(
        daemon,
        client,
        {"nodeId": "n1", "metadata": {"team": "red"}, "exitCode": 0},
        {"nodeId": "n1", "metadata": {"team": "blue"}, "exitCode": 1.5},
        {"nodeId": "n2", "exitCode": True, "args": ["a", "b"]},
        {},
    )
    reply = await client.ok("stats", by=by)
    assert (reply["total"], reply["counts"]) == (4, counts)


@pytest.mark.parametrize(
    ("given", "total"),
    [
        ({"nodeId": "n1"}, 2),
        ({"ids": ["job-0", "job-2", "nobody"]}, 2),
        ({"where": {"exitCode": 1}}, 1),
        ({"prefix": "x"}, 0),
    ],
    ids=str,
)
async def test_a_filter_says_what_is_counted(daemon: Daemon, given: dict, total: int):
    client = await daemon.client(None)
    await fill(daemon, client, {"nodeId": "n1"}, {"nodeId": "n1", "exitCode": 1}, {"nodeId": "n2"})
    assert (await client.ok("stats", filter=given))["total"] == total


async def test_how_long_records_waited_and_ran_is_measured(daemon: Daemon):
    client = await daemon.client(None)
    done = {"status": "COMPLETED", "createdAt": "2025-01-01T00:00:00Z", "startedAt": "2025-01-01T00:00:10Z"}
    jobs = [{**done, "completedAt": f"2025-01-01T00:{minute:02}:10Z"} for minute in range(1, 11)]
    running = {"status": "RUNNING", "createdAt": "2025-01-01T00:00:00Z", "startedAt": "2025-01-01T00:00:30Z"}
    await fill(daemon, client, *jobs, running, {"status": "QUEUED"})
    durations = (await client.ok("stats"))["durations"]
    run, wait = durations["run"], durations["wait"]
    assert (run["count"], run["mean"], run["max"]) == (10, 330.0, 600.0)
    assert run["p50"] == pytest.approx(300, rel=0.01)
    assert run["p90"] == pytest.approx(540, rel=0.01)
    assert run["p99"] == pytest.approx(600, rel=0.01)
    assert (wait["count"], wait["max"]) == (11, 30.0)
    assert wait["p50"] == pytest.approx(10, rel=0.01)


async def test_records_without_a_run_have_no_durations(daemon: Daemon):
    client = await daemon.client(None)
    await client.ok("create", kind="kv", record={"id": "a"})
    await daemon.caught_up()
    assert "durations" not in await client.ok("stats", kind="kv")


async def test_the_thousand_first_values_are_counted_one_by_one_and_the_rest_together(daemon: Daemon):
    client = await daemon.client(None)
    for start in (0, 550):
        records = [{"id": f"{start + number:04}", "value": f"v{start + number}"} for number in range(550)]
        await client.ok("sync", kind="kv", records=records)
    await daemon.caught_up()
    reply = await client.ok("stats", kind="kv", by="value")
    assert (reply["total"], reply["truncated"]) == (1100, True)
    assert reply["counts"].pop("*") == 100
    assert (len(reply["counts"]), set(reply["counts"].values())) == (1000, {1})


async def test_a_star_counts_records_by_kind_and_leaves_out_the_daemons_own(daemon: Daemon):
    client = await daemon.client(None)
    await fill(daemon, client, {"dedupeKey": "k"}, {})
    await client.ok("create", kind="kv", record={"id": "a"})
    await client.ok("create", kind="volume", record={"id": "a"})
    await client.ok("delete", kind="volume", id="a")
    await daemon.caught_up()
    reply = await client.ok("stats", kind="*")
    counts = {kind: number for kind, number in reply["counts"].items() if kind != "lock"}
    assert counts == {"job": 2, "kv": 1}
    assert reply["total"] == sum(reply["counts"].values())


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": "*", "by": "status"}, "neither filter nor by"),
        ({"kind": "*", "filter": {"status": "RUNNING"}}, "neither filter nor by"),
        ({"filter": {"colour": "red"}}, "unknown filter colour"),
        ({"filter": {"status": "RUNNING", "Status": "FAILED"}}, "status is given twice, in two spellings"),
        ({"kind": "Not A Kind"}, "kind must be"),
    ],
)
async def test_what_cannot_be_counted_is_refused(client: Talker, fields: dict, text: str):
    code, error = await client.refused("stats", **fields)
    assert (code, text in error) == ("bad_request", True)


async def test_mounts_of_a_volume_and_addresses_of_a_network_are_counted_along_their_index(daemon: Daemon):
    client = await daemon.client(None)
    for number in range(4):
        record = {"id": f"m{number}", "volume": "v1" if number < 3 else "v2"}
        await client.ok("create", kind="mount", record=record)
    await daemon.caught_up()
    page = await client.ok("list", kind="mount", filter={"where": {"volume": "v1"}}, count=True)
    assert (len(page["records"]), page["total"]) == (3, 3)
    assert (await client.ok("stats", kind="mount", by="volume"))["counts"] == {"v1": 3, "v2": 1}
