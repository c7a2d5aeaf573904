"""Waits: by chance within bounds, as a target asks for them, and of a circuit that rests or comes back."""

from __future__ import annotations

import math
import sys
import time
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaimw.kernel.backoff import LONGEST, full_jitter, retry_after
from eaimw.kernel.ramp import Ramp
from eaimw.kernel.rest import Rest

NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT, the date of RFC 9110's examples
shares = st.floats(0, 1, exclude_max=True)


@given(st.floats(0, 1e300), st.floats(0, 3600), st.one_of(st.integers(0, 20), st.integers(0, 10**400)), shares)
def test_full_jitter_is_within_0_and_cap(base: float, cap: float, n: int, u: float) -> None:
    """Finite and within bounds for any number of the attempt."""
    assert 0 <= full_jitter(base, cap, n, u) <= cap


def test_full_jitter_is_uniform_up_to_the_doubled_base() -> None:
    """0.1, 0.2, 0.4, ... to cap, times chance."""
    assert [full_jitter(0.1, 2.0, n, 0.5) for n in range(7)] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert full_jitter(0.1, 2.0, 3, 0.0) == 0.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0000000007", 7.0),
        ("86400", LONGEST),
        ("Sun, 06 Nov 1994 08:51:17 GMT", 100.0),
        ("Sunday, 06-Nov-94 08:51:17 GMT", 100.0),
        ("Sun Nov  6 08:51:17 1994", 100.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("Sat, 05 Nov 1994 08:49:37 GMT", 0.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_seconds_or_one_of_three_dates(value: str, seconds: float) -> None:
    """RFC 9110, 5.6.7: all three are in UTC; a date that is over asks for no wait."""
    assert retry_after(value, NOW) == seconds


@pytest.mark.parametrize(
    "value",
    ["", "soon", "-1", "+1", "1.5", "1e3", "nan", "inf", "0x10", "٣", "1, 2", "86401", "99999999999", "9" * 5000,
     "Sun, 99 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 25:49:37 GMT", "Sun, 06 Nov 99999999999 08:49:37 GMT",
     "Mon, 07 Nov 1994 09:49:37 GMT", "Sun, 06 Nov 2094 08:49:37 GMT", "1994-11-06T08:50:00Z"],
)  # fmt: skip
def test_a_senseless_retry_after_is_none(value: str) -> None:
    """No number, no date, or longer than a day."""
    assert retry_after(value, NOW) is None


@given(
    st.one_of(
        st.text(max_size=60),
        st.text("0123456789 :,+-GMTSunNovSat", max_size=50),
        st.lists(st.sampled_from(["Sun", ",", "06", "Nov", "1994", "08:49:37", "GMT", "-", "+9999", "1e9", ":", "99"]))
        .map(" ".join),
    ),
    st.floats(0, 1e11),
)  # fmt: skip
def test_no_retry_after_raises_or_is_out_of_bounds(value: str, now: float) -> None:
    """Whatever a target says, at whatever time."""
    seconds = retry_after(value, now)
    assert seconds is None or 0 <= seconds <= LONGEST


@given(st.integers(0, int(LONGEST)), st.integers(0, 4_000_000_000))
def test_a_date_is_as_far_away_as_it_says(ahead: int, now: int) -> None:
    """As the standard library writes dates."""
    date = format_datetime(datetime.fromtimestamp(now + ahead, UTC), usegmt=True)
    assert retry_after(date, float(now)) == ahead


# The rest of a circuit.


@given(
    st.floats(0, 3600), st.floats(1, 100), st.floats(0, 3600), st.floats(0, 1), shares,
    st.one_of(st.integers(0, 20), st.integers(0, 10**9), st.just(sys.maxsize)),
)  # fmt: skip
def test_a_rest_is_within_its_bounds_however_often_it_opened(
    reset: float, factor: float, most: float, jitter: float, u: float, reopened: int
) -> None:
    """At least reset_timeout; at most the larger of it and the maximum; and the jitter on top."""
    wait = Rest(reset, factor, most, jitter, lambda: u)(reopened)
    assert reset <= wait <= max(reset, most) * (1 + jitter)
    assert math.isfinite(wait)


def test_a_rest_doubles_up_to_its_maximum() -> None:
    """10, 20, 40, 60, 60: it starts at reset_timeout."""
    rest = Rest(10.0, 2.0, 60.0, 0.0, lambda: 0.0)
    assert [rest(reopened) for reopened in (0, 1, 2, 3, 4, 10_000)] == [10, 20, 40, 60, 60, 60]


def test_a_rest_of_nothing_stays_nothing() -> None:
    """reset_timeout 0: the next transaction is the probe, however often it has failed."""
    rest = Rest(0.0, 2.0, 60.0, 0.1, lambda: 0.9)
    assert [rest(reopened) for reopened in (0, 1, 10_000)] == [0, 0, 0]


@pytest.mark.parametrize("factor", [2, 2.0])
def test_a_rest_takes_no_longer_to_find_after_many_reopenings(factor: float) -> None:
    """A factor written as an integer is no power of millions of digits."""
    rest = Rest(0.0, factor, 60.0, 0.0, lambda: 0.0)
    began = time.process_time()
    for reopened in range(10_000_000, 10_000_100):
        rest(reopened)
    assert time.process_time() - began < 1.0


def test_a_rest_is_lengthened_by_chance_and_never_shortened() -> None:
    """Jitter 0.1: from 10 to 11 s, also beyond the maximum."""
    assert Rest(10.0, 1.0, 60.0, 0.1, lambda: 0.0)(0) == 10.0
    assert Rest(10.0, 1.0, 60.0, 0.1, lambda: 0.5)(0) == pytest.approx(10.5)
    assert Rest(10.0, 9.0, 60.0, 0.1, lambda: 0.5)(5) == pytest.approx(63.0)


# The way back.


@given(st.floats(0, 3600), st.integers(1, 100_000), st.lists(st.floats(-10, 4000), min_size=1).map(sorted))
def test_a_ramp_never_leaves_its_line(seconds: float, full: int, times: list[float]) -> None:
    """At least 1, never above the line from 1 to full, never less than before, and full at the end."""
    ramp = Ramp(seconds)
    limits = [ramp.limit(elapsed, full) for elapsed in times]
    assert limits == sorted(limits)
    for elapsed, limit in zip(times, limits, strict=True):
        line = full if elapsed >= seconds else 1 + (full - 1) * elapsed / seconds if elapsed > 0 else 1
        assert 1 <= limit <= line * (1 + 1e-12)
    assert ramp.limit(seconds, full) == full


def test_a_ramp_second_by_second() -> None:
    """From 1 to 10 in 9 seconds: one place more each second."""
    assert [Ramp(9.0).limit(second, 10) for second in range(11)] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10]
