"""What a circuit must do, told from outside: a breaker written a second time, from what is promised alone.

It shares no line with the one that the hub uses, and sees what everybody can see: when a target was called, and how
the call ended. What the two say must be the same after every call. A window is here a list of all that has ended, gone
through at each decision. Where chance decides, as of how long a circuit rests, it knows from when to when it may be so,
and each thing that is seen makes that narrower.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from fractions import Fraction

from eaimw.policy import BreakerSettings

__all__ = ["CHANGES", "Circuit"]

CLOSED, OPEN, HALF_OPEN = "CLOSED", "OPEN", "HALF_OPEN"
CHANGES = {(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED), (HALF_OPEN, OPEN)}
SLICES = 20  # of a window of time; a call counts as long as its slice is one of the last twenty
ROUNDING = 1e-9  # of a wait that was multiplied, and of a line


class Circuit:
    """One circuit. places: calls of its target that may be in flight. Calls are known by whatever stands for them.

    state: CLOSED, OPEN or HALF_OPEN. would_refuse: calls that went through though it would have refused them.
    """

    def __init__(self, settings: BreakerSettings, places: int) -> None:
        self.state = OPEN if settings.mode == "open" else CLOSED
        self.would_refuse = 0
        self._settings = settings
        self._decides = settings.mode in ("normal", "shadow")
        self._refuses = settings.mode == "normal"
        self._places = places
        self._epoch = 0  # changes so far
        self._failures = 0  # in a row
        self._ended: list[tuple[float, bool, bool]] = []  # slice, failed, slow; since the last change
        self._waiting: dict[Hashable, float] = {}  # calls that began since the last change: when
        self._inflight: dict[Hashable, tuple[int, bool]] = {}  # epoch (none has -1: it was let through), a probe?
        self._opened_at = -math.inf
        self._rest = 0.0
        self._least = self._most = 0.0  # seconds that it rests: from, to
        self._probing = self._proved = 0
        self._closed_at = -math.inf

    # Somebody asks.

    def ask(self, now: float) -> None:
        """Somebody wants to call: this is when calls that hang are noticed."""
        if self.is_stuck(now):
            self.trip(now)

    def is_stuck(self, now: float) -> bool:
        """Have so many calls been waiting too long?"""
        settings = self._settings
        if not self._decides or self.state != CLOSED or not settings.stuck_calls or not settings.slow_call:
            return False
        return sum(now - began > settings.slow_call for began in self._waiting.values()) >= settings.stuck_calls

    def trip(self, now: float) -> None:
        """It opens, without any call that has ended."""
        self._open(now, 0.0)

    def wait(self, now: float) -> tuple[float, float]:
        """Seconds until a call may pass, from and to; inf while all probes are out."""
        if self._settings.mode == "open":
            return math.inf, math.inf
        if self.state == OPEN:
            least, most = (max(0.0, self._opened_at + rest - now) for rest in (self._least, self._most))
            return least, most
        wait = math.inf if self.state == HALF_OPEN and not self._has_place else 0.0
        return wait, wait

    def refused(self, now: float) -> str | None:
        """Somebody was told that it is open: why that must not be, or None."""
        if self._settings.mode == "open":
            return None
        if not self._refuses:
            return f"E904, and its circuit has the mode {self._settings.mode}"
        if self.wait(now)[1] <= 0:
            return f"E904, and its circuit is {self.state} and lets a call through"
        if self.state == OPEN:
            self._least = max(self._least, now - self._opened_at)
        return None

    def had_no_place(self, now: float, inflight: int) -> str | None:
        """Somebody was told that all places are taken. inflight: of all its target's places."""
        least, _ = self.wait(now)
        if self._refuses and least > 0:
            return f"E905, and its circuit is {self.state} for {least:.6f} s; it must be E904"
        if self._refuses and self.state == OPEN:
            self._most = min(self._most, now - self._opened_at)
        if inflight >= self._places or len(self._inflight) + 1 > self._line(now) - ROUNDING:
            return None
        return f"E905 with {inflight} places taken, {len(self._inflight)} of them by its circuit"

    # Calls.

    def call(self, who: Hashable, now: float, seen: str) -> str | None:
        """A target is called: why that must not be, or None. seen: the state that the hub says it is in now.

        That counts only where nobody is refused and chance decides.
        """
        self.ask(now)
        why, epoch, is_probe = self._admit(now, seen) if self._decides else (None, -1, False)
        if self._settings.mode == "open":
            why = "it was called, and its circuit is held open by its settings"
        self._waiting[who] = now
        self._inflight[who] = epoch, is_probe
        line = self._line(now)
        if why is None and len(self._inflight) > line + ROUNDING:
            since = now - self._closed_at
            why = f"{len(self._inflight)} calls {since:.6f} s after closing; the ramp is at {line:.3f}"
        return why

    def is_probe(self, who: Hashable) -> bool:
        """Was it let through to probe, so that the time of a probe is its own?"""
        return self._refuses and self._inflight[who][1]

    def end(self, who: Hashable, sample: str, now: float, seconds: float = 0.0, wish: float = 0.0) -> None:
        """A call has ended. sample: `success`, `failure`, or `none`. seconds: it took. wish: to be left alone for."""
        epoch, _ = self._inflight.pop(who)
        self._waiting.pop(who, None)
        if epoch != self._epoch:
            return
        if self.state == HALF_OPEN:
            self._probed(sample, now, wish)
        elif sample != "none":
            self._failures = self._failures + 1 if sample == "failure" else 0
            if self._opens(sample == "failure", now, seconds):
                self._open(now, wish)

    def _admit(self, now: float, seen: str) -> tuple[str | None, int, bool]:
        """Why it must not be called, the epoch it belongs to, and whether it is a probe."""
        if self.state == OPEN:
            least, most = self.wait(now)
            is_due = (least <= 0 and most <= 0) or (least <= 0 and (self._refuses or seen == HALF_OPEN))
            if not is_due:
                return self._not_admitted(now, f"OPEN, {least:.6f} s before a probe was due")
            self._move(HALF_OPEN)
        if self.state == HALF_OPEN:
            if not self._has_place:
                said = f"{self._probing} probes were out, {self._proved} had answered, of {self._settings.probes}"
                return self._not_admitted(now, f"HALF_OPEN: {said}")
            self._probing += 1
            return None, self._epoch, True
        return None, self._epoch, False

    def _not_admitted(self, now: float, how: str) -> tuple[str | None, int, bool]:
        if self._refuses:
            return f"it was called while its circuit was {how}", -1, False
        self.would_refuse += 1
        if self.state == OPEN:
            self._least = max(self._least, now - self._opened_at)
        return None, -1, False

    @property
    def _has_place(self) -> bool:
        return self._probing + self._proved < self._settings.probes

    def _line(self, now: float) -> float:
        """Calls that may be in flight on the way back; inf where it is none."""
        since, ramp = now - self._closed_at, self._settings.ramp
        if not self._refuses or self.state != CLOSED or since >= ramp:
            return math.inf
        return 1 + (self._places - 1) * since / ramp

    def _probed(self, sample: str, now: float, wish: float) -> None:
        if sample == "failure":
            self._open(now, wish)
            return
        self._probing -= 1
        if sample == "success":
            self._proved += 1
            if self._proved == self._settings.probes:
                self._move(CLOSED)
                self._closed_at = now

    def _opens(self, failed: bool, now: float, seconds: float) -> bool:
        settings = self._settings
        is_slow = settings.slow_call > 0 and seconds > settings.slow_call
        in_slice = now // (settings.window / SLICES)
        self._ended.append((in_slice, failed, is_slow))
        if "consecutive" in settings.rules and self._failures >= settings.fail_threshold:
            return True
        if "ratio" not in settings.rules:
            return False
        if settings.window_calls:
            seen = self._ended[-settings.window_calls :]
        else:
            seen = [one for one in self._ended if in_slice - one[0] < SLICES]
        if len(seen) < settings.min_calls:
            return False
        failures, slow = sum(has_failed for _, has_failed, _ in seen), sum(is_slow for _, _, is_slow in seen)
        if Fraction(failures, len(seen)) >= Fraction(str(settings.failure_ratio)):
            return True
        return settings.slow_call > 0 and Fraction(slow, len(seen)) >= Fraction(str(settings.slow_ratio))

    def _open(self, now: float, wish: float) -> None:
        settings = self._settings
        longest = max(settings.reset_timeout, settings.reopen_max)
        again = self.state == HALF_OPEN
        self._rest = min(self._rest * settings.reopen_factor, longest) if again else settings.reset_timeout
        least, most = self._rest, self._rest * (1 + settings.jitter)
        if least != settings.reset_timeout or most != least:
            least, most = least * (1 - ROUNDING), most * (1 + ROUNDING)
        self._least, self._most = (max(rest, min(wish, longest)) for rest in (least, most))
        self._opened_at = now
        self._move(OPEN)

    def _move(self, state: str) -> None:
        self.state = state
        self._epoch += 1
        self._failures = self._probing = self._proved = 0
        self._ended.clear()
        self._waiting.clear()
