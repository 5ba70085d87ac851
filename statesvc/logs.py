"""The log: one line an event, JSON off a terminal and readable on one, and never a secret in it.

Owns how lines look, what is hidden in them, and that nobody waits for whoever reads them. Must not know what the
daemon does. structlog takes longer to import than the rest of the start, so `configure` imports it; until then the
loggers that `get` hands out keep what they are told, within a bound, and `configure` writes it down with the time at
which it happened.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TextIO

HIDDEN = "[hidden]"

# Lines kept before `configure`. A start writes a handful; more means a loop, and its last lines tell enough.
EARLY_LINES = 100

# Lines that wait for a reader who stands still: some thousands, after the 64 KiB that a pipe holds.
WAITING_BYTES = 1024 * 1024

# What the lines that still wait at the end of the process may take.
FINISH_SECONDS = 1.0

# A pipe that can be written to takes so much without waiting: one page.
_AT_ONCE = select.PIPE_BUF

# A log value is a few fields. What is nested deeper was not meant for a log.
_DEEPEST = 6

# Compared in lower case without - and _. A lease's `token` is a fencing number, not a secret.
_SECRET_ENDINGS = (
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "accesskey",
    "privatekey",
    "accesstoken",
    "authtoken",
    "sessiontoken",
    "authorization",
    "credentials",
)


class _Line(NamedTuple):
    level: str
    event: str
    values: dict[str, Any]


_lock = threading.Lock()
_early: deque[_Line] = deque(maxlen=EARLY_LINES)
_early_dropped = 0
_write: Callable[[_Line], None] | None = None
_lines: _Lines | None = None


class Logger:
    """Takes an event (a few fixed words) and values by name. Free to make, safe at import time."""

    __slots__ = ("_bound", "_name")

    def __init__(self, name: str, bound: Mapping[str, Any]) -> None:
        self._name = name
        self._bound = dict(bound)

    def bind(self, **values: Any) -> Logger:
        """A logger that adds `values` to each of its lines."""
        return Logger(self._name, {**self._bound, **values})

    def debug(self, event: str, /, **values: Any) -> None:
        self._take("debug", event, values)

    def info(self, event: str, /, **values: Any) -> None:
        self._take("info", event, values)

    def warning(self, event: str, /, **values: Any) -> None:
        self._take("warning", event, values)

    def error(self, event: str, /, **values: Any) -> None:
        self._take("error", event, values)

    def exception(self, event: str, /, **values: Any) -> None:
        """An error, with the traceback of the exception being handled."""
        self._take("error", event, {**values, "exc_info": sys.exception()})

    def _take(self, level: str, event: str, values: dict[str, Any]) -> None:
        line = _Line(level, event, {"logger": self._name, **self._bound, **values})
        write = _write or _keep(line)
        if write is not None:
            write(line)


def get(name: str) -> Logger:
    return Logger(name, {})


def _keep(line: _Line) -> Callable[[_Line], None] | None:
    """Keeps the line for `configure`, or says who writes it: `configure` may just have run in a thread."""
    global _early_dropped  # noqa: PLW0603 - the early lines belong to the process, as the log does
    with _lock:
        if _write is not None:
            return _write
        _early_dropped += len(_early) == EARLY_LINES
        _early.append(line._replace(values={"timestamp": _now(), **line.values}))
    return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def configure(
    level: Literal["debug", "info", "warning", "error"] = "info",
    format: Literal["auto", "json", "text"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Write to `stream` (stderr) from here on, first what was kept. May be called again, and in a thread."""
    global _write, _lines, _early_dropped  # noqa: PLW0603 - see _keep
    lines = _Lines(sys.stderr if stream is None else stream)
    write = _writer(level, format, lines)
    with _lock:
        _write, _lines = write, lines
        early, dropped = list(_early), _early_dropped
        _early.clear()
        _early_dropped = 0
    if dropped:
        get(__name__).warning("early log lines dropped", count=dropped)
    for line in early:
        write(line)
    _take_in_other_libraries(level)


def is_configured() -> bool:
    return _write is not None


def finish() -> None:
    """The process is about to end: write what waits for a slow reader, within a moment."""
    if _lines is not None:
        _lines.finish(FINISH_SECONDS)


