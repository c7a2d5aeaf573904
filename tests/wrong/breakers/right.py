"""A learner's breaker without a mistake: what the wrong ones beside it change one thing of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FAILS_AT = ()


class CircuitBreaker:
    def __init__(
        self, failure_threshold: int, reset_timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.failure_threshold = failure_threshold
        self.reset_timeout = reset_timeout
        self.clock = clock
        self.lock = threading.Lock()
        self._state = "CLOSED"
        self.failures = 0
        self.opened_at = 0.0

    @property
    def state(self) -> object:
        return self._state

    def allow(self) -> bool:
        with self.lock:
            if self._state == "CLOSED":
                return True
            if self._state == "OPEN" and self.wait_is_over():
                self._state = "HALF_OPEN"
                return True
            return False

    def record_success(self) -> None:
        with self.lock:
            if self._state != "OPEN":
                self._state = "CLOSED"
                self.failures = 0

    def record_failure(self) -> None:
        with self.lock:
            if self._state != "OPEN":
                self.failures += 1
                if self._state == "HALF_OPEN" or self.failures >= self.failure_threshold:
                    self.open()

    def wait_is_over(self) -> bool:
        return self.clock() >= self.opened_at + self.reset_timeout

    def open(self) -> None:
        self._state = "OPEN"
        self.opened_at = self.clock()
