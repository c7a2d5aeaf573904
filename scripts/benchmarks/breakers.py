"""What a call costs when the circuit is closed: ours by its verbs, the others in the cheapest way they offer."""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from servers import RUNS

TURNS = 100_000


def breakers() -> None:
    """Print the table."""
    import circuitbreaker
    import interlock
    import purgatory
    import pybreaker

    from eaimw.kernel.breaker import CircuitBreaker

    ours = CircuitBreaker(5, 10)
    purgatory_breaker = purgatory.SyncCircuitBreakerFactory().get_breaker("bench")

    def nothing() -> None:
        pass

    def by_verbs() -> None:
        ours.allow()
        nothing()
        ours.record_success()

    def by_permit() -> None:
        permit = ours.acquire()
        if permit is not None:
            nothing()
            permit.success()

    def by_purgatory() -> None:
        with purgatory_breaker:
            nothing()

    contestants: dict[str, Callable[[], Any]] = {
        "ours: allow, record_success": by_verbs,
        "ours: acquire, success": by_permit,
        f"circuitbreaker {version('circuitbreaker')}": circuitbreaker.circuit(failure_threshold=5)(nothing),
        f"pybreaker {version('pybreaker')}": pybreaker.CircuitBreaker(fail_max=5)(nothing),
        f"purgatory-circuitbreaker {version('purgatory-circuitbreaker')}": by_purgatory,
        f"interlock-cb {version('interlock-cb')}": interlock.CircuitBreaker(name="bench")(nothing),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(RUNS):
        for name, call in contestants.items():
            times[name].append(nanoseconds(call) - nanoseconds(nothing))
    print(f"A call through a closed circuit, above a bare call; median of {RUNS} alternating runs")
    ours_median = statistics.median(times["ours: allow, record_success"])
    for name, runs in times.items():
        median = statistics.median(runs)
        print(f"  {name:<34} {median:>8,.0f} ns {median / ours_median:>7.1f} x")


def nanoseconds(call: Callable[[], Any]) -> float:
    """Of one call."""
    return min(timeit.repeat(call, number=TURNS, repeat=3)) / TURNS * 1e9
