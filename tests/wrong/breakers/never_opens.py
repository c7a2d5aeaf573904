"""Wrong: counts and never opens, so no step can be passed."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (1, 2)


class CircuitBreaker(right.CircuitBreaker):
    def open(self) -> None:
        self._state = "CLOSED"
