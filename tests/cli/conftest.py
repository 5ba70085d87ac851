"""A real daemon for the verbs to talk to, and sockets that misbehave in exact ways."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statesvc.config import sources
from tests.cli.running import START_SECONDS, Answer, Home, daemon, plain_environment, run


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch):
    """What is installed or exported on the machine that runs the tests is none of their business."""
    monkeypatch.setattr(sources, "USUAL_FILES", ())
    for name in os.environ.keys() - plain_environment().keys():
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def served(tmp_path_factory) -> Iterator[Path]:
    """The socket of a daemon that all tests share; each uses ids of its own."""
    path = tmp_path_factory.mktemp("served") / "s.sock"
    with daemon(path, "--backend", "memory"):
        yield path


@pytest.fixture
def ask(served) -> Callable[..., Answer]:
    """A verb against the shared daemon."""
    return lambda *words, stdin=None: run(*words, "--socket", str(served), stdin=stdin)


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def scripted(tmp_path) -> Iterator[Callable[..., Path]]:
    """A socket that answers one connection's requests with the given lines, then hangs up; None hangs."""
    path = tmp_path / "scripted.sock"
    listener = socket.socket(socket.AF_UNIX)
    release = threading.Event()
    threads: list[threading.Thread] = []

    def answer(lines: tuple[bytes | None, ...]) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, connection.makefile("rb") as requests:
            for line in lines:
                requests.readline()
                if line is None:
                    release.wait(START_SECONDS)
                    return
                connection.sendall(line)

    def script(*lines: bytes | None) -> Path:
        listener.bind(str(path))
        listener.listen()
        threads.append(threading.Thread(target=answer, args=(lines,)))
        threads[0].start()
        return path

    yield script
    release.set()
    listener.close()
    for thread in threads:
        thread.join(START_SECONDS)
