"""Wrong: HALF_OPEN lets everyone in."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def allow(self) -> bool:
        return super().allow() or self._state == "HALF_OPEN"
