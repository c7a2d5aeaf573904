"""What a circuit must do, told from outside: a breaker written a second time, from what is promised alone.

It shares no line with the one that the hub uses, and sees what everybody can see: when a target was called, and with
what reply the call ended. What the two say must be the same after every call.
"""

from __future__ import annotations

import math

__all__ = ["CHANGES", "Circuit"]

CLOSED, OPEN, HALF_OPEN = "CLOSED", "OPEN", "HALF_OPEN"
CHANGES = {(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED), (HALF_OPEN, OPEN)}


class Circuit:
    """One target's circuit. threshold: consecutive failures that open it. rest: seconds until a probe.

    state: CLOSED, OPEN or HALF_OPEN. epoch: changes so far, and probes given anew.
    """

    def __init__(self, threshold: int, rest: float) -> None:
        self.state = CLOSED
        self.epoch = 0
        self._threshold = threshold
        self._rest = rest
        self._failures = 0
        self._opened_at = -math.inf
        self._is_probing = False

    def wait(self, now: float) -> float:
        """Seconds until a call may pass; inf while the probe is out."""
        if self.state == OPEN:
            return max(0.0, self._opened_at + self._rest - now)
        return math.inf if self.state == HALF_OPEN and self._is_probing else 0.0

    def call(self, now: float) -> str | None:
        """A target is called: why that must not be, or None."""
        if self.state == CLOSED:
            return None
        if self.state == OPEN:
            if now < self._opened_at + self._rest:
                left = self._opened_at + self._rest - now
                return f"it was called while its circuit was OPEN, {left:.6f} s before a probe was due"
            self._move(HALF_OPEN)
        elif self._is_probing:
            return "it was called while its circuit was HALF_OPEN and the probe was out"
        else:
            self.epoch += 1  # the answer of the probe before this one comes too late
        self._is_probing = True
        return None

    def end(self, epoch: int, sample: str, now: float) -> None:
        """A call that began in that epoch has ended. sample: `success`, `failure`, or `none`."""
        if epoch != self.epoch:
            return
        if sample == "none":
            self._is_probing = False
        elif sample == "success":
            self._failures = 0
            if self.state == HALF_OPEN:
                self._move(CLOSED)
        else:
            self._failures += 1
            if self.state == HALF_OPEN or self._failures >= self._threshold:
                self._move(OPEN)
                self._opened_at = now

    def _move(self, state: str) -> None:
        self.state = state
        self.epoch += 1
        self._failures = 0
        self._is_probing = False
