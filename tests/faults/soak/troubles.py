"""What is done to the daemon, one a minute: each a bounded thing, with the answer it must get.

Owns the faults a daemon has to live through in one process; what ends it is done to another one (victim.py). Must not
know the load beside it, but whose connections can be cut and that there is an agent to kill.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tests.daemon.harness import Daemon, refused
from tests.faults.bad_lines import LINES
from tests.faults.soak.agency import Agency
from tests.faults.soak.findings import Tally
from tests.faults.soak.working import NOTE, PLOT, TASK, Crew
from tests.fleet.lines import Line

MIB = 1024 * 1024

ALREADY_RUNNING = 75

CLIENTS = 200
"""What the daemon lets in; a flood is twice as many."""

PATIENCE_SECONDS = 1.5
"""After which the daemon gives up clients that do not read or do not end their line."""

GIVEN_UP_SECONDS = 60.0
"""Within which it must have, however busy the machine."""

SETTINGS: dict[str, object] = {
    "limits__clients": CLIENTS,
    "limits__partial_frame_seconds": PATIENCE_SECONDS,
    "limits__stalled_output_seconds": PATIENCE_SECONDS,
    "limits__watch_behind": 1000,
}


class Deaf(Line):
    """A connection of one who sends and never reads."""

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def taken(self, seconds: float) -> None:
        """Wait until what was sent is on its way; TimeoutError when it is not taken."""
        await asyncio.wait_for(self._writer.drain(), seconds)

    def has_ended(self) -> bool:
        return self._writer.is_closing()


@dataclass
class Scene:
    """Whom a fault may touch."""

    daemon: Daemon
    crew: Crew
    agency: Agency
    tally: Tally
    chance: random.Random
    breath: float
    """Seconds that something stands still."""

    async def line(self) -> Line:
        return await Line.open(self.daemon.socket)

    async def deaf(self) -> Deaf:
        return await Deaf.open(self.daemon.socket)

    def expect(self, what: str, found: object, *wanted: object) -> None:
        if found not in wanted:
            self.tally.say_wrong(f"{what}: {found}, not {' or '.join(map(str, wanted))}")


Trouble = Callable[[Scene], Awaitable[None]]


async def cut_in_the_middle_of_a_frame(scene: Scene) -> None:
    """Whoever works loses its connection, with a request in flight and another half sent."""
    for speaker in scene.crew.speakers:
        speaker.cut_off(b'{"op":"update","kind":"plot","id":"bed0-0","inc":{"n"')


async def never_reads(scene: Scene) -> None:
    """Asks for more and more, and takes nothing: it is ended."""
    line = await scene.deaf()
    asked = b'{"op":"list","kind":"plot","limit":1000}\n' * 500
    await _until_given_up(scene, "a client that never reads", line, asked)


async def sends_a_giant_line(scene: Scene) -> None:
    line = await scene.line()
    line.send_raw(b"x" * (12 * MIB))
    try:
        scene.expect("a giant line", (await line.receive())["code"], "too_large")
    except OSError:
        pass  # ended while it was still being sent: then the answer is not read
    await _ended(line)


async def writes_a_byte_at_a_time(scene: Scene) -> None:
    line = await scene.deaf()
    await _until_given_up(scene, "a line that never ends", line, b"{", pause=PATIENCE_SECONDS / 10)


async def floods_with_connections(scene: Scene) -> None:
    """Twice as many as are let in, at once; some ask something, the others say nothing and go."""
    async with AsyncExitStack() as stack:
        lines: list[Line] = []
        for _ in range(2 * CLIENTS):
            try:
                lines.append(await scene.line())
            except OSError:  # the queue of those to be let in is full as well
                continue
            stack.callback(lines[-1].drop)
        for line in lines[::10]:
            line.send({"op": "ping"})
            try:
                scene.expect("a flood", (await line.receive()).get("code"), None, "busy")
            except OSError:
                pass  # told that it is one too many before it asked
        await asyncio.sleep(scene.breath)


async def sends_nonsense(scene: Scene) -> None:
    line = await scene.line()
    made = await line.ask(op="create", job={"uuid": "a", "status": "RUNNING"})
    for what, (code, frame) in scene.chance.sample(sorted(LINES.items()), len(LINES)):
        line.send_raw(frame + b"\n")
        scene.expect(what, (await line.receive()).get("code"), code)
    found = await line.ask(op="get", jobId="a")
    scene.expect("a job that nonsense was about", found.get("job"), made.get("job"))
    scene.expect("a delete after nonsense", (await line.ask(op="delete", jobId="a"))["success"], True)
    line.drop()


async def sends_what_is_costly(scene: Scene) -> None:
    """Frames that are small and would be large once decoded, and patterns that would take for ever."""
    line = await scene.line()
    line.send_raw(b'{"op":"sync","jobs":[' + b"[]," * 3_000_000 + b"[]]}\n")
    try:
        scene.expect("a frame of brackets", (await line.receive())["code"], "too_large")
    except OSError:
        pass  # it took too long to be sent, on a busy machine
    line.drop()
    line = await scene.line()
    for pattern in ("(a*)*b", "(a|aa)+$", "^(([a-z])+.)+[A-Z]([a-z])+$"):
        reply = await line.ask(op="list", kind=PLOT, filter={"regex": pattern}, limit=10)
        scene.expect(pattern, reply["success"], True)
    for pattern in ("(", "((((a{100}){100}){100}){100})"):
        reply = await line.ask(op="list", kind=PLOT, filter={"regex": pattern}, limit=10)
        scene.expect(pattern, reply.get("code"), "bad_request")
    big = {"op": "create", "kind": NOTE, "record": {"id": "big", "pad": "x" * (2 * MIB)}}
    for frame in (big, {"op": "get", "kind": NOTE, "id": "big"}, {"op": "delete", "kind": NOTE, "id": "big"}):
        scene.expect(f"a big record: {frame['op']}", (await line.ask(**frame))["success"], True)
    line.drop()


async def is_stopped(scene: Scene) -> None:
    """SIGSTOP, and later SIGCONT."""
    scene.daemon.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(scene.breath)
    finally:
        scene.daemon.signal(signal.SIGCONT)


async def loses_its_agent(scene: Scene) -> None:
    await scene.agency.kill_and_start_again()


async def is_asked_for_a_snapshot(scene: Scene) -> None:
    """Under load, and for a check of everything."""
    line = await scene.line()
    line.send({"op": "snapshot", "path": "soak.snapshot"})
    reply = await line.receive(GIVEN_UP_SECONDS)
    scene.expect(f"a snapshot: {reply}", reply["success"], True)
    if reply["success"]:
        (scene.daemon.data / reply["done"]["path"]).unlink()
    line.send({"op": "check"})
    reply = await line.receive(GIVEN_UP_SECONDS)
    scene.expect(f"a check: {reply}", (reply["success"], reply.get("problems") or []), (True, []))
    line.drop()


async def has_a_watcher_who_falls_behind(scene: Scene) -> None:
    """Wants all that is kept of everything, and reads nothing of it."""
    line = await scene.deaf()
    asked = b"".join(
        b'{"op":"watch","kind":"%s","after":"0","requestId":%d}\n' % (kind.encode(), number)
        for number, kind in enumerate([PLOT, TASK, NOTE] * 8)
    )
    line.send_raw(asked)
    await _until_given_up(scene, "a watcher who reads nothing", line, b'{"op":"ping"}\n', pause=0.1)


async def has_waiting_claims_withdrawn(scene: Scene) -> None:
    """Many wait for a task that never comes, and go."""
    lines = [await scene.line() for _ in range(CLIENTS // 4)]
    for line in lines:
        line.send({"op": "claim", "kind": TASK, "filter": {"labels": {"clerk": "nobody"}}, "wait": 300})
    await asyncio.sleep(scene.breath)
    for line in lines:
        line.drop()


async def meets_a_second_daemon(scene: Scene) -> None:
    """Which is refused, on the same socket and the same data."""
    code, said = await asyncio.to_thread(refused, scene.daemon.folder)
    scene.expect(f"a second daemon: {said[-500:]}", code, ALREADY_RUNNING)


TROUBLES: tuple[Trouble, ...] = (
    cut_in_the_middle_of_a_frame,
    never_reads,
    is_stopped,
    sends_a_giant_line,
    loses_its_agent,
    writes_a_byte_at_a_time,
    is_asked_for_a_snapshot,
    floods_with_connections,
    sends_nonsense,
    has_a_watcher_who_falls_behind,
    sends_what_is_costly,
    meets_a_second_daemon,
    has_waiting_claims_withdrawn,
)


def in_words(trouble: Trouble) -> str:
    return trouble.__name__.replace("_", " ")


async def _until_given_up(scene: Scene, what: str, line: Deaf, data: bytes, pause: float = 0.0) -> None:
    """Send this again and again, without reading, until the daemon ends the connection."""
    deadline = asyncio.get_running_loop().time() + GIVEN_UP_SECONDS
    line.stop_reading()
    try:
        while asyncio.get_running_loop().time() < deadline:
            line.send_raw(data)
            await line.taken(0.5 if not pause else GIVEN_UP_SECONDS)
            await asyncio.sleep(pause)
    except TimeoutError:
        await _refused_to_take_more(scene, what, line, deadline)
    except OSError:
        return
    else:
        scene.tally.say_wrong(f"{what} was never given up")
    finally:
        line.drop()


async def _refused_to_take_more(scene: Scene, what: str, line: Deaf, deadline: float) -> None:
    """Nothing is read from it any more; wait until it is ended."""
    while not line.has_ended():
        if asyncio.get_running_loop().time() > deadline:
            scene.tally.say_wrong(f"{what} was never given up")
            return
        await asyncio.sleep(0.05)


async def _ended(line: Line) -> None:
    """Read until there is no more."""
    try:
        while True:
            await line.receive()
    except OSError:
        line.drop()
