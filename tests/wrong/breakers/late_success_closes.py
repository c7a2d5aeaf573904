"""Wrong: a success that comes late, while OPEN, closes it."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (1,)


class CircuitBreaker(right.CircuitBreaker):
    def record_success(self) -> None:
        with self.lock:
            self._state = "CLOSED"
            self.failures = 0
