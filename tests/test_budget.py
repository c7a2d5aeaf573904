"""The retry budget: what may be tried beyond first attempts, for any order of events."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaimw.kernel.budget import MOST, RetryBudget

ratios = st.one_of(st.sampled_from([0.0, 0.1, 0.29, 1.0, 1.5e-06]), st.floats(0, 1), st.integers(0, 100))


@given(ratios, st.integers(0, MOST), st.lists(st.sampled_from(["earn", "spend", "give_back"]), max_size=300))
def test_further_attempts_are_a_share_of_the_first(ratio: float, minimum: int, story: list[str]) -> None:
    """Whatever the order: extra <= ratio x first + minimum; tokens stay within 0 and 100."""
    budget = RetryBudget(ratio, minimum)
    first = extra = 0
    for event in story:
        if event == "earn":
            budget.earn()
            first += 1
        elif event == "spend":
            extra += budget.spend()
        elif extra:
            budget.give_back()
            extra -= 1
        assert extra <= Fraction(repr(ratio)) * first + minimum
        assert 0 <= budget.tokens <= MOST


@pytest.mark.parametrize("ratio", [0.1, 0.29, 1.5e-06, 1 / 3])
def test_a_million_first_attempts_earn_no_more_than_their_share(ratio: float) -> None:
    """Nor what rounding would add to each."""
    budget = RetryBudget(ratio, 0)
    extra = 0
    for _ in range(1_000_000):
        budget.earn()
        extra += budget.spend()
    assert ratio * 1e6 - 2 <= extra <= ratio * 1e6


def test_ten_tenths_are_one() -> None:
    """Ten first attempts at 0.1 pay for one more, nine do not."""
    budget = RetryBudget(0.1, 0)
    for _ in range(9):
        budget.earn()
    assert not budget.spend()
    budget.earn()
    assert budget.tokens == 1.0
    assert [budget.spend(), budget.spend()] == [True, False]


def test_it_starts_at_its_minimum_and_holds_a_hundred() -> None:
    """10 at the start; 10,000 calls that went well leave 100, not 1,010."""
    budget = RetryBudget(0.1, 10)
    assert budget.tokens == 10
    for _ in range(10_000):
        budget.earn()
    budget.give_back()
    assert budget.tokens == 100
    assert [budget.spend() for _ in range(101)] == [True] * 100 + [False]


def test_another_ratio_leaves_the_tokens() -> None:
    """Neither refilled to the new minimum nor cut."""
    budget = RetryBudget(0.1, 10)
    for _ in range(7):
        budget.spend()
    budget.change(1.0, 50)
    assert budget.tokens == 3
    budget.earn()
    assert budget.tokens == 4


@pytest.mark.parametrize(
    ("ratio", "minimum", "words"),
    [(-0.1, 10, "ratio"), (float("nan"), 10, "ratio"), (101, 10, "ratio"), (0.1, -1, "minimum"), (0.1, 101, "minimum")],
)
def test_what_is_out_of_range_is_refused(ratio: float, minimum: int, words: str) -> None:
    """At the start and later, and named; then nothing has changed."""
    with pytest.raises(ValueError, match=f"{words} must be from 0 to 100"):
        RetryBudget(ratio, minimum)
    budget = RetryBudget(0.1, 10)
    with pytest.raises(ValueError, match=words):
        budget.change(ratio, minimum)
    assert budget.tokens == 10
