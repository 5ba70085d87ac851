"""The error tree: one class per wire code, each knowing whose fault it is.

Owns the codes and what a failed write may claim about its outcome. Must not know sockets, engines or JSON.

    StateError
    ├── RequestFault          the sender must change the request
    │   ├── BadJson           bad_json
    │   ├── BadRequest        bad_request
    │   ├── TooLarge          too_large         (the connection ends after it)
    │   ├── UnknownOp         unknown_op
    │   └── Denied            denied
    ├── Refusal               the request was fine, the state says no
    │   ├── NotFound          not_found
    │   ├── Exists            exists
    │   ├── Conflict          conflict          (carries the current record)
    │   ├── InvalidTransition invalid_transition
    │   ├── LeaseLost         lease_lost
    │   └── Gone              gone
    └── ServiceFault          not the sender's fault: send it again later
        ├── Busy              busy
        ├── Unavailable       unavailable
        ├── NoSpace           no_space
        └── Internal          internal
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Outcome = Literal["not_applied", "unknown"]

MOST_TEXT = 500
"""Characters of a text. It may repeat what a caller sent, which is as long as a caller likes."""


class StateError(Exception):
    """A request that did not succeed: what was wrong, with which value, what to do."""

    code: ClassVar[str]
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        text: str,
        *,
        outcome: Outcome = "not_applied",
        record: Any = None,
    ) -> None:
        self.text = text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "…"
        super().__init__(self.text)
        self.outcome: Outcome = outcome
        self.record = record

    def stops_the_writer(self) -> bool:
        """Whether later writes of the same connection must wait until this one is sent again."""
        return self.retryable or self.outcome == "unknown"


class RequestFault(StateError):
    """The sender must change the request."""


class BadJson(RequestFault):
    code = "bad_json"


class BadRequest(RequestFault):
    code = "bad_request"


class TooLarge(RequestFault):
    code = "too_large"


class UnknownOp(RequestFault):
    code = "unknown_op"


class Denied(RequestFault):
    code = "denied"


class Refusal(StateError):
    """The request was well formed; the state of the record says no."""


class NotFound(Refusal):
    code = "not_found"


class Exists(Refusal):
    code = "exists"


class Conflict(Refusal):
    code = "conflict"


class InvalidTransition(Refusal):
    code = "invalid_transition"


class LeaseLost(Refusal):
    code = "lease_lost"


class Gone(Refusal):
    code = "gone"


class ServiceFault(StateError):
    """Not the sender's fault; the same request may succeed later."""

    retryable = True


class Busy(ServiceFault):
    code = "busy"


class Unavailable(ServiceFault):
    code = "unavailable"


class NoSpace(ServiceFault):
    code = "no_space"


class Internal(ServiceFault):
    code = "internal"


def _leaves(cls: type[StateError]) -> list[type[StateError]]:
    below = cls.__subclasses__()
    return [leaf for sub in below for leaf in _leaves(sub)] if below else [cls]


BY_CODE: dict[str, type[StateError]] = {leaf.code: leaf for leaf in _leaves(StateError)}


def from_reply(code: str, text: str, outcome: Outcome | None, record: Any = None) -> StateError:
    """The error a reply carries. A code of a newer daemon counts as a plain internal failure."""
    cls = BY_CODE.get(code, Internal)
    return cls(text, outcome=outcome or "not_applied", record=record)
