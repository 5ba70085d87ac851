"""Frames that are no requests: each gets its code and its text, none costs more than its length."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statesvc_client import scanning
from statesvc_client.errors import BadJson, TooLarge
from statesvc_client.scanning import check_size
from statesvc_client.wire import Delete, Limits, Malformed, Sync, Txn, decode_request, printable

LIMITS = Limits()


def refused(frame: bytes, limits: Limits = LIMITS) -> Malformed:
    with pytest.raises(Malformed) as caught:
        decode_request(frame, limits)
    return caught.value


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b" ",
        b"\r",
        b"{",
        b'{"op":"ping"',
        b'{"op":"ping"}{"op":"ping"}',
        b'{"op":"ping"} x',
        b'{"op":"ping",}',
        b"{'op':'ping'}",
        b'{"op":NaN}',
        b'{"op":Infinity}',
        b'{"op":"ping","x":\xff}',
        b'{"op":"ping","x":"\xff"}',
        b'{"op":"ping","x":"\xed\xa0\x80"}',
        b'{"op":"ping","x":"\\ud800"}',
        b'{"op":"ping","x":"\\ud800 "}',
        b'{"op":"ping","x":"\\udc00\\ud800"}',
        b'{"op":"ping","x":"\x00"}',
        b'{"op":"ping","x":"a\tb"}',
        b'{"op":"ping","x":1e999}',
        b'{"op":"ping","x":01}',
        b'{"op":"ping","x":' + b"9" * 5000 + b"}",
        b"[]",
        b'["op"]',
        b'"ping"',
        b"1",
        b"null",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"op":"ping","x":' + b"[" * 300 + b"]" * 300 + b"}",
        b"\xef\xbb\xbf" + b'{"op":"ping"}',
    ],
    ids=lambda frame: repr(frame[:30]),
)
def test_what_is_not_one_json_object_is_bad_json(frame: bytes):
    bad = refused(frame)
    assert bad.error.code == "bad_json"
    assert bad.error.text.startswith("INVALID_JSON: ")
    assert bad.request_id == ""
    assert len(bad.error.text) < 200


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b'{"op":"fly","requestId":"r"}', "unknown operation: fly"),
        (b'{"requestId":"r"}', "unknown operation: "),
        (b'{"op":"","requestId":"r"}', "unknown operation: "),
        (b'{"op":"PING","requestId":"r"}', "unknown operation: PING"),
        (b'{"op":"a\\u0000\\nb","requestId":"r"}', "unknown operation: a\\x00\\nb"),
        (b'{"op":"' + b"x" * 1000 + b'","requestId":"r"}', "unknown operation: " + "x" * 64 + "…"),
    ],
)
def test_an_op_that_is_not_known_is_named(frame: bytes, text: str):
    bad = refused(frame)
    assert (bad.error.code, bad.error.text, bad.request_id) == ("unknown_op", text, "r")


@pytest.mark.parametrize(
    "frame",
    [
        b'{"op":1,"requestId":"r"}',
        b'{"op":null,"requestId":"r"}',
        b'{"op":["ping"],"requestId":"r"}',
        b'{"op":"get","requestId":"r","jobId":5}',
        b'{"op":"get","requestId":"r","kind":{}}',
        b'{"op":"create","requestId":"r","job":[]}',
        b'{"op":"create","requestId":"r","job":"x"}',
        b'{"op":"create","requestId":"r","job":{},"seq":0}',
        b'{"op":"create","requestId":"r","job":{},"seq":-1}',
        b'{"op":"create","requestId":"r","job":{},"seq":1.5}',
        b'{"op":"create","requestId":"r","job":{},"seq":true}',
        b'{"op":"create","requestId":"r","job":{},"seq":9223372036854775808}',
        b'{"op":"create","requestId":"r","job":{},"floor":-1}',
        b'{"op":"create","requestId":"r","job":{},"again":1}',
        b'{"op":"update","requestId":"r","inc":{"a":"1"}}',
        b'{"op":"update","requestId":"r","append":{"a":1}}',
        b'{"op":"update","requestId":"r","set":[]}',
        b'{"op":"update","requestId":"r","ifRevision":-1}',
        b'{"op":"update","requestId":"r","upsert":"yes"}',
        b'{"op":"list","requestId":"r","limit":"5"}',
        b'{"op":"list","requestId":"r","filter":[]}',
        b'{"op":"list","requestId":"r","sortDesc":1}',
        b'{"op":"sync","requestId":"r","jobs":[null]}',
        b'{"op":"sync","requestId":"r","jobs":{}}',
        b'{"op":"sync","requestId":"r","jobs":[],"mode":"both"}',
        b'{"op":"sync","requestId":"r","jobs":[],"scope":{}}',
        b'{"op":"hello","requestId":"r","ack":"never"}',
        b'{"op":"hello","requestId":"r","client":5}',
    ],
)
def test_a_value_of_the_wrong_type_is_a_bad_request_that_names_it(frame: bytes):
    bad = refused(frame)
    assert bad.error.code == "bad_request"
    assert bad.request_id == "r"
    assert bad.error.text


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b'{"op":"get","requestId":"r","jobId":"a","JobId":"b"}', "jobId is given twice, in two spellings"),
        (b'{"op":"get","requestId":"r","OP":"delete","jobId":"a"}', "op is given twice, in two spellings"),
        (
            b'{"op":"txn","requestId":"r","ops":[{"OP":"create","op":"delete","jobId":"a"}]}',
            "op 0: op is given twice, in two spellings",
        ),
        (
            b'{"op":"txn","requestId":"r","ops":[{"op":"delete","jobId":"c"},{"op":"delete","jobId":"a","JobId":"b"}]}',
            "op 1: jobId is given twice, in two spellings",
        ),
        (
            b'{"op":"txn","requestId":"r","ops":[{"op":"delete","jobId":"a","job_uuid":"b"}]}',
            "op 0: jobId is given twice, in two spellings",
        ),
    ],
)
def test_a_key_whose_spellings_say_different_things_is_refused_also_inside_a_transaction(frame: bytes, text: str):
    bad = refused(frame)
    assert (bad.error.code, bad.error.text, bad.request_id) == ("bad_request", text, "r")


def test_a_key_in_two_spellings_that_say_the_same_is_no_mistake():
    frame = b'{"op":"txn","ops":[{"op":"delete","jobId":"a","JobId":"a"}]}'
    assert decode_request(frame, LIMITS) == Txn(ops=[Delete(job_id="a")])


@pytest.mark.parametrize("request_id", [b"null", b"true", b"1.5", b"[]", b"{}"])
def test_a_request_id_is_a_text_or_an_integer(request_id: bytes):
    bad = refused(b'{"op":"ping","requestId":%s}' % request_id)
    assert (bad.error.code, bad.request_id) == ("bad_request", "")


# --- limits ----------------------------------------------------------------------------------------------------------


def nested(depth: int) -> bytes:
    """A frame `depth` deep, its own braces included."""
    return b'{"op":"ping","x":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_a_frame_may_be_as_deep_as_the_limit_and_no_deeper():
    decode_request(nested(256), LIMITS)
    assert refused(nested(257)).error.text == "INVALID_JSON: nested deeper than 256"


def test_a_million_levels_are_too_many_values_before_they_are_too_deep():
    assert refused(b"[" * 1_000_000).error.code == "too_large"


def test_brackets_inside_strings_are_no_depth():
    decode_request(b'{"op":"ping","x":"' + b"[{" * 1000 + b'\\"[["}', LIMITS)


def test_depth_is_counted_by_nesting_not_by_number():
    decode_request(b'{"op":"ping","x":[' + b"[]," * 1000 + b"[]]}", LIMITS)


def test_a_frame_may_hold_as_many_values_as_the_limit_and_no_more():
    limits = Limits(frame_values=1000)
    # Five values of its own: the frame, op, jobs and its array, and the object of the last element.
    frame = b'{"op":"sync","jobs":[' + b",".join([b"{}"] * 498) + b"]}"
    assert isinstance(decode_request(frame, limits), Sync)
    frame = b'{"op":"sync","jobs":[' + b",".join([b"{}"] * 600) + b"]}"
    assert refused(frame, limits).error.code == "too_large"


def test_commas_inside_strings_are_no_values():
    decode_request(b'{"op":"ping","x":"' + b"," * 5000 + b'"}', Limits(frame_values=1000))


def plainly(frame: bytes) -> tuple[int, int]:
    """Values and depth, one byte after the other."""
    values, level, deepest, inside, escaped = 1, 0, 0, False, False
    for byte in frame:
        if inside:
            inside, escaped = byte != ord('"') or escaped, byte == ord("\\") and not escaped
        elif byte == ord('"'):
            inside = True
        elif byte in b"[{":
            values, level = values + 1, level + 1
            deepest = max(deepest, level)
        elif byte in b"]}":
            level -= 1
        elif byte == ord(","):
            values += 1
    return values, deepest


STRINGS = st.lists(st.sampled_from([b"a", b"[", b"}", b",", b"\\\\", b'\\"', b"\\n"]), max_size=8).map(
    lambda parts: b'"' + b"".join(parts) + b'"'
)


@given(
    frame=st.lists(st.sampled_from([b"[", b"]", b"{", b"}", b",", b"1", b'""']) | STRINGS, max_size=40),
    cut=st.integers(0, 3),
    piece=st.integers(1, 9),
)
@example(frame=[b'"\\\\"', b"[", b"["], cut=0, piece=2)
@example(frame=[b'"\\""', b"[", b"["], cut=0, piece=2)
def test_a_frame_looked_at_piece_by_piece_holds_what_it_holds_byte_by_byte(frame: list[bytes], cut: int, piece: int):
    whole = b"".join(frame)
    whole = b"[" * len(frame) + whole[: len(whole) - cut]  # nothing is closed that was not opened
    values, deepest = plainly(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "SIZED_AT_ONCE", piece)
        check_size(whole, values, max(deepest, 1))
        if values > 1:
            with pytest.raises(TooLarge, match="more than"):
                check_size(whole, values - 1, max(deepest, 1))
        if deepest > 1:
            with pytest.raises(BadJson, match="nested"):
                check_size(whole, values, deepest - 1)


@pytest.mark.parametrize(
    "frame",
    [
        b'{"op":"ping","x":' + b"[" * 300 + b'"' + b'\\"' * 2_000_000,
        b"[" * 300 + b'"' * 4_000_001,
        b"[" * 300 + b"\\" * 4_000_000,
        b"[" * 300 + b'"\\' * 2_000_000,
        b"[" * 4_000_000,
        b'[",",' * 800_000,
        b'"' + b"\\u" * 2_000_000,
        b"[" * 300 + b"]" * 4_000_000,
    ],
    ids=range(8),
)
def test_no_frame_takes_longer_than_its_length_explains(frame: bytes):
    """A frame of 4 MB takes a fraction of a second; a check that went back at each quote would take days."""
    assert refused(frame).error.code in {"bad_json", "too_large"}


@example(b'{"op":"list","limit":1e2}')
@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_a_request_or_malformed_and_nothing_else(frame: bytes):
    code = ""
    try:
        decode_request(frame, LIMITS)
    except Malformed as bad:
        code = bad.error.code
    assert code in {"", "bad_json", "bad_request", "unknown_op"}


@given(st.text())
def test_what_is_printed_of_a_callers_value_is_short_and_has_no_control_characters(text: str):
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) <= 65 * len("\\U00000000")


# --- keys that are given twice ---------------------------------------------------------------------------------------

TEXTS = st.text(st.sampled_from('ab":\\ {,\té'), max_size=4)
SPACES = st.sampled_from([b"", b" ", b"\t"])


class Twice(Exception):
    """An object that has a key twice."""


def pairs_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) < len(pairs):
        raise Twice
    return dict(pairs)


@st.composite
def spelled(draw: st.DrawFn, text: str) -> bytes:
    """A string, as it is or with some of its signs in hex."""
    return b'"' + b"".join(b"\\u%04x" % ord(sign) if draw(st.booleans()) else _escaped(sign) for sign in text) + b'"'


def _escaped(sign: str) -> bytes:
    return json.dumps(sign, ensure_ascii=False).encode()[1:-1]


@st.composite
def objects(draw: st.DrawFn, depth: int = 2) -> bytes:
    """JSON text of an object whose keys are few, so that some are given twice."""
    parts: list[bytes] = []
    for key in draw(st.lists(TEXTS, max_size=4)):
        value = draw(objects(depth=depth - 1)) if depth and draw(st.booleans()) else draw(spelled(draw(TEXTS)))
        parts.append(draw(spelled(key)) + draw(SPACES) + b":" + draw(SPACES) + value)
    return b"{" + b",".join(parts) + b"}"


@given(record=objects(), kind=st.sampled_from([b"", b',"kind":"job"', b',"Kind":"job"', b',"colour":1']))
def test_a_frame_is_refused_where_an_object_of_it_has_a_key_twice_and_only_there(record: bytes, kind: bytes):
    frame = b'{"op":"update","jobId":"a","job":' + record + kind + b"}"
    try:
        json.loads(frame, object_pairs_hook=pairs_once)
    except Twice:
        assert "is given twice in one object" in str(refused(frame))
    else:
        decode_request(frame, LIMITS)


def test_the_key_that_is_given_twice_is_named_unless_that_takes_long_or_it_may_be_secret():
    assert str(refused(b'{"op":"update","jobId":"a","job":{"x":1,"y":2,"x":3},"requestId":"r"}')) == (
        "key x is given twice in one object"
    )
    secret = b'{"op":"create","requestId":"r","job":{"uuid":"a","SecretEnvironment":{"PIN":"1","PIN":"2"}}}'
    for frame in (secret, secret.replace(b"SecretE", b"secret\\u0045")):
        assert str(refused(frame)) == "a key is given twice in one object"
    large = b'{"op":"update","jobId":"a","job":{"x":1,"y":"%b","x":3},"requestId":"r"}' % (b"y" * 100_000)
    assert (str(refused(large)), refused(large).request_id) == ("a key is given twice in one object", "r")
