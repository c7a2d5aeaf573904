"""The access log: what the caller of each transaction got, and whether its target may have seen it."""

from __future__ import annotations

from eaimw.adapters.transaction_log import Line
from eaimw.codes import Outcome
from eaimw.kernel.breaker import State
from eaimw.model import Call, Reply
from eaimw.ports import Clock


class AccessLine(Line, gc=False):
    """time: when it was answered."""

    tx_id: str | None
    target: str | None
    op: str | None
    code: str
    outcome: Outcome
    attempts: int
    elapsed_ms: float
    left: bool
    state: State | None


class AccessShape:
    """The shape of its lines."""

    kind = "access log"
    remedy = "give this one an access_log of its own"

    def __init__(self, clock: Clock) -> None:
        self._time = clock.time

    def line(self, reply: Reply, call: Call | None) -> AccessLine:
        """Of one that is answered at this moment."""
        if call is None:
            op, left, state = None, False, None
        else:
            op, left, state = call.tx.op, call.has_left, call.state
        return AccessLine(
            self._time(),
            reply.tx_id,
            reply.target,
            op,
            reply.code,
            reply.outcome,
            reply.attempts,
            reply.elapsed_ms,
            left,
            state,
        )
