"""What the log writes, what it hides, and what it keeps until it is configured."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO

import pytest

from statesvc import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class BrokenPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch):
    """Each test starts as a process does, and leaves Python's own logging as it was."""
    monkeypatch.setattr(logs, "_write", None)
    logs._early.clear()
    monkeypatch.setattr(logs, "_early_dropped", 0)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    logs._early.clear()


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_off_a_terminal_a_line_is_json_with_time_level_event_logger_and_values():
    stream = io.StringIO()
    logs.configure("info", "auto", stream)
    logs.get("statesvc.server").bind(client=7).info("client gone", bytes=12, path="/x")
    (line,) = lines(stream)
    assert list(line) == ["timestamp", "level", "event", "logger", "client", "bytes", "path"]
    assert line["timestamp"].endswith("Z")
    del line["timestamp"]
    assert line == {
        "level": "info",
        "event": "client gone",
        "logger": "statesvc.server",
        "client": 7,
        "bytes": 12,
        "path": "/x",
    }


def test_on_a_terminal_a_line_is_for_people():
    stream = Terminal()
    logs.configure("info", "auto", stream)
    logs.get("statesvc.server").info("serving", socket="/run/x")
    text = stream.getvalue()
    assert "serving" in text
    assert "/run/x" in text
    assert not text.startswith("{")


def test_the_format_can_be_chosen_against_the_terminal():
    on_terminal, off_terminal = Terminal(), io.StringIO()
    logs.configure("info", "json", on_terminal)
    logs.get("x").info("a")
    logs.configure("info", "text", off_terminal)
    logs.get("x").info("b")
    assert lines(on_terminal)[0]["event"] == "a"
    assert off_terminal.getvalue().count("\n") == 1
    assert "\x1b" not in off_terminal.getvalue()


def test_text_from_outside_cannot_bring_escape_sequences_or_new_lines():
    for form in ("text", "json"):
        stream = io.StringIO()
        logs.configure("info", form, stream)
        logs.get("x").info("refused", id="a\x1b[2Jb\nlevel=error")
        assert "\x1b" not in stream.getvalue()
        assert stream.getvalue().count("\n") == 1


def test_lines_below_the_level_are_left_out():
    stream = io.StringIO()
    logs.configure("warning", "json", stream)
    log = logs.get("x")
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    assert [line["event"] for line in lines(stream)] == ["w", "e"]


def test_what_is_said_before_configure_comes_out_with_its_own_time_and_by_its_level():
    log = logs.get("early")
    log.debug("too fine")
    log.info("first")
    before = logs._now()
    assert not logs.is_configured()
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    log.info("second")
    first, second = lines(stream)
    assert (first["event"], second["event"]) == ("first", "second")
    assert first["timestamp"] <= before <= second["timestamp"]


def test_early_lines_are_bounded_and_the_loss_is_told():
    log = logs.get("early")
    for number in range(logs.EARLY_LINES + 5):
        log.info("line", number=number)
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    written = lines(stream)
    assert len(written) == logs.EARLY_LINES + 1
    assert (written[0]["event"], written[0]["count"]) == ("early log lines dropped", 5)
    assert written[-1]["number"] == logs.EARLY_LINES + 4


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize(
    "name",
    [
        "password",
        "redis_password",
        "secret",
        "secretKey",
        "secretEnvironment",
        "secret_environment",
        "api_key",
        "Authorization",
        "aws-session-token",
    ],
)
def test_the_value_of_a_secret_name_never_appears_at_any_depth(form, name):
    stream = io.StringIO()
    logs.configure("info", form, stream)
    logs.get("x").info("a", **{name: "hunter2"}, record={"inner": [{name: {"K": "hunter2"}}]})
    logs.get("x").bind(**{name: "hunter2"}).info("b")
    assert "hunter2" not in stream.getvalue()
    assert logs.HIDDEN in stream.getvalue()


def test_a_fencing_token_is_not_a_secret():
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    logs.get("x").info("claimed", token=42)
    assert lines(stream)[0]["token"] == 42


def test_something_nested_too_deep_is_hidden_rather_than_walked():
    deep: dict = {}
    deep["self"] = deep
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    logs.get("x").info("deep", value=deep)
    assert logs.HIDDEN in stream.getvalue()


def test_an_exception_is_written_with_its_traceback():
    for form in ("json", "text"):
        stream = io.StringIO()
        logs.configure("info", form, stream)
        try:
            raise RuntimeError("it broke")
        except RuntimeError:
            logs.get("x").exception("commit failed", file="log.db")
        assert "RuntimeError: it broke" in stream.getvalue()
        assert "test_logs.py" in stream.getvalue()


