"""A breaker with a clock of its own, for tests that read as stories."""

from __future__ import annotations

from typing import Any

from eaimw.kernel.breaker import CLOSED, HALF_OPEN, Change, CircuitBreaker, Permit, State


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.readings = 0

    def __call__(self) -> float:
        self.readings += 1
        return self.now


class Story:
    """A breaker, its clock and what it told, for tests that read as stories."""

    def __init__(self, threshold: int = 3, wait: float = 10.0, **more: Any) -> None:
        self.clock = FakeClock()
        self.changes: list[Change] = []
        self.breaker = CircuitBreaker(threshold, wait, self.clock, on_change=self.changes.append, **more)

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.breaker.allow()
            self.breaker.record_failure()

    def succeed(self) -> None:
        assert self.breaker.allow()
        self.breaker.record_success()

    def given(self) -> Permit:
        """The permit that somebody who asks now gets."""
        permit = self.breaker.acquire()
        assert permit
        return permit

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds

    @property
    def path(self) -> list[str]:
        return [f"{change.before}->{change.after}" for change in self.changes]


class Watch:
    """A rule that opens when told to, and keeps what it sees."""

    def __init__(self, why: str = "the watch says so") -> None:
        self.why, self.opens, self.cleared = why, False, 0
        self.seen: list[tuple[float, bool, float]] = []

    def ended(self, now: float, failed: bool, seconds: float) -> bool:
        self.seen.append((now, failed, seconds))
        return self.opens

    def clear(self) -> None:
        self.cleared += 1


def into(state: State, **more: Any) -> Story:
    """A story that stands in this state, threshold 3, wait 10."""
    story = Story(probe_lease=5.0, **more)
    if state is not CLOSED:
        story.fail(3)
    if state is HALF_OPEN:
        story.advance(10)
        assert story.breaker.allow()
    return story
