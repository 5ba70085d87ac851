"""One client's connection: bytes to frames, frames to answers, answers out in the order the requests came.

Owns flow control and the order of replies. Must not know what a frame means.

A reply waits in line until the commit it depends on is settled and everything before it is sent. Reading stops while
too much is in flight or the client takes no replies, so a slow or hostile client costs a bounded amount of memory.
Lines outside that order, events and progress, are taken only while the client takes what it is sent.

A connection that is lost is not over yet: what it began to write goes on without it. Until that has ended it counts as
one, and its client's next one waits for it.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from statesvc_client import wire
from statesvc_client.errors import TooLarge
from statesvc_client.framing import LineSplitter
from statesvc_client.scanning import values_at_most

from .answers import Answer, Coming, Meanwhile, Session
from .dispatch import Dispatcher
from .store.batches import FULL_BYTES, Batch
from .store.writes import Caller

OVERLAPPING = 256
"""Requests of one connection that are under way at once, where they may be; fewer when they or their answers are
large."""

FIRST_ANSWER_BYTES = 64 * 1024
LEAST_ANSWER_BYTES = 4 * 1024
"""What an answer is thought to take before the first has come, and at least."""

VALUE_BYTES = 128
"""About what a value of a frame takes once it is read: two bytes on the wire may be an object."""

TURN = 128
TURN_BYTES = 1024 * 1024
"""Frames answered before other connections get their turn, whichever comes first: about a millisecond."""

AHEAD_BYTES = 256 * 1024
"""What is read behind a request that all others wait for. That the client is gone shows in reading on, as a rule; a
frame that waits for its turn must not cost a second one."""

DISCARD_SECONDS = 0.005
"""The rest between two reads of what is dropped unread; a read takes what the kernel holds, about 200 KiB."""


class Bounds(NamedTuple):
    """What one connection may hold."""

    frame_bytes: int
    requests_in_flight: int
    output_bytes: int
    partial_frame_seconds: float
    stalled_output_seconds: float


class Connection(asyncio.Protocol):
    """The protocol of one connected client. There may be ten thousand that say nothing: what they hold is counted."""

    __slots__ = (
        "_acked",
        "_barred",
        "_bounds",
        "_closed",
        "_coming",
        "_coming_bytes",
        "_discarding",
        "_dispatcher",
        "_ending",
        "_frames",
        "_last_batch",
        "_line",
        "_line_bytes",
        "_lost",
        "_over",
        "_partial_since",
        "_reading",
        "_room",
        "_session",
        "_splitter",
        "_stalled_since",
        "_task",
        "_tasks",
        "_told",
        "_transport",
        "_turn_planned",
        "_usual",
        "_writable",
    )

    def __init__(
        self, dispatcher: Dispatcher, bounds: Bounds, closed: Callable[[Connection], None], caller: Caller
    ) -> None:
        self._dispatcher = dispatcher
        self._bounds = bounds
        self._closed = closed
        self._session = Session(self, caller)
        self._splitter = LineSplitter(bounds.frame_bytes)
        self._frames: list[bytes] = []
        self._line: list[Answer | Coming] = []
        self._line_bytes = 0
        self._last_batch: Batch | None = None
        self._task: asyncio.Task[None] | None = None
        """The request that all behind it wait for."""
        self._coming = 0
        """Requests that go side by side."""
        self._coming_bytes = 0
        """About what they take: while an engine is away, what it is to be sent is kept."""
        self._tasks: set[asyncio.Task[None]] | None = None
        """Those of them that have a task of their own."""
        self._barred = False
        """The next request waits until those are over."""
        self._usual = FIRST_ANSWER_BYTES
        """About what an answer takes, lately."""
        self._turn_planned = False
        self._reading = True
        self._writable = True
        self._ending = False
        self._discarding = False
        self._acked = 0
        self._told = 0
        self._partial_since = 0.0
        self._stalled_since = 0.0
        self._room: asyncio.Future[None] | None = None
        self._lost = False
        self._over: asyncio.Future[None] | None = None
        """Is set when the connection is lost and nothing of it is under way, for whoever waits for that."""
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until connected

    # --- what the loop calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=self._bounds.output_bytes)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            self._rest_before_more()
            return
        splitter = self._splitter
        frames = splitter.feed(data)
        if not splitter.held:
            self._partial_since = 0.0
        elif frames or not self._partial_since:
            self._partial_since = asyncio.get_running_loop().time()
        if len(frames) == 1 and not splitter.too_large and self._is_free():
            self._answer_alone(frames)
        else:
            self._frames += frames
            self._answer_frames()

    def eof_received(self) -> bool:
        """A client that only stopped sending still gets its replies, and what it waits for or watches."""
        self._ending = True
        self._splitter.drop()  # it never will be whole; replies and watches may take long
        if self._discarding:
            self._close()
        else:
            if self.is_hung_up():
                self._session.hang_up()
            self._answer_frames()
        return True

    def connection_lost(self, _: Exception | None) -> None:
        # What is under way may keep it for a while; what may be large goes at once.
        self._frames.clear()
        self._splitter.drop()
        self._line.clear()
        self._ending = True
        self._lost = True
        self._session.lose()
        if self._task is not None:
            self._task.add_done_callback(lambda _: self._go_if_over())
        self._go_if_over()

    def pause_writing(self) -> None:
        self._writable = False
        self._stalled_since = asyncio.get_running_loop().time()

    def resume_writing(self) -> None:
        self._writable = True
        self._stalled_since = 0.0
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
        self._answer_frames()

    # --- frames in -------------------------------------------------------------------------------------------------

    def _is_free(self) -> bool:
        """Whether nothing is under way, and an answer could be sent as it is."""
        session = self._session
        if self._line or self._frames or self._task is not None or self._ending:
            return False
        return not session.ack_last and not self._acked and session.stopped_at is None

    def _answer_alone(self, frames: list[bytes]) -> None:
        """One request while nothing else is under way. Where its answer is there at once it is sent without a stay in
        line, which is most of what such a request would cost."""
        if self._dispatcher.congestion is None:
            answer = self._dispatcher.answer(frames[0], self._session)
            if type(answer) is Answer and answer.after is None and answer.sent is None and not answer.final:
                self._transport.write(answer.line)
                if not self._writable:
                    self._regulate_reading()
                return
            if type(answer) is Answer:
                self._enqueue(answer)
            else:
                self._set_going(answer, frames[0])  # type: ignore[arg-type]  # never None: nothing is under way
        else:
            self._frames = frames
        self._answer_frames()

    def _answer_frames(self) -> None:
        """Send what can be sent, which makes room; answer what has arrived, as far as there is; send that."""
        # First also because a write whose commit failed holds back the frames behind it: it is noted by sending it.
        if self._line:
            self._send()
        if self._last_batch is not None and self._last_batch.settled:
            self._last_batch = None  # it holds the rows of many clients
        if not self._coming:
            self._barred = False
        if self._frames and self._may_take():
            self._take_frames()
        if self._splitter.too_large and not self._frames and self._task is None and self._may_go_on():
            self._enqueue(self._too_large())
        if self._line or self._ending:
            self._send()
        if self._frames and self._may_take():
            self._plan_turn()
        if not self._is_at_rest():
            self._regulate_reading()

    def _is_at_rest(self) -> bool:
        """Whether everything was answered and sent, and more is welcome: so it is behind most requests."""
        return (
            self._reading
            and self._writable
            and self._task is None
            and not self._frames
            and not self._line
            and not self._ending
        )

    def _take_frames(self) -> None:
        """Answer frames: as many as one turn allows, and as there is room for."""
        answer_to, session, enqueue = self._dispatcher.answer, self._session, self._enqueue
        room = min(TURN, self._bounds.requests_in_flight - len(self._line))
        most_bytes = self._bounds.output_bytes
        taken = took = 0
        for frame in self._frames[:room]:
            answer = answer_to(frame, session, busy=self._coming > 0)
            if answer is None:
                self._barred = True
                break
            taken += 1
            took += len(frame)
            if type(answer) is Answer:
                enqueue(answer)
                batch = answer.after
                if answer.final or took >= TURN_BYTES or self._line_bytes >= most_bytes:
                    break
                if batch is not None and batch.bytes >= FULL_BYTES:
                    break  # small requests may make large rows, with small replies
            elif not self._set_going(answer, frame) or took >= TURN_BYTES:  # type: ignore[arg-type]  # the others
                break
        del self._frames[:taken]

    def _set_going(self, answer: Coming | Meanwhile | Awaitable[Answer], frame: bytes) -> bool:
        """Go on with a request that takes time; whether another may begin meanwhile."""
        if type(answer) is Coming:
            self._wait_for(answer, frame)
            return self._may_overlap()
        if type(answer) is Meanwhile:
            self._begin(answer.answer, frame)
            return self._may_overlap()
        self._task = asyncio.get_running_loop().create_task(self._finish(answer))  # type: ignore[arg-type]
        return False

    def _may_take(self) -> bool:
        return not self._barred and self._task is None and self._may_go_on()

    def _may_overlap(self) -> bool:
        most_bytes = self._bounds.output_bytes
        return self._coming < max(1, min(OVERLAPPING, most_bytes // self._usual)) and self._coming_bytes < most_bytes

    def _may_go_on(self) -> bool:
        congested = self._dispatcher.congestion
        if congested is not None:
            self._come_back_after(congested)
            return False
        return (
            self._writable
            and not self._discarding
            and not self._is_last()
            and len(self._line) < self._bounds.requests_in_flight
            and (not self._coming or self._may_overlap())
            and self._line_bytes < self._bounds.output_bytes
        )

    def _is_last(self) -> bool:
        if not self._line:
            return False
        last = self._line[-1]
        return type(last) is Answer and last.final

    def _plan_turn(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_planned = False
        self._answer_frames()

    async def _finish(self, answer: Awaitable[Answer]) -> None:
        """Wait for an answer that takes time; what came after it is answered after it."""
        self._enqueue(await answer)
        self._task = None
        self._answer_frames()

    def _begin(self, answer: Awaitable[Answer], frame: bytes) -> None:
        """Let a request go on while others begin; its answer keeps its place."""
        place = Coming()
        task = asyncio.get_running_loop().create_task(_complete(place, answer))
        self._tasks = self._tasks or set()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._wait_for(place, frame)

    def _wait_for(self, place: Coming, frame: bytes) -> None:
        self._line.append(place)
        if place.answer is None:
            size = len(frame) + VALUE_BYTES * values_at_most(frame)
            self._coming += 1
            self._coming_bytes += size
            place.came = partial(self._came, size)
        else:
            self._weigh(place.answer)

    def _came(self, size: int, answer: Answer) -> None:
        self._coming -= 1
        self._coming_bytes -= size
        self._weigh(answer)
        # Many come in one turn of the loop: they are sent together.
        self._plan_turn()
        if self._lost:
            self._go_if_over()

    def _weigh(self, answer: Answer) -> None:
        size = len(answer.line) + answer.weight
        self._line_bytes += size
        self._usual = max(LEAST_ANSWER_BYTES, size, self._usual - self._usual // 8)

    def _too_large(self) -> Answer:
        error = TooLarge(f"a frame must not exceed {self._bounds.frame_bytes} bytes; the connection ends here")
        reply = wire.Reply(request_id="", success=False, error=error.text, code=error.code)
        return Answer(wire.encode_line(reply), final=True)

    def _regulate_reading(self) -> None:
        wanted = self._discarding or (
            not self._frames and not self._is_far_ahead() and self._may_go_on() and not self._ending
        )
        if wanted == self._reading or self._transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            # The time a frame may take runs while we listen.
            if self._splitter.held:
                self._partial_since = asyncio.get_running_loop().time()
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _is_far_ahead(self) -> bool:
        return self._task is not None and self._splitter.held > AHEAD_BYTES

    # --- replies out -----------------------------------------------------------------------------------------------

    def _enqueue(self, answer: Answer) -> None:
        self._line.append(answer)
        self._line_bytes += len(answer.line) + answer.weight
        batch = answer.after
        if batch is not None and batch is not self._last_batch and not batch.settled:
            self._come_back_after(batch)

    def _come_back_after(self, batch: Batch) -> None:
        if batch is not self._last_batch:
            self._last_batch = batch
            batch.listeners.append(self._answer_frames)

    def _send(self) -> None:
        """Send every reply at the head of the line whose commit is settled."""
        out: list[bytes] = []
        followed = self._take_replies(out) if self._line else ()
        self._acknowledge(out)
        if out and not self._transport.is_closing():
            self._transport.write(b"".join(out))
        for answer in followed:
            if answer.sent is not None and self._can_be_told():
                answer.sent()
        if followed and followed[-1].final:
            self._say_last_word()
        elif self._ending and self._is_idle():
            self._close()

    def _take_replies(self, out: list[bytes]) -> Sequence[Answer]:
        """Put the replies that can be sent into `out`. Returns those that something follows from."""
        session = self._session
        followed: list[Answer] = []
        came_about: Batch | None = None
        taken = size = 0
        try:
            for place in self._line:
                answer = place if type(place) is Answer else place.answer  # type: ignore[union-attr]
                if answer is None or ((batch := answer.after) is not None and not batch.settled):
                    break
                if batch is not None and batch is not came_about and batch.failure is None:
                    came_about = batch
                taken += 1
                size += len(answer.line) + answer.weight
                if (batch is not None and batch is not came_about) or session.stopped_at is not None:
                    answer = self._as_it_came_out(answer)
                if session.ack_last or self._acked:
                    self._put(answer, out)
                else:
                    out.append(answer.line)
                if answer.final or answer.sent is not None:
                    followed.append(answer)
        finally:
            # Whatever happens, none is looked at twice.
            del self._line[:taken]
            self._line_bytes -= size
        return followed

    def _as_it_came_out(self, answer: Answer) -> Answer:
        """What is said of a request whose commit failed, or that stands behind one that did."""
        if answer.after is not None and answer.after.failure is not None:
            return self._dispatcher.failure(answer.request, self._session, answer.after.failure)
        return self._dispatcher.overtook(answer, self._session) if self._session.overtakes(answer) else answer

    def _is_idle(self) -> bool:
        return not self._line and not self._frames and self._task is None and not self._session.is_watching

    def _put(self, answer: Answer, out: list[bytes]) -> None:
        """With `ack: last`: what is said of a write, and that those before it went well."""
        request = answer.request
        if self._session.ack_last and isinstance(request, wire.Write) and request.seq is not None:
            if answer.silent:
                self._acked = max(self._acked, request.seq)
                return
            self._acknowledge(out)
            out.append(answer.line)
            if self._session.stopped_at is None:
                self._acked = max(self._acked, request.seq)
            return
        self._acknowledge(out)
        if isinstance(request, wire.Hello):
            self._acked = self._told = 0
        out.append(answer.line)

    def _acknowledge(self, out: list[bytes]) -> None:
        """With `ack: last`: one line for the run of writes decided so far, before anything else is said."""
        if self._acked > self._told:
            self._told = self._acked
            out.append(wire.encode_line(wire.Acked(acked=self._acked)))

    # --- lines outside the order of replies ------------------------------------------------------------------------

    def push(self, line: bytes) -> bool:
        """Send a line now, unless the client takes nothing; returns whether it was sent."""
        if not self._writable or not self._can_be_told():
            return False
        self._interject(line)
        return True

    def say(self, line: bytes) -> None:
        """Send a line whatever waits already. There is no more than one for each watch, so this has its bound."""
        if self._can_be_told():
            self._interject(line)
            self._send()

    def room(self) -> asyncio.Future[None] | None:
        """What to wait for until the client takes something; None when it does."""
        if self._writable:
            return None
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()
        return self._room

    def _can_be_told(self) -> bool:
        return not self._discarding and not self._transport.is_closing()

    def _interject(self, line: bytes) -> None:
        out: list[bytes] = []
        self._acknowledge(out)
        self._transport.write(b"".join((*out, line)))

    # --- ending ----------------------------------------------------------------------------------------------------

    def _say_last_word(self) -> None:
        """Nothing follows the last reply. What the client still sends is dropped unread for a while, because closing on
        it would take the reply from a client that is still sending."""
        self._discarding = True
        self._session.leave()
        self._frames.clear()
        self._partial_since = asyncio.get_running_loop().time()
        if not self._transport.is_closing():
            self._transport.write_eof()

    def _rest_before_more(self) -> None:
        """Nobody waits for what is dropped: it comes no faster than others hardly notice."""
        transport = self._transport
        if not transport.is_closing():
            transport.pause_reading()
            asyncio.get_running_loop().call_later(DISCARD_SECONDS, self._read_on)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _close(self) -> None:
        self._ending = True
        self._frames.clear()
        if not self._transport.is_closing():
            self._transport.close()

    async def end(self) -> None:
        """Close at once; done when nothing of this connection is under way any more."""
        self._transport.abort()
        await asyncio.wait([self._when_over()])

    def finish(self) -> Awaitable[None]:
        """Answer what has been read, take no more, close. Returns what to wait for."""
        self._ending = True
        self._session.leave()
        self._answer_frames()
        return self._when_over()

    def _when_over(self) -> asyncio.Future[None]:
        if self._over is None:
            self._over = asyncio.get_running_loop().create_future()
            self._go_if_over()
        return self._over

    def _go_if_over(self) -> None:
        """Nobody has to know of a connection that is lost and has nothing under way any more."""
        if not self._lost or self._coming or (self._task is not None and not self._task.done()):
            return
        # In this order: who takes over a name waits for its connection, as long as the name is known.
        self._dispatcher.forget(self._session)
        self._session.part()
        self._closed(self)
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def abort(self) -> None:
        self._transport.abort()

    def is_hung_up(self) -> bool:
        """Whether the other side is closed altogether; one that only stopped sending still reads. Nobody tells us of
        that once we have read to the end."""
        if self._transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket"), 0)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    def end_if_stuck(self, now: float) -> str | None:
        """Close a connection that neither finishes its frame nor takes its replies; returns why."""
        if self._lost:
            return None
        if self._stalled_since and now - self._stalled_since > self._bounds.stalled_output_seconds:
            self._transport.abort()
            return "replies_not_taken"
        if self._reading and self._partial_since and now - self._partial_since > self._bounds.partial_frame_seconds:
            self._transport.abort()
            return "frame_not_finished"
        may_last = self._session.lingers or self._session.asks
        if may_last and (self._ending or not self._reading) and self.is_hung_up():
            self._session.hang_up()
            self._answer_frames()
        return None


async def _complete(place: Coming, coming: Awaitable[Answer]) -> None:
    place.put(await coming)
