"""Wrong: a good probe closes it, and the old failures still count."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def record_success(self) -> None:
        with self.lock:
            if self._state == "CLOSED":
                self.failures = 0
            elif self._state == "HALF_OPEN":
                self._state = "CLOSED"
