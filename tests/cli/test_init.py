"""init: what an engine needs is looked at or made; people get a table, programs JSON, scripts an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

from statesvc.backends.memory import MemoryEngine
from statesvc.backends.port import Step
from statesvc.config import Settings
from statesvc.config.sources import as_plain
from statesvc_client.errors import Unavailable
from tests.cli.running import run
from tests.dynamodb import servers as dynamodb_servers
from tests.engines import places
from tests.users import not_root


def test_memory_needs_nothing():
    assert run("init", "--backend", "memory", "-o", "table").out == "memory needs nothing\n"
    answer = run("init", "--backend", "memory")
    assert (answer.code, answer.record) == (0, {"backend": "memory", "steps": []})


def test_a_dry_run_on_sqlite_makes_nothing_and_says_what_is_missing(tmp_path):
    folder = tmp_path / "state"
    answer = run("init", "--data", str(folder), "--dry-run")
    assert answer.code == 1
    (step,) = answer.record["steps"]
    assert (step["what"], step["state"]) == (f"the folder {folder}", "missing")
    assert not folder.exists()


def test_init_makes_the_folder_of_sqlite_once(tmp_path):
    folder = tmp_path / "state"
    states = []
    for words in ((), (), ("--dry-run",)):
        answer = run("init", "--data", str(folder), *words)
        assert answer.code == 0
        states += [step["state"] for step in answer.record["steps"]]
    assert states == ["made", "there", "there"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path, words):
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o777)
    answer = run("init", "--data", str(folder), *words)
    assert answer.code == 73
    assert "others may write to the data folder" in answer.err


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_a_folder_that_this_user_may_not_use_is_refused(socket_folder, words):
    (socket_folder / "data").mkdir(mode=0o000)
    socket_folder.chmod(0o755)
    with not_root():
        told = run("init", "--data", str(socket_folder / "data"), *words)
    assert told.code == 73
    assert "may not read and write in the data folder" in told.err


def test_the_engine_of_the_configuration_file_is_prepared(tmp_path):
    file = tmp_path / "statesvc.yml"
    file.write_text(f"state:\n  backend: sqlite\n  data: {tmp_path / 'there'}\n")
    assert run("init", "--config", str(file)).code == 0
    assert (tmp_path / "there").is_dir()


def test_a_bad_configuration_exits_78(tmp_path):
    assert run("init", "--backend", "postgres").code == 78
    assert run("init", "--config", str(tmp_path / "none.yml")).code == 78


class Prepared(MemoryEngine):
    """An engine with needs of its own."""

    steps: ClassVar[list[Step] | Exception] = []
    asked: ClassVar[list[bool]] = []

    async def prepare(self, *, dry_run: bool) -> list[Step]:
        self.asked.append(dry_run)
        if isinstance(self.steps, Exception):
            raise self.steps
        return self.steps


@pytest.fixture
def prepared(monkeypatch):
    monkeypatch.setattr("statesvc.backends.make", lambda _: Prepared())

    def prepare(*steps: Step) -> None:
        monkeypatch.setattr(Prepared, "steps", list(steps))
        monkeypatch.setattr(Prepared, "asked", [])

    return prepare


@pytest.mark.parametrize(
    ("states", "code"),
    [(["there", "made"], 0), (["there", "missing"], 1), (["missing", "wrong"], 65), (["wrong", "there"], 65)],
)
def test_the_exit_code_tells_how_it_stands(prepared, states, code):
    prepared(*(Step(f"table {place}", state) for place, state in enumerate(states)))
    answer = run("init", "--dry-run")
    assert answer.code == code
    assert [step["state"] for step in answer.record["steps"]] == states
    assert Prepared.asked == [True]


def test_people_get_a_table(prepared):
    prepared(Step("table joblet-jobs", "missing", "key jobId"), Step("table joblet-jobs-statesvc", "there"))
    assert run("init", "--dry-run", "-o", "table").out.splitlines() == [
        "STATE    WHAT                        DETAIL",
        "missing  table joblet-jobs           key jobId",
        "there    table joblet-jobs-statesvc",
    ]


def test_an_engine_that_is_away_exits_69(prepared, monkeypatch):
    prepared()
    monkeypatch.setattr(Prepared, "steps", Unavailable("nobody answers at host:1"))
    answer = run("init")
    assert (answer.code, answer.err) == (69, "statesvc: nobody answers at host:1\n")


# --- on real servers -----------------------------------------------------------------------------------------------


def file_for(settings: Settings, path: Path) -> Path:
    """A configuration file that says the same, as far as it is about the engine."""
    plain = {key: value for key, value in as_plain(settings).items() if value not in (None, "", [])}
    section = {key.rpartition(".")[2]: value for key, value in plain.items() if f".{settings.backend}." in key}
    path.write_text(json.dumps({"state": {"backend": settings.backend, "storage": {settings.backend: section}}}))
    return path


@pytest.mark.parametrize("place", [places.namespace, places.tables], ids=["redis", "dynamodb"])
def test_what_a_dry_run_finds_missing_is_made_once(place, tmp_path):
    file = str(file_for(place(), tmp_path / "statesvc.yml"))
    before = run("init", "--config", file, "--dry-run")
    assert before.code == 1, before.err
    assert run("init", "--config", file, "--dry-run").record == before.record, "a dry run changes nothing"
    missing = {step["what"] for step in before.record["steps"] if step["state"] == "missing"}
    made = run("init", "--config", file)
    assert made.code == 0, made.err
    assert missing <= {step["what"] for step in made.record["steps"] if step["state"] == "made"}
    after = run("init", "--config", file, "--dry-run")
    assert (after.code, {step["state"] for step in after.record["steps"]}) == (0, {"there"})


def test_a_dry_run_on_dynamodb_prints_tables_indexes_ttl_and_the_policies(tmp_path):
    settings = places.tables()
    tables = (settings.storage.dynamodb.table_name, settings.storage.dynamodb.companion_table)
    file = str(file_for(settings, tmp_path / "statesvc.yml"))
    assert run("init", "--config", file).code == 0
    answer = run("init", "--config", file, "--dry-run")
    whats = [step["what"] for step in answer.record["steps"]]
    for table in tables:
        assert f"table {table}" in whats
        assert f"index status-createdAt-index of {table}" in whats
    assert f"time to live of {tables[0]}" in whats
    (statement,) = answer.record["policies"]["daemon"]["Statement"]
    assert "dynamodb:PutItem" in statement["Action"]
    assert {resource.rpartition("table/")[2] for resource in statement["Resource"]} == {
        name for table in tables for name in (table, f"{table}/index/*")
    }
    assert "dynamodb:CreateTable" not in statement["Action"]
    shown = run("init", "--config", file, "--dry-run", "-o", "table").out
    assert "IAM policy for the daemon:" in shown
    assert '"dynamodb:CreateTable"' in shown.partition("IAM policy for statesvc init:")[2]


@pytest.mark.parametrize("backend", ["redis", "dynamodb"])
def test_an_engine_where_nobody_listens_exits_69(backend, tmp_path, monkeypatch):
    monkeypatch.setenv("STATESVC_STORAGE__REDIS__ENDPOINT", str(tmp_path / "none.sock"))
    monkeypatch.setenv("STATESVC_STORAGE__DYNAMODB__ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("STATESVC_STORAGE__DYNAMODB__REGION", "us-east-1")
    monkeypatch.setenv("STATESVC_STORAGE__DYNAMODB__TIMEOUT_SECONDS", "0.2")
    monkeypatch.setenv("STATESVC_STORAGE__REDIS__TIMEOUT_SECONDS", "0.2")
    for name, value in dynamodb_servers.environment().items():
        monkeypatch.setenv(name, value)
    answer = run("init", "--backend", backend)
    assert answer.code == 69, answer.err
    assert len(answer.err.splitlines()) == 1
