"""Wrong: counts failures in all, not failures in a row: a success in CLOSED resets nothing."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (1,)


class CircuitBreaker(right.CircuitBreaker):
    def record_success(self) -> None:
        with self.lock:
            if self._state == "HALF_OPEN":
                self._state = "CLOSED"
                self.failures = 0
