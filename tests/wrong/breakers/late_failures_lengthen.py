"""Wrong: a failure that comes late, while OPEN, starts the wait anew."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def record_failure(self) -> None:
        super().record_failure()
        if self._state == "OPEN":
            self.open()
