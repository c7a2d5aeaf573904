"""breaker/breaker.py with all that may be asked of it beside the count: several probes, rules, rests and a trip."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from breaker_story import Story, Watch, into

from eaimw.kernel.breaker import CLOSED, HALF_OPEN, OPEN, Change, Permit

# Several probes.


def probing(probes: int, **more: Any) -> tuple[Story, list[Permit]]:
    """A story in HALF_OPEN, threshold 1 and wait 10, with all its probes out."""
    story = Story(threshold=1, probes=probes, **more)
    story.fail()
    story.advance(10)
    return story, [story.given() for _ in range(probes)]


def test_of_several_probes_all_must_succeed() -> None:
    """probes=3: three pass and no fourth, while they are out and after two are back; the third success closes."""
    story, (first, second, third) = probing(3)
    assert story.breaker.acquire() is None
    assert story.breaker.wait() == math.inf
    second.success()
    first.success()
    assert story.breaker.state == "HALF_OPEN"
    assert not story.breaker.allow(), "three in all, not three at once"
    third.success()
    assert story.path == ["CLOSED->OPEN", "OPEN->HALF_OPEN", "HALF_OPEN->CLOSED"]


def test_a_probe_may_come_when_others_are_back() -> None:
    """The places need not be taken at once: until the third has asked, one may pass at once."""
    story = Story(threshold=1, probes=3, probe_lease=4.0)
    story.fail()
    story.advance(10)
    for _ in range(3):
        assert story.breaker.state != "CLOSED"
        assert story.breaker.wait() == 0
        story.given().success()
        story.advance(100)
    assert story.breaker.state == "CLOSED"


def test_the_first_failure_of_several_probes_opens() -> None:
    """Two of three have succeeded, the third fails: OPEN for the whole wait, and three are asked for anew."""
    story, (first, second, third) = probing(3)
    first.success()
    second.success()
    third.failure()
    assert story.breaker.wait() == 10
    story.advance(10)
    for _ in range(2):
        story.given().success()
        assert story.breaker.state == "HALF_OPEN"
    story.given().success()
    assert story.breaker.state == "CLOSED"


def test_after_the_first_failure_the_other_probes_are_late() -> None:
    """Of three that are out one fails: what the others say changes nothing, then or in the next round."""
    story, (first, second, third) = probing(3)
    first.failure()
    second.success()
    story.advance(10)
    probe = story.given()
    third.failure()
    assert probe.is_probe
    assert story.path == ["CLOSED->OPEN", "OPEN->HALF_OPEN", "HALF_OPEN->OPEN", "OPEN->HALF_OPEN"]


def test_one_of_several_probes_that_is_ignored_frees_its_place_alone() -> None:
    """probes=2, one ignored: one more may pass, and the success of the other still counts."""
    story, (first, second) = probing(2)
    first.ignore()
    assert story.breaker.wait() == 0
    third = story.given()
    assert story.breaker.acquire() is None
    second.success()
    assert story.breaker.state == "HALF_OPEN"
    third.success()
    assert story.breaker.state == "CLOSED"


def test_when_the_lease_is_over_all_probes_are_asked_for_anew() -> None:
    """probes=2, one has succeeded, one is lost: after the lease of the last two more must succeed, and it is late."""
    story, (first, lost) = probing(2, probe_lease=4.0)
    first.success()
    story.advance(3.999)
    assert story.breaker.acquire() is None
    story.advance(0.001)
    assert story.breaker.wait() == 0
    again, last = story.given(), story.given()
    assert story.breaker.acquire() is None
    lost.failure()
    again.success()
    lost.success()
    assert story.breaker.state == "HALF_OPEN"
    last.success()
    assert story.path == ["CLOSED->OPEN", "OPEN->HALF_OPEN", "HALF_OPEN->CLOSED"]


def test_the_lease_counts_from_the_last_probe() -> None:
    """The first of two passes at 0 s, the second at 3: a lease of 4 is over at 7, also if a slower clock came last."""
    story = Story(threshold=1, probes=2, probe_lease=4.0)
    story.fail()
    story.advance(10)
    story.given()
    story.advance(3)
    story.given().ignore()
    story.advance(-1)
    story.given()
    story.advance(4.5)
    assert story.breaker.acquire() is None
    story.advance(0.5)
    assert story.breaker.acquire()


def test_the_number_of_probes_may_change_while_it_runs() -> None:
    """From 2 to 1 with both out: this round wants both, the next one."""
    story, (first, second) = probing(2)
    story.breaker.probes = 1
    first.success()
    assert story.breaker.state == "HALF_OPEN"
    second.failure()
    story.advance(10)
    story.given().success()
    assert story.breaker.state == "CLOSED"


def test_a_permit_knows_that_it_is_a_probe() -> None:
    """While it has not ended, and whatever the breaker has become since."""
    story = Story(threshold=1)
    plain = story.given()
    story.fail()
    story.advance(10)
    probe = story.given()
    assert (plain.is_probe, probe.is_probe) == (False, True)
    probe.success()
    assert (story.given().is_probe, probe.is_probe) == (False, False)


# Rules.


def test_a_rule_sees_every_end_while_closed() -> None:
    """With its time, its answer and its seconds, the end that opens included; by either face; none in OPEN or after."""
    one, other = Watch(), Watch()
    story = Story(threshold=2, rules=[one, other])
    late = story.given()
    story.given().success(0.25)
    story.advance(1)
    story.succeed()
    story.fail()
    story.given().ignore()
    story.given().failure(3.0)
    late.failure(5.0)
    story.advance(10)
    story.given().failure(1.0)
    story.advance(10)
    story.given().success(1.0)
    story.succeed()
    assert one.seen == [
        (1000.0, False, 0.25),
        (1001.0, False, 0.0),
        (1001.0, True, 0.0),
        (1001.0, True, 3.0),
        (1021.0, False, 0.0),
    ]
    assert other.seen == one.seen


def test_a_rule_opens_on_a_failure_or_a_success_and_says_why() -> None:
    """It need not be at the threshold; the change has the rule's words, and the time of the end."""
    for end in (Permit.failure, Permit.success):
        watch = Watch("slow: 8 of 10")
        story = Story(threshold=3, rules=(watch,))
        story.succeed()
        watch.opens = True
        story.advance(2)
        end(story.given())
        assert story.changes == [Change(CLOSED, OPEN, 1002.0, "slow: 8 of 10")]
        assert story.breaker.wait() == 10


