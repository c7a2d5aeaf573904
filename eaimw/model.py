"""The records that travel: a Transaction comes in, a Call goes down a target's stack, a Reply comes back up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from eaimw.codes import Outcome, Sample
from eaimw.kernel.breaker import State

Priority = Literal["high", "normal", "low"]


class Transaction(msgspec.Struct, frozen=True, gc=False):
    """One good transaction, as read; None: not given.

    raw: the caller's bytes, without the line end; the target gets them so. priority: not given it is `normal`.
    timeout_ms: milliseconds, the caller's whole budget; 0: it is over already.
    """

    tx_id: str
    raw: bytes
    target: str | None = None
    op: str | None = None
    priority: Priority | None = None
    timeout_ms: int | None = None
    idempotency_key: str | None = None
    traceparent: str | None = None


class Reply(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The one answer to a transaction; its fields are the contract's, in this order on the wire.

    elapsed_ms: milliseconds in the hub, to a tenth. data: the target's reply object, as its bytes.
    """

    tx_id: str | None
    target: str | None
    code: str
    outcome: Outcome
    retryable: bool
    attempts: int
    elapsed_ms: float = -1.0  # not 0.0: what equals its default is left out
    message: str | None = None
    data: msgspec.Raw | None = None
    retry_after_ms: int | None = None


class Caller(Protocol):
    """Whoever a reply is for."""

    @property
    def has_gone(self) -> bool:
        """Will nobody read the reply, as far as can be known?"""


class Hold:
    """Keeps the places of a call that has timed out, as long as its target may still be at work on it."""

    __slots__ = ("_is_over", "_then")

    def __init__(self) -> None:
        self._is_over = False
        self._then: list[Callable[[], None]] = []

    def on_end(self, then: Callable[[], None]) -> None:
        """Call it when the hold ends; at once if it has."""
        if self._is_over:
            then()
        else:
            self._then.append(then)

    def end(self) -> None:
        """Over; once is enough."""
        self._is_over = True
        waiting, self._then = self._then, []
        for then in waiting:
            then()


class Call:
    """A transaction on its way through a target's stack, with what the layers tell each other.

    started, budget_end: seconds of the hub's monotonic clock; the caller's own budget ends then, inf where it gave
    none. timeout: seconds that an attempt may take. deadline: of the attempt under way. impatient: the caller's own
    budget is the nearer bound of it. attempts: calls tried so far. took: seconds of the last one that has ended; None:
    none was tried. sample: what the last attempt says of the target's health. has_left: a byte of the request was
    handed to a connection, by any attempt. is_final: the last answer said that it would be the same again.
    retry_after: what the last answer's header of that name says, if anything. state: the circuit's when it was decided
    whether to call; None: it never was. caller: None where it cannot go. hold: of the attempt that has timed out; its
    place is taken until that ends.
    """

    __slots__ = (
        "attempts",
        "budget_end",
        "caller",
        "deadline",
        "has_left",
        "hold",
        "impatient",
        "is_final",
        "retry_after",
        "sample",
        "started",
        "state",
        "timeout",
        "took",
        "tx",
    )

    def __init__(self, tx: Transaction, started: float, caller: Caller | None = None) -> None:
        self.tx = tx
        self.started = started
        self.caller = caller
        self.budget_end = math.inf
        self.timeout = 0.0
        self.deadline = started
        self.impatient = False
        self.is_final = False
        self.retry_after: str | None = None
        self.attempts = 0
        self.took: float | None = None
        self.sample: Sample = "none"
        self.has_left = False
        self.hold: Hold | None = None
        self.state: State | None = None


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A whole HTTP reply of a target, not yet judged. retry_after: the header's value as it came."""

    status: int
    body: bytes
    retry_after: str | None = None
