"""A circuit: one breaker with its settings in force, its standing and its counts. A target has one, or one per op."""

from __future__ import annotations

import math
import sys
from typing import Any

from eaimw.config import TargetSettings
from eaimw.figures import Figures, Standing, why_changed
from eaimw.kernel.breaker import CHANGES, Change, CircuitBreaker, Rule, State
from eaimw.kernel.bulkhead import Bulkhead
from eaimw.kernel.ramp import Ramp
from eaimw.kernel.rest import Rest
from eaimw.kernel.rules import RatioRule
from eaimw.kernel.window import CallWindow, TimeWindow
from eaimw.model import Call
from eaimw.policy import BreakerSettings
from eaimw.ports import Clock, Random, Telemetry

# A call ends by its timeout; a probe that has not reported a second later has lost its permit, not its patience.
LEASE_MARGIN = 1.0
# Where failures in a row are no rule: so many there cannot be.
NEVER = sys.maxsize

_FIXED = {
    "open": (State.OPEN, 'held open by its settings (mode = "open")'),
    "off": (State.CLOSED, 'without a breaker, by its settings (mode = "off")'),
}


def target_of(name: str) -> str:
    """The target of a circuit, by the circuit's name: no target's has a slash."""
    return name.partition("/")[0]


class Circuit:
    """What decides whether a call may pass, for one target or one operation of it.

    name: as logs and metrics have it, `CORE` or `CORE/REPORT`. standing: its state, since when and why; replaced as
    a whole, so that any thread may read it. changes: of state, counted. would_refuse: calls that went through because
    its mode is `shadow`. closed_at: seconds of the hub's clock when it last closed; -inf before. waiting: where
    stuck calls are looked for, the calls in flight with when each began, the oldest first. ramped: where there is a
    ramp, the places of its calls.
    """

    def __init__(
        self,
        name: str,
        settings: TargetSettings,
        figures: Figures,
        *,
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
    ) -> None:
        self.name = name
        self.changes: dict[tuple[str, str], int] = {(str(before), str(after)): 0 for before, after in CHANGES}
        self.would_refuse = 0
        self.closed_at = -math.inf
        self.waiting: dict[Call, float] = {}
        self.ramped = Bulkhead(settings.max_inflight)
        self._clock = clock
        self._random = random
        self._telemetry = telemetry
        self._figures = figures
        self._settings = settings.breaker
        self.breaker = CircuitBreaker(1, 0.0, clock.monotonic, on_change=self._changed)
        self._own = Standing(State.CLOSED, clock.now(), "closed since the start")
        self._fixed: Standing | None = None
        self._set(settings, is_first=True)

    @property
    def standing(self) -> Standing:
        """What holds: by its settings, or as the breaker has it."""
        return self._fixed or self._own

    @property
    def next_probe_in(self) -> float | None:
        """Seconds; None unless it is OPEN and will end by itself."""
        if self._fixed is not None or self._own.state is not State.OPEN:
            return None
        wait = self.breaker.wait()
        return round(wait, 3) if math.isfinite(wait) else None

    def status(self) -> dict[str, Any]:
        """For people and as JSON; any thread may ask."""
        state, since, why = self.standing
        return {
            "state": str(state),
            "since": since.isoformat(timespec="microseconds"),
            "why": why,
            "next_probe_in": self.next_probe_in,
        }

    def places(self, now: float) -> int:
        """Calls that may be in flight at that moment: all, but for a while after it has closed."""
        if self._ramp is None or self.breaker.state is not State.CLOSED:
            return self._full
        return self._ramp.limit(now - self.closed_at, self._full)

    def reconfigure(self, settings: TargetSettings) -> None:
        """Other settings from now on. State and count stay; a window that is changed is empty.

        A wait under way ends by the new reset_timeout, but where its length was settled when it began: by
        reopen_factor, by jitter, or by a Retry-After.
        """
        self._set(settings, is_first=False)

    def _set(self, settings: TargetSettings, *, is_first: bool) -> None:
        before, new = self._settings, settings.breaker
        self._settings = new
        self._full = settings.max_inflight
        self._ramp = Ramp(new.ramp) if new.ramp > 0 else None
        breaker = self.breaker
        breaker.failure_threshold = new.fail_threshold if "consecutive" in new.rules else NEVER
        breaker.reset_timeout = new.reset_timeout
        breaker.probes = new.probes
        # Not shortened by a reload: a probe that is out may take as long as it was allowed to.
        breaker.probe_lease = max(breaker.probe_lease or 0.0, settings.timeout + LEASE_MARGIN)
        if is_first or _of_window(new) != _of_window(before):
            breaker.rules = _rules(new)
        if new.is_exact:
            breaker.rest = None
        else:
            random = self._random.random
            breaker.rest = Rest(new.reset_timeout, new.reopen_factor, new.reopen_max, new.jitter, random)
        if is_first or new.mode != before.mode:
            fixed = _FIXED.get(new.mode)
            self._fixed = None if fixed is None else Standing(fixed[0], self._clock.now(), fixed[1])
        if not new.stuck_calls:
            self.waiting.clear()

    def _changed(self, change: Change) -> None:
        self.changes[str(change.before), str(change.after)] += 1
        self.waiting.clear()  # those of another generation are not stuck in this one
        if change.after is State.CLOSED:
            self.closed_at = self._clock.monotonic()
        settings = self._settings
        why = why_changed(change, settings.fail_threshold, settings.probes, self._figures)
        self._own = Standing(change.after, self._clock.now(), why)
        self._telemetry.changed(self.name, change.before, change.after)


def _rules(settings: BreakerSettings) -> list[Rule]:
    if "ratio" not in settings.rules:
        return []
    window = CallWindow(settings.window_calls) if settings.window_calls else TimeWindow(settings.window)
    return [
        RatioRule(
            window,
            min_calls=settings.min_calls,
            failure_ratio=settings.failure_ratio,
            slow_call=settings.slow_call if settings.slow_call > 0 else None,
            slow_ratio=settings.slow_ratio,
        )
    ]


def _of_window(settings: BreakerSettings) -> tuple[object, ...]:
    return (
        settings.rules,
        settings.window,
        settings.window_calls,
        settings.min_calls,
        settings.failure_ratio,
        settings.slow_call,
        settings.slow_ratio,
    )
