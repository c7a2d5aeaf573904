"""Wrong: `reset_timeout or 10` turns a wait of 0 into one of 10."""

from __future__ import annotations

import time
from collections.abc import Callable

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    def __init__(
        self, failure_threshold: int, reset_timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(failure_threshold, reset_timeout or 10, clock)
