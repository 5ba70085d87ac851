"""Fuzzing in this process, in short: what was ever kept, some thousand new inputs, and that what breaks is seen."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from statesvc.answers import Answer, Session
from statesvc.backends.port import Row, Unit, Write
from statesvc.connection import Connection
from statesvc.dispatch import Dispatcher
from statesvc_client import wire
from tests.faults.fuzz import inside
from tests.faults.fuzz.grammar import Grammar
from tests.faults.fuzz.guided_process import cut_by_itself
from tests.faults.fuzz.inputs import Inputs, corpus
from tests.faults.fuzz.inside import Findings, GoodClient, Report, Run, judged
from tests.faults.fuzz.judging import Broken, Exchange
from tests.faults.fuzz.target import Input, Target, serving

FRAMES = 3000


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_every_kept_input_is_answered_as_it_must_be(tmp_path: Path, backend: str):
    async with serving(backend, tmp_path) as target:
        exchange = Exchange(target.limits)
        for name, stream in corpus().items():
            for given in (cut_by_itself(stream), Input([stream], admin=True), Input([stream])):
                try:
                    await judged(target, exchange, given)
                except Broken as problem:
                    raise AssertionError(f"{name}: {problem}") from None


async def test_every_small_kept_input_may_come_byte_by_byte_from_one_who_reads_late(tmp_path: Path):
    async with serving("memory", tmp_path) as target:
        exchange = Exchange(target.limits)
        for stream in corpus().values():
            if len(stream) < 400:
                pieces = [stream[at : at + 1] for at in range(len(stream))]
                await judged(target, exchange, Input(pieces, admin=True, slow=True))


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_new_inputs_are_answered_as_they_must_be(tmp_path: Path, backend: str):
    report, findings = Report(backend), Findings(None)
    async with serving(backend, tmp_path) as target:
        run = Run(target, Inputs(Random(8), list(corpus().values())), report, findings)
        await run.go(FRAMES, lambda _: None)
    assert findings.told == []
    assert report.frames >= FRAMES
    assert report.successes > FRAMES // 10
    assert report.good_answers > 0


def test_every_op_and_every_field_is_tried():
    grammar = Grammar(Random(1))
    tried: Counter[tuple[str, str]] = Counter()
    for op in wire.OPS:
        for _ in range(400):
            tried.update((op, field) for field in grammar.request(op))
    wanted = {(op, field) for op, cls in wire.OPS.items() for field in cls.__struct_encode_fields__}
    assert wanted - tried.keys() == set()


def test_the_first_choice_of_ops_leaves_none_out():
    grammar = Grammar(Random(1))
    assert {grammar.request()["op"] for _ in range(20_000)} == wire.OPS.keys()


async def test_every_op_goes_well_in_some_kept_input(tmp_path: Path):
    """A fuzzer whose requests are all refused at the door shows little."""
    done: set[str] = set()
    for name, stream in corpus().items():
        if name.startswith("op-"):
            async with serving("sqlite", tmp_path / name) as target:
                done.update((await judged(target, Exchange(target.limits), Input([stream], admin=True))).done)
    assert done == wire.OPS.keys()


# --- that it would be seen -------------------------------------------------------------------------------------------


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    async with serving("memory", tmp_path) as target:
        yield target
        target.problems.clear()


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts another answer to some frames behind the dispatcher."""
    real = Dispatcher.answer

    def plant(where: bytes, otherwise: Callable[..., Any]) -> None:
        def answer(self: Dispatcher, frame: bytes, session: Session, **options: Any) -> Any:
            honest = partial(real, self, frame, session, **options)
            return otherwise(honest) if where in frame else honest()

        monkeypatch.setattr(Dispatcher, "answer", answer)

    return plant


async def seen(target: Target, stream: bytes) -> str:
    with pytest.raises(Broken) as caught:
        await judged(target, Exchange(target.limits), Input([stream]))
    return str(caught.value)


PING, CREATE = b'{"op":"ping","requestId":1}', b'{"op":"create","job":{"uuid":"a"}}'


async def test_a_reply_that_is_left_out_is_seen(target: Target, plant: Callable[..., None]):
    plant(b"left out", lambda _: Answer(b""))
    assert "without a reply" in await seen(target, PING + b'\n"left out"')
    assert "another request" in await seen(target, b'"left out"\n' + PING)


async def test_a_reply_too_many_is_seen(target: Target, plant: Callable[..., None]):
    plant(b"ping", lambda honest: Answer(honest().line * 2))
    assert "a reply to nothing" in await seen(target, PING)


async def test_replies_in_another_order_are_seen(target: Target, plant: Callable[..., None]):
    plant(b"first", lambda _: Answer(b'{"requestId":1,"success":true}\n'))
    assert "another request" in await seen(target, b'{"op":"ping","requestId":"first"}')


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"requestId":1,"success":true', "no line of the protocol"),
        (b'{"requestId":1,"success":tru}\n', "no line of the protocol"),
        (b'{"requestId":1,"success":false,"error":"x","code":"odd"}\n', "an unknown code"),
        (b'{"requestId":1,"success":false,"error":"x","code":"internal"}\n', "a bug of the daemon"),
        (b'{"requestId":1,"success":false,"code":"bad_request"}\n', "without a text"),
        (b'{"requestId":1,"success":false,"error":"%b","code":"bad_request"}\n' % (b"x" * 2000), "without bound"),
        (b'{"requestId":1,"success":false,"error":"x","code":"gone"}\n', "not a code of ping"),
        (b'{"requestId":1,"success":true,"error":"x"}\n', "a success with an error"),
        (b'{"requestId":1,"success":false,"error":"x","code":"busy","outcome":"unknown"}\n' * 2, "a reply to nothing"),
    ],
    ids=lambda what: what if isinstance(what, str) else "",
)
async def test_a_reply_that_is_none_is_seen(target: Target, plant: Callable[..., None], line: bytes, what: str):
    plant(b'"requestId":1', lambda _: Answer(line))
    assert what in await seen(target, PING)