def test_values_of_any_type_can_be_logged(tmp_path):
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    logs.get("x").info("odd", path=tmp_path, raw=b"\xff", lone="\ud800", some={1, 2})
    assert lines(stream)[0]["path"] == str(tmp_path)


def test_a_value_that_cannot_be_shown_does_not_stop_the_work():
    class Stubborn:
        def __str__(self) -> str:
            raise RuntimeError

    stream = io.StringIO()
    logs.configure("info", "json", stream)
    logs.get("x").info("odd", value=Stubborn())
    assert lines(stream)[0]["event"] == "log line could not be written"


def test_a_reader_that_went_away_does_not_stop_the_work():
    logs.configure("info", "json", BrokenPipe())
    logs.get("x").info("nobody reads this")


# --- a reader that stands still ---------------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[tuple[IO[str], IO[str]]]:
    """Both ends of one: what is read and what is written."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as out, os.fdopen(writing, "w") as into:
        yield out, into


def say_much() -> None:
    """A thousand lines: more than any pipe or terminal holds."""
    for number in range(1000):
        logs.get("x").info("said", number=number, pad="x" * 500)


def test_nobody_waits_for_a_reader_that_stands_still_and_it_gets_every_line_in_order(pipe):
    out, into = pipe
    logs.configure("info", "json", into)
    say_much()
    assert [json.loads(out.readline())["number"] for _ in range(1000)] == list(range(1000))
    logs.finish()
    logs.get("x").info("afterwards")
    assert json.loads(out.readline())["event"] == "afterwards"


def test_a_line_longer_than_a_pipe_holds_comes_whole(pipe):
    out, into = pipe
    logs.configure("info", "json", into)
    logs.get("x").info("said", pad="x" * 300_000)
    logs.get("x").info("afterwards")
    assert len(json.loads(out.readline())["pad"]) == 300_000
    assert json.loads(out.readline())["event"] == "afterwards"


def test_lines_beyond_the_bound_are_dropped_and_counted_where_they_are_missing(pipe, monkeypatch):
    monkeypatch.setattr(logs, "WAITING_BYTES", 20_000)
    out, into = pipe
    logs.configure("info", "json", into)
    say_much()
    kept = []
    while (line := json.loads(out.readline()))["event"] == "said":
        kept.append(line["number"])
    assert kept == list(range(len(kept)))
    assert (line["event"], line["level"], line["count"]) == ("log_lines_dropped", "warning", 1000 - len(kept))
    logs.get("x").info("afterwards")
    assert json.loads(out.readline())["event"] == "afterwards"


def test_nobody_waits_for_a_terminal_that_stands_still_either():
    """It says that it can be written to as soon as it has room for a letter."""
    reading, writing = pty.openpty()
    with os.fdopen(reading) as out, os.fdopen(writing, "w") as into:
        logs.configure("info", "json", into)
        say_much()
        assert [json.loads(out.readline())["number"] for _ in range(1000)] == list(range(1000))
        logs.finish()


def test_a_line_beyond_the_bound_is_dropped_whole_and_told(pipe, monkeypatch):
    monkeypatch.setattr(logs, "WAITING_BYTES", 100_000)
    out, into = pipe
    logs.configure("info", "json", into)
    logs.get("x").info("said", pad="x" * 200_000)
    assert json.loads(out.readline())["event"] == "log_lines_dropped"
    logs.finish()
    logs.get("x").info("afterwards")
    assert json.loads(out.readline())["event"] == "afterwards"


def test_a_reader_that_stood_still_and_went_away_does_not_stop_the_work(pipe):
    out, into = pipe
    logs.configure("info", "json", into)
    say_much()
    out.close()
    logs.finish()
    logs.get("x").info("nobody reads this")


def test_libraries_that_use_pythons_logging_come_out_as_lines_like_ours():
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    logs.configure("info", "json", stream)
    logging.getLogger("asyncio").warning("Executing %s took long", "x")
    (line,) = lines(stream)
    assert (line["level"], line["logger"]) == ("warning", "asyncio")
    assert line["event"] == "Executing x took long"


def test_a_logger_costs_no_import_of_structlog():
    program = "import sys; from statesvc import logs; logs.get('a').info('b'); print('structlog' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"


def test_a_line_said_while_another_thread_configures_is_written_once():
    stream = io.StringIO()
    log = logs.get("x")
    configuring = threading.Thread(target=logs.configure, args=("info", "json", stream))
    configuring.start()
    said = 0
    while configuring.is_alive() and said < logs.EARLY_LINES:
        log.info("said", number=said)
        said += 1
    configuring.join()
    assert sorted(line["number"] for line in lines(stream)) == list(range(said))
