"""Wrong: never leaves OPEN."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def allow(self) -> bool:
        return self._state == "CLOSED"
