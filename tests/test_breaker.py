"""breaker/breaker.py against its own table, with a fake clock; its permits and listeners; and lifted out."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from breaker_story import FakeClock, Story, Watch, into

from eaimw.kernel.breaker import CHANGES, CLOSED, HALF_OPEN, OPEN, TABLE, Change, CircuitBreaker, State

FILE = Path(__file__).parent.parent / "breaker" / "breaker.py"


def happen(event: str, story: Story) -> None:
    """Let the table's event happen to a breaker in the row's state."""
    what, _, how = event.partition(", ")
    if how == "and a rule opens":
        watch = Watch()
        watch.opens = True
        story.breaker.rules = [watch]
    story.advance({"wait not over": 9.999, "wait over": 10, "probe's place free": 5}.get(how, 0))
    verbs: dict[str, Callable[[], object]] = {
        "ask": story.breaker.allow,
        "success": story.breaker.record_success,
        "failure": story.breaker.record_failure,
        "an end": story.breaker.record_success,
        "trip": lambda: story.breaker.trip("it hangs"),
    }
    for _ in range(3 if how == "the threshold-th" else 1):
        verbs[what]()


@pytest.mark.parametrize(("state", "event"), TABLE, ids=lambda value: str(value))
def test_the_machine_does_what_the_table_says(state: State, event: str) -> None:
    """Every row of the table: from its state, its event leads to its next state."""
    story = into(state, probes=2 if event == "success, probes missing" else 1)
    happen(event, story)
    assert story.breaker.state is TABLE[state, event]


def test_the_docstring_shows_the_table() -> None:
    """The rows in the file's docstring are TABLE, in its order."""
    text = ast.get_docstring(ast.parse(FILE.read_text(encoding="utf-8"))) or ""
    rows = [line.strip() for line in text.splitlines() if line.strip().startswith(("CLOSED", "OPEN", "HALF_OPEN"))]
    cut = [tuple(part.strip() for part in row.split("  ") if part.strip())[:3] for row in rows]
    assert cut == [(str(state), event, str(after)) for (state, event), after in TABLE.items()]


def test_the_changes_are_those_of_the_table() -> None:
    """Four changes of state exist, no others."""
    assert set(CHANGES) == {(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED), (HALF_OPEN, OPEN)}
    assert len(CHANGES) == 4


# Stories.


def test_opens_at_the_threshold_and_refuses() -> None:
    """The threshold-th consecutive failure opens it, not one before."""
    story = Story(threshold=3)
    story.fail(2)
    assert story.breaker.state == "CLOSED"
    story.fail()
    assert story.breaker.state == "OPEN"
    assert not story.breaker.allow()


def test_success_in_between_starts_the_count_anew() -> None:
    """Fail, fail, succeed, twenty times over, never opens at threshold 3."""
    story = Story(threshold=3)
    for _ in range(20):
        story.fail(2)
        story.succeed()
    assert story.breaker.state == "CLOSED"
    assert story.path == []


def test_a_denial_of_the_probe_closes() -> None:
    """A probe that is answered, be it with no, is a success: the target is there."""
    story = into(HALF_OPEN)
    story.breaker.record_success()
    assert story.path == ["CLOSED->OPEN", "OPEN->HALF_OPEN", "HALF_OPEN->CLOSED"]
    story.fail(2)
    assert story.breaker.state == "CLOSED", "the count starts at 0 after closing"


def test_a_failed_probe_starts_the_wait_anew() -> None:
    """After HALF_OPEN -> OPEN the whole wait passes again."""
    story = into(HALF_OPEN)
    story.advance(3)
    story.breaker.record_failure()
    story.advance(9.999)
    assert not story.breaker.allow()
    story.advance(0.001)
    assert story.breaker.allow()


def test_an_older_success_does_not_close_an_open_circuit() -> None:
    """Two calls pass while CLOSED; the first fails and opens; the second, older one succeeds: OPEN, one change."""
    story = Story(threshold=1)
    first, second = story.breaker.acquire(), story.breaker.acquire()
    assert first
    assert second
    first.failure()
    second.success()
    assert story.breaker.state == "OPEN"
    assert story.path == ["CLOSED->OPEN"]


def test_late_failures_do_not_lengthen_the_wait() -> None:
    """Failures that arrive while OPEN leave the wait as it was."""
    story = Story(threshold=1)
    story.fail()
    story.advance(6)
    story.breaker.record_failure()
    story.advance(4)
    assert story.breaker.allow()


def test_refusals_never_count() -> None:
    """A call that was not let through reports nothing; asking in vain changes nothing."""
    story = Story(threshold=2)
    story.fail(2)
    for _ in range(50):
        assert not story.breaker.allow()
    story.advance(10)
    assert story.breaker.allow()
    story.breaker.record_success()
    assert story.breaker.state == "CLOSED"


