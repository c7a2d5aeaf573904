"""The bulkhead: BoundedSemaphore's contract without waiting, and resizable."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaimw.kernel.bulkhead import Bulkhead


def test_a_full_one_refuses_at_once() -> None:
    """As many as the limit enter, the next does not; one that leaves makes room for one."""
    bulkhead = Bulkhead(2)
    assert bulkhead.acquire()
    assert bulkhead.acquire(blocking=False)
    assert not bulkhead.acquire()
    bulkhead.release()
    assert bulkhead.acquire()
    assert bulkhead.inflight == 2


def test_giving_back_too_much_is_caught() -> None:
    """A release that nobody took is a ValueError, as BoundedSemaphore's, and never a bigger limit."""
    bulkhead = Bulkhead(1)
    with pytest.raises(ValueError, match="nobody had taken"):
        bulkhead.release()
    with pytest.raises(ValueError, match="released too many"):
        threading.BoundedSemaphore(1).release()
    assert bulkhead.acquire()
    assert not bulkhead.acquire()


def test_it_never_waits() -> None:
    """blocking=True is refused: it would be a queue."""
    with pytest.raises(ValueError, match="blocking"):
        Bulkhead(1).acquire(blocking=True)


def test_after_a_shrink_nobody_enters_until_below_the_new_limit() -> None:
    """5 in flight, shrunk to 2: the next enters when one is left in flight, not before."""
    bulkhead = Bulkhead(5)
    assert all(bulkhead.acquire() for _ in range(5))
    bulkhead.resize(2)
    for left in (4, 3, 2):
        bulkhead.release()
        assert bulkhead.inflight == left
        assert not bulkhead.acquire()
    bulkhead.release()
    assert bulkhead.acquire()
    assert not bulkhead.acquire()


def test_a_bigger_limit_counts_at_once() -> None:
    """Grown while full: the next enters."""
    bulkhead = Bulkhead(1)
    assert bulkhead.acquire()
    bulkhead.resize(2)
    assert bulkhead.acquire()
    assert (bulkhead.inflight, bulkhead.limit) == (2, 2)


@pytest.mark.parametrize("limit", [0, -1, True, 1.0, "3", None], ids=repr)
def test_a_bad_limit_is_named(limit: Any) -> None:
    """At its making and at a resize, which then changes nothing."""
    with pytest.raises(ValueError, match="limit"):
        Bulkhead(limit)
    bulkhead = Bulkhead(3)
    with pytest.raises(ValueError, match="limit"):
        bulkhead.resize(limit)
    assert bulkhead.limit == 3


@given(st.lists(st.one_of(st.just("in"), st.just("out"), st.integers(1, 4)), max_size=60))
def test_any_sequence_keeps_the_count(steps: list[str | int]) -> None:
    """Nobody enters at or above the limit of that moment; the count is entries less exits."""
    bulkhead = Bulkhead(2)
    inside = 0
    for step in steps:
        if step == "in":
            may = inside < bulkhead.limit
            assert bulkhead.acquire() is may
            inside += may
        elif step == "out":
            if inside:
                bulkhead.release()
                inside -= 1
            else:
                with pytest.raises(ValueError, match="nobody"):
                    bulkhead.release()
        else:
            bulkhead.resize(int(step))
        assert bulkhead.inflight == inside


def test_threads_never_exceed_the_limit() -> None:
    """8 threads entering and leaving while another resizes: the peak never exceeds the largest limit, none is lost."""
    bulkhead = Bulkhead(3)
    inside = [0]
    peak = [0]
    counting = threading.Lock()

    def work() -> None:
        for _ in range(2000):
            if bulkhead.acquire():
                with counting:
                    inside[0] += 1
                    peak[0] = max(peak[0], inside[0])
                with counting:
                    inside[0] -= 1
                bulkhead.release()

    def resize() -> None:
        for turn in range(2000):
            bulkhead.resize(1 + turn % 3)

    threads = [threading.Thread(target=work) for _ in range(8)] + [threading.Thread(target=resize)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert 1 <= peak[0] <= 3
    assert bulkhead.inflight == 0
