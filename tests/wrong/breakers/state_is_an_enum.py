"""Wrong: state is a plain Enum, equal to no string."""

from __future__ import annotations

import enum

from wrong.breakers import right

FAILS_AT = (1, 2)


class State(enum.Enum):
    CLOSED = 1
    OPEN = 2
    HALF_OPEN = 3


class CircuitBreaker(right.CircuitBreaker):
    @property
    def state(self) -> object:
        return State[self._state]
