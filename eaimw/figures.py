"""What one target's calls have been: plain numbers that the hot path writes and nobody locks.

Other threads read them as they are. Each number is whole by itself; two that are read one after the other may be a
call apart, as in any figures of something that runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from eaimw.kernel.breaker import Change, State

# Upper ends of the buckets, in seconds: from a target in the same rack to the longest timeout that makes sense.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

MAX_WORDS = 200  # characters of what is said of a failure


class Standing(NamedTuple):
    """The present state of a circuit, since when, and a short sentence why."""

    state: State
    since: datetime
    why: str


class Figures:
    """The calls of one target.

    counts: calls by how long they took, one more than BOUNDS: the last is for all that is longer. seconds: their sum.
    Every attempt is in them once it has ended, however it ended. success_at, failure_at: when a call last was a sample
    of the target's health, by the hub's monotonic clock; success_code, failure_code: its code; None: never yet.
    failure_words: what the hub has to say of it, if anything. slowest: seconds.
    """

    __slots__ = (
        "_now",
        "counts",
        "failure_at",
        "failure_code",
        "failure_words",
        "seconds",
        "slowest",
        "success_at",
        "success_code",
    )

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        self.slowest = 0.0
        self.success_at: float | None = None
        self.success_code: str | None = None
        self.failure_at: float | None = None
        self.failure_code: str | None = None
        self.failure_words = ""

    def ended(self, began: float) -> float:
        """Count one call that ends now; the time that it is."""
        now = self._now()
        took = now - began
        self.counts[bisect_left(BOUNDS, took)] += 1
        self.seconds += took
        if took > self.slowest:
            self.slowest = took
        return now

    def failed(self, at: float, code: str, words: str = "") -> None:
        """A call was a sample of the target's illness."""
        self.failure_at, self.failure_code, self.failure_words = at, code, words[:MAX_WORDS]

    def percentiles(self) -> dict[str, float | None]:
        """p50, p95 and p99 of the calls since the start, in seconds; none is above the slowest call."""
        counts = list(self.counts)
        found = {f"p{percent}": quantile(counts, percent / 100) for percent in (50, 95, 99)}
        return {name: value if value is None else min(value, self.slowest) for name, value in found.items()}


def quantile(counts: Sequence[int], share: float) -> float | None:
    """The time in seconds below which so great a share of the calls lies; None without calls.

    By linear interpolation within the bucket, as if its calls were spread evenly over it; what lies beyond the last
    bound is told as that bound. These are the rules of `histogram_quantile` in Prometheus, so both say the same.
    """
    rank = share * sum(counts)
    if not rank:
        return None
    below, lower = 0, 0.0
    for upper, count in zip(BOUNDS, counts, strict=False):
        if count and below + count >= rank:
            return lower + (upper - lower) * (rank - below) / count
        below, lower = below + count, upper
    return BOUNDS[-1]


def why_changed(change: Change, threshold: int, probes: int, figures: Figures) -> str:
    """Why the circuit is now in the state that it changed to; the deciding call is the last one in `figures`."""
    if change.why is not None:
        return change.why
    if change.after is State.CLOSED:
        probe = "the probe" if probes == 1 else f"the last of {probes:,} probes"
        return f"{probe} answered {figures.success_code}" if figures.success_code else f"{probe} was answered"
    if change.after is State.HALF_OPEN:
        return f"the wait is over: {'one probe decides' if probes == 1 else f'{probes:,} probes decide'}"
    words = f": {figures.failure_words}" if figures.failure_words else ""
    if change.before is State.HALF_OPEN:
        probe = "the probe" if probes == 1 else "a probe"
        return f"{probe} failed with {figures.failure_code}{words}" if figures.failure_code else f"{probe} failed"
    failures = "1 failure" if threshold == 1 else f"{threshold:,} consecutive failures"
    return f"{failures}, the last {figures.failure_code}{words}" if figures.failure_code else failures
