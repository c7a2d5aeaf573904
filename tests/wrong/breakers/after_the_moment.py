"""Wrong: the wait is over only after the exact moment (> instead of >=)."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def wait_is_over(self) -> bool:
        return self.clock() > self.opened_at + self.reset_timeout
