"""Wrong: OPEN is only a name: allow() always says yes."""

from __future__ import annotations

from wrong.breakers import right

FAILS_AT = (1, 2)


class CircuitBreaker(right.CircuitBreaker):
    def allow(self) -> bool:
        super().allow()
        return True
