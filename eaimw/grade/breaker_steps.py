"""Steps 1 and 2: stories told to a breaker under a fake clock.

Asked of a stranger's breaker: `CircuitBreaker(failure_threshold, reset_timeout, clock)` with `allow()`,
`record_success()`, `record_failure()` and `state`; time read through the clock it was given, and nothing more.

Each step looks at its own matter alone. A breaker that opens one failure late fails step 1 and is then opened by
as many failures as it takes, so that step 2 can still say what there is to say about the wait and the probe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eaimw.grade.steps import Failed
from eaimw.grade.story import Story, race

# opened_at and reset_timeout for which (opened_at + reset_timeout) - opened_at < reset_timeout in floating point.
EXACT_STEPS = ((0.7, 0.1), (0.4, 0.3), (1.1, 0.2), (1000.1, 0.3))
THREADS = 8
ROUNDS = 8


def opens_and_refuses(make: Callable[..., Any]) -> None:
    """Step 1."""
    for threshold in (3, 1, 5):
        story = Story(make, threshold, 10.0)
        _must_be(story, "CLOSED", "the breaker is new, and")
        if not story.ask():
            raise Failed("a new breaker refused the first call", "It starts CLOSED, which lets every call through.")
        for count in range(1, threshold):
            story.fail()
            if not story.ask() or not story.is_in("CLOSED"):
                raise Failed(
                    f"with failure_threshold={threshold} it was no longer CLOSED after {count} failures in a row",
                    "It opens at the threshold-th failure in a row, not earlier: look at the comparison in "
                    "record_failure().",
                )
        story.fail()
        if story.ask():
            raise Failed(
                f"with failure_threshold={threshold} allow() still said yes after {threshold} failures in a row",
                "The threshold-th failure itself must open it: add one to the count first, then compare with >=. "
                "And allow() must say no while it is OPEN.",
            )
        _must_be(story, "OPEN", f"after {threshold} failures in a row allow() says no, but")
        if any(story.ask() for _ in range(20)):
            raise Failed(
                "it refused once and then let a call through, though no time had passed",
                "OPEN refuses every call until the wait is over; allow() alone must not use that up.",
            )
        story.succeed()
        if story.ask() or not story.is_in("OPEN"):
            raise Failed(
                f"it was OPEN, a late success was recorded, and it became {story.shown}",
                "A success while OPEN belongs to a call that was let through earlier: it changes nothing. "
                "record_success() acts in CLOSED and HALF_OPEN only.",
            )
    story = Story(make, 3, 10.0)
    for _ in range(20):
        story.fail(2)
        story.succeed()
        if not story.ask() or not story.is_in("CLOSED"):
            raise Failed(
                "with failure_threshold=3 it opened on fail, fail, succeed, over and over: never three in a row",
                "Consecutive failures count: record_success() in CLOSED sets the count back to 0.",
            )


def _must_be(story: Story, state: str, seen: str) -> None:
    if not story.is_in(state):
        raise Failed(
            f"{seen} state is {story.shown}, which is not equal to {state!r}",
            "state is an attribute or property (not a method) that compares equal to 'CLOSED', 'OPEN' or "
            "'HALF_OPEN': plain strings will do, or an Enum that is also a str.",
        )


def probes_after_the_wait(make: Callable[..., Any]) -> None:
    """Step 2."""
    _one_probe(make)
    _good_probe_closes(make)
    _bad_probe_reopens(make)
    _late_failures(make)
    _exact_moments(make)
    _always_leaves_open(make)
    _one_probe_among_threads(make)
    _failures_of_threads_are_counted(make)


def _opened(make: Callable[..., Any], threshold: int = 3, wait: float = 10.0, now: float = 1000.0) -> Story:
    story = Story(make, threshold, wait, now)
    story.trip()
    return story


def _probing(make: Callable[..., Any]) -> Story:
    """A breaker whose wait is over and whose probe is out."""
    story = _opened(make)
    story.advance(story.wait / 2)
    story.ask()
    story.advance(story.wait / 2)
    if story.ask():
        return story
    story.advance(1.0)
    if story.ask():
        raise Failed(
            f"exactly reset_timeout ({story.wait} s) after it opened it still refused; a second later it did not",
            "The wait is over when clock() >= opened_at + reset_timeout, the exact moment included; opened_at is "
            "the time of the failure that opened it, not of an earlier or a later one.",
        )
    story.advance(1000 * story.wait)
    if story.ask():
        raise Failed(
            f"{story.wait + 1} s after it opened (reset_timeout={story.wait}) it still refused",
            "The wait starts when it opens; being asked does not start it anew. Compare clock() with opened_at + "
            "reset_timeout.",
        )
    raise Failed(
        "however far the clock was moved on, allow() never said yes again",
        "When the wait is over, allow() must move to HALF_OPEN and say yes, once. Read time only through the clock "
        "given to the constructor: time.time() and time.monotonic() do not know the grader's fake clock.",
    )


def _one_probe(make: Callable[..., Any]) -> None:
    story = _opened(make)
    story.advance(story.wait * 0.999)
    if story.ask():
        raise Failed(
            f"it let a call through {story.wait * 0.999:.2f} s after it opened, with reset_timeout={story.wait}",
            "allow() says no until clock() >= opened_at + reset_timeout; opened_at is the time of the failure that "
            "opened it, not of the first one.",
        )
    story = _probing(make)
    _must_be(story, "HALF_OPEN", "the wait was over, allow() let the probe through, and")
    for later in (0.0, story.wait):
        story.advance(later)
        if any(story.ask() for _ in range(5)):
            raise Failed(
                "while the probe was out, allow() let a second call through",
                "HALF_OPEN refuses everybody until the one probe has reported: only the allow() that moved from "
                "OPEN to HALF_OPEN says yes.",
            )


def _good_probe_closes(make: Callable[..., Any]) -> None:
    story = Story(make, 3, 10.0)
    needed = story.trip()
    story.advance(story.wait)
    story.ask()
    story.succeed()
    if not story.is_in("CLOSED") or not all(story.ask() for _ in range(5)):
        raise Failed(
            f"the probe succeeded, and the breaker is {story.shown} and does not let every call through",
            "record_success() in HALF_OPEN closes the circuit; one good probe is enough.",
        )
    again = story.trip()
    if again < needed:
        raise Failed(
            f"it first opened after {needed} failures, and after a good probe had closed it after only {again}",
            "A closed circuit starts counting at 0: forget the old failures when the probe's success closes it.",
        )


def _bad_probe_reopens(make: Callable[..., Any]) -> None:
    story = _probing(make)
    story.fail()
    if story.ask() or not story.is_in("OPEN"):
        raise Failed(
            f"the probe failed, and the breaker is {story.shown} instead of refusing in OPEN",
            "One failure in HALF_OPEN opens it again at once, whatever the threshold, and the wait starts anew: "
            "set opened_at again.",
        )
    story.advance(story.wait * 0.999)
    if story.ask():
        raise Failed(
            "after a failed probe it did not wait the whole reset_timeout again",
            "A failed probe starts the wait anew: set opened_at to clock() on every change to OPEN.",
        )
    story.advance(story.wait * 0.001 + 1e-6)
    if not story.ask():
        raise Failed(
            "after a failed probe and another whole reset_timeout there was no second probe",
            "Every wait ends with a probe: OPEN after a failed probe is the same OPEN as before.",
        )


def _late_failures(make: Callable[..., Any]) -> None:
    story = _opened(make)
    story.advance(story.wait / 2)
    story.fail(5)
    story.advance(story.wait / 2)
    if not story.ask():
        raise Failed(
            "failures that were recorded while it was OPEN made the wait longer",
            "A failure while OPEN belongs to a call that was let through earlier: it changes nothing, and opened_at "
            "least of all.",
        )


def _exact_moments(make: Callable[..., Any]) -> None:
    for opened_at, wait in EXACT_STEPS:
        story = Story(make, 1, wait, opened_at)
        story.trip(apart=0.0)
        story.clock.now = opened_at + wait
        if not story.ask():
            raise Failed(
                f"opened at {opened_at} with reset_timeout={wait}, it refused at clock() == {opened_at + wait}",
                "Write clock() >= opened_at + reset_timeout. The form clock() - opened_at >= reset_timeout misses "
                f"exact steps in floating point: {opened_at + wait} - {opened_at} is {opened_at + wait - opened_at}.",
            )
    story = Story(make, 1, 10.0, 0.0)
    story.trip(apart=0.0)
    story.advance(10.0)
    if not story.ask():
        raise Failed(
            "a breaker that opened when the clock showed 0.0 never let a probe through",
            "0.0 is a time like any other: `if opened_at` is false for it, ask `is not None`.",
        )
    story = Story(make, 3, 0)
    story.fail(9)
    if not story.ask():
        raise Failed(
            "with reset_timeout=0 the call after it opened was refused",
            "0 means that the next call is the probe; `reset_timeout or default` turns a 0 into the default.",
        )


def _always_leaves_open(make: Callable[..., Any]) -> None:
    story = _opened(make)
    for attempt in range(1, 101):
        story.advance(story.wait)
        if not story.ask():
            raise Failed(
                f"after {attempt} failed probes, each a reset_timeout after the one before, it never probed again",
                "However often a probe fails, the wait is always reset_timeout and ends with a probe.",
            )
        story.fail()


def _one_probe_among_threads(make: Callable[..., Any]) -> None:
    story = _opened(make)
    for round_ in range(ROUNDS):
        story.advance(story.wait)
        Story.doing = f"allow() in {THREADS} threads at once"
        passed = race(story.breaker.allow, THREADS).count(True)
        if passed != 1:
            raise Failed(
                f"the wait was over, {THREADS} threads asked at once, and {passed or 'none'} of them got a yes: "
                "exactly one must",
                "Looking at the state and changing it must be one step: hold a threading.Lock over the whole "
                "decision in allow() (and in the other two), but never over the call to the target.",
            )
        if round_ % 2:
            story.fail()
        else:
            story.succeed()
            story.trip()


def _failures_of_threads_are_counted(make: Callable[..., Any]) -> None:
    for _ in range(ROUNDS):
        story = Story(make, THREADS, 10.0)
        needed = story.trip()
        story.advance(story.wait)
        story.ask()
        story.succeed()
        Story.doing = f"record_failure() in {needed} threads at once"
        race(story.breaker.record_failure, needed)
        if story.ask():
            raise Failed(
                f"{needed} failures in a row open it, but not when {needed} threads report them at the same time",
                "count += 1 is a read and a write, and another thread comes between: hold the lock in "
                "record_failure() and record_success() too.",
            )
