"""The rule that opens a breaker by a share of the calls that have ended: of those that failed, or were slow."""

from __future__ import annotations

from fractions import Fraction

from eaimw.kernel.window import Window


class RatioRule:
    """Opens when at least min_calls are in the window and the share of failures, or of slow calls, reaches its limit.

    slow_call: seconds; a call that takes longer is slow. None: none is. The call that ends counts in its own decision.
    why: after a True, what was found. A share is compared as the decimal fraction that was written, so that 3 of 30
    reach 0.1, which 0.1 * 30 = 3.0000000000000004 would not allow.
    """

    def __init__(
        self,
        window: Window,
        *,
        min_calls: int,
        failure_ratio: float,
        slow_call: float | None = None,
        slow_ratio: float = 1.0,
    ) -> None:
        self.why = ""
        self._window = window
        self._min_calls = min_calls
        self._failures = Fraction(repr(failure_ratio))
        self._slow_call = slow_call
        self._slow = Fraction(repr(slow_ratio))

    def ended(self, now: float, failed: bool, seconds: float) -> bool:
        """A call has ended at `now` and took so many seconds. True: open."""
        window = self._window
        is_slow = self._slow_call is not None and seconds > self._slow_call
        window.add(now, failed, is_slow)
        total = window.total
        if total < self._min_calls:
            return False
        if _reaches(window.failed, total, self._failures):
            self.why = f"{window.failed:,} of {total:,} calls failed in the last {window}"
        elif self._slow_call is not None and _reaches(window.slow, total, self._slow):
            self.why = f"{window.slow:,} of {total:,} calls took longer than {self._slow_call:g} s in the last {window}"
        else:
            return False
        return True

    def clear(self) -> None:
        """What has ended counts no more."""
        self._window.clear()


def _reaches(count: int, total: int, share: Fraction) -> bool:
    return count * share.denominator >= share.numerator * total