def test_the_wait_ends_at_an_exact_step_of_floating_point() -> None:
    """now >= opened_at + wait: 0.3 after 0.1 + 0.2 is not missed, as now - opened_at >= wait would."""
    story = Story(threshold=1, wait=0.2)
    story.clock.now = 0.1
    story.fail()
    story.clock.now = 0.1 + 0.2
    assert story.clock.now - 0.1 != 0.2
    assert story.breaker.allow()
    for opened_at in (0.1, 1.1, 1e6 + 0.1, 123456.789):
        story = Story(threshold=1, wait=0.7)
        story.clock.now = opened_at
        story.fail()
        story.clock.now = opened_at + 0.7
        assert story.breaker.allow()


def test_a_clock_that_steps_back_lengthens_the_wait_by_the_step_alone() -> None:
    """One second back: the probe comes one second later, no more."""
    story = Story(threshold=1, wait=10)
    story.fail()
    story.advance(-1)
    story.advance(10.999)
    assert not story.breaker.allow()
    story.advance(0.001)
    assert story.breaker.allow()


def test_no_wait_means_that_the_next_call_is_the_probe() -> None:
    """reset_timeout 0 is a value, not an absence."""
    story = Story(threshold=1, wait=0)
    story.fail()
    assert story.breaker.state == "OPEN"
    assert story.breaker.allow()
    assert story.breaker.state == "HALF_OPEN"
    assert not story.breaker.allow()


def test_the_count_is_that_of_closed() -> None:
    """Failures are counted while CLOSED; in OPEN and HALF_OPEN there are none."""
    story = Story(threshold=3)
    story.fail(2)
    assert story.breaker.failures == 2
    assert [into(state).breaker.failures for state in State] == [0, 0, 0]


def test_a_thousand_rounds_grow_nothing() -> None:
    """OPEN -> HALF_OPEN -> OPEN a thousand times: always leaves OPEN at the wait, keeps nothing."""
    story = Story(threshold=1, wait=10)
    story.breaker.on_change = None
    story.fail()
    for _ in range(1000):
        story.advance(9.5)
        assert not story.breaker.allow()
        story.advance(0.5)
        assert story.breaker.allow()
        story.breaker.record_failure()
    assert len(story.breaker._changes) == 0


# Time.


def test_time_is_read_at_most_once_per_call_and_never_for_the_state() -> None:
    """Every verb in every state: at most one reading; `state` none at all."""
    for state in (CLOSED, OPEN, HALF_OPEN):
        verbs = (
            CircuitBreaker.allow,
            CircuitBreaker.acquire,
            CircuitBreaker.record_success,
            CircuitBreaker.record_failure,
            CircuitBreaker.wait,
            lambda breaker: breaker.trip("it hangs"),
        )
        for verb in verbs:
            story = into(state, rules=[Watch()])
            before = story.clock.readings
            verb(story.breaker)
            assert story.clock.readings - before <= 1, (state, verb)
    story = into(OPEN)
    story.advance(100)
    before = story.clock.readings
    assert story.breaker.state == "OPEN", "reading it changes nothing, however late it is"
    assert story.clock.readings == before


def test_the_clock_may_use_the_breaker() -> None:
    """The clock is read outside the lock: one that reports to the breaker does not hang."""
    story = Story(threshold=2)

    def nosy() -> float:
        story.breaker.clock = story.clock  # once is enough
        story.breaker.record_failure()
        return story.clock.now

    story.breaker.clock = nosy
    story.breaker.record_failure()
    assert story.breaker.state == "OPEN"


def test_wait_says_how_long() -> None:
    """0 while CLOSED, what is left while OPEN, 0 when due, inf while a probe is out."""
    story = Story(threshold=1)
    assert story.breaker.wait() == 0
    story.fail()
    story.advance(4)
    assert story.breaker.wait() == 6
    story.advance(7)
    assert story.breaker.wait() == 0
    assert story.breaker.state == "OPEN"
    assert story.breaker.allow()
    assert story.breaker.wait() == math.inf


# Permits.


def test_a_permit_ends_once() -> None:
    """The second end of a permit does nothing, whatever it is."""
    story = Story(threshold=2)
    permit = story.breaker.acquire()
    assert permit
    permit.failure()
    permit.failure()
    permit.success()
    assert story.breaker.state == "CLOSED"
    assert story.breaker.failures == 1


def test_an_ignored_permit_is_no_vote() -> None:
    """Ignored while CLOSED: the count stays as it is."""
    story = Story(threshold=2)
    story.fail()
    permit = story.breaker.acquire()
    assert permit
    permit.ignore()
    assert story.breaker.failures == 1
    story.fail()
    assert story.breaker.state == "OPEN"


