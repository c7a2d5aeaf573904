"""The retry budget: further attempts are a share of first ones, so that retries cannot hold a target down.

A token bucket that is filled by traffic instead of time, as in gRPC's retry throttling and Finagle's RetryBudget.
"""

from __future__ import annotations

from fractions import Fraction

MOST = 100
# Counted in millionths: ten tenths in floating point are not always one.
_ONE = 1_000_000


class RetryBudget:
    """Tokens for further attempts of one target, for one event loop.

    ratio: tokens that a first attempt earns, up to MOST in all. minimum: those at the start, 0 to MOST.
    Raises ValueError for either out of range.
    """

    __slots__ = ("_earned", "_tokens")

    def __init__(self, ratio: float, minimum: int) -> None:
        self._tokens = minimum * _ONE
        self.change(ratio, minimum)

    @property
    def tokens(self) -> float:
        """Those that are left; a further attempt costs one."""
        return self._tokens / _ONE

    def change(self, ratio: float, minimum: int) -> None:
        """Another ratio from now on; the tokens stay as they are."""
        if not 0 <= ratio <= MOST:
            raise ValueError(f"ratio must be from 0 to {MOST}, not {ratio!r}")
        if not 0 <= minimum <= MOST:
            raise ValueError(f"minimum must be from 0 to {MOST}, not {minimum!r}")
        self._earned = int(Fraction(repr(ratio)) * _ONE)  # as it was written, and never more than that

    def earn(self) -> None:
        """A first attempt has left the hub."""
        self._tokens = min(self._tokens + self._earned, MOST * _ONE)

    def spend(self) -> bool:
        """Take a token for a further attempt: True; False if there is none."""
        if self._tokens < _ONE:
            return False
        self._tokens -= _ONE
        return True

    def give_back(self) -> None:
        """The attempt that was paid for was not made."""
        self._tokens = min(self._tokens + _ONE, MOST * _ONE)
