"""One target, with everything that belongs to it alone. Nothing here is shared with another target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from eaimw.circuit import Circuit
from eaimw.config import OpSettings, TargetSettings
from eaimw.figures import Figures, Standing
from eaimw.kernel.breaker import CircuitBreaker
from eaimw.kernel.budget import RetryBudget
from eaimw.kernel.bulkhead import Bulkhead
from eaimw.model import Call, Reply
from eaimw.ports import Clock, Random, Telemetry, Transport

# Beyond so many distinct codes a target's further ones are counted together: a lying target cannot grow our memory.
MAX_CODES = 100
OTHER_CODES = "other"

# Where each operation has a circuit of its own: of operations that nobody has declared so many have one, and the
# target's own is for all others, so that callers who make up names cannot grow our memory.
MAX_OPS = 100

# A refusal is a Reply at once, for which nothing is made to wait; a call is something to await, at once and once: its
# place in the bulkhead is taken already, and ends with it.
Handler = Callable[[Call], Reply | Coroutine[Any, Any, Reply]]


class CodeCounts(Counter[str]):
    """Replies by code, bounded."""

    def add(self, code: str) -> None:
        """Count one reply."""
        self[code if code in self or len(self) < MAX_CODES else OTHER_CODES] += 1


class Target:
    """A back-end: its settings, circuits, bulkhead, transport, retry budget, stream of chance and counters.

    ops: what is known of each operation, by name. attempt: what an attempt goes through by the settings in force; there
    once a stack is built. attempts: calls tried; retries: those of them that were not first.
    """

    attempt: Handler

    def __init__(
        self,
        name: str,
        settings: TargetSettings,
        transport: Transport,
        *,
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
        ops: Mapping[str, OpSettings] | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.ops: Mapping[str, OpSettings] = ops or {}
        self.transport = transport
        self.clock = clock
        self.random = random
        self.bulkhead = Bulkhead(settings.max_inflight)
        self.budget = RetryBudget(settings.retry.budget_ratio, settings.retry.budget_min)
        self.codes = CodeCounts()
        self.attempts = 0
        self.retries = 0
        self.unknown_codes = 0
        self.figures = Figures(clock.monotonic)
        self._telemetry = telemetry
        self.circuit = self._make_circuit(name)
        self._of_ops: dict[str, Circuit] = {}

    @property
    def breaker(self) -> CircuitBreaker:
        """The target's own; operations may have others."""
        return self.circuit.breaker

    @property
    def standing(self) -> Standing:
        """The state of the target's own circuit, with since when and why."""
        return self.circuit.standing

    @property
    def held(self) -> int:
        """Places of calls that have timed out, while the target may still be at work on them."""
        return self._of_holding("held")

    @property
    def late(self) -> int:
        """Answers that came while such a place was held."""
        return self._of_holding("late")

    def _of_holding(self, name: str) -> int:
        holding = getattr(self.transport, "holding", None)  # a transport without any, as a simulator's, holds none
        return 0 if holding is None else getattr(holding, name)

    @property
    def circuits(self) -> list[Circuit]:
        """All, the target's own first; any thread may ask."""
        return [self.circuit, *self.circuits_of_ops.values()]

    @property
    def circuits_of_ops(self) -> dict[str, Circuit]:
        """Where each operation has a circuit of its own, those that there are; any thread may ask."""
        return dict(self._of_ops) if self.settings.breaker.per == "op" else {}

    @property
    def attempts_by_kind(self) -> dict[str, int]:
        """Calls tried, by why they were."""
        return {"first": self.attempts - self.retries, "retry": self.retries}

    @property
    def room(self) -> int:
        """Calls that it can have in flight at this moment, without those that only hold their places; at least 1."""
        places = self.circuit.places(self.clock.monotonic())
        return max(1, min(self.bulkhead.limit - self.held, places))

    def circuit_of(self, op: str | None) -> Circuit:
        """The circuit of an operation, where each has its own; made when it is first asked for."""
        if op is None:
            return self.circuit
        circuit = self._of_ops.get(op)
        if circuit is None:
            if op not in self.ops and sum(known not in self.ops for known in self._of_ops) >= MAX_OPS:
                return self.circuit
            circuit = self._of_ops[op] = self._make_circuit(f"{self.name}/{op}")
        return circuit

    def reconfigure(self, settings: TargetSettings, ops: Mapping[str, OpSettings], transport: Transport) -> None:
        """Other settings from now on; states, places, tokens and counts stay."""
        self.settings, self.ops, self.transport = settings, ops, transport
        self.bulkhead.resize(settings.max_inflight)
        self.budget.change(settings.retry.budget_ratio, settings.retry.budget_min)
        for circuit in (self.circuit, *self._of_ops.values()):
            circuit.reconfigure(settings)

    def status(self) -> dict[str, Any]:
        """How the target is at this moment, for people and as JSON. Seconds, and null for what has not been.

        Any thread may ask: the counts that grow new keys are copied by `dict`, which no insertion can come between.
        """
        now = self.clock.monotonic()
        status = {
            "name": self.name,
            "url": self.settings.url,
            **self.circuit.status(),
            "inflight": self.bulkhead.inflight,
            "max_inflight": self.bulkhead.limit,
            "codes": dict(self.codes),
            "latency": self.figures.percentiles(),
            "since_success": _seconds_since(self.figures.success_at, now),
            "since_failure": _seconds_since(self.figures.failure_at, now),
        }
        of_ops = self.circuits_of_ops
        if of_ops:
            status["ops"] = {op: circuit.status() for op, circuit in of_ops.items()}
        return status

    def snapshot(self) -> dict[str, Any]:
        """The status, with the attempts and the changes of state so far."""
        changes = {f"{before}->{after}": count for (before, after), count in self.circuit.changes.items()}
        return {**self.status(), "attempts": self.attempts, "changes": changes}

    def _make_circuit(self, name: str) -> Circuit:
        return Circuit(
            name, self.settings, self.figures, clock=self.clock, random=self.random, telemetry=self._telemetry
        )


def _seconds_since(moment: float | None, now: float) -> float | None:
    return None if moment is None else round(max(0.0, now - moment), 3)
