"""The rule by shares: when it opens, to the call."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaimw.kernel.rules import RatioRule
from eaimw.kernel.window import CallWindow, TimeWindow


def rule(calls: int = 1000, **settings: float) -> RatioRule:
    return RatioRule(CallWindow(calls), **{"min_calls": 10, "failure_ratio": 0.5, **settings})  # type: ignore[arg-type]


def test_the_call_that_fills_the_window_counts_in_its_own_decision() -> None:
    """min_calls 10, half of them failures: the tenth call opens, not the eleventh."""
    it = rule()
    opens = [it.ended(0.0, number % 2 == 1, 0.0) for number in range(10)]
    assert opens == [False] * 9 + [True]
    assert it.why == "5 of 10 calls failed in the last 1,000 calls"


def test_a_success_may_be_what_fills_it() -> None:
    """Nine failures and then a success: the tenth end opens, though it is a good one."""
    it = rule()
    assert [it.ended(0.0, number < 9, 0.0) for number in range(10)] == [False] * 9 + [True]
    assert it.why == "9 of 10 calls failed in the last 1,000 calls"


@pytest.mark.parametrize(
    ("count", "total", "share"), [(3, 30, 0.1), (7, 10, 0.7), (29, 100, 0.29), (57, 100, 0.57), (1, 1000, 0.001)]
)
@pytest.mark.parametrize("of", ["failed", "slow"])
def test_a_share_is_the_decimal_that_was_written(count: int, total: int, share: float, of: str) -> None:
    """3 of 30 reach 0.1, though 0.1 * 30 is more than 3 in floating point; one less does not."""
    for wanted, opens in ((count, True), (count - 1, False)):
        if of == "failed":
            it = rule(min_calls=total, failure_ratio=share)
            ends = [it.ended(0.0, number < wanted, 0.0) for number in range(total)]
        else:
            it = rule(min_calls=total, failure_ratio=1.0, slow_call=2.0, slow_ratio=share)
            ends = [it.ended(0.0, False, 2.1 if number < wanted else 2.0) for number in range(total)]
        assert ends == [False] * (total - 1) + [opens]


def test_slow_is_longer_than_slow_call_and_said_so() -> None:
    """Exactly slow_call is not slow; the reason names the share."""
    it = rule(slow_call=2.0, slow_ratio=0.8)
    assert not any(it.ended(0.0, False, 2.0) for _ in range(50))
    it.clear()
    assert [it.ended(0.0, False, 2.001) for _ in range(10)] == [False] * 9 + [True]
    assert it.why == "10 of 10 calls took longer than 2 s in the last 1,000 calls"


def test_without_slow_call_no_call_is_slow() -> None:
    """An hour long, and good."""
    it = rule(slow_ratio=0.001)
    assert not any(it.ended(0.0, False, 3600.0) for _ in range(100))


def test_what_is_over_opens_nothing() -> None:
    """Nine failures, and 10.5 s later a tenth: one call is in a window of 10 s."""
    it = RatioRule(TimeWindow(10.0), min_calls=10, failure_ratio=0.5)
    assert not any(it.ended(second / 10, True, 0.0) for second in range(9))
    assert not it.ended(11.4, True, 0.0)


def test_cleared_it_starts_anew() -> None:
    """What was seen before a change of state counts no more."""
    it = rule()
    for _ in range(9):
        it.ended(0.0, True, 0.0)
    it.clear()
    assert [it.ended(0.0, True, 0.0) for _ in range(10)] == [False] * 9 + [True]


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 1000).map(lambda thousandths: thousandths / 1000),
    st.lists(st.booleans(), max_size=100),
)
def test_it_decides_as_a_naive_one(calls: int, least: int, share: float, ends: list[bool]) -> None:
    """With whole numbers: failures x 1000 against thousandths x calls, of the last so many."""
    it = rule(calls, min_calls=least, failure_ratio=share)
    for number, failed in enumerate(ends):
        last = ends[max(0, number + 1 - calls) : number + 1]
        wanted = len(last) >= least and sum(last) * 1000 >= round(share * 1000) * len(last)
        assert it.ended(0.0, failed, 0.0) is wanted


def test_its_memory_does_not_grow() -> None:
    """100,000 ends leave nothing behind."""
    it = RatioRule(TimeWindow(10.0), min_calls=20, failure_ratio=1.0, slow_call=1.0)
    for number in range(1_000):
        it.ended(number / 1_000, False, 2.0 * (number % 2))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(100_000):
            it.ended(1.0 + number / 1_000, False, 2.0 * (number % 2))
        assert tracemalloc.get_traced_memory()[0] - before < 4_000
    finally:
        tracemalloc.stop()
