"""What the server's error replies mean: the code, the error a client gets, and no word of what was sent."""

from __future__ import annotations

import pytest
from redis.asyncio.connection import DefaultParser

from statesvc.backends.redis.faults import NOT_NOW, Refused, as_error, refused, words

SHA = "f_" + "a" * 40
NOT_LOCAL = "@user_script: 2: Lua script attempted to access a non local key in a cluster node"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", "OOM"),
        ("LOADING server is loading the dataset in memory", "LOADING"),
        ("MOVED 3999 127.0.0.1:6381", "MOVED"),
        ("MOVED 3999 :6381", "MOVED"),
        ("ASK 3999 127.0.0.1:6381", "ASK"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "TRYAGAIN"),
        ("CLUSTERDOWN The cluster is down", "CLUSTERDOWN"),
        ("READONLY You can't write against a read only replica.", "READONLY"),
        ("READONLY You can't write against a read only replica. script: x, on @user_script:1.", "READONLY"),
        ("NOREPLICAS Not enough good replicas to write.", "NOREPLICAS"),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "MASTERDOWN"),
        ("MISCONF Errors writing to the AOF file: No space left on device", "MISCONF"),
        ("NOSCRIPT No matching script.", "NOSCRIPT"),
        ("NOPERM User agent has no permissions to run the 'config|get' command", "NOPERM"),
        ("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", "UNBLOCKED"),
        ("STATESVC-EPOCH 0123", "STATESVC-EPOCH"),
        ("ERR unknown command 'X', with args beginning with: 'user' 'secret'", "ERR"),
        ("no code at all", "ERR"),
        # As servers before version 7 wrap what happens inside a script.
        (
            f"ERR Error running script (call to {SHA}): @user_script:1: @user_script: 1: -READONLY You can't write",
            "READONLY",
        ),
        (f"ERR Error running script (call to {SHA}): @user_script:9: @user_script: 9: -OOM command not allowed", "OOM"),
        (
            f"ERR Error running script (call to {SHA}): @user_script:1: @user_script: 1: -NOREPLICAS Not enough",
            "NOREPLICAS",
        ),
        (
            f"ERR Error running script (call to {SHA}): @user_script:3: user_script:3: attempt to index a nil value",
            "ERR",
        ),
        (f"ERR Error running script (call to {SHA}): {NOT_LOCAL}", "NOTLOCAL"),
        ("ERR Script attempted to access a non local key in a cluster node script: x, on @user_script:1.", "NOTLOCAL"),
    ],
)
def test_every_reply_has_its_code(said: str, code: str):
    assert refused(DefaultParser.parse_error(said)).code == code


@pytest.mark.parametrize(
    ("code", "wire"),
    [
        ("OOM", "no_space"),
        ("MISCONF", "no_space"),
        ("NOAUTH", "unavailable"),
        ("WRONGPASS", "unavailable"),
        ("NOPERM", "unavailable"),
        ("WRONGTYPE", "internal"),
        ("ERR", "internal"),
        *((code, "unavailable") for code in sorted(NOT_NOW)),
    ],
)
def test_a_refusal_becomes_an_error_that_was_not_applied_and_repeats_nothing(code: str, wire: str):
    error = as_error(Refused(code, "with args beginning with: 'secret'"), "host:1")
    assert (error.code, error.outcome) == (wire, "not_applied")
    assert error.text.startswith("redis at host:1: ")
    assert "secret" not in error.text


def test_a_code_nobody_has_words_for_is_named():
    assert words(Refused("STRANGE", "x")) == "it answered with the error STRANGE"
