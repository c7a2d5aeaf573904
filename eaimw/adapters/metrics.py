"""A hub's figures for Prometheus. They are counted elsewhere as plain integers, and put into words here when asked for.

The hub's loop writes while a scrape in another thread reads, without a lock. A number is read whole. A dict that may
get new keys is copied with `dict(...)` before it is gone through: for a plain dict, or a subclass that leaves iteration
as it is, CPython copies in one step of C, which no other thread can come between, whereas a loop over the dict itself
could end with `RuntimeError: dictionary changed size during iteration`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from eaimw.circuit import Circuit
from eaimw.config import NO_TARGET
from eaimw.figures import BOUNDS
from eaimw.hub import Hub
from eaimw.kernel.breaker import State
from eaimw.target import Target

STATES = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}
Named = TypeVar("Named", Target, Circuit)
_LIMITS = (*map(str, BOUNDS), "+Inf")


class HubCollector(Collector):
    """The figures of one hub. loop_lag: as `LoopLag.worst`.

    log_errors, access_log_errors: lines of the breaker log and of the access log lost so far.
    """

    def __init__(
        self,
        hub: Hub,
        log_errors: Callable[[], int],
        loop_lag: Callable[[], float],
        access_log_errors: Callable[[], int],
    ) -> None:
        self._hub = hub
        self._log_errors = log_errors
        self._loop_lag = loop_lag
        self._access_log_errors = access_log_errors

    def collect(self) -> Iterator[Metric]:
        """Every metric, as it is at this moment."""
        targets = [*self._hub.targets.values(), *self._hub.removed.values()]
        circuits = [circuit for target in targets for circuit in target.circuits]
        yield _transactions(self._hub, targets)
        yield _counter("attempts", "Calls of a target that were tried, by why.", targets, "kind", _attempts)
        yield _gauge("inflight", "Calls in flight.", targets, lambda target: target.bulkhead.inflight)
        yield _gauge("max_inflight", "Calls that may be in flight.", targets, lambda target: target.bulkhead.limit)
        words = "Places of calls that have timed out, kept while the target may still be at work on them."
        yield _gauge("held", words, targets, lambda target: target.held)
        words = "Answers that came after the call's timeout, while its place was held."
        yield _counted("late_answers", words, targets, lambda target: target.late)
        words = "State of a target's circuit: 0 closed, 1 half-open, 2 open."
        yield _gauge("breaker_state", words, circuits, lambda circuit: STATES[circuit.standing.state])
        yield _transitions(circuits)
        words = "Calls that went through because the circuit's mode is shadow; else they had been refused with E904."
        yield _counted("breaker_would_refuse", words, circuits, lambda circuit: circuit.would_refuse)
        words = "Attempts beyond the first that a target's budget allows at this moment."
        yield _gauge("retry_budget_tokens", words, targets, lambda target: target.budget.tokens)
        yield _call_seconds(targets)
        words = "Connections to a target: opened, reused for one more call, lost while idle."
        yield _counter("connections", words, targets, "event", _connections)
        words = "Answers with a code that is none of ours, passed on as they were."
        yield _counted("unknown_codes", words, targets, lambda target: target.unknown_codes)
        words = "Lines of the breaker log that could not be written."
        yield CounterMetricFamily("eaimw_breaker_log_errors", words, value=self._log_errors())
        words = "Lines of the access log that could not be written; 0 without one."
        yield CounterMetricFamily("eaimw_access_log_errors", words, value=self._access_log_errors())
        words = "How late a timer of the hub's event loop rang, the worst of the last seconds."
        yield GaugeMetricFamily("eaimw_loop_lag_seconds", words, value=self._loop_lag())


def registry_of(
    hub: Hub,
    log_errors: Callable[[], int],
    loop_lag: Callable[[], float],
    access_log_errors: Callable[[], int] = lambda: 0,
) -> CollectorRegistry:
    """A registry for one hub alone, so that two hubs in one process do not meet in the library's own."""
    registry = CollectorRegistry()
    registry.register(HubCollector(hub, log_errors, loop_lag, access_log_errors))
    return registry


def _transactions(hub: Hub, targets: list[Target]) -> Metric:
    family = CounterMetricFamily("eaimw_transactions", "Transactions answered.", labels=("target", "code"))
    for name, codes in [*((target.name, target.codes) for target in targets), (NO_TARGET, hub.untargeted)]:
        for code, count in dict(codes).items():
            family.add_metric((name, code), count)
    return family


def _transitions(circuits: list[Circuit]) -> Metric:
    words = "Changes of state of a target's circuit."
    family = CounterMetricFamily("eaimw_breaker_transitions", words, labels=("target", "from", "to"))
    for circuit in circuits:
        for (before, after), count in circuit.changes.items():  # its keys are all there from the start
            family.add_metric((circuit.name, before, after), count)
    return family


def _call_seconds(targets: list[Target]) -> Metric:
    words = "How long each call of a target took, connecting included, however it ended."
    family = HistogramMetricFamily("eaimw_call_seconds", words, labels=("target",))
    for target in targets:
        buckets = list(zip(_LIMITS, accumulate(list(target.figures.counts)), strict=True))
        family.add_metric((target.name,), buckets, target.figures.seconds)
    return family


def _attempts(target: Target) -> dict[str, int]:
    return target.attempts_by_kind


def _connections(target: Target) -> dict[str, int]:
    return dict(getattr(target.transport, "connections", {}))  # a transport without any, as a simulator's, counts none


def _counter(
    name: str, words: str, targets: list[Target], label: str, of: Callable[[Target], dict[str, int]]
) -> Metric:
    family = CounterMetricFamily(f"eaimw_{name}", words, labels=("target", label))
    for target in targets:
        for key, count in of(target).items():
            family.add_metric((target.name, key), count)
    return family


def _gauge(name: str, words: str, named: Sequence[Named], of: Callable[[Named], float]) -> Metric:
    family = GaugeMetricFamily(f"eaimw_{name}", words, labels=("target",))
    for each in named:
        family.add_metric((each.name,), of(each))
    return family


def _counted(name: str, words: str, named: Sequence[Named], of: Callable[[Named], float]) -> Metric:
    family = CounterMetricFamily(f"eaimw_{name}", words, labels=("target",))
    for each in named:
        family.add_metric((each.name,), of(each))
    return family
