"""What has to be true of the lines a daemon sends, whatever it was sent.

Owns the contract of docs/PROTOCOL.md as far as any input has to keep to it. Must not know where the lines come from.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from statesvc_client import wire
from statesvc_client.errors import BY_CODE
from statesvc_client.wire import Limits, Malformed, Received

LONGEST_ERROR = 1000
"""Characters of an error text: what a caller sent is shown cut short."""

ALWAYS = frozenset({"bad_json", "bad_request", "too_large", "unknown_op", "busy", "unavailable", "no_space"})
"""Codes a request may be answered with whatever its op is."""


_ENDS = frozenset({"gone", "busy", "unavailable"})
"""Codes a watch may be ended with, on a line of its own."""


class Broken(AssertionError):
    """A promise was not kept."""


def demand(true: object, what: str, line: bytes = b"") -> None:
    if not true:
        raise Broken(f"{what}: {line[:2000]!r}" if line else what)


def read(line: bytes) -> Received:
    """A line of the daemon; it has to be one."""
    try:
        return wire.decode_reply(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Broken(f"no line of the protocol ({problem}): {line[:2000]!r}") from None


def meant(frame: bytes, limits: Limits) -> tuple[wire.Request | None, wire.RequestId]:
    """The request in a frame, if there is one, and the id its reply has to carry."""
    try:
        request = wire.decode_request(frame, limits)
    except Malformed as bad:
        return None, bad.request_id
    return request, request.request_id


class Verdict(msgspec.Struct):
    """What the lines amount to."""

    frames: int = 0
    replies: int = 0
    successes: int = 0
    events: int = 0
    done: list[str] = []
    """The ops that went well."""
    changed: bool = False
    """A write went well, or nobody knows: the state may have moved."""


class Exchange:
    """One connection from its first byte on: the frames that were sent, the lines that came."""

    def __init__(self, limits: Limits, *, learn=lambda _: None) -> None:
        self._limits = limits
        self._learn = learn

    def judge(self, frames: Sequence[bytes], lines: Sequence[bytes], *, complete: bool) -> Verdict:
        """Raise what is wrong. With `complete` every frame has to be answered; else a few at the end may be missing."""
        received = [self._single(line) for line in lines]
        self._learn_all(received)
        verdict = Verdict(len(frames), events=sum(one.event is not None for one in received))
        replies = [(line, one) for line, one in zip(lines, received, strict=True) if not (one.event or one.progress)]
        asked = [meant(frame, self._limits) for frame in frames]
        watched = {id for request, id in asked if isinstance(request, wire.Watch)}
        for one in received:
            demand(one.event is None or one.request_id in watched, "an event nobody asked for", wire.encode_line(one))
        if any(one.acked is not None for _, one in replies) or _may_be_silent(asked):
            self._in_runs(asked, replies, verdict)
        else:
            self._one_by_one(asked, replies, watched, verdict, complete=complete)
        return verdict

    def _single(self, line: bytes) -> Received:
        received = read(line)
        if received.event is not None or received.progress is not None:
            return received
        if received.success:
            demand(received.code is None and received.error is None, "a success with an error", line)
            return received
        demand(received.code in BY_CODE, "an unknown code", line)
        demand(received.code != "internal", "a bug of the daemon", line)
        demand(received.error, "a failure without a text", line)
        demand(len(received.error or "") <= LONGEST_ERROR, "an error text without bound", line)
        return received

    def _learn_all(self, received: list[Received]) -> None:
        for one in received:
            self._learn(one)

    def _one_by_one(self, asked, replies, watched, verdict: Verdict, *, complete: bool) -> None:
        """Each frame has its reply, in their order."""
        more = len(replies) - len(asked)
        place = 0
        for line, reply in replies:
            if more > 0 and _ends_a_watch(reply, watched):
                more -= 1
                continue
            demand(place < len(asked), "a reply to nothing", line)
            request, id = asked[place]
            demand(reply.request_id == id, f"the reply to another request than {id!r}", line)
            self._answer(request, reply, line, verdict)
            place += 1
            if reply.code == "too_large" and request is None:
                demand(line is replies[-1][0], "something behind the last word", replies[-1][0])
                return
        verdict.changed |= not complete and any(_changes(request) for request, _ in asked[place:])
        demand(not complete or place == len(asked), f"{len(asked) - place} of {len(asked)} frames without a reply")

    def _in_runs(self, asked, replies, verdict: Verdict) -> None:
        """With `ack: last` a run of writes has one line: each names a write, and one behind all that were named before,
        until the next hello. No frame has more than a line of its own and the one that ends the run before it."""
        numbers = {request.seq for request, _ in asked if isinstance(request, wire.Write)}
        hellos = {id for request, id in asked if isinstance(request, wire.Hello)}
        told = 0
        for line, reply in replies:
            if reply.acked is not None:
                demand(reply.acked in numbers, "an acknowledgement of nothing", line)
                demand(reply.acked > told, f"an acknowledgement behind that of {told}", line)
                told = reply.acked
            elif reply.request_id in hellos and _is_of_a_hello(reply):
                told = 0
        demand(len(replies) <= 2 * len(asked), "more replies than frames")
        verdict.replies += len(replies)
        verdict.successes += sum(reply.success for _, reply in replies)
        verdict.changed |= any(_changes(request) for request, _ in asked)

    def _answer(self, request: wire.Request | None, reply: Received, line: bytes, verdict: Verdict) -> None:
        verdict.replies += 1
        verdict.successes += reply.success
        if request is None:
            demand(not reply.success, "a success of what is no request", line)
            return
        if reply.success:
            verdict.done.append(request.op)
        if reply.success or reply.outcome == "unknown":
            verdict.changed |= _changes(request)
            return
        codes = {*request.codes, *ALWAYS, *(("denied",) if request.admin else ())}
        numbered = isinstance(request, wire.Write) and request.seq is not None
        demand(reply.code in codes or (numbered and reply.code == "conflict"), f"not a code of {request.op}", line)
        demand((reply.outcome is not None) == type(request).writes, f"an outcome for {request.op}, or none", line)


def _ends_a_watch(reply: Received, watched: set[wire.RequestId]) -> bool:
    text = reply.error or ""
    return reply.code in _ENDS and text.startswith("WATCH_ERROR") and reply.request_id in watched


def _is_of_a_hello(reply: Received) -> bool:
    return reply.protocol is not None if reply.success else (reply.error or "").startswith("HELLO_ERROR")


def _may_be_silent(asked) -> bool:
    return any(isinstance(request, wire.Hello) and request.ack == "last" for request, _ in asked)


def _changes(request: wire.Request | None) -> bool:
    return request is not None and (type(request).writes or request.admin)
