"""One target, with everything that belongs to it alone. Nothing here is shared with another target."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from eaimw.config import TargetSettings
from eaimw.figures import Figures, Standing, why_changed
from eaimw.kernel.breaker import CHANGES, Change, CircuitBreaker, State
from eaimw.kernel.bulkhead import Bulkhead
from eaimw.model import Call, Reply
from eaimw.ports import Clock, Random, Telemetry, Transport

# Beyond so many distinct codes a target's further ones are counted together: a lying target cannot grow our memory.
MAX_CODES = 100
OTHER_CODES = "other"

# A call ends by its timeout; a probe that has not reported a second later has lost its permit, not its patience.
LEASE_MARGIN = 1.0

# A refusal is a Reply at once, for which nothing is made to wait; a call is something to await, at once and once: its
# place in the bulkhead is taken already, and ends with it.
Handler = Callable[[Call], Reply | Coroutine[Any, Any, Reply]]


class CodeCounts(Counter[str]):
    """Replies by code, bounded."""

    def add(self, code: str) -> None:
        """Count one reply."""
        self[code if code in self or len(self) < MAX_CODES else OTHER_CODES] += 1


class Target:
    """A back-end: its settings, breaker, bulkhead, transport, stream of chance and counters.

    standing: its circuit's state with since when and why; replaced as a whole, so that any thread may read it.
    """

    def __init__(
        self,
        name: str,
        settings: TargetSettings,
        transport: Transport,
        *,
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
    ) -> None:
        self.name = name
        self.settings = settings
        self.transport = transport
        self.clock = clock
        self.random = random
        self.bulkhead = Bulkhead(settings.max_inflight)
        self.codes = CodeCounts()
        self.attempts = 0
        self.unknown_codes = 0
        self.figures = Figures(clock.monotonic)
        self.standing = Standing(State.CLOSED, clock.now(), "closed since the start")
        self.changes: dict[tuple[str, str], int] = {(str(before), str(after)): 0 for before, after in CHANGES}
        self._telemetry = telemetry
        self.breaker = CircuitBreaker(
            settings.breaker.fail_threshold,
            settings.breaker.reset_timeout,
            clock.monotonic,
            probe_lease=settings.timeout + LEASE_MARGIN,
            on_change=self._changed,
        )

    @property
    def attempts_by_kind(self) -> dict[str, int]:
        """Calls tried, by why they were; so far there are first ones alone."""
        return {"first": self.attempts}

    def status(self) -> dict[str, Any]:
        """How the target is at this moment, for people and as JSON. Seconds, and null for what has not been.

        Any thread may ask: the counts that grow new keys are copied by `dict`, which no insertion can come between.
        """
        now = self.clock.monotonic()
        state, since, why = self.standing
        wait = self.breaker.wait() if state is State.OPEN else math.inf
        return {
            "name": self.name,
            "url": self.settings.url,
            "state": str(state),
            "since": since.isoformat(timespec="microseconds"),
            "why": why,
            "next_probe_in": round(wait, 3) if math.isfinite(wait) else None,
            "inflight": self.bulkhead.inflight,
            "max_inflight": self.bulkhead.limit,
            "codes": dict(self.codes),
            "latency": self.figures.percentiles(),
            "since_success": _seconds_since(self.figures.success_at, now),
            "since_failure": _seconds_since(self.figures.failure_at, now),
        }

    def snapshot(self) -> dict[str, Any]:
        """The status, with the attempts and the changes of state so far."""
        changes = {f"{before}->{after}": count for (before, after), count in self.changes.items()}
        return {**self.status(), "attempts": self.attempts, "changes": changes}

    def _changed(self, change: Change) -> None:
        self.changes[str(change.before), str(change.after)] += 1
        breaker = self.settings.breaker
        why = why_changed(change, breaker.fail_threshold, breaker.reset_timeout, self.figures)
        self.standing = Standing(change.after, self.clock.now(), why)
        self._telemetry.changed(self.name, change.before, change.after)


def _seconds_since(moment: float | None, now: float) -> float | None:
    return None if moment is None else round(max(0.0, now - moment), 3)
