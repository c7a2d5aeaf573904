"""What a target's circuit and limit have done, told from its transactions: as they were, or as they were replayed.

A call is good if the target's answer is a success to the breaker and comes in time, bad if it is a failure.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from eaimw import codes
from eaimw.kernel.breaker import State
from eaimw.sim.studies.recording import Past

INSTANT = 5e-7  # seconds; recorded times have microseconds, so what is nearer than this is at the same instant
DISORDER = 0.001  # seconds by which an access log, whose times are to a tenth of a millisecond, may mix up an order


class Opening(NamedTuple):
    """A circuit was not closed from one moment to another, its failed probes included; seconds."""

    began: float
    ended: float


class Figures(NamedTuple):
    """What the settings did to one target.

    openings: from closed to open. open_s: seconds not closed, up to the last transaction. good_refused: refused ones
    that the target would have answered well. bad_through: calls that were failures. notice_s: seconds from the first of
    the failures in a row to the opening that came of them, the longest; None without openings. E904, E905: refusals.
    """

    transactions: int
    openings: int
    open_s: float
    good_refused: int
    bad_through: int
    notice_s: float | None
    E904: int
    E905: int


def answers_of(pasts: Sequence[Past]) -> list[Past] | None:
    """For each transaction of one target one that says how the target answers it: itself, if it was called.

    For one that was refused it is the nearest call in time that says something of the target's health, the earlier of
    two. None if there is no such call.
    """
    telling = [past for past in pasts if past.took is not None and past.sample != "none"]
    if not telling:
        return None
    times = [past.at for past in telling]

    def nearest(at: float) -> Past:
        after = bisect_left(times, at)
        around = telling[max(0, after - 1) : after + 1]
        return min(around, key=lambda past: abs(past.at - at))

    return [past if past.took is not None else nearest(past.at) for past in pasts]


def openings_met(pasts: Sequence[Past], end: float) -> list[Opening]:
    """The openings of one target's circuit as its transactions met it, in order; end: of one that is still open.

    Each is dated to the last failure before the first transaction that found it open, so no earlier than the last that
    found it closed; one that nobody met is not seen.
    """
    failures = sorted(past.ended for past in pasts if past.took is not None and past.sample == "failure")
    openings: list[Opening] = []
    began: float | None = None
    closed_at, open_at = -math.inf, -math.inf  # when it was last seen so
    for past in pasts:
        if past.state is State.CLOSED:
            if began is not None:
                if past.at < open_at + DISORDER:
                    continue
                openings.append(Opening(began, past.at))  # by a probe that is not in the file, or a new start
                began = None
            closed_at = past.at
        elif past.state is not None and past.at >= closed_at:
            open_at = past.at
            if began is None:
                latest = bisect_right(failures, past.at + INSTANT) - 1
                began = failures[latest] if latest >= 0 and failures[latest] >= closed_at else past.at
            if past.state is State.HALF_OPEN and past.sample == "success":
                openings.append(Opening(began, past.ended))
                began, closed_at = None, past.ended
    if began is not None:
        openings.append(Opening(began, max(began, end)))
    return openings


def figures(
    pasts: Sequence[Past], answers: Sequence[Past], openings: Sequence[Opening], timeout: float = math.inf
) -> Figures:
    """Of one target. answers: of each transaction, as `answers_of`. timeout: seconds that a call may take."""
    refused = [(past, answer) for past, answer in zip(pasts, answers, strict=True) if past.took is None]
    return Figures(
        len(pasts),
        len(openings),
        sum((opening.ended - opening.began for opening in openings), 0.0),
        sum(_is_good(answer, past, timeout) for past, answer in refused),
        sum(past.took is not None and past.sample == "failure" for past in pasts),
        _longest_notice(pasts, openings),
        sum(past.code == codes.CIRCUIT_OPEN for past, _ in refused),
        sum(past.code == codes.FULL for past, _ in refused),
    )


def budget(past: Past, timeout: float) -> float:
    """Seconds that its call may take: the nearer of the target's timeout and what its caller gives."""
    return timeout if past.timeout_ms is None else min(timeout, past.timeout_ms / 1000)


def _is_good(answer: Past, past: Past, timeout: float) -> bool:
    return answer.sample == "success" and (answer.took or 0.0) <= budget(past, timeout)


def _longest_notice(pasts: Sequence[Past], openings: Sequence[Opening]) -> float | None:
    calls = sorted((past for past in pasts if past.took is not None), key=lambda past: past.ended)
    longest: float | None = None
    first: float | None = None  # of the failures in a row so far
    done = 0
    for opening in openings:
        while done < len(calls) and calls[done].ended <= opening.began + INSTANT:
            call = calls[done]
            done += 1
            if call.sample == "success":
                first = None
            elif call.sample == "failure" and first is None:
                first = call.ended
        if first is not None:
            longest = max(longest or 0.0, opening.began - first)
    return longest
