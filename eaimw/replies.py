"""The three ways a reply comes about: the hub refuses, a call fails, the target answers."""

from __future__ import annotations

import math

from eaimw import codes
from eaimw.errors import CallFailed, LocalFault, NoConnection, NoReply, TimedOut
from eaimw.model import Call, Reply
from eaimw.ports import Random
from eaimw.verdict import Verdict

# The least wait that a refusal names where nothing better is known, in seconds.
UNKNOWN_WAIT = 1.0
# The largest integer that every reader of JSON takes exactly (RFC 8259, section 6); a reset timeout may be longer.
LONGEST_WAIT_MS = 2**53 - 1

_CODE_OF: dict[type[CallFailed], str] = {
    TimedOut: codes.TIMEOUT,
    NoConnection: codes.NO_CONNECTION,
    NoReply: codes.SYSTEM_ERROR,
    LocalFault: codes.NO_CONNECTION,
}


def refused(
    code: str,
    message: str,
    random: Random,
    *,
    tx_id: str | None,
    target: str | None,
    attempts: int = 0,
    wait: float = math.inf,
) -> Reply:
    """The hub's own no. wait: seconds until it may be otherwise; inf where that is not known."""
    rule = codes.RULES[code]
    return Reply(
        tx_id=tx_id,
        target=target,
        code=code,
        outcome=rule.outcome,
        retryable=rule.outcome == "not_sent" and rule.comes_again,
        attempts=attempts,
        message=message,
        retry_after_ms=_spread_ms(wait, random) if rule.says_when else None,
    )


def failed(problem: CallFailed, call: Call, target: str) -> Reply:
    """A call that brought no answer: not sent if no byte was handed over, else nobody knows."""
    return Reply(
        tx_id=call.tx.tx_id,
        target=target,
        code=_CODE_OF[type(problem)],
        outcome="unknown" if problem.handed_over else "not_sent",
        retryable=not problem.handed_over,
        attempts=call.attempts,
        message=str(problem),
        data=problem.data if isinstance(problem, NoReply) else None,
    )


def answered(verdict: Verdict, call: Call, target: str, random: Random) -> Reply:
    """What the target said. A hub behind this one says outcome and wait itself, where it does."""
    rule = verdict.rule
    outcome = verdict.outcome or rule.outcome
    wait = verdict.retry_after_ms
    if wait is None and rule.is_of_a_hub and rule.says_when:
        wait = _spread_ms(math.inf, random)
    return Reply(
        tx_id=call.tx.tx_id,
        target=target,
        code=verdict.code,
        outcome=outcome,
        retryable=outcome == "not_sent" and rule.comes_again,
        attempts=call.attempts,
        data=verdict.data,
        retry_after_ms=wait,
    )


def _spread_ms(wait: float, random: Random) -> int:
    """Milliseconds: at least `wait` and up to half as much again, so that refused callers do not return together."""
    milliseconds = (UNKNOWN_WAIT if math.isinf(wait) else wait) * 1000 * (1 + 0.5 * random.random())
    return math.ceil(min(milliseconds, LONGEST_WAIT_MS))
