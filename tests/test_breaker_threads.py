"""breaker/breaker.py under threads, and any sequence of its verbs against a naive model."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from breaker_story import Story, Watch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from eaimw.kernel.breaker import CHANGES, CLOSED, HALF_OPEN, Change, CircuitBreaker, Permit

# Threads.


def at_once(count: int, action: Callable[[int], object]) -> list[object]:
    """What `action` gives in each of `count` threads that start behind a barrier."""
    barrier = threading.Barrier(count)
    results: list[object] = [None] * count

    def work(index: int) -> None:
        barrier.wait(10)
        results[index] = action(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    return results


@pytest.fixture
def _switch_often() -> Any:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_switch_often")
def test_fifty_failures_at_once_open_once() -> None:
    """50 threads pass while CLOSED and fail together: one CLOSED->OPEN, the wait counts from then."""
    for _ in range(10):
        story = Story(threshold=3)
        permits = [story.breaker.acquire() for _ in range(50)]
        at_once(50, lambda i: permits[i].failure())  # type: ignore[union-attr]  # noqa: B023
        assert story.path == ["CLOSED->OPEN"]
        story.advance(9.999)
        assert not story.breaker.allow()
        story.advance(0.001)
        assert story.breaker.allow()


@pytest.mark.usefixtures("_switch_often")
@pytest.mark.parametrize("probes", [1, 3])
def test_a_hundred_asking_at_once_get_the_probes(probes: int) -> None:
    """OPEN and due, 100 threads behind a barrier: exactly so many get a yes, by either face."""
    for face in (CircuitBreaker.allow, CircuitBreaker.acquire):
        for _ in range(5):
            story = Story(threshold=1, probes=probes)
            story.fail()
            story.advance(10)
            answers = at_once(100, lambda _: face(story.breaker))  # noqa: B023
            assert sum(bool(answer) for answer in answers) == probes


@pytest.mark.usefixtures("_switch_often")
def test_a_permit_ended_by_many_threads_ends_once() -> None:
    """Four threads report one failed call: it counts once."""
    for _ in range(300):
        story = Story(threshold=100)
        permit = story.breaker.acquire()
        assert permit
        at_once(4, lambda _: permit.failure())  # noqa: B023
        assert story.breaker.failures == 1


@pytest.mark.usefixtures("_switch_often")
def test_a_rule_sees_the_ends_of_fifty_threads_one_by_one() -> None:
    """It opens at the 20th: it has seen 20, in whatever order they came, and the other 30 are late."""

    class Twentieth(Watch):
        def ended(self, now: float, failed: bool, seconds: float) -> bool:
            super().ended(now, failed, seconds)
            return len(self.seen) == 20

    for _ in range(10):
        rule = Twentieth()
        story = Story(threshold=100, rules=[rule])
        permits = [story.given() for _ in range(50)]
        at_once(50, lambda i: (permits[i].failure if i % 2 else permits[i].success)())  # noqa: B023
        assert story.path == ["CLOSED->OPEN"]
        assert len(rule.seen) == 20
        assert rule.cleared == 1


def test_a_change_recorded_while_another_thread_hands_out_is_not_forgotten() -> None:
    """It comes between that thread's last look and its putting the baton down: it is told all the same."""
    story = Story(threshold=1)
    story.breaker.record_failure()
    held = story.breaker._publishing

    class Late:
        """The baton; while it is put down the first time, another thread changes the state."""

        def acquire(self, blocking: bool) -> bool:
            return held.acquire(blocking=blocking)

        def release(self) -> None:
            story.breaker._publishing = held
            at_once(1, lambda _: story.breaker.record_failure())  # it finds the baton taken, and goes
            held.release()

    story.breaker._publishing = Late()  # type: ignore[assignment]
    story.advance(10)
    assert story.breaker.allow()
    assert story.path == ["CLOSED->OPEN", "OPEN->HALF_OPEN", "HALF_OPEN->OPEN"]


@pytest.mark.usefixtures("_switch_often")
def test_changes_are_told_in_order_under_threads() -> None:
    """Whatever the threads do, each change told begins where the one before ended."""
    told: list[Change] = []
    breaker = CircuitBreaker(1, 0, on_change=told.append)

    def churn(index: int) -> None:
        for turn in range(200):
            permit = breaker.acquire()
            if permit is not None:
                (permit.failure if (turn + index) % 2 else permit.success)()

    at_once(8, churn)
    assert told[0].before is CLOSED
    assert all(later.before is earlier.after for earlier, later in itertools.pairwise(told))
    assert told[-1].after is breaker.state
    assert len(told) > 100