def _writer(level: str, format: str, lines: _Lines) -> Callable[[_Line], None]:
    import structlog

    on_terminal = lines.on_terminal
    as_text = format == "text" or (format == "auto" and on_terminal)
    sink = structlog.wrap_logger(
        lines,
        processors=[
            structlog.processors.add_log_level,
            hide_secrets,
            _in_reading_order,
            *(_text_form(on_terminal) if as_text else _json_form()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )

    def write(line: _Line) -> None:
        values = line.values if "timestamp" in line.values else {"timestamp": _now(), **line.values}
        try:
            getattr(sink, line.level)(line.event, **values)
        except Exception as problem:  # noqa: BLE001 - a line that cannot be written must not stop the work it tells of
            sink.error("log line could not be written", timestamp=_now(), problem=type(problem).__name__)

    return write


def _json_form() -> list[Any]:
    import structlog

    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


def _text_form(colors: bool) -> list[Any]:
    import structlog

    # repr_native_str: a text from outside is quoted, so that it cannot bring escape sequences to a terminal.
    return [
        structlog.dev.ConsoleRenderer(
            colors=colors,
            repr_native_str=True,
            sort_keys=False,
            exception_formatter=structlog.dev.plain_traceback,
        )
    ]


def _in_reading_order(_logger: Any, _method: str, values: Any) -> Any:
    first = {name: values[name] for name in ("timestamp", "level", "event", "logger") if name in values}
    return {**first, **values}


class _Lines:
    """The stream as structlog wants it: what is said is written at once, and never waited for.

    A reader that went away (a closed pipe) costs lines, nothing else. One that stands still (a full pipe) makes lines
    wait, for a thread to write them, within a bound. From the first one too many on they are dropped, until all that
    waited is written: so the line that tells how many were lost stands where they would have stood.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.on_terminal = stream.isatty()
        self._encoding = stream.encoding or "utf-8"
        self._has_descriptor = _has_descriptor(stream)
        self._lock = threading.RLock()  # telling of a loss is a line too
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None
        """Writes what waits; None when nothing does."""

    def debug(self, line: str) -> None:
        with self._lock:
            try:
                self._take(line + "\n")
            except (OSError, ValueError, RuntimeError):  # the last when there can be no more threads
                pass

    info = warning = error = debug

    def finish(self, seconds: float) -> None:
        """Give what waits so much time to be written."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _take(self, line: str) -> None:
        if not self._has_descriptor:
            self._stream.write(line)
            self._stream.flush()
            return
        data = line.encode(self._encoding, "backslashreplace")
        # A terminal with room for a letter says that it can be written to, and then makes whoever writes more wait. And
        # what is begun must have room to wait for its end.
        if self._thread is None and not self.on_terminal and len(data) <= WAITING_BYTES:
            data = _written_now(self._stream.fileno(), data)
        if data:
            self._let_wait(data)

    def _let_wait(self, data: bytes) -> None:
        if self._dropped or self._waiting_bytes + len(data) > WAITING_BYTES:
            self._dropped += 1
        else:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
        if self._thread is None:
            thread = threading.Thread(target=self._write_what_waits, name="statesvc-log", daemon=True)
            thread.start()
            self._thread = thread

    def _write_what_waits(self) -> None:
        while (data := self._next()) is not None:
            try:
                while data:
                    fd = self._stream.fileno()
                    _is_writable(fd, None)
                    data = _written_now(fd, data)
            except (OSError, ValueError):
                pass

    def _next(self) -> bytes | None:
        with self._lock:
            if self._dropped and not self._waiting:
                dropped, self._dropped = self._dropped, 0
                get(__name__).warning("log_lines_dropped", count=dropped)
            if not self._waiting:
                self._thread = None
                return None
            data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            return data


def _has_descriptor(stream: TextIO) -> bool:
    try:
        return stream.fileno() >= 0
    except (OSError, ValueError):
        return False


def _written_now(fd: int, data: bytes) -> bytes:
    """Write as much as does not have to be waited for; returns the rest.

    Not by O_NONBLOCK: the descriptor may be shared with other processes, which do not expect it.
    """
    while data and _is_writable(fd, 0):
        try:
            data = data[os.write(fd, data[:_AT_ONCE]) :]
        except BlockingIOError:  # somebody else has set it, or was faster
            break
    return data


def _is_writable(fd: int, milliseconds: int | None) -> bool:
    looking = select.poll()
    looking.register(fd, select.POLLOUT)
    return bool(looking.poll(milliseconds))


def hide_secrets(_logger: Any, _method: str, values: Any) -> Any:
    """Replaces the value of every name that stands for a secret, at any depth."""
    return _without_secrets(values, 0)


def _without_secrets(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        if depth > _DEEPEST:
            return HIDDEN
        return {
            name: HIDDEN if is_secret_name(name) else _without_secrets(part, depth + 1) for name, part in value.items()
        }
    # A named tuple, an exception's triple and the like keep their type: only plain lists are rebuilt.
    if type(value) in (list, tuple):
        return [_without_secrets(part, depth + 1) for part in value] if depth <= _DEEPEST else HIDDEN
    return value


def is_secret_name(name: object) -> bool:
    plain = str(name).lower().replace("-", "").replace("_", "")
    return plain.startswith("secret") or plain.endswith(_SECRET_ENDINGS)


class _Forward(logging.Handler):
    """What libraries (asyncio, for one) tell Python's own logging, as lines like ours."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else record.levelname.lower()
        logger = get(record.name)
        take = {"debug": logger.debug, "info": logger.info, "error": logger.error}.get(level, logger.warning)
        problem = record.exc_info[1] if record.exc_info else None
        take(record.getMessage(), **({"exc_info": problem} if problem else {}))


def _take_in_other_libraries(level: str) -> None:
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, _Forward)]:
        root.removeHandler(handler)
    root.addHandler(_Forward())
    root.setLevel(level.upper())
