"""The bulkhead: how many calls of one target may be in flight. It decides, and never waits.

`threading.BoundedSemaphore`'s contract for a caller that does not block, and resizable while in use.
"""

from __future__ import annotations

import threading


class Bulkhead:
    """Places for calls in flight; a full one refuses at once. Safe to use from any number of threads.

    limit: places, an int from 1 up. After a shrink nobody enters until fewer than the new limit are in flight.
    Raises ValueError for a limit out of range, and when more places come back than were taken.
    """

    __slots__ = ("_limit", "_lock", "_taken")

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._taken = 0
        self._limit = _checked(limit)

    def __repr__(self) -> str:
        return f"<Bulkhead {self._taken} of {self._limit}>"

    @property
    def limit(self) -> int:
        """Places in all."""
        return self._limit

    @property
    def inflight(self) -> int:
        """Places taken; above `limit` only after a shrink, until enough have come back."""
        return self._taken

    def acquire(self, blocking: bool = False) -> bool:
        """Take a place: True, or False at once if there is none.

        blocking is there for code that was written for a semaphore; only False makes sense here.
        """
        if blocking:
            raise ValueError("blocking must be False: a bulkhead refuses, it never makes anybody wait")
        with self._lock:
            if self._taken >= self._limit:
                return False
            self._taken += 1
            return True

    def release(self) -> None:
        """Give a place back. ValueError if none is taken: the limit never grows by a mistake."""
        with self._lock:
            if self._taken <= 0:
                raise ValueError("a place was given back that nobody had taken")
            self._taken -= 1

    def resize(self, limit: int) -> None:
        """Set a new limit at once; those in flight keep their places."""
        limit = _checked(limit)
        with self._lock:
            self._limit = limit


def _checked(limit: int) -> int:
    if type(limit) is not int or limit < 1:
        raise ValueError(f"limit must be an int of at least 1, not {limit!r}")
    return limit
