"""Where the time of a request goes: the tool that tells it works on the hot path as it is."""

from __future__ import annotations

import json

import pytest

from benchmarks import stages

OPS = ("create", "update", "get")


def test_every_stage_is_measured_beside_the_whole_on_both_local_engines():
    costs = stages.measured(requests=128, rounds=1)
    assert all(cost >= 0 for cost in costs.values())
    assert {f"{op}: the whole, {backend}" for op in OPS for backend in ("memory", "sqlite")} <= costs.keys()
    assert {"framing", "create: decode", "create: decide", "update: of that, marks", "reply"} <= costs.keys()


def test_it_is_told_as_a_table_and_to_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(stages, "measured", lambda *_: {"framing": 0.25, "create: decode": 2.5})
    monkeypatch.setattr("sys.argv", ["stages"])
    stages.main()
    assert "create: decode" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["stages", "-o", "json"])
    stages.main()
    assert json.loads(capsys.readouterr().out) == {"framing": 0.25, "create: decode": 2.5}