def test_rules_are_cleared_at_each_change() -> None:
    """Once at each of the four, and never else."""
    watch = Watch()
    story = Story(threshold=1, rules=[watch])
    story.succeed()
    assert watch.cleared == 0

    def pass_a_probe() -> None:
        story.advance(10)
        assert story.breaker.allow()

    for number, happens in enumerate(
        (
            story.breaker.record_failure,
            pass_a_probe,
            story.breaker.record_failure,
            pass_a_probe,
            story.breaker.record_success,
        )
    ):
        happens()
        assert watch.cleared == number + 1
    story.breaker.trip("it hangs")
    assert watch.cleared == 6


def test_of_several_rules_the_first_that_opens_is_named() -> None:
    """Three rules, the last two open: both are asked, the change names the second."""
    first, second, third = Watch("first"), Watch("second"), Watch("third")
    second.opens = third.opens = True
    story = Story(rules=[first, second, third])
    story.succeed()
    assert len(third.seen) == 1
    assert [change.why for change in story.changes] == ["second"]


def test_a_rule_and_the_count_stand_together() -> None:
    """Either opens alone; if both would, the rule's words are told; a success sets the count alone to 0."""
    watch = Watch()
    story = Story(threshold=2, rules=[watch])
    story.fail()
    story.succeed()
    story.fail(2)
    assert story.changes == [Change(CLOSED, OPEN, 1000.0)]
    story.advance(10)
    story.succeed()
    story.fail()
    watch.opens = True
    story.fail()
    assert story.changes[-1] == Change(CLOSED, OPEN, 1010.0, watch.why)


def test_rules_may_be_given_while_it_runs() -> None:
    """A list is copied when it is given; another one set later is asked from the next end on."""
    watch = Watch()
    rules: list[Watch] = []
    story = Story(rules=rules)
    rules.append(watch)
    story.succeed()
    assert watch.seen == []
    story.breaker.rules = rules
    story.succeed()
    assert len(watch.seen) == 1


def test_what_an_ending_call_raises_in_a_rule_reaches_it_and_moves_nothing() -> None:
    """`ended` raises: CLOSED as before and not counted, no change told, the lock free; the next end is as any other."""

    class Broken(Watch):
        def ended(self, now: float, failed: bool, seconds: float) -> bool:
            raise ZeroDivisionError("no calls")

    for end in (Permit.failure, Permit.success):
        story = Story(threshold=2)
        story.fail()
        story.breaker.rules = [Broken()]
        with pytest.raises(ZeroDivisionError):
            end(story.given())
        assert (story.breaker.state, story.breaker.failures, story.path) == ("CLOSED", 1, [])
        story.breaker.rules = []
        story.fail()
        assert story.breaker.state == "OPEN"


@pytest.mark.parametrize("end", [Permit.success, Permit.failure])
def test_what_a_probe_meets_in_a_rule_frees_its_place(end: Callable[[Permit], None]) -> None:
    """`clear` raises as a probe's answer would change the state: still HALF_OPEN, and one more probe may pass."""

    class Broken(Watch):
        def clear(self) -> None:
            raise ZeroDivisionError("no calls")

    story, (first, second) = probing(2)
    first.success()
    story.breaker.rules = [Broken()]
    with pytest.raises(ZeroDivisionError):
        end(second)
    assert story.path[1:] == ["OPEN->HALF_OPEN"]
    story.breaker.rules = []
    story.given().success()
    assert story.path[1:] == ["OPEN->HALF_OPEN", "HALF_OPEN->CLOSED"]


