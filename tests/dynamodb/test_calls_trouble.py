"""Calls through an endpoint that throttles, loses, hangs and fails: what is repeated, and what is known afterwards."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from statesvc.backends.dynamodb.calls import (
    ON_ITS_WAY_SECONDS,
    Calls,
    Cancelled,
    ConditionFailed,
    InvalidRequest,
    Lost,
    NoSuchTable,
)
from statesvc.backends.dynamodb.whole import ABANDONED_SECONDS, SENT_SECONDS
from statesvc_client.errors import Unavailable
from tests.dynamodb.asking import ENDS_SECONDS, answering, calling, get, make_table, put, until
from tests.dynamodb.servers import Tables, TroubledEndpoint, refusal
from tests.dynamodb.serving import Reply, Request

WRITES = frozenset({"PutItem", "TransactWriteItems"})


@pytest.fixture
def trouble(endpoint: str) -> Iterator[TroubledEndpoint]:
    proxy = TroubledEndpoint(endpoint)
    yield proxy
    proxy.end()


@pytest.fixture
async def calls(trouble: TroubledEndpoint) -> AsyncIterator[Calls]:
    async with calling(trouble.url) as made:
        yield made


@pytest.fixture
async def table(calls: Calls, tables: Tables) -> str:
    await make_table(calls, tables.jobs)
    return tables.jobs


async def is_stored(calls: Calls, table: str, name: str) -> bool:
    return "Item" in await calls.call("GetItem", get(table, name))


# --- inside the deadline ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["throttle", "conflict", "fail", "lose"])
async def test_what_passes_is_waited_for(trouble: TroubledEndpoint, calls: Calls, table: str, fault) -> None:
    trouble.next(fault, fault, fault)
    await calls.call("PutItem", put(table, "job-1"))
    assert trouble.counts["PutItem"] == 4
    assert calls.made["PutItem"] == 4
    assert await is_stored(calls, table, "job-1")


@pytest.mark.parametrize("fault", ["throttle", "fail", "lose", "drop", "garble"])
async def test_a_read_is_repeated_whatever_became_of_it(trouble, calls: Calls, table: str, fault) -> None:
    await calls.call("PutItem", put(table, "job-1", "mine"))
    trouble.next(fault, fault)
    assert (await calls.call("GetItem", get(table, "job-1")))["Item"]["wid"] == {"S": "mine"}


@pytest.mark.parametrize("fault", ["drop", "fail_after", "garble"])
async def test_a_write_whose_reply_is_lost_meets_itself(trouble, calls: Calls, table: str, fault) -> None:
    trouble.next(fault)
    with pytest.raises(ConditionFailed) as caught:
        await calls.call("PutItem", put(table, "job-1", "mine"))
    assert caught.value.item == {"jobId": {"S": "job-1"}, "wid": {"S": "mine"}}
    assert caught.value.unsure


async def test_a_write_that_was_answered_each_time_leaves_no_doubt(trouble, calls: Calls, table: str) -> None:
    await calls.call("PutItem", put(table, "job-1", "others"))
    trouble.next("throttle")
    with pytest.raises(ConditionFailed) as caught:
        await calls.call("PutItem", put(table, "job-1", "mine"))
    assert not caught.value.unsure


async def test_a_transaction_whose_reply_is_lost_is_known_by_its_token(trouble, calls: Calls, table: str) -> None:
    trouble.next("drop")
    asked = {"ClientRequestToken": "token-1", "TransactItems": [{"Put": put(table, "job-1")}]}
    await calls.call("TransactWriteItems", asked)
    assert trouble.counts["TransactWriteItems"] == 2
    with pytest.raises(Cancelled):
        await calls.call("TransactWriteItems", {**asked, "ClientRequestToken": "token-2"})


async def test_a_transaction_that_conflicts_with_another_is_sent_again(trouble, calls: Calls, table: str) -> None:
    trouble.next("conflict", "conflict")
    await calls.call("TransactWriteItems", {"TransactItems": [{"Put": put(table, "a")}, {"Put": put(table, "b")}]})
    assert calls.repeated["conflicting"] == 2
    assert await is_stored(calls, table, "b")


async def test_a_transaction_whose_condition_fails_tells_which_at_once(trouble, calls: Calls, table: str) -> None:
    await calls.call("PutItem", put(table, "b", "others"))
    with pytest.raises(Cancelled) as caught:
        await calls.call("TransactWriteItems", {"TransactItems": [{"Put": put(table, "a")}, {"Put": put(table, "b")}]})
    assert [reason.code for reason in caught.value.reasons] == ["None", "ConditionalCheckFailed"]
    assert caught.value.reasons[0].item is None
    assert caught.value.reasons[1].item == {"jobId": {"S": "b"}, "wid": {"S": "others"}}
    assert trouble.counts["TransactWriteItems"] == 1
    assert not await is_stored(calls, table, "a")


async def test_one_connection_that_hangs_does_not_use_up_the_time(trouble, calls: Calls, table: str) -> None:
    trouble.next("hang")
    async with asyncio.timeout(ENDS_SECONDS):
        await calls.call("PutItem", put(table, "job-1"), seconds=3.0)
    assert trouble.counts["PutItem"] == 2


async def test_half_of_the_calls_throttled_and_one_reply_in_twenty_lost(trouble, calls: Calls, table: str) -> None:
    trouble.shares.throttle, trouble.shares.drop, trouble.only = 0.5, 0.05, WRITES
    names = [f"job-{n}" for n in range(100)]

    async def write(name: str) -> Any:
        try:
            return await calls.call("PutItem", put(table, name, name))
        except ConditionFailed as met:
            return met.item

    met = await asyncio.gather(*map(write, names))
    assert all(item in ({}, put(table, name, name)["Item"]) for name, item in zip(names, met, strict=True))
    assert trouble.faults["throttle"] > 20
    assert trouble.faults["drop"] > 0
    assert all([await is_stored(calls, table, name) for name in names])


# --- beyond it --------------------------------------------------------------------------------------------------------


async def test_throttled_to_the_end_is_surely_not_applied(trouble, calls: Calls, table: str) -> None:
    trouble.shares.throttle, trouble.only = 1.0, WRITES
    with pytest.raises(Unavailable, match=r"did not do PutItem within 1\.5 s: it throttles") as caught:
        await calls.call("PutItem", put(table, "job-1"), seconds=1.5)
    assert caught.value.outcome == "not_applied"
    assert not await is_stored(calls, table, "job-1")


@pytest.mark.parametrize("fault", ["drop", "fail_after", "hang_after", "garble"])
async def test_a_write_nobody_answers_is_lost(trouble, calls: Calls, table: str, fault) -> None:
    trouble.shares.__dict__[fault], trouble.only = 1.0, WRITES
    # The second try meets the first one where its reply would be lost too: the item stays what the first one made.
    asked = put(table, "job-1")
    del asked["ConditionExpression"], asked["ReturnValuesOnConditionCheckFailure"]
    async with asyncio.timeout(ENDS_SECONDS):
        with pytest.raises(Lost):
            await calls.call("PutItem", asked, seconds=1.0)
    assert await is_stored(calls, table, "job-1")


async def test_lost_once_and_throttled_from_then_on_is_still_lost(trouble, calls: Calls, table: str) -> None:
    trouble.shares.throttle, trouble.only = 1.0, WRITES
    trouble.next("drop")
    with pytest.raises(Lost):
        await calls.call("PutItem", put(table, "job-1"), seconds=1.0)


@pytest.mark.parametrize("fault", ["drop", "fail", "hang", "garble", "lose", "throttle"])
async def test_a_read_nobody_answers_is_unavailable(trouble, calls: Calls, table: str, fault) -> None:
    trouble.shares.__dict__[fault] = 1.0
    async with asyncio.timeout(ENDS_SECONDS):
        with pytest.raises(Unavailable) as caught:
            await calls.call("GetItem", get(table, "job-1"), seconds=0.3)
    assert caught.value.outcome == "not_applied"


async def test_nobody_listening_is_surely_not_applied(trouble, table: str) -> None:
    trouble.go_away()
    # With connections of its own: one that stood open when it was cut may have carried the first try.
    async with calling(trouble.url) as calls:
        with pytest.raises(Unavailable, match="no connection can be made") as caught:
            await calls.call("PutItem", put(table, "job-1"), seconds=1.0)
    assert caught.value.outcome == "not_applied"
    trouble.come_back()


async def test_an_endpoint_that_comes_back_is_used_at_once(trouble, calls: Calls, table: str) -> None:
    for turn in range(3):
        trouble.go_away()
        waiting = asyncio.create_task(calls.call("PutItem", put(table, f"job-{turn}")))
        await until(lambda: calls.repeated["refused"])
        calls.repeated.clear()
        trouble.come_back()
        async with asyncio.timeout(ENDS_SECONDS):
            await waiting
        assert await is_stored(calls, table, f"job-{turn}")


async def test_a_call_without_time_is_not_made(trouble, calls: Calls, table: str) -> None:
    with pytest.raises(Unavailable):
        await calls.call("PutItem", put(table, "job-1"), seconds=0.0)
    assert trouble.counts["PutItem"] == 0


# --- connections ------------------------------------------------------------------------------------------------------


async def test_what_was_given_up_is_not_sent_on_for_long(endpoint: str, tables: Tables, monkeypatch) -> None:
    """By the kernel, which goes on after a connection was closed: until the network works again, otherwise."""
    made: list[int] = []
    connect = asyncio.get_running_loop().sock_connect

    async def noted(sock: socket.socket, address: Any) -> None:
        made.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        await connect(sock, address)

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", noted)
    async with calling(endpoint) as calls:
        await make_table(calls, tables.jobs)
    assert made
    assert set(made) == {1000 * ON_ITS_WAY_SECONDS}
    assert SENT_SECONDS + ON_ITS_WAY_SECONDS < ABANDONED_SECONDS


async def test_there_are_never_more_connections_than_configured(trouble, table: str) -> None:
    before = trouble.served.accepted
    async with calling(trouble.url, connections=3) as calls:
        await asyncio.gather(*(calls.call("PutItem", put(table, f"job-{n}")) for n in range(60)))
        assert trouble.served.accepted - before <= 3


async def test_waiting_for_a_connection_ends_with_the_call_and_is_surely_not_applied(trouble, table: str) -> None:
    trouble.shares.hang, trouble.only = 1.0, frozenset({"GetItem"})
    async with calling(trouble.url, connections=1) as calls:
        holding = asyncio.create_task(calls.call("GetItem", get(table, "job-1"), seconds=ENDS_SECONDS))
        await until(lambda: calls.made["GetItem"])
        with pytest.raises(Unavailable, match="every connection is in use"):
            await calls.call("PutItem", put(table, "job-1"), seconds=0.1)
        assert calls.made["PutItem"] == 0
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        # A call that was given up gives its connection back.
        await calls.call("PutItem", put(table, "job-1"))


async def test_calls_after_closing_are_unavailable(endpoint: str) -> None:
    async with calling(endpoint) as calls:
        pass
    with pytest.raises(Unavailable, match="closed"):
        await calls.call("GetItem", get("any", "job-1"))


# --- answers that are final -------------------------------------------------------------------------------------------


async def test_a_table_that_is_not_there_is_named(calls: Calls, tables: Tables) -> None:
    with pytest.raises(NoSuchTable) as caught:
        await calls.call("GetItem", get(tables.jobs, "job-1"))
    assert caught.value.table == tables.jobs


async def test_a_request_that_is_refused_keeps_the_words_of_the_service_to_itself(calls: Calls, table: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await calls.call("GetItem", {"TableName": table, "Key": {"other": {"S": "private"}}})
    assert caught.value.code == "ValidationException"
    assert caught.value.text
    assert caught.value.text not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (
            "User: arn:aws:iam::1:user/x is not authorized to perform: dynamodb:ConditionCheckItem on resource: arn",
            "dynamodb:ConditionCheckItem",
        ),
        ("", "dynamodb:PutItem"),
    ],
)
async def test_what_the_policy_lacks_is_named(text: str, action: str) -> None:
    with answering(lambda _: refusal("AccessDeniedException", text)) as played:
        async with calling(played.url) as calls:
            with pytest.raises(Unavailable, match=f"denies {action} on jobs") as caught:
                await calls.call("PutItem", put("jobs", "job-1"))
    assert caught.value.outcome == "not_applied"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(307, b"", {"location": "http://127.0.0.1:1/"}),
        Reply(403, b"<html>a proxy says no</html>"),
        Reply(404, b""),
    ],
)
async def test_somebody_else_answering_is_told_from_dynamodb(reply: Reply) -> None:
    with answering(lambda _: reply) as played:
        async with calling(played.url) as calls:
            with pytest.raises(Unavailable, match=f"is not DynamoDB .HTTP {reply.status}."):
                await calls.call("PutItem", put("jobs", "job-1"))
        assert calls.made["PutItem"] == 1


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"Item": '])
async def test_a_success_nobody_can_read_is_a_reply_that_was_lost(body: bytes) -> None:
    replies = [Reply(200, body), Reply(200, b'{"Item": {}}')]

    def answer(_: Request) -> Reply:
        return replies.pop(0)

    with answering(answer) as played:
        async with calling(played.url) as calls:
            assert await calls.call("GetItem", get("jobs", "job-1")) == {"Item": {}}
            assert calls.repeated["damaged"] == 1