def test_an_ignored_probe_frees_its_place() -> None:
    """HALF_OPEN: after ignore() the next one is the probe, and the ignored one's later word changes nothing."""
    story = Story(threshold=1)
    story.fail()
    story.advance(10)
    first = story.breaker.acquire()
    assert first
    assert story.breaker.acquire() is None
    first.ignore()
    second = story.breaker.acquire()
    assert second
    assert story.breaker.acquire() is None
    first.success()
    assert story.breaker.state == "HALF_OPEN"
    second.success()
    assert story.breaker.state == "CLOSED"


def test_a_probe_that_never_reports_frees_its_place_after_the_lease() -> None:
    """After the lease the next one is the probe; the late answer of the first changes nothing."""
    story = Story(threshold=1, probe_lease=4.0)
    story.fail()
    story.advance(10)
    first = story.breaker.acquire()
    story.advance(3.999)
    assert story.breaker.acquire() is None
    story.advance(0.001)
    second = story.breaker.acquire()
    assert first
    assert second
    first.failure()
    assert story.breaker.state == "HALF_OPEN"
    second.success()
    assert story.path[-1] == "HALF_OPEN->CLOSED"


def test_an_answer_from_another_generation_changes_nothing() -> None:
    """Calls let through generations ago neither close nor count against the circuit of now."""
    story = Story(threshold=1)
    old, older = story.breaker.acquire(), story.breaker.acquire()
    story.fail()
    story.advance(10)
    probe = story.breaker.acquire()
    assert old
    assert older
    assert probe
    old.success()
    assert story.breaker.state == "HALF_OPEN", "not the probe's answer"
    probe.success()
    older.failure()
    assert story.breaker.state == "CLOSED"
    assert story.breaker.failures == 0


# Listeners.


def test_a_listener_may_ask_and_report() -> None:
    """on_change runs outside the lock: a listener that uses the breaker neither hangs nor loses a change."""
    told: list[str] = []

    def listener(change: Change) -> None:
        told.append(f"{change.before}->{change.after}")
        if change.after is OPEN:
            breaker.record_failure()
            clock.now += 10
            assert breaker.allow()
            breaker.record_success()

    clock = FakeClock()
    breaker = CircuitBreaker(1, 10, clock, on_change=listener)
    breaker.record_failure()
    assert told == ["CLOSED->OPEN", "OPEN->HALF_OPEN", "HALF_OPEN->CLOSED"]


def test_a_listener_reads_why() -> None:
    """The words of who opened it; None where the table says it all."""
    watch = Watch("too many")
    told: list[str | None] = []
    breaker = CircuitBreaker(1, 0, FakeClock(), rules=[watch], on_change=lambda change: told.append(change.why))
    breaker.trip("it hangs")
    assert breaker.allow()
    breaker.record_success()
    breaker.record_failure()
    assert breaker.allow()
    breaker.record_success()
    watch.opens = True
    breaker.record_success()
    assert told == ["it hangs", None, None, None, None, None, "too many"]


def failing(change: Change) -> None:
    raise RuntimeError(f"the listener failed at {change.after}")


def test_a_listener_that_raises_harms_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exception goes to sys.excepthook, and if that one raises too, nowhere; later changes are told."""
    caught: list[str] = []

    def hook(kind: type[BaseException], problem: BaseException, trace: object) -> None:
        caught.append(str(problem))
        raise ValueError("the hook failed as well")

    monkeypatch.setattr(sys, "excepthook", hook)
    breaker = CircuitBreaker(1, 0, lambda: 0.0, on_change=failing)
    breaker.record_failure()
    assert breaker.allow()
    assert caught == ["the listener failed at OPEN", "the listener failed at HALF_OPEN"]


def test_what_a_listener_raises_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """By Python's own hook: a traceback on standard error, and the call goes on."""
    breaker = CircuitBreaker(1, 10, lambda: 0.0, on_change=failing)
    permit = breaker.acquire()
    assert permit is not None
    permit.failure()
    assert breaker.state == "OPEN"
    shown = capfd.readouterr().err
    assert shown.startswith("Traceback")
    assert shown.rstrip().endswith("RuntimeError: the listener failed at OPEN")


def test_a_listener_that_ends_the_program_leaves_no_probe_behind() -> None:
    """KeyboardInterrupt in the listener goes to who asked; that call got no yes, so its place is free."""
    story = Story(threshold=1)
    story.fail()
    story.advance(10)

    def interrupted(change: Change) -> None:
        raise KeyboardInterrupt

    story.breaker.on_change = interrupted
    with pytest.raises(KeyboardInterrupt):
        story.breaker.acquire()
    story.breaker.on_change = None
    permit = story.breaker.acquire()
    assert permit
    permit.success()
    assert story.breaker.state == "CLOSED"
