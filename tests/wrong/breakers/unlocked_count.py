"""Wrong: locks the question but not the count: failures of threads at once are lost."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def record_failure(self) -> None:
        if self._state != "OPEN":
            self.failures += 1
            if self._state == "HALF_OPEN" or self.failures >= self.failure_threshold:
                self.open()
