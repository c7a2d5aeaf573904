"""One target, with everything that belongs to it alone. Nothing here is shared with another target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from eaimw.config import TargetSettings
from eaimw.kernel.breaker import CHANGES, Change, CircuitBreaker
from eaimw.kernel.bulkhead import Bulkhead
from eaimw.model import Call, Reply
from eaimw.ports import Clock, Random, Telemetry, Transport

# Beyond so many distinct codes a target's further ones are counted together: a lying target cannot grow our memory.
MAX_CODES = 100
OTHER_CODES = "other"

# A call ends by its timeout; a probe that has not reported a second later has lost its permit, not its patience.
LEASE_MARGIN = 1.0

Handler = Callable[[Call], Awaitable[Reply]]


class CodeCounts(Counter[str]):
    """Replies by code, bounded."""

    def add(self, code: str) -> None:
        """Count one reply."""
        self[code if code in self or len(self) < MAX_CODES else OTHER_CODES] += 1


class Target:
    """A back-end: its settings, breaker, bulkhead, transport, stream of chance and counters."""

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
        self.changes: dict[tuple[str, str], int] = {(str(before), str(after)): 0 for before, after in CHANGES}
        self._telemetry = telemetry
        self.breaker = CircuitBreaker(
            settings.breaker.fail_threshold,
            settings.breaker.reset_timeout,
            clock.monotonic,
            probe_lease=settings.timeout + LEASE_MARGIN,
            on_change=self._changed,
        )

    def snapshot(self) -> dict[str, Any]:
        """The target's figures at this moment."""
        return {
            "name": self.name,
            "url": self.settings.url,
            "state": str(self.breaker.state),
            "inflight": self.bulkhead.inflight,
            "max_inflight": self.bulkhead.limit,
            "attempts": self.attempts,
            "changes": {f"{before}->{after}": count for (before, after), count in self.changes.items()},
            "codes": dict(self.codes),
        }

    def _changed(self, change: Change) -> None:
        self.changes[str(change.before), str(change.after)] += 1
        self._telemetry.changed(self.name, change.before, change.after)
