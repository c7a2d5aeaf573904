"""Wrong: after a failed probe it is OPEN again, but with the old opened_at, so that the next call is a probe too."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def open(self) -> None:
        if self._state == "CLOSED":
            self.opened_at = self.clock()
        self._state = "OPEN"
