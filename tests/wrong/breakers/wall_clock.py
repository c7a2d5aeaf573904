"""Wrong: reads time.time() instead of the clock it was given."""

from __future__ import annotations

import time

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def wait_is_over(self) -> bool:
        return time.time() >= self.opened_at + self.reset_timeout

    def open(self) -> None:
        self._state = "OPEN"
        self.opened_at = time.time()
