"""Wrong: a failed probe does not open it again: it takes as many failures as in CLOSED."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def record_failure(self) -> None:
        with self.lock:
            if self._state != "OPEN":
                self.failures += 1
                if self.failures >= self.failure_threshold:
                    self.open()

    def allow(self) -> bool:
        allowed = super().allow()
        if self._state == "HALF_OPEN":
            self.failures = 0
        return allowed