# Against a naive model.


class NaiveBreaker:
    """Section by section what the contract says, in the plainest way: no threads, no permits."""

    def __init__(self, threshold: int, wait: float, probes: int) -> None:
        self.threshold, self.wait_s, self.probes = threshold, wait, probes
        self.state, self.count, self.until, self.passed, self.good = "CLOSED", 0, 0.0, 0, 0

    def allow(self, now: float) -> bool:
        if self.state == "CLOSED":
            return True
        if self.state == "OPEN" and now >= self.until:
            self.state, self.passed, self.good = "HALF_OPEN", 0, 0
        if self.state == "HALF_OPEN" and self.passed < self.probes:
            self.passed += 1
            return True
        return False

    def success(self) -> None:
        if self.state == "HALF_OPEN":
            self.good += 1
        if self.state == "CLOSED" or (self.state == "HALF_OPEN" and self.good == self.probes):
            self.state, self.count = "CLOSED", 0

    def failure(self, now: float) -> None:
        if self.state == "CLOSED":
            self.count += 1
        if self.state == "HALF_OPEN" or (self.state == "CLOSED" and self.count >= self.threshold):
            self.state, self.count, self.until = "OPEN", 0, now + self.wait_s


STEPS = st.sampled_from([0.0, 0.1, 0.2, 0.35, 0.7, 5.0, -0.3])
PROBES = st.integers(1, 3)


class AgainstTheModel(RuleBasedStateMachine):
    """Any sequence of verbs and steps of time, also backwards: both say and are the same."""

    @initialize(probes=PROBES)
    def begin(self, probes: int) -> None:
        self.story = Story(threshold=3, wait=0.7, probes=probes)
        self.model = NaiveBreaker(3, 0.7, probes)

    @rule(step=STEPS)
    def advance(self, step: float) -> None:
        self.story.advance(step)

    @rule()
    def ask(self) -> None:
        assert self.story.breaker.allow() == self.model.allow(self.story.clock.now)

    @rule()
    def succeed(self) -> None:
        self.story.breaker.record_success()
        self.model.success()

    @rule()
    def fail(self) -> None:
        self.story.breaker.record_failure()
        self.model.failure(self.story.clock.now)

    @invariant()
    def same_state(self) -> None:
        assert self.story.breaker.state == self.model.state

    @invariant()
    def the_path_is_of_the_table(self) -> None:
        assert all((change.before, change.after) in CHANGES for change in self.story.changes)


class ProbesAreBounded(RuleBasedStateMachine):
    """Callers with permits, who may be late, lost or ignored: the yeses of a round, and what closes it."""

    @initialize(probes=PROBES)
    def begin(self, probes: int) -> None:
        self.probes = probes
        self.story = Story(threshold=2, wait=0.7, probes=probes)
        self.story.breaker.on_change = self.changed
        self.out: list[Permit] = []
        self.round: dict[Permit, str] = {}  # the probes of this HALF_OPEN, with how each has ended

    def changed(self, change: Change) -> None:
        if change.after is CLOSED:
            assert [*self.round.values()].count("success") == self.probes
            assert "failure" not in self.round.values()
        if change.before is HALF_OPEN:
            self.round = {}

    @rule(step=STEPS)
    def advance(self, step: float) -> None:
        self.story.advance(step)

    @rule()
    def ask(self) -> None:
        permit = self.story.breaker.acquire()
        if permit is not None:
            self.out.append(permit)
            if self.story.breaker.state is HALF_OPEN:
                assert permit.is_probe
                self.round[permit] = "out"

    @precondition(lambda self: self.out)
    @rule(data=st.data(), end=st.sampled_from(["success", "success", "failure", "ignore"]))
    def end(self, data: st.DataObject, end: str) -> None:
        permit = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        if permit in self.round:
            self.round[permit] = end
        getattr(permit, end)()

    @precondition(lambda self: not self.out)
    @rule()
    def fall_ill(self) -> None:
        if self.story.breaker.state is CLOSED:
            self.story.breaker.trip("ill")

    @invariant()
    def never_more_than_asked_for(self) -> None:
        votes = [end for end in self.round.values() if end != "ignore"]
        assert len(votes) <= self.probes
        if self.story.breaker.state is HALF_OPEN:
            assert (self.story.breaker.wait() == 0) == (len(votes) < self.probes)


for machine in (AgainstTheModel, ProbesAreBounded):
    machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAgainstTheModel = AgainstTheModel.TestCase
TestProbesAreBounded = ProbesAreBounded.TestCase
