"""The way back of a circuit that has closed: from one call in flight to all, along a line."""

from __future__ import annotations

import math


class Ramp:
    """`limit` grows from 1 to the full one within `seconds`; 0: it is there at once."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def limit(self, elapsed: float, full: int) -> int:
        """Calls in flight, `elapsed` seconds after closing: what lies under the line, at least 1."""
        if elapsed >= self._seconds:
            return full
        return math.floor(1 + (full - 1) * elapsed / self._seconds) if elapsed > 0 else 1