async def test_a_reply_behind_the_last_word_is_seen(target: Target, plant: Callable[..., None]):
    last = b'{"requestId":"","success":false,"error":"x","code":"too_large"}\n'
    plant(b"giant", lambda _: Answer(last))
    assert "behind the last word" in await seen(target, b'"giant"\n' + PING)


@pytest.mark.parametrize(
    ("acked", "what"),
    [
        ((5, 5), "an acknowledgement behind that of 5"),
        ((5, 1), "an acknowledgement behind that of 5"),
        ((1, 7), "an acknowledgement of nothing"),
        ((0, 5), "an acknowledgement of nothing"),
    ],
)
async def test_a_run_of_writes_that_is_acknowledged_twice_or_never_was_is_seen(
    target: Target, plant: Callable[..., None], acked: tuple[int, int], what: str
):
    lies = iter(acked)
    plant(b'"seq"', lambda _: Answer(b'{"acked":%d,"success":true}\n' % next(lies)))
    hello, write = b'{"op":"hello","client":"c","ack":"last"}', b'{"op":"delete","jobId":"a","seq":%d}'
    assert what in await seen(target, b"\n".join([hello, write % 1, write % 5]))


async def test_the_acknowledgements_of_each_hello_begin_anew(target: Target):
    hello, write = b'{"op":"hello","client":"%b","ack":"last"}', b'{"op":"update","jobId":"a","upsert":true,"seq":%d}'
    stream = b"\n".join([hello % b"c", write % 5, hello % b"d", write % 1, write % 5, PING])
    verdict = await judged(target, Exchange(target.limits), Input([stream]))
    assert verdict.replies > 4


async def test_a_refused_write_that_was_applied_is_seen(target: Target, plant: Callable[..., None]):
    def refused(honest: Callable[[], Answer]) -> Answer:
        answer = honest()
        answer.line = b'{"requestId":"","success":false,"error":"no","code":"bad_request","outcome":"not_applied"}\n'
        return answer

    plant(b"create", refused)
    assert "changed the state" in await seen(target, CREATE)


async def test_a_bug_behind_a_handler_is_seen(target: Target, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("statesvc.handlers.measuring.find_stuck", lambda *_: 1 / 0)
    assert "a bug of the daemon" in await seen(target, b'{"op":"stuck"}')


async def test_an_exception_that_reaches_the_loop_is_seen(target: Target, plant: Callable[..., None]):
    plant(b"ping", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await judged(target, Exchange(target.limits), Input([PING]))
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)
    with pytest.raises(Broken, match="ZeroDivisionError"):
        target.check_calm()


@pytest.fixture
async def good(target: Target) -> AsyncIterator[GoodClient]:
    good = GoodClient(target)
    await good.introduce()
    yield good
    good.leave()


async def test_a_record_that_is_stored_wrong_is_seen(target: Target, good: GoodClient):
    await target.feed(Input([CREATE]))

    def misindexed(rows: list[Row | None]) -> Unit:
        row = rows[0]
        assert row is not None
        return (Write(replace(row, keys=replace(row.keys, node="n1")), row.stamp, None),)

    await target.store.attempt([("job", "a")], misindexed)
    with pytest.raises(Broken, match=r"a check found .*job a is indexed otherwise"):
        await good.empty()


async def test_what_clients_may_leave_behind_is_no_finding(target: Target, good: GoodClient):
    lines = (
        {"op": "create", "kind": "network", "record": {"id": "n", "cidr": "10.0.0.0/29"}},
        {"op": "create", "kind": "ip", "from": "n"},
        {"op": "delete", "kind": "network", "id": "n"},
        {"op": "create", "kind": "network", "record": {"id": "m", "cidr": "10.0.0.0/29"}},
        {"op": "create", "kind": "ip", "record": {"id": "outside", "network": "m", "address": "10.9.9.9"}},
        {"op": "create", "kind": "mount", "record": {"id": "mount", "volume": "none"}},
    )
    await target.feed(Input([b"\n".join(map(msgspec.json.encode, lines))]))
    checked = await good._ok(op="check")
    assert len(checked["problems"]) == 3
    await good.empty()


async def test_what_is_never_freed_is_seen(tmp_path: Path, plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    """How much that is the long form tells; here, that it is measured at all."""
    monkeypatch.setattr(inside, "FEWEST_FRAMES", 1500)
    kept: list[bytes] = []

    def keep(honest: Callable[[], Any]) -> Any:
        kept.append(bytes(64 * 1024))
        return honest()

    plant(b"", keep)
    report = Report()
    async with serving("memory", tmp_path) as target:
        await Run(target, Inputs(Random(2)), report, Findings(None)).go(1500, lambda _: None)
    assert report.drift_bytes is not None
    assert report.drift_bytes > inside.MOST_DRIFT_BYTES
    assert not report.is_good


# --- found by fuzzing, and nowhere else to be held -------------------------------------------------------------------


async def test_a_refused_emit_is_freed(target: Target):
    """It once was not, with its whole connection: what was decided held its own refusal, unknown to the collector."""
    for _ in range(20):
        await target.feed(Input([b'{"op":"emit","jobId":"nobody","event":{"type":"note"}}\n' * 3]))
    gc.collect()
    left = [one for one in gc.get_objects() if isinstance(one, Connection)]
    assert [one for one in left if one._dispatcher is target.server._dispatcher] == []
