"""Wrong: being asked while OPEN starts the wait anew."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def allow(self) -> bool:
        allowed = super().allow()
        if self._state == "OPEN":
            self.opened_at = self.clock()
        return allowed
