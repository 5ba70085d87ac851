"""The framing and every op by Hypothesis: what holds for any bytes, however they are cut, and for any request."""

from __future__ import annotations

import asyncio
import base64
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from statesvc_client import wire
from tests.faults.fuzz.grammar import PATHS, REGEXES, TEXTS, Grammar, Mangling
from tests.faults.fuzz.inputs import GIANTS, HELLOS, corpus, cut
from tests.faults.fuzz.inside import judged
from tests.faults.fuzz.judging import Exchange, Verdict
from tests.faults.fuzz.target import Input, Target, serving

FEW = settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
"""Examples that need a daemon of their own each."""


class Daemon:
    """A daemon for many examples, on a loop that turns while one is looked at."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Target) -> None:
        self._loop = loop
        self._target = target
        self._exchange = Exchange(target.limits)

    def judge(self, stream: bytes, **how: Any) -> Verdict:
        given = Input(how.pop("pieces", [stream]), **how)
        return self._loop.run_until_complete(judged(self._target, self._exchange, given))

    def replies(self, pieces: list[bytes]) -> list[tuple[Any, ...]]:
        """What each line amounts to, without what differs from life to life."""
        heard = self._loop.run_until_complete(self._target.feed(Input(pieces)))
        received = [wire.decode_reply(line) for line in heard.lines]
        return [(one.request_id, one.success, one.code, one.event is None) for one in received]


@contextmanager
def running() -> Iterator[Daemon]:
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory() as folder:
        life = serving("memory", Path(folder))
        target = loop.run_until_complete(life.__aenter__())
        yield Daemon(loop, target)
        loop.run_until_complete(life.__aexit__(None, None, None))
    loop.close()


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running() as daemon:
        yield daemon


grammars = st.randoms(use_true_random=False).map(Grammar)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """A frame: any bytes, a request, or one that was mangled."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=60))
    random: Random = draw(st.randoms(use_true_random=False))
    frame = Grammar(random).frame()[:4000]
    return Mangling(random).mangled(frame, frame) if draw(st.booleans()) else frame


streams = st.lists(lines() | st.sampled_from(HELLOS), max_size=5).map(b"\n".join)


# --- framing ---------------------------------------------------------------------------------------------------------


@FEW
@given(streams, st.data())
def test_any_bytes_get_the_same_replies_however_they_are_cut(stream: bytes, data: st.DataObject):
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    with running() as one, running() as other:
        assert one.replies([stream]) == other.replies(cut(stream, places))


@pytest.mark.parametrize("ending", ["answered", "eof", "hung up", "lost"])
@given(stream=streams, slow=st.booleans(), admin=st.booleans())
@settings(max_examples=25)
def test_any_bytes_are_answered_line_by_line(daemon: Daemon, stream: bytes, slow: bool, admin: bool, ending: str):
    daemon.judge(stream, slow=slow, admin=admin, ending=ending)


@given(st.sampled_from(sorted(corpus().values())), st.data())
@settings(max_examples=25)
def test_what_was_kept_is_answered_however_it_is_cut(daemon: Daemon, stream: bytes, data: st.DataObject):
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    daemon.judge(stream, pieces=cut(stream, places), admin=data.draw(st.booleans()))


@pytest.mark.parametrize("giant", GIANTS, ids=range(len(GIANTS)))
def test_a_frame_about_as_long_as_a_limit_is_answered(daemon: Daemon, giant: bytes):
    half = len(giant) // 2
    for pieces in ([giant], [giant[:half], giant[half:]], [giant[at : at + 4096] for at in range(0, len(giant), 4096)]):
        daemon.judge(giant, pieces=pieces, admin=True)


# --- ops -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", wire.OPS)
@given(grammar=grammars, hello=st.sampled_from([b"", *HELLOS]), admin=st.booleans(), worse=st.booleans())
@settings(max_examples=10)
def test_any_request_of_an_op_has_one_of_its_codes(
    daemon: Daemon, op: str, grammar: Grammar, hello: bytes, admin: bool, worse: bool
):
    request = grammar.request(op)
    line = grammar.encoded(grammar.worse(request) if worse else request)
    daemon.judge(b"\n".join([hello, line] if hello else [line]), admin=admin)
    daemon.judge(b'{"op":"thaw"}', admin=True)


