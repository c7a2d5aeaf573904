"""Wrong: a good probe does not close it: for ever half-open."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def record_success(self) -> None:
        with self.lock:
            if self._state == "CLOSED":
                self.failures = 0
