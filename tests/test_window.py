"""Windows over ended calls: the same as counting naively, and never more memory."""

from __future__ import annotations

import math
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaimw.kernel.window import SLICES, CallWindow, TimeWindow, Window

Kind = tuple[bool, bool]  # failed, slow
kinds = st.tuples(st.booleans(), st.booleans())
# Beside a window of 10 s: within a slice, from slice to slice, at its edge, and far beyond it.
steps = st.one_of(
    st.floats(0, 1), st.sampled_from([0.0, 0.5, 9.5, 10.0, 10.5, 1e4, 1e9]), st.floats(0, 30), st.integers(0, 20)
)


def figures(window: Window) -> tuple[int, int, int]:
    return window.total, window.failed, window.slow


def naive(ended: list[tuple[float, Kind]], after: float) -> tuple[int, int, int]:
    """What an exact window would say of the calls that ended later than `after`."""
    kept = [kind for at, kind in ended if at > after]
    return len(kept), sum(failed for failed, _ in kept), sum(slow for _, slow in kept)


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(steps, kinds), min_size=1, max_size=60))
def test_a_window_of_seconds_is_a_naive_one_of_some_length_in_its_granularity(
    start: float, story: list[tuple[float, Kind]]
) -> None:
    """Its figures are those of an exact window of a length from 95 % of its seconds to all of them."""
    window = TimeWindow(10.0)
    ended: list[tuple[float, Kind]] = []
    now = start
    for step, kind in story:
        now += step
        window.add(now, *kind)
        ended.append((now, kind))
        lengths = [10.0 * (1 - 1 / SLICES) - 1e-6, 10.0 + 1e-6]
        lengths += [now - at for at, _ in ended if lengths[0] <= now - at <= lengths[1]]
        assert figures(window) in {naive(ended, now - length) for length in lengths}


@given(st.lists(st.tuples(st.floats(-5, 5), kinds), min_size=1, max_size=40))
def test_a_clock_that_steps_back_loses_nothing_and_counts_nothing_twice(story: list[tuple[float, Kind]]) -> None:
    """As if the clock had stood at the latest time that it showed, but for what a slice leaves open."""
    window, standing = TimeWindow(10.0), TimeWindow(10.0)
    now, latest = 1000.0, -math.inf
    for step, kind in story:
        now += step
        latest = max(now, latest)
        window.add(now, *kind)
        standing.add(latest, *kind)
        assert figures(window) == figures(standing)
        assert window.total >= window.failed >= 0 <= window.slow <= window.total


def test_a_standing_clock_counts_all() -> None:
    """No time passes: nothing leaves the window."""
    window = TimeWindow(1.0)
    for _ in range(1000):
        window.add(5.0, True, False)
    assert figures(window) == (1000, 1000, 0)


@pytest.mark.parametrize("pause", [10.5, 11.0, 1e6, 1e15])
def test_a_long_pause_empties_it(pause: float) -> None:
    """However long: what came before is gone, and looking for it takes no longer."""
    window = TimeWindow(10.0)
    for tenth in range(100):
        window.add(tenth / 10, True, True)
    window.forget(9.9 + pause)
    assert figures(window) == (0, 0, 0)


@pytest.mark.parametrize("seconds", [5e-324, 1e-300, 1e-9, 0.001, 3600.0, 1e300, 1.7976931348623157e308])
@pytest.mark.parametrize("now", [0.0, 1e-3, 1e9, 1e15])
def test_any_length_above_0_can_be_counted(seconds: float, now: float) -> None:
    """The smallest and the largest number that there are: the call that ends is in it, and nothing is raised."""
    window = TimeWindow(seconds)
    window.add(now, True, False)
    window.add(now, False, True)
    assert figures(window) == (2, 1, 1)
    window.add(now + 4000, False, False)
    assert window.total == (3 if seconds > 4000 else 1)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_window_of_no_seconds_is_refused(seconds: float) -> None:
    """Seconds must be above 0."""
    with pytest.raises(ValueError, match="seconds must be above 0"):
        TimeWindow(seconds)


@given(st.integers(1, 30), st.lists(kinds, max_size=100))
def test_a_window_of_calls_is_exact(calls: int, story: list[Kind]) -> None:
    """Its figures are those of the last so many, whenever they ended."""
    window = CallWindow(calls)
    for number, kind in enumerate(story):
        window.add(-number, *kind)
        last = story[max(0, number + 1 - calls) : number + 1]
        assert figures(window) == (len(last), sum(failed for failed, _ in last), sum(slow for _, slow in last))
    window.clear()
    assert figures(window) == (0, 0, 0)


def test_a_window_of_no_calls_is_refused() -> None:
    """Calls must be at least 1."""
    with pytest.raises(ValueError, match="calls must be at least 1, not 0"):
        CallWindow(0)


def size(window: TimeWindow | CallWindow) -> int:
    """Bytes of it and of what it holds."""
    held = [getattr(window, name) for name in window.__slots__]
    numbers = [number for value in held if isinstance(value, list) for number in value]
    return sum(map(sys.getsizeof, [window, *held, *numbers]))


@pytest.mark.parametrize("window", [TimeWindow(10.0), CallWindow(1000)], ids=str)
def test_the_memory_is_the_same_whatever_the_traffic(window: TimeWindow | CallWindow) -> None:
    """100,000 calls at 10,000 a second take as much as 1,000 did."""
    sizes: Counter[int] = Counter()
    for number in range(100_000):
        window.add(1e6 + number / 10_000, number % 2 == 0, number % 3 == 0)
        if number in (1_000, 99_999):
            sizes[size(window)] += 1
    assert max(sizes) - min(sizes) <= 64, "no more than a larger number here and there"
    assert size(window) < 4_000
