"""What the real DynamoDB knows or refuses and moto does not: tokens of transactions, sizes of batches, policies.

Owns these checks of a request, made before moto sees it. Must not know how items are kept.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.dynamodb.exceptions import MockValidationException
from moto.iam.access_control import IAMPolicy, PermissionResult

from tests.dynamodb.shelves import Settings

BATCH_WRITES = 25
TOKENS_KEPT = 100_000
TOKEN_SECONDS = 600


def refusal(code: str, text: str) -> JsonRESTError:
    return JsonRESTError(f"com.amazonaws.dynamodb.v20120810#{code}", text)


class Tokens:
    """Tokens of transactions that went through: the same request again has no effect, another one is refused."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, bytes, Any]] = OrderedDict()

    def known(self, token: str, digest: bytes) -> Any:
        kept = self._kept.get(token)
        if kept is None or kept[0] + TOKEN_SECONDS < time.monotonic():
            return None
        if kept[1] != digest:
            raise refusal(
                "IdempotentParameterMismatchException", "The request uses the same client token as a previous one"
            )
        return kept[2]

    def keep(self, token: str, digest: bytes, result: Any) -> None:
        self._kept[token] = (time.monotonic(), digest, result)
        if len(self._kept) > TOKENS_KEPT:
            self._kept.popitem(last=False)


def digest_of(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


_VALUE = re.compile(r":[A-Za-z0-9_]+")


def check(operation: str, request: dict[str, Any]) -> None:
    """What the real one refuses and moto takes."""
    if operation == "BatchWriteItem" and sum(map(len, request["RequestItems"].values())) > BATCH_WRITES:
        raise MockValidationException("Too many items requested for the BatchWriteItem call")
    actions = [next(iter(each.values())) for each in request.get("TransactItems", ())]
    for each in (request, *actions):
        given = each.get("ExpressionAttributeValues")
        if given is None:
            continue
        used = {found for name, text in each.items() if name.endswith("Expression") for found in _VALUE.findall(text)}
        if unused := set(given) - used:
            raise MockValidationException(
                f"Value provided in ExpressionAttributeValues unused in expressions: keys: {sorted(unused)}"
            )


_PARTS = {"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem", "ConditionCheck": "ConditionCheckItem"}


def _needed(operation: str, request: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The actions a request needs, each with the end of the name of what it is done to."""
    if operation == "TransactWriteItems":
        for each in request["TransactItems"]:
            for name, part in each.items():
                yield _PARTS[name], f"table/{part['TableName']}"
    elif "RequestItems" in request:
        for table in request["RequestItems"]:
            yield operation, f"table/{table}"
    elif "IndexName" in request:
        yield operation, f"table/{request['TableName']}/index/{request['IndexName']}"
    else:
        yield operation, f"table/{request.get('TableName', '*')}"


asked_for: set[str] = set()
"""Every action that was needed since the settings were changed."""


def authorize(operation: str, request: dict[str, Any], region: str, account: str) -> None:
    """As IAM does; moto knows neither tables nor the parts of a transaction here."""
    needed = set(_needed(operation, request))
    asked_for.update(f"dynamodb:{action}" for action, _ in needed)
    if Settings.policy is None:
        return
    policy = IAMPolicy(json.dumps(Settings.policy))
    for action, end in needed:
        resource = f"arn:aws:dynamodb:{region}:{account}:{end}"
        if policy.is_action_permitted(f"dynamodb:{action}", resource) != PermissionResult.PERMITTED:
            who = f"User: arn:aws:iam::{account}:user/tester"
            text = f"{who} is not authorized to perform: dynamodb:{action} on resource: {resource}"
            raise refusal("AccessDeniedException", f"{text} because no identity-based policy allows it")
