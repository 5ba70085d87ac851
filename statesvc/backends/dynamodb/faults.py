"""What DynamoDB says when it does not do what it was asked, as exceptions.

Owns the table of its error codes and how a reply that failed is read. Must not know sockets, signatures or what an item
means. Texts of the service are kept for the log and never become the text of an error a client is shown.

    Failed
    ├── ConditionFailed   the condition of a single write did not hold
    ├── Cancelled         a transaction was cancelled, with a reason for each of its actions
    ├── NoSuchTable       there is no such table (or index)
    ├── InUse             the table is there already, or is being changed
    ├── InvalidRequest    the request itself was refused: a mistake of ours, or an item too large
    └── Lost              a write was sent, and whether it was applied is not known
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

import msgspec

Item = dict[str, Any]
"""Attributes as DynamoDB's JSON has them: name -> {"S": ...}."""


class Failed(Exception):
    """A call that did not do what it asks for."""

    unsure: bool = False
    """An earlier try of the same call, whose reply did not come, may have done it."""


class ConditionFailed(Failed):
    """Nothing was written. `item` is what is stored, when the request asked for it and something is."""

    def __init__(self, item: Item | None) -> None:
        super().__init__("the condition of a write did not hold")
        self.item = item


class Reason(NamedTuple):
    """Why a transaction was cancelled, as far as one of its actions goes."""

    code: str
    """"None" for an action that was fine."""
    item: Item | None


class Cancelled(Failed):
    """Nothing of a transaction was written. One reason for each action, in their order."""

    def __init__(self, reasons: list[Reason]) -> None:
        super().__init__("a transaction was cancelled: " + ", ".join(reason.code for reason in reasons))
        self.reasons = reasons


class NoSuchTable(Failed):
    def __init__(self, table: str) -> None:
        super().__init__(f"there is no table {table!r}")
        self.table = table


class InUse(Failed):
    """The table is there already, or something else is being done to it."""


class InvalidRequest(Failed):
    """The request was refused. `code` and `text` are the service's own, for the log only."""

    def __init__(self, operation: str, code: str, text: str) -> None:
        super().__init__(f"{operation} was refused: {code}")
        self.operation = operation
        self.code = code
        self.text = text


class Lost(Failed):
    """A write was sent at least once, and no reply told in time whether it was applied."""


Sort = Literal["throttled", "passing", "unsure", "skewed", "credentials", "denied", "foreign", "final"]
"""What to do about a reply: `throttled` and `passing` were surely not applied and may work in a moment; `unsure` may
have been applied; `skewed` and `credentials` may work once our clock or our credentials are put right; `foreign` was
said by something that is not DynamoDB."""

_SORTS: dict[str, Sort] = {
    "ProvisionedThroughputExceededException": "throttled",
    "ThrottlingException": "throttled",
    "Throttling": "throttled",
    "RequestLimitExceeded": "throttled",
    "TooManyRequestsException": "throttled",
    "LimitExceededException": "throttled",
    "TransactionConflictException": "passing",
    "ReplicatedWriteConflictException": "passing",
    # The same transaction, sent before, is still under way: it may yet be applied.
    "TransactionInProgressException": "unsure",
    "InternalServerError": "unsure",
    "InternalServerErrorException": "unsure",
    "InternalFailure": "unsure",
    "ServiceUnavailable": "unsure",
    "ServiceUnavailableException": "unsure",
    "RequestExpired": "skewed",
    "RequestTimeTooSkewed": "skewed",
    "InvalidSignatureException": "skewed",
    "SignatureDoesNotMatch": "skewed",
    "ExpiredTokenException": "credentials",
    "ExpiredToken": "credentials",
    "UnrecognizedClientException": "credentials",
    "InvalidClientTokenId": "credentials",
    "IncompleteSignature": "credentials",
    "IncompleteSignatureException": "credentials",
    "MissingAuthenticationTokenException": "credentials",
    "MissingAuthenticationToken": "credentials",
    "AuthFailure": "credentials",
    "AccessDeniedException": "denied",
    "AccessDenied": "denied",
    "NotAuthorized": "denied",
    "OptInRequired": "denied",
}

PASSING_REASONS = frozenset(
    {"None", "TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded", "RequestLimitExceeded"}
)
"""A transaction cancelled for nothing but these may go through when it is sent again."""

_FOREIGN: dict[int, Sort] = {413: "final", 429: "throttled"}
"""What replies without a body of DynamoDB's mean by their status: the request is too large, there are too many."""

_ACTION = re.compile(r"\b(dynamodb:[A-Za-z]+)\b")


class Refused(NamedTuple):
    """A reply other than success, as it was read."""

    status: int
    code: str
    text: str
    body: dict[str, Any]

    @property
    def sort(self) -> Sort:
        if self.code == "TransactionCanceledException":
            return "passing" if self._reasons_pass() else "final"
        known = _SORTS.get(self.code)
        if known is not None:
            return known
        if self.status >= 500:
            return "unsure"
        return "final" if self.body else _FOREIGN.get(self.status, "foreign")

    def _reasons_pass(self) -> bool:
        codes = {reason.code for reason in self.reasons()}
        return bool(codes - {"None"}) and codes <= PASSING_REASONS

    def reasons(self) -> list[Reason]:
        told = self.body.get("CancellationReasons") or ()
        return [Reason(each.get("Code") or "None", each.get("Item")) for each in told if isinstance(each, dict)]

    @property
    def action(self) -> str | None:
        """The action a policy lacks, where the text names it."""
        found = _ACTION.search(self.text)
        return found[1] if found else None

    def as_failed(self, operation: str, table: str, *, unsure: bool) -> Failed:
        """The exception of a reply that is final. `unsure`: an earlier try may have been applied."""
        failed = self._read(operation, table)
        failed.unsure = unsure
        return failed

    def _read(self, operation: str, table: str) -> Failed:
        match self.code:
            case "ConditionalCheckFailedException":
                return ConditionFailed(self.body.get("Item") or None)
            case "TransactionCanceledException":
                return Cancelled(self.reasons())
            case "ResourceNotFoundException" | "TableNotFoundException":
                return NoSuchTable(table)
            case "ResourceInUseException" | "TableAlreadyExistsException":
                return InUse(f"{operation}: {table!r} is there already, or is being changed")
        return InvalidRequest(operation, self.code, self.text)


def read_refusal(status: int, body: bytes) -> Refused:
    """A reply that is no success. What cannot be read counts as said by something between us and the service."""
    try:
        read = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        read = None
    if not isinstance(read, dict):
        return Refused(status, f"Http{status}", "", {})
    name = read.get("__type") or read.get("code") or f"Http{status}"
    text = read.get("message") or read.get("Message") or ""
    # com.amazonaws.dynamodb.v20120810#ResourceNotFoundException
    return Refused(status, str(name).rpartition("#")[2], str(text), read)
