"""Wrong: looks and changes without a lock, so that threads that ask at once all become the probe."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def allow(self) -> bool:
        if self._state == "CLOSED":
            return True
        if self._state == "OPEN" and self.wait_is_over():
            self._state = "HALF_OPEN"
            return True
        return False
