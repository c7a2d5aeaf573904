"""Sliding windows over the calls that have ended: how many, how many failed, how many were slow.

Two kinds with one face: the last seconds, and the last calls. The memory of either is the same whatever the traffic.
"""

from __future__ import annotations

from typing import Protocol

# A window of time is cut into so many slices. A call counts until the slice in which it ended has left the window, so
# what is counted are the calls of some time between seconds * (1 - 1/SLICES) and seconds.
SLICES = 20
# Seconds. No clock tells less apart, and the number of a slice stays one that can be counted to.
_SHORTEST_SLICE = 1e-9


class Window(Protocol):
    """total, failed, slow: of the calls in the window, as `add` or `forget` have left it."""

    total: int
    failed: int
    slow: int

    def add(self, now: float, failed: bool, slow: bool) -> None:
        """A call has ended at `now`, in seconds of a clock."""

    def clear(self) -> None:
        """Nothing has ended yet."""


class TimeWindow:
    """The calls of the last `seconds`, in slices. Raises ValueError where seconds are not above 0.

    A clock that stands or steps back counts into the slice that it was in.
    """

    __slots__ = ("_calls", "_failures", "_slice", "_slice_seconds", "_slow", "failed", "seconds", "slow", "total")

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds must be above 0, not {seconds!r}")
        self.seconds = seconds
        self._slice_seconds = max(seconds / SLICES, _SHORTEST_SLICE)
        self.clear()

    def __str__(self) -> str:
        return f"{self.seconds:g} s"

    def clear(self) -> None:
        """Nothing has ended yet."""
        self._calls = [0] * SLICES
        self._failures = [0] * SLICES
        self._slow = [0] * SLICES
        self._slice: int | None = None  # the number of the present one; its figures stand at this modulo SLICES
        self.total = self.failed = self.slow = 0

    def add(self, now: float, failed: bool, slow: bool) -> None:
        """A call has ended at `now`."""
        self.forget(now)
        at = (self._slice or 0) % SLICES
        self._calls[at] += 1
        self.total += 1
        if failed:
            self._failures[at] += 1
            self.failed += 1
        if slow:
            self._slow[at] += 1
            self.slow += 1

    def forget(self, now: float) -> None:
        """What has left the window at `now` counts no more."""
        number = int(now // self._slice_seconds)
        if number == self._slice:
            return
        if self._slice is None:
            self._slice = number
            return
        for old in range(self._slice + 1, min(number, self._slice + SLICES) + 1):
            at = old % SLICES
            self.total -= self._calls[at]
            self.failed -= self._failures[at]
            self.slow -= self._slow[at]
            self._calls[at] = self._failures[at] = self._slow[at] = 0
        self._slice = max(number, self._slice)


class CallWindow:
    """The last `calls` that have ended, exactly: a byte for each. Raises ValueError where calls are below 1."""

    __slots__ = ("_next", "_ring", "calls", "failed", "slow", "total")

    def __init__(self, calls: int) -> None:
        if calls < 1:
            raise ValueError(f"calls must be at least 1, not {calls!r}")
        self.calls = calls
        self.clear()

    def __str__(self) -> str:
        return f"{self.calls:,} calls"

    def clear(self) -> None:
        """Nothing has ended yet."""
        self._ring = bytearray(self.calls)  # 1: failed, 2: slow
        self._next = 0
        self.total = self.failed = self.slow = 0

    def add(self, now: float, failed: bool, slow: bool) -> None:
        """A call has ended; when, does not matter here."""
        if self.total == self.calls:
            gone = self._ring[self._next]
            self.failed -= gone & 1
            self.slow -= gone >> 1
        else:
            self.total += 1
        self._ring[self._next] = failed | slow << 1
        self._next = (self._next + 1) % self.calls
        self.failed += failed
        self.slow += slow
