"""Wrong: takes an opened_at of 0.0 for not being open at all."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def wait_is_over(self) -> bool:
        return bool(self.opened_at) and super().wait_is_over()
