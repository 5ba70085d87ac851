"""The error tree: one class per code, each knowing whose fault it is."""

from __future__ import annotations

import pytest

from statesvc_client import errors
from statesvc_client.errors import BY_CODE, Conflict, Internal, RequestFault, StateError, from_reply

CODES = [
    "bad_json",
    "bad_request",
    "too_large",
    "unknown_op",
    "not_found",
    "exists",
    "conflict",
    "invalid_transition",
    "lease_lost",
    "gone",
    "busy",
    "denied",
    "unavailable",
    "no_space",
    "internal",
]


def test_every_code_has_its_class_and_every_class_its_code():
    assert sorted(BY_CODE) == sorted(CODES)
    assert all(cls.code == code for code, cls in BY_CODE.items())


def test_the_sender_sends_again_only_what_was_not_its_fault():
    retryable = {code for code, cls in BY_CODE.items() if cls.retryable}
    assert retryable == {"busy", "unavailable", "no_space", "internal"}


@pytest.mark.parametrize("code", CODES)
def test_an_error_is_not_applied_unless_it_says_otherwise(code: str):
    assert BY_CODE[code]("text").outcome == "not_applied"
    assert BY_CODE[code]("text", outcome="unknown").outcome == "unknown"


@pytest.mark.parametrize("code", CODES)
def test_a_writer_stops_after_what_is_retryable_and_after_anything_unknown(code: str):
    cls = BY_CODE[code]
    assert cls("text").stops_the_writer() is (code in {"busy", "unavailable", "no_space", "internal"})
    assert cls("text", outcome="unknown").stops_the_writer()


@pytest.mark.parametrize("code", CODES)
def test_a_reply_becomes_the_error_it_was(code: str):
    error = from_reply(code, "why", "unknown", {"a": 1})
    assert type(error) is BY_CODE[code]
    assert (error.text, str(error), error.outcome, error.record) == ("why", "why", "unknown", {"a": 1})


def test_a_code_of_a_newer_daemon_is_an_internal_failure():
    error = from_reply("quota_exceeded", "why", None)
    assert type(error) is Internal
    assert error.outcome == "not_applied"


def test_the_tree_is_the_one_its_file_draws():
    drawn = (errors.__doc__ or "").splitlines()
    for code, cls in BY_CODE.items():
        assert any(cls.__name__ in line and f" {code}" in line for line in drawn), code


def test_faults_and_refusals_are_told_apart():
    assert not issubclass(Conflict, RequestFault)
    assert issubclass(Conflict, errors.Refusal)
    assert issubclass(errors.NoSpace, errors.ServiceFault)
    assert all(issubclass(cls, StateError) for cls in BY_CODE.values())
