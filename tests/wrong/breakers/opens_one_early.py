"""Wrong: opens one failure before the threshold-th."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (1,)


class CircuitBreaker(right.CircuitBreaker):
    def record_failure(self) -> None:
        with self.lock:
            if self._state != "OPEN":
                self.failures += 1
                if self._state == "HALF_OPEN" or self.failures >= max(1, self.failure_threshold - 1):
                    self.open()
