"""A daemon that does exactly what a test tells it, on a real Unix socket.

Owns the faults: replies dropped, refusals, silence, connections cut at a chosen place. Knows of records only what is
needed to tell whether a write happened once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Frame = dict[str, Any]

RETRYABLE = ("busy", "unavailable", "no_space", "internal")


class ScriptedDaemon:
    """Applies numbered writes once per (client, seq), acknowledges them in runs, and misbehaves on demand."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.epoch = "epoch-1"
        self.limits: Frame = {"frameBytes": 10 * 1024 * 1024, "requestsInFlight": 4096}
        self.hellos: list[Frame] = []
        self.frames: list[Frame] = []
        """Every write that arrived, resends included."""
        self.applied: dict[tuple[str, int], Frame] = {}
        self.order: list[int] = []
        """The seqs in the order they were applied."""
        self.records: dict[str, Frame] = {}
        self.tells: dict[str, Frame] = {}
        """What else is said to a call that writes, by its op."""
        self.failures: dict[int, list[Frame]] = {}
        """Replies to give to a seq instead of taking it, used up one by one."""
        self.cut_before: set[int] = set()
        """Seqs before which the connection is cut, each once."""
        self.cut_after: set[int] = set()
        """Seqs after which, applied but not acknowledged, the connection is cut, each once."""
        self.silent = False
        """Take and apply, but say nothing."""
        self.deaf = False
        """Do not even read."""
        self.thinking = False
        """Find answers to questions, but keep them back."""
        self.refuse_hello: Frame | None = None
        self.on_frame: Callable[[Frame], None] = lambda _: None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._links: set[asyncio.StreamWriter] = set()
        self._heard = asyncio.Event()
        self._owed: tuple[asyncio.StreamWriter, Frame] | None = None
        """The last write that silence has kept from being acknowledged."""
        self.thought: list[tuple[asyncio.StreamWriter, Frame]] = []
        """The answers that are kept back."""

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path, limit=64 * 1024 * 1024)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self.cut_all()
            await self._server.wait_closed()
            self._server = None

    def cut_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def cut_link(self) -> None:
        """Cut the connections of outboxes alone: those of calls stay."""
        for writer in self._links & self._writers:
            writer.transport.abort()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to have arrived."""
        async with asyncio.timeout(30):
            while not condition():
                self._heard.clear()
                await self._heard.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        client = ""
        each = True
        stopped = False
        try:
            while line := await reader.readline():
                if self.deaf:
                    await asyncio.Event().wait()
                frame = json.loads(line)
                if frame["op"] == "hello":
                    client, each = frame["client"], frame["ack"] == "each"
                    self.hellos.append(frame)
                    if not each:
                        self._links.add(writer)
                    self._say(writer, self.refuse_hello or self._welcome())
                elif "seq" in frame:
                    stopped = self._write(frame, client, writer, each=each, stopped=stopped)
                elif self.thinking:
                    self.thought.append((writer, self._read(frame)))
                else:
                    self._say(writer, self._read(frame))
                self.on_frame(frame)
                self._heard.set()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    def _welcome(self) -> Frame:
        return {"success": True, "protocol": 1, "epoch": self.epoch, "durability": "disk", "limits": self.limits}

    def _write(self, frame: Frame, client: str, writer: asyncio.StreamWriter, *, each: bool, stopped: bool) -> bool:
        seq = frame["seq"]
        if seq in self.cut_before:
            self.cut_before.discard(seq)
            raise ConnectionAbortedError
        self.frames.append(frame)
        if stopped:
            self._fail(writer, seq, {"code": "unavailable", "outcome": "not_applied"})
            return True
        planned = self.failures.get(seq)
        if planned:
            failure = planned.pop(0)
            self._fail(writer, seq, failure)
            return failure["outcome"] == "unknown" or failure["code"] in RETRYABLE
        self._apply(frame, client)
        if seq in self.cut_after:
            self.cut_after.discard(seq)
            self._heard.set()
            raise ConnectionAbortedError
        taken = {**self.tells.get(frame["op"], {}), "success": True} if each else {"success": True, "acked": seq}
        if not self.silent:
            self._say(writer, taken)
        else:
            self._owed = (writer, taken)
        return False

    def speak(self) -> None:
        """Say at last what silence has kept back."""
        self.silent = False
        if self._owed is not None:
            (writer, taken), self._owed = self._owed, None
            self._say(writer, taken)

    def answer(self) -> None:
        """Say at last what was thought."""
        self.thinking = False
        for writer, reply in self.thought:
            self._say(writer, reply)
        self.thought.clear()

    def _apply(self, frame: Frame, client: str) -> None:
        key = (client, frame["seq"])
        if key in self.applied:
            assert frame.get("again"), f"write {key} came twice without saying so"
            return
        self.applied[key] = frame
        self.order.append(frame["seq"])

    def _fail(self, writer: asyncio.StreamWriter, seq: int, failure: Frame) -> None:
        named = {"seq": seq} if failure.get("named", True) else {}
        self._say(writer, {"requestId": "", "success": False, "error": "as told", **failure, **named})

    def _read(self, frame: Frame) -> Frame:
        if frame["op"] == "list":
            wanted = frame.get("filter", {}).get("ids")
            found = [record for id, record in self.records.items() if wanted is None or id in wanted]
            return {"success": True, "jobs": found}
        record = self.records.get(frame.get("jobId", ""))
        if frame["op"] == "get" and record is None:
            return {"success": False, "code": "not_found", "error": "GET_ERROR: job not found"}
        return {"success": True, "job": record}

    def _say(self, writer: asyncio.StreamWriter, reply: Frame) -> None:
        writer.write(json.dumps(reply).encode() + b"\n")
