"""The record: of each transaction what is needed to see what other settings would have made of it.

It names no transaction and has nothing of its content, so it may be given away.
"""

from __future__ import annotations

from eaimw.adapters.transaction_log import Line
from eaimw.codes import Outcome, Sample
from eaimw.kernel.breaker import State
from eaimw.model import Call, Reply
from eaimw.ports import Clock


class RecordLine(Line, gc=False):
    """time: when the hub took it. timeout_ms: what its caller gave it. duration: seconds of its call; None: none."""

    target: str | None
    op: str | None
    timeout_ms: int | None
    code: str
    outcome: Outcome
    duration: float | None
    sample: Sample
    state: State | None


class RecordShape:
    """The shape of its lines.

    Their times are the wall clock's at the start and the monotonic one's from there on: whatever is done to the wall
    clock meanwhile, what lies between two transactions is what lay between them.
    """

    kind = "record"
    remedy = "give this one another file with --record"

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._epoch = clock.time() - clock.monotonic()

    def line(self, reply: Reply, call: Call | None) -> RecordLine:
        """Of one that is answered at this moment."""
        epoch = self._epoch
        if call is None:
            taken = epoch + self._now()
            return RecordLine(taken, reply.target, None, None, reply.code, reply.outcome, None, "none", None)
        return RecordLine(
            epoch + call.started,
            reply.target,
            call.tx.op,
            call.tx.timeout_ms,
            reply.code,
            reply.outcome,
            None if call.took is None else round(call.took, 6),
            call.sample,
            call.state,
        )
