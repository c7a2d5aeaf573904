"""The rule that opens a breaker by a share of the calls that have ended: of those that failed, or were slow."""

from __future__ import annotations

from eaimw.kernel.window import Window


class RatioRule:
    """Opens when at least min_calls are in the window and the share of failures, or of slow calls, reaches its limit.

    slow_call: seconds; a call that takes longer is slow. None: none is. The call that ends counts in its own decision.
    why: after a True, what was found. Shares are compared as quotients: 7 / 100 is rounded as the 0.07 that was written
    is, so they are equal, which 7 >= 0.07 * 100 = 7.000000000000001 would deny.
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
        self._failure_ratio = failure_ratio
        self._slow_call = slow_call
        self._slow_ratio = slow_ratio

    def ended(self, now: float, failed: bool, seconds: float) -> bool:
        """A call has ended at `now` and took so many seconds. True: open."""
        window = self._window
        is_slow = self._slow_call is not None and seconds > self._slow_call
        window.add(now, failed, is_slow)
        total = window.total
        if total < self._min_calls:
            return False
        if window.failed / total >= self._failure_ratio:
            self.why = f"{window.failed:,} of {total:,} calls failed in the last {window}"
        elif self._slow_call is not None and window.slow / total >= self._slow_ratio:
            self.why = f"{window.slow:,} of {total:,} calls took longer than {self._slow_call:g} s in the last {window}"
        else:
            return False
        return True

    def clear(self) -> None:
        """What has ended counts no more."""
        self._window.clear()
