"""Wrong: after a failed probe it waits half as long."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def open(self) -> None:
        early = self.reset_timeout / 2 if self._state == "HALF_OPEN" else 0.0
        super().open()
        self.opened_at -= early