names = st.text(max_size=6) | st.sampled_from(TEXTS)
pointers = (
    st.lists(st.text("ab~/01-", max_size=4), max_size=5).map(lambda parts: "/" + "/".join(parts))
    | st.sampled_from(PATHS)
    | names
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)


def line(**request: Any) -> bytes:
    return msgspec.json.encode(request)


@given(
    record=st.dictionaries(names, values, max_size=3),
    set=st.dictionaries(pointers, values, max_size=3),
    inc=st.dictionaries(pointers, numbers, max_size=2),
    append=st.dictionaries(pointers, st.lists(values, max_size=2), max_size=2),
    hello=st.booleans(),
)
@example(record={"x": 1}, set={"/x/y": 1}, inc={"/x": 1}, append={"/x": [1]}, hello=True)
@settings(max_examples=25)
def test_any_patch_is_applied_or_refused(daemon: Daemon, record: Any, set: Any, inc: Any, append: Any, hello: bool):
    made = line(op="update", kind="note", id="p", upsert=True, record=record)
    changed = line(op="update", kind="note", id="p", record=record, set=set, inc=inc, append=append)
    rest = [made, changed, line(op="get", kind="note", id="p"), line(op="delete", kind="note", id="p")]
    daemon.judge(b"\n".join([HELLOS[3], *rest] if hello else rest))


@given(
    labels=st.dictionaries(names, values, max_size=3),
    where=st.dictionaries(pointers, values, max_size=3),
    prefix=names,
    statuses=st.lists(names, max_size=3),
    regex=st.sampled_from(REGEXES) | st.text(max_size=12) | st.text("()[]{}*+?|\\.^$a1,-:<>P=!", max_size=14),
    op=st.sampled_from(["list", "watch", "stats", "stuck", "claim"]),
)
@settings(max_examples=20)
def test_any_filter_is_answered_or_refused(
    daemon: Daemon, labels: Any, where: Any, prefix: str, statuses: Any, regex: str, op: str
):
    made = line(op="create", job={"uuid": "f", "labels": {"a": "1"}, "status": "QUEUED", "x": {"y": [1]}})
    for filter in ({"labels": labels}, {"where": where}, {"regex": regex}, {"prefix": prefix, "statuses": statuses}):
        asked = line(op=op, filter=filter)
        daemon.judge(b"\n".join([made, asked, line(op="unwatch"), line(op="delete", jobId="f")]))


@given(
    cursor=st.text(max_size=30)
    | st.binary(max_size=40).map(lambda raw: base64.urlsafe_b64encode(raw).decode())
    | st.tuples(values, values, values, values, values, values).map(
        lambda parts: base64.urlsafe_b64encode(msgspec.json.encode(parts)).decode().rstrip("=")
    ),
    sort=st.sampled_from(["createdAt", "id", "priority", "status", "scheduledAt"]),
)
@example(cursor="WzEsImpvYiIsImNyZWF0ZWQiLHRydWUsMSwiYSJd", sort="createdAt")
@settings(max_examples=25)
def test_any_cursor_is_one_or_refused(daemon: Daemon, cursor: str, sort: str):
    asked = [
        line(op="list", cursor=cursor, sortBy=sort),
        line(op="watch", after=cursor),
        line(op="history", jobId="a", after=cursor),
        line(op="feed", after=cursor, requestId="f"),
        line(op="feed", cursor=cursor, requestId="g"),
    ]
    daemon.judge(b"\n".join(asked), admin=True)


@given(
    number=st.integers(-(2**64), 2**64),
    floor=st.integers(-(2**64), 2**64),
    again=st.booleans(),
    ack=st.sampled_from(["each", "last"]),
)
@example(number=2**63 - 1, floor=2**63 - 1, again=True, ack="last")
@example(number=1, floor=2**64, again=False, ack="each")
@settings(max_examples=60)
def test_any_numbering_is_taken_or_refused(daemon: Daemon, number: int, floor: int, again: bool, ack: str):
    numbered = {"seq": number, "floor": floor, "again": again}
    daemon.judge(
        b"\n".join(
            [
                line(op="hello", client="numbers", ack=ack),
                line(op="update", kind="note", id="n", upsert=True, record={"x": 1}, **numbered),
                line(op="update", kind="note", id="n", inc={"x": 1}, **numbered),
                line(op="delete", kind="note", id="n", **numbered),
                line(op="ping"),
            ]
        )
    )
