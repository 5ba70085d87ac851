"""Time: reading, writing and comparing RFC 3339 with nanoseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statesvc.store.clock import SECOND, Clock, Stamper, clamp, parse
from statesvc.store.clock import given as was_given
from statesvc_client.errors import BadRequest

MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01T00:00:00.1Z", 100_000_000),
        ("1970-01-01T00:00:00.1234567891Z", 123_456_789),
        ("1970-01-01T00:00:00." + "1" * 41 + "Z", 111_111_111),
        ("1970-01-01t00:00:01z", SECOND),
        ("1970-01-01 00:00:01Z", SECOND),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:00:00-01:00", 0),
        ("1970-01-01T05:30:00.5+05:30", SECOND // 2),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2025-10-26T00:00:00Z", 1_761_436_800 * SECOND),
        ("2024-02-29T12:00:00Z", 1_709_208_000 * SECOND),
        ("2016-12-31T23:59:60Z", 1_483_228_799 * SECOND),
        ("9999-12-31T23:59:59Z", MOST),
        ("0001-01-01T00:00:00Z", -MOST),
    ],
)
def test_a_time_is_read_as_nanoseconds(text: str, nanos: int):
    assert parse(text, "createdAt") == nanos


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "2025-10-26", "2025-10-26T00:00:00", "2025-10-26T00:00Z", "2025-13-26T00:00:00Z",
        "2025-02-30T00:00:00Z", "2025-10-26T24:00:00Z", "2025-10-26T00:60:00Z", "2025-10-26T00:00:00.Z",
        "2025-10-26T00:00:00+1:00", "２０２５-10-26T00:00:00Z", " 2025-10-26T00:00:00Z", "2025-10-26T00:00:00Z\n",
        "0000-01-01T00:00:00Z", "+2025-10-26T00:00:00Z", "2025-10-26T00:00:00,5Z", 5, 1.5, None, True, [], {},
    ],
)  # fmt: skip
def test_what_is_no_time_is_refused_by_the_name_of_its_field(text: object):
    with pytest.raises(BadRequest, match="startedAt"):
        parse(text, "startedAt")


@given(st.integers(0, 4_000_000_000), st.integers(0, SECOND - 1))
def test_what_is_written_is_read_back(second: int, nanos: int):
    at = second * SECOND + nanos
    assert parse(Stamper().text(at), "at") == at


@given(st.lists(st.integers(0, 3 * SECOND), min_size=1))
def test_a_stamper_says_the_same_whatever_it_said_before(moments: list[int]):
    stamper = Stamper()
    assert [stamper.text(at) for at in moments] == [Stamper().text(at) for at in moments]


@given(st.datetimes(datetime(1700, 1, 1), datetime(2250, 1, 1)), st.integers(-14 * 60, 14 * 60))  # noqa: DTZ001
def test_an_offset_changes_the_text_and_not_the_time(moment: datetime, minutes: int):
    there = moment.replace(tzinfo=UTC)
    offset = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    text = f"{(there + timedelta(minutes=minutes)):%Y-%m-%dT%H:%M:%S.%f}{offset}"
    whole = (there - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert parse(text, "at") == whole * 1000


@pytest.mark.parametrize("value", [None, "", "0001-01-01T00:00:00Z"])
def test_null_empty_and_gos_zero_were_never_given(value: object):
    assert not was_given(value)


def test_anything_else_was_given():
    assert was_given("2025-10-26T00:00:00Z")
    assert was_given("nonsense")
    assert was_given(0)


def test_sort_keys_fit_64_bits():
    assert clamp(2**70) == MOST
    assert clamp(-(2**70)) == -MOST
    assert clamp(5) == 5


def test_the_clock_goes_forward():
    assert Clock().now() > 1_700_000_000 * SECOND
