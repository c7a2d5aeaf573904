"""How long an open circuit rests: longer each time that it opens again, and by chance a little longer than that."""

from __future__ import annotations

from collections.abc import Callable


class Rest:
    """reset_timeout * factor^reopened seconds, `maximum` at most, and up to the share `jitter` of it on top.

    maximum bounds what `factor` makes of it, not reset_timeout itself. random: uniform in 0 <= x < 1.
    """

    def __init__(
        self, reset_timeout: float, factor: float, maximum: float, jitter: float, random: Callable[[], float]
    ) -> None:
        self._reset_timeout = reset_timeout
        self._factor = float(factor)  # powers of an int have as many digits as it takes
        self._maximum = max(maximum, reset_timeout)
        self._jitter = jitter
        self._random = random

    def __call__(self, reopened: int) -> float:
        """Seconds, for a circuit that has opened again so many times since it was closed."""
        try:
            wait = min(self._reset_timeout * self._factor**reopened, self._maximum)
        except OverflowError:
            wait = self._maximum if self._reset_timeout else 0.0
        return wait * (1 + self._jitter * self._random()) if self._jitter else wait
