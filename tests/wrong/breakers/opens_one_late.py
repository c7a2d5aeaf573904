"""Wrong: opens at the failure after the threshold-th (> instead of >=)."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (1,)


class CircuitBreaker(right.CircuitBreaker):
    def record_failure(self) -> None:
        with self.lock:
            if self._state != "OPEN":
                self.failures += 1
                if self._state == "HALF_OPEN" or self.failures > self.failure_threshold:
                    self.open()
