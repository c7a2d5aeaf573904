"""Wrong: each failed probe doubles the wait from the tenth on, up to for ever."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (2,)


class CircuitBreaker(right.CircuitBreaker):
    bad_probes = 0

    def open(self) -> None:
        self.bad_probes = self.bad_probes + 1 if self._state == "HALF_OPEN" else 0
        super().open()
        if self.bad_probes > 10:
            self.opened_at += self.reset_timeout * 2.0 ** (self.bad_probes - 10)