# The wait, when it is not always the same.


def test_rest_is_asked_with_the_times_that_it_has_opened_again() -> None:
    """0, 1, 2 and so on, also where a lease was over in between; 0 again after it was CLOSED."""
    asked: list[int] = []

    def rest(reopened: int) -> float:
        asked.append(reopened)
        return 5.0 * (1 << reopened)

    story = Story(threshold=1, rest=rest, probe_lease=4.0)
    story.fail()
    for seconds in (5, 10, 20):
        assert story.breaker.wait() == seconds
        story.advance(seconds - 0.5)
        assert not story.breaker.allow()
        story.advance(0.5)
        assert story.breaker.allow()
        story.advance(4)
        story.given().failure()
    story.advance(40)
    story.succeed()
    story.fail()
    assert asked == [0, 1, 2, 3, 0]


def test_at_least_lengthens_the_wait_and_never_shortens_it() -> None:
    """With a rest and without: the longer of the two; of the failure that opens alone; for this one wait."""
    for rest in (None, lambda reopened: 10.0):
        story = Story(threshold=2, rest=rest)
        story.given().failure(at_least=99.0)
        story.given().failure(at_least=15.0)
        story.advance(14.999)
        assert not story.breaker.allow()
        story.advance(0.001)
        story.given().failure(at_least=2.0)
        assert story.breaker.wait() == 10
        story.advance(10)
        story.given().failure(at_least=math.nan)
        assert story.breaker.wait() == 10


def test_at_least_of_a_late_failure_changes_nothing() -> None:
    """A call of before the opening comes back and asks for a minute: the wait is as it was."""
    story = Story(threshold=1)
    late = story.given()
    story.fail()
    late.failure(at_least=60.0)
    assert story.breaker.wait() == 10


def test_a_reset_timeout_that_changes_while_open_applies_at_once() -> None:
    """Shorter or longer; not shorter than what the target has asked for. A rest that was told stays."""
    story = Story(threshold=1)
    story.given().failure(at_least=4.0)
    for seconds, wait in ((20.0, 20.0), (5.0, 5.0), (3.0, 4.0)):
        story.breaker.reset_timeout = seconds
        assert story.breaker.wait() == wait
    story = Story(threshold=1, rest=lambda reopened: 7.0)
    story.fail()
    story.breaker.reset_timeout = 1.0
    assert story.breaker.wait() == 7


def test_what_rest_raises_reaches_who_ended_the_call_and_moves_nothing() -> None:
    """CLOSED: the failure is counted, the next one tries again. HALF_OPEN: another probe may pass. The lock is free."""

    def broken(reopened: int) -> float:
        raise OverflowError("2.0 ** 1024")

    story = Story(threshold=2, rest=broken)
    story.fail()
    with pytest.raises(OverflowError):
        story.given().failure()
    assert (story.breaker.state, story.breaker.failures, story.path) == ("CLOSED", 2, [])
    story.breaker.rest = None
    story.fail()
    story.advance(10)
    probe = story.given()
    story.breaker.rest = broken
    with pytest.raises(OverflowError):
        probe.failure()
    assert story.path == ["CLOSED->OPEN", "OPEN->HALF_OPEN"]
    story.given().success()
    assert story.breaker.state == "CLOSED"


# Tripped.


def test_a_trip_opens_and_says_why() -> None:
    """The change has the words and the time; the wait starts then, and asks `rest`."""
    story = Story(rest=lambda reopened: 6.0)
    story.advance(1)
    story.breaker.trip("10 calls hang")
    assert story.changes == [Change(CLOSED, OPEN, 1001.0, "10 calls hang")]
    assert story.breaker.wait() == 6


def test_a_trip_elsewhere_than_in_closed_does_nothing() -> None:
    """OPEN: the wait is not lengthened. HALF_OPEN: the probe still decides."""
    story = into(OPEN)
    story.advance(6)
    story.breaker.trip("it hangs")
    assert story.breaker.wait() == 4
    story = into(HALF_OPEN)
    told = len(story.changes)
    story.breaker.trip("it hangs")
    assert len(story.changes) == told
    story.breaker.record_success()
    assert story.breaker.state == "CLOSED"


def test_calls_from_before_a_trip_are_late() -> None:
    """What they say changes neither the wait nor the round of probes after it."""
    story = Story(threshold=1)
    hanging = [story.given() for _ in range(4)]
    story.breaker.trip("4 calls hang")
    story.advance(5)
    hanging[0].failure()
    hanging[1].success()
    assert story.breaker.wait() == 5
    story.advance(5)
    probe = story.given()
    hanging[2].success()
    hanging[3].failure()
    assert story.breaker.state == "HALF_OPEN"
    probe.success()
    assert story.path == ["CLOSED->OPEN", "OPEN->HALF_OPEN", "HALF_OPEN->CLOSED"]
