"""Wrong: one probe in its life; if that fails it stays OPEN for ever."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    has_probed = False

    def wait_is_over(self) -> bool:
        if self.has_probed or not super().wait_is_over():
            return False
        self.has_probed = True
        return True

    def record_success(self) -> None:
        super().record_success()
        self.has_probed = False
