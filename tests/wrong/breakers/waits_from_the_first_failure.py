"""Wrong: the wait counts from the first failure of the row, not from the one that opened it."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def record_failure(self) -> None:
        if self._state == "CLOSED" and self.failures == 0:
            self.first_at = self.clock()
        super().record_failure()

    def open(self) -> None:
        self.opened_at = self.clock() if self._state == "HALF_OPEN" else self.first_at
        self._state = "OPEN"
