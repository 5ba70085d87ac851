"""serve, config, version, completion and the manual."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from statesvc import __version__, logs
from statesvc.cli import serve as serving
from statesvc.cli.app import COMMANDS, cli
from statesvc.cli.manual import manual
from statesvc.config import Settings, sources
from statesvc.config.model import leaves
from statesvc.config.sources import Loaded
from statesvc_client import wire
from tests.cli.running import daemon, plain_environment, run
from tests.users import not_root

DOCS = Path(__file__).parents[2] / "docs"


def serve(*flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "statesvc", "serve", *flags]
    return subprocess.run(
        command, env=plain_environment() | environ, capture_output=True, text=True, timeout=30, check=False
    )


def test_serve_announces_its_socket_and_a_line_to_try(tmp_path):
    path = tmp_path / "s.sock"
    with daemon(path, "--backend", "memory", "--announce") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"statesvc serves memory on {path}\n"
        line = process.stdout.readline()
        assert line.startswith("try: statesvc create job-1 ")
        assert run("create", "job-1", "--status", "PENDING", "--socket", line.split()[-1]).code == 0


def test_serve_says_nothing_on_standard_output_when_it_is_no_terminal(tmp_path):
    with daemon(tmp_path / "s.sock", "--backend", "memory") as process:
        process.terminate()
        assert process.communicate(timeout=20)[0] == ""
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ["--backend", "postgres"],
            "backend 'postgres' is not part of this version; known: memory, sqlite, redis, dynamodb",
        ),
        (
            ["--durability", "disc"],
            "durability: 'disc' is not allowed (flag --durability); it takes one of: disk, os",
        ),
        (["--log-level", "loud"], "log.level: 'loud' is not allowed (flag --log-level)"),
        (["--config", "/no/such.yml"], "/no/such.yml: there is no such configuration file (flag --config)"),
    ],
)
def test_serve_exits_78_and_names_what_is_wrong_with_the_configuration(flags, told):
    result = serve(*flags)
    assert result.returncode == 78
    assert result.stderr.startswith(f"statesvc: {told}")
    assert "Traceback" not in result.stderr


def test_serve_and_config_check_refuse_an_address_that_is_none_and_show_no_password(tmp_path):
    file = tmp_path / "c.yml"
    file.write_text("state: {backend: redis, storage: {redis: {endpoint: 'redis://:hunter2@db:6379'}}}\n")
    served, checked = serve("--config", str(file)), run("config", "check", str(file))
    for code, told in ((served.returncode, served.stderr), (checked.code, checked.err)):
        assert code == 78
        assert told.startswith("statesvc: storage.redis.endpoint: '...@db:6379' is not host:port; ")
        assert len(told.splitlines()) == 1


def test_serve_lists_every_problem_one_a_line():
    result = serve("--durability", "x", STATESVC_LIMITS__CLIENTS="none", STATESVC_NOSUCH="1")
    assert result.returncode == 78
    assert len(result.stderr.splitlines()) == 3


def test_serve_exits_75_in_one_line_when_another_daemon_is_there(served):
    result = serve("--socket", str(served), "--backend", "memory")
    assert result.returncode == 75
    assert len(result.stderr.splitlines()) == 1
    assert str(served) in result.stderr


def test_config_show_prints_every_key_with_its_value_and_origin(tmp_path, monkeypatch):
    file = tmp_path / "c.yml"
    file.write_text("state: {backend: memory}\n")
    monkeypatch.setenv("STATESVC_LIMITS__CLIENTS", "7")
    answer = run("config", "show", "--origin", "--config", str(file))
    lines = {line.split(":")[0]: line for line in answer.out.splitlines()}
    assert list(lines) == [key for key, _ in leaves()]
    assert lines["backend"].split() == ["backend:", '"memory"', "#", "file", str(file)]
    assert lines["limits.clients"].split() == [
        "limits.clients:",
        "7",
        "#",
        "environment",
        "STATESVC_LIMITS__CLIENTS",
    ]
    assert lines["durability"].split() == ["durability:", '"disk"', "#", "default"]
    as_json = json.loads(run("config", "show", "--origin", "-o", "json").out)
    assert as_json["limits.clients"] == {"value": 7, "origin": "environment STATESVC_LIMITS__CLIENTS"}
    assert json.loads(run("config", "show", "-o", "json").out)["limits.clients"] == 7


def test_config_show_never_prints_a_secret(monkeypatch):
    monkeypatch.setenv("STATESVC_STORAGE__REDIS__PASSWORD", "hunter2")
    for words in ([], ["--origin"], ["-o", "json"]):
        shown = run("config", "show", *words).out
        assert "hunter2" not in shown
        assert "[hidden]" in shown


def test_config_check_says_good_or_exits_78_with_every_problem(tmp_path):
    file = tmp_path / "c.yml"
    file.write_text("state: {backend: memory}\n")
    good = run("config", "check", str(file))
    assert (good.code, good.out) == (0, f"good: {file}\n")
    file.write_text("state: {limits: {clients: 0, depht: 1}}\n")
    bad = run("config", "check", str(file))
    assert bad.code == 78
    misspelt, wrong = bad.err.splitlines()
    assert misspelt == f"statesvc: limits.depht: unknown key (file {file}); did you mean limits.depth?"
    assert wrong.startswith(f"statesvc: limits.clients: 0 is not allowed (file {file}); it takes a whole number")
    assert run("config", "check").out == "good: no file, defaults and environment only\n"


def test_config_tells_the_usual_places_it_may_not_look_at_and_verbs_do_without_them(tmp_path, monkeypatch):
    place = tmp_path / "closed" / "statesvc.yml"
    place.parent.mkdir(mode=0o000)
    monkeypatch.setattr(sources, "USUAL_FILES", (place,))
    try:
        with not_root():
            checked, shown, asked = run("config", "check"), run("config", "show", "-o", "json"), run("ping")
    finally:
        place.parent.chmod(0o700)
    told = f"statesvc: {place}: not looked at, for want of permission\n"
    assert (checked.code, checked.out) == (0, "good: no file, defaults and environment only\n")
    assert checked.err == shown.err == told
    assert json.loads(shown.out)["backend"] == "sqlite"
    assert "/run/statesvc/statesvc.sock" in asked.err


def test_serve_tells_of_a_usual_place_it_may_not_look_at(tmp_path, monkeypatch):
    place = tmp_path / "statesvc.yml"
    monkeypatch.setattr(serving, "load", lambda *_, **__: Loaded(Settings(), {}, None, (place,)))
    monkeypatch.setattr(serving, "_run", lambda *_: 0)
    said: list[Any] = []
    monkeypatch.setattr(logs, "_write", said.append)
    assert run("serve").code == 0
    (line,) = said
    assert (line.level, line.event, line.values["path"]) == ("warning", "configuration_not_seen", str(place))


def test_version_is_that_of_the_package():
    assert run("version").out.startswith(f"statesvc {__version__} (protocol 1, Python 3.")


def test_the_protocol_spoken_is_that_of_the_client_package(served, monkeypatch):
    monkeypatch.setattr(wire, "PROTOCOL", 7)
    assert "(protocol 7, " in run("version").out
    refused = run("ping", "--socket", str(served))
    assert refused.code == 1
    assert "protocol 7 is not spoken here" in refused.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell):
    answer = run("completion", shell)
    assert answer.code == 0
    assert "_STATESVC_COMPLETE" in answer.out


def test_a_shell_completes_commands_options_and_values():
    def completed(words: str, index: int) -> str:
        environ = plain_environment() | {
            "_STATESVC_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(index),
        }
        command = [sys.executable, "-c", "from statesvc.cli import main; main()"]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout

    assert completed("statesvc up", 1) == "plain,update\n"
    assert completed("statesvc list --sort-by cr", 3) == "plain,createdAt\n"
    assert completed("statesvc serve --backend s", 3) == "plain,sqlite\n"


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_explains_itself(command):
    answer = run(command, "--help")
    assert answer.code == 0
    assert answer.out.startswith("Usage: statesvc ")


def test_the_manual_is_what_the_commands_say():
    assert (DOCS / "CLI.md").read_text() == manual(), "run: python -m statesvc.cli.manual > docs/CLI.md"


def every_command(command: click.Command) -> Iterator[click.Command]:
    """This one, and all below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from every_command(below)


def test_no_path_is_looked_at_before_it_is_used():
    """It may be gone between two looks: a name in a folder of all is anybody's for a moment."""
    paths = [
        (command.name, param.name, param.type)
        for command in every_command(cli)
        for param in command.params
        if isinstance(param.type, click.Path)
    ]
    assert {("serve", "socket"), ("serve", "data"), ("init", "data"), ("export", "file")} <= {
        (command, name) for command, name, _ in paths
    }
    assert [(command, name) for command, name, type_ in paths if type_.readable or type_.exists] == []
