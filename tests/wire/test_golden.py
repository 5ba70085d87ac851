"""Golden bytes: the wire as it was promised. A change that breaks one of these breaks agents in the field."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET, Raw

from statesvc_client import wire
from statesvc_client.wire import (
    Acked,
    Cancel,
    Check,
    Claim,
    Create,
    Delete,
    Emit,
    EventLine,
    Feed,
    Get,
    Happening,
    Health,
    Hello,
    History,
    Lease,
    Limits,
    List,
    Ping,
    Progress,
    ProgressLine,
    Rejected,
    Release,
    Renew,
    Reply,
    Restore,
    Result,
    Retry,
    Scope,
    Snapshot,
    Stats,
    Stuck,
    Sync,
    Told,
    Txn,
    Unwatch,
    Update,
    Verdict,
    Watch,
    decode_reply,
    decode_request,
    encode_line,
)

LIMITS = Limits()

REQUESTS = [
    (b'{"op":"ping"}', Ping()),
    (b'{"op":"ping","requestId":"r-1"}', Ping(request_id="r-1")),
    (b'{"op":"ping","requestId":7}', Ping(request_id=7)),
    (
        b'{"op":"hello","requestId":"1","client":"c1","name":"agent","nodeId":"n1","bootId":"b1","ack":"last","protocol":1}',
        Hello(request_id="1", client="c1", name="agent", node_id="n1", boot_id="b1", ack="last", protocol=1),
    ),
    (
        (
            b'{"op":"create","jobId":"abc123","job":{"uuid":"abc123","status":"RUNNING","command":"echo test",'
            b'"createdAt":"2025-10-26T00:00:00Z"},"requestId":"req-001","timestamp":1698432000}'
        ),
        Create(
            request_id="req-001",
            job_id="abc123",
            job={"uuid": "abc123", "status": "RUNNING", "command": "echo test", "createdAt": "2025-10-26T00:00:00Z"},
            timestamp=1698432000,
        ),
    ),
    (
        b'{"op":"create","kind":"kv","id":"k","record":{"value":null},"seq":3,"floor":2,"again":true}',
        Create(kind="kv", id="k", record={"value": None}, seq=3, floor=2, again=True),
    ),
    (
        (
            b'{"op":"update","jobId":"j","job":{"a":null},"set":{"/x/y":1},"inc":{"n":1,"f":0.5},"append":{"l":[1,"2"]},'
            b'"ifRevision":4,"upsert":true,"seq":9}'
        ),
        Update(
            job_id="j",
            job={"a": None},
            set={"/x/y": 1},
            inc={"n": 1, "f": 0.5},
            append={"l": [1, "2"]},
            if_revision=4,
            upsert=True,
            seq=9,
        ),
    ),
    (b'{"op":"delete","job_uuid":"j","ifRevision":0}', Delete(job_id="j", if_revision=0)),
    (b'{"op":"get","id":"j"}', Get(id="j")),
    (
        b'{"op":"list","filter":{"status":"RUNNING"},"sortBy":"createdAt","sortDesc":true,"limit":5,"cursor":"c"}',
        List(filter={"status": "RUNNING"}, sort_by="createdAt", sort_desc=True, limit=5, cursor="c"),
    ),
    (
        b'{"op":"sync","jobs":[{"uuid":"a"}],"mode":"replace","scope":{"nodeId":"n"}}',
        Sync(jobs=[{"uuid": "a"}], mode="replace", scope=Scope("n")),
    ),
    (
        b'{"op":"txn","ops":[{"op":"create","kind":"kv","record":{"id":"a"}},{"op":"delete","jobId":"j"}],"seq":4}',
        Txn(ops=[Create(kind="kv", record={"id": "a"}), Delete(job_id="j")], seq=4),
    ),
    (
        b'{"op":"claim","filter":{"labels":{"gpu":"a"}},"holder":"w","ttl":30,"limit":2,"wait":5,"seq":1}',
        Claim(filter={"labels": {"gpu": "a"}}, holder="w", ttl=30.0, limit=2, wait=5.0, seq=1),
    ),
    (
        b'{"op":"claim","kind":"lock","id":"l","holder":"w","ttl":0.5,"hold":2,"record":{"info":1}}',
        Claim(kind="lock", id="l", holder="w", ttl=0.5, hold=2.0, record={"info": 1}),
    ),
    (b'{"op":"renew","jobId":"j","token":3,"job":{"progress":5}}', Renew(job_id="j", token=3, job={"progress": 5})),
    (
        b'{"op":"release","jobId":"j","token":3,"status":"FAILED","delay":1.5}',
        Release(job_id="j", token=3, status="FAILED", delay=1.5),
    ),
    (b'{"op":"cancel","jobId":"j"}', Cancel(job_id="j")),
    (b'{"op":"retry","jobId":"j","seq":2}', Retry(job_id="j", seq=2)),
    (
        b'{"op":"emit","jobId":"j","event":{"type":"trace","message":"m","data":{"a":[1]}}}',
        Emit(job_id="j", event=Told("trace", "m", {"a": [1]})),
    ),
    (b'{"op":"history","jobId":"j","after":"e.1","limit":5}', History(job_id="j", after="e.1", limit=5)),
    (
        b'{"op":"watch","requestId":"w","filter":{"status":"RUNNING"}}',
        Watch(request_id="w", filter={"status": "RUNNING"}),
    ),
    (b'{"op":"unwatch","watch":"w"}', Unwatch(watch="w")),
    (b'{"op":"stats","by":"nodeId","filter":{}}', Stats(by="nodeId", filter={})),
    (b'{"op":"stuck","kind":"operation","seconds":60}', Stuck(kind="operation", seconds=60.0)),
    (b'{"op":"health"}', Health()),
    (b'{"op":"snapshot","path":"a.snapshot","progress":true}', Snapshot(path="a.snapshot", progress=True)),
    (b'{"op":"restore","path":"a.snapshot"}', Restore(path="a.snapshot")),
    (b'{"op":"check","repair":true}', Check(repair=True)),
    (b'{"op":"feed","requestId":"f","cursor":"c"}', Feed(request_id="f", cursor="c")),
    (b'{"op":"feed","after":"e.7"}', Feed(after="e.7")),
    # Spelling is forgiven, what is not known is ignored, space is space.
    (b'{"OP":"get","JOBID":"j","RequestID":"r","whatever":[1,{}]}', Get(job_id="j", request_id="r")),
    (b' {\t"op" : "get" , "jobid":"j"}\r', Get(job_id="j")),
    (b'{"Op":"update","JobId":"j","Job":{"Status":"RUNNING"},"IFREVISION":1}', None),
    (b'{"op":"ping","job":5,"jobs":"x"}', Ping()),
    (
        b'{"op":"txn","Ops":[{"OP":"delete","JobID":"j","more":1}]}',
        Txn(ops=[Delete(job_id="j")]),
    ),
]


@pytest.mark.parametrize(
    ("frame", "request_"), REQUESTS, ids=lambda value: value[:40] if isinstance(value, bytes) else ""
)
def test_a_frame_decodes_to_this_request(frame: bytes, request_: wire.Request | None):
    expected = request_ or Update(job_id="j", job={"Status": "RUNNING"}, if_revision=1)
    decoded = decode_request(frame, LIMITS)
    assert decoded == expected
    assert type(decoded) is type(expected)


REPLIES = [
    (Reply(request_id="r", success=True), b'{"requestId":"r","success":true}\n'),
    (Reply(request_id="", success=True), b'{"requestId":"","success":true}\n'),
    (Reply(request_id=7, success=True), b'{"requestId":7,"success":true}\n'),
    (
        Reply(request_id="r", success=False, error="GET_ERROR: job not found", code="not_found"),
        b'{"requestId":"r","success":false,"error":"GET_ERROR: job not found","code":"not_found"}\n',
    ),
    (
        Reply(
            request_id="r",
            success=False,
            error="UPDATE_ERROR: revision is 2, not 1",
            code="conflict",
            outcome="not_applied",
            seq=4,
            job=Raw(b'{"uuid":"a"}'),
        ),
        (
            b'{"requestId":"r","success":false,"error":"UPDATE_ERROR: revision is 2, not 1","code":"conflict",'
            b'"outcome":"not_applied","seq":4,"job":{"uuid":"a"}}\n'
        ),
    ),
    (
        Reply(request_id="r", success=True, record=Raw(b'{"id":"k","value":1}')),
        b'{"requestId":"r","success":true,"record":{"id":"k","value":1}}\n',
    ),
    (
        Reply(request_id="r", success=True, jobs=[Raw(b"{}"), Raw(b'{"a":1}')], next_cursor="n", as_of="e.1"),
        b'{"requestId":"r","success":true,"jobs":[{},{"a":1}],"nextCursor":"n","asOf":"e.1"}\n',
    ),
    (Reply(request_id="r", success=True, jobs=[]), b'{"requestId":"r","success":true,"jobs":[]}\n'),
    (
        Reply(request_id="r", success=True, records=[Raw(b"{}")], truncated=True),
        b'{"requestId":"r","success":true,"records":[{}],"truncated":true}\n',
    ),
    (
        Reply(request_id="r", success=True, revision=3, duplicate=True),
        b'{"requestId":"r","success":true,"revision":3,"duplicate":true}\n',
    ),
    (
        Reply(
            request_id="r",
            success=True,
            applied=1,
            unchanged=0,
            rejected=[Rejected("conflict", "why", job_id="a"), Rejected("conflict", "why", id="b")],
            missing=["c"],
        ),
        (
            b'{"requestId":"r","success":true,"applied":1,"unchanged":0,"rejected":[{"code":"conflict","error":"why",'
            b'"jobId":"a"},{"code":"conflict","error":"why","id":"b"}],"missing":["c"]}\n'
        ),
    ),
    (Acked(acked=12), b'{"acked":12,"success":true}\n'),
    (
        Reply(request_id=1, success=True, next_cursor="n", total=2, cursor="e.7", feed=b"\x91\x00\xff"),
        b'{"requestId":1,"success":true,"nextCursor":"n","total":2,"cursor":"e.7","feed":"kQD/"}\n',
    ),
    (
        Reply(request_id="r", success=True, lease=Lease(holder="w", token=2, ttl=1.5, beat=3), cancel_requested=True),
        (
            b'{"requestId":"r","success":true,"lease":{"holder":"w","token":2,"ttl":1.5,"beat":3},'
            b'"cancelRequested":true}\n'
        ),
    ),
    (
        EventLine(
            "w",
            Happening(
                cursor="e.7",
                type="status",
                kind="job",
                id="j",
                revision=2,
                at="t",
                from_="QUEUED",
                to="RUNNING",
                record=Raw(b'{"uuid":"j"}'),
            ),
        ),
        (
            b'{"requestId":"w","event":{"cursor":"e.7","type":"status","kind":"job","id":"j","revision":2,"at":"t",'
            b'"from":"QUEUED","to":"RUNNING","record":{"uuid":"j"}}}\n'
        ),
    ),
    (ProgressLine("s", Progress(5, 10)), b'{"requestId":"s","progress":{"done":5,"total":10}}\n'),
    (
        Reply(request_id="h", success=True, live=True, ready=False, checks=[Verdict(name="engine", verdict="fail")]),
        b'{"requestId":"h","success":true,"live":true,"ready":false,"checks":[{"name":"engine","verdict":"fail"}]}\n',
    ),
    (
        Reply(request_id="t", success=True, results=[Result(job=Raw(b"{}")), Result()]),
        b'{"requestId":"t","success":true,"results":[{"job":{}},{}]}\n',
    ),
    (
        Reply(
            request_id="r",
            success=True,
            protocol=1,
            version="0.1.0",
            backend="memory",
            durability="memory",
            epoch="e",
            limits=Limits(),
        ),
        (
            b'{"requestId":"r","success":true,"protocol":1,"version":"0.1.0","backend":"memory","durability":"memory",'
            b'"epoch":"e","limits":{"frameBytes":10485760,"frameValues":200000,"depth":256,"idChars":256,'
            b'"recordBytes":8388608,"requestsInFlight":4096,"listLimit":1000,"marksClients":64}}\n'
        ),
    ),
]


@pytest.mark.parametrize(("reply", "line"), REPLIES, ids=[repr(line[:60]) for _, line in REPLIES])
def test_a_reply_encodes_to_these_bytes(reply: object, line: bytes):
    assert encode_line(reply) == line


@pytest.mark.parametrize("line", [line for _, line in REPLIES])
def test_a_client_reads_every_line_a_daemon_writes(line: bytes):
    read = decode_reply(line)
    plain = msgspec.json.decode(line)
    assert read.success is plain.get("success", True)
    assert read.request_id == plain.get("requestId", "")
    assert read.acked == plain.get("acked")
    for name in ("code", "outcome", "revision", "error", "seq"):
        assert getattr(read, name) == plain.get(name)


def test_a_client_ignores_what_a_newer_daemon_adds():
    read = decode_reply(b'{"requestId":"r","success":true,"weather":"fine","total":3}')
    assert read.success
    assert read.job is UNSET


@pytest.mark.parametrize("request_", [request for _, request in REQUESTS if request is not None])
def test_what_a_client_encodes_decodes_to_the_same_request(request_: wire.Request):
    assert decode_request(encode_line(request_)[:-1], LIMITS) == request_


def test_the_op_table_names_every_op_once():
    ops = """
        ping hello create update delete get list sync txn claim renew release cancel retry emit history watch unwatch
        stats stuck health snapshot restore check sweep freeze thaw feed
    """
    assert list(wire.OPS) == ops.split()
    for op, cls in wire.OPS.items():
        assert cls.__struct_config__.tag == op
        assert cls.purpose
    writes = "create update delete sync txn claim renew release cancel retry emit restore"
    assert {op for op, cls in wire.OPS.items() if cls.writes} == set(writes.split())
    admin = "snapshot restore check sweep freeze thaw feed"
    assert {op for op, cls in wire.OPS.items() if cls.admin} == set(admin.split())


def test_every_code_an_op_may_answer_with_is_a_code_of_the_tree():
    from statesvc_client.errors import BY_CODE

    for cls in wire.OPS.values():
        assert set(cls.codes) <= set(BY_CODE)


def test_the_limits_are_the_documented_ones():
    assert (
        Limits(
            frame_bytes=10 * 1024 * 1024,
            frame_values=200_000,
            depth=256,
            id_chars=256,
            record_bytes=8 * 1024 * 1024,
            requests_in_flight=4096,
            list_limit=1000,
            marks_clients=64,
        )
        == LIMITS
    )
    assert wire.PROTOCOL == 1


@pytest.mark.parametrize("kind", ["job", "kv"])
@pytest.mark.parametrize("request_id", ["", "r-1", 'with "quotes" and \\ and ü', 7, -(2**70)])
def test_a_reply_that_is_put_together_is_what_would_be_encoded(kind: str, request_id: str | int):
    body = b'{"uuid":"a","n":[1,2]}'
    reply = wire.Reply(request_id=request_id, success=True)
    if kind == "job":
        reply.job = Raw(body)
    else:
        reply.record = Raw(body)
    assert wire.record_line(request_id, kind, body) == wire.encode_line(reply)
