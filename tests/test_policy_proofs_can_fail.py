"""A policy that is broken on purpose is caught by the check of the proofs that is meant for it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from broken import Breaks, check_that_it_is_said

from eaimw import codes, layers, retry, stack
from eaimw.adapters import metrics
from eaimw.kernel.backoff import full_jitter
from eaimw.kernel.breaker import CircuitBreaker, Permit, _Generation
from eaimw.kernel.budget import RetryBudget
from eaimw.kernel.ramp import Ramp
from eaimw.kernel.rest import Rest
from eaimw.kernel.rules import RatioRule
from eaimw.model import Call, Reply
from eaimw.target import Target

BREAKS = Breaks()
caught_by = BREAKS.caught_by
MUST_BE = r"its circuit is \w+; it must be "

# When it opens.


@caught_by(MUST_BE + "OPEN")
def a_window_that_forgets_the_call_that_fills_it(patch: pytest.MonkeyPatch) -> None:
    ended = RatioRule.ended

    def before(self: RatioRule, now: float, failed: bool, seconds: float) -> bool:
        total = self._window.total
        opens = ended(self, now, failed, seconds)
        return opens and total >= self._min_calls

    patch.setattr(RatioRule, "ended", before)


@caught_by(MUST_BE + "CLOSED")
def a_window_without_a_least_number_of_calls(patch: pytest.MonkeyPatch) -> None:
    init = RatioRule.__init__
    patch.setattr(
        RatioRule, "__init__", lambda self, window, **others: init(self, window, **{**others, "min_calls": 1})
    )


@caught_by(MUST_BE + "CLOSED")
def a_window_that_keeps_what_is_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("eaimw.kernel.window.TimeWindow.forget", lambda self, now: None)


@caught_by(MUST_BE + "OPEN")
def a_rule_that_sees_no_slow_calls(patch: pytest.MonkeyPatch) -> None:
    ended = RatioRule.ended
    patch.setattr(RatioRule, "ended", lambda self, now, failed, seconds: ended(self, now, failed, 0.0))


@caught_by(MUST_BE + "OPEN")
def a_breaker_that_waits_for_stuck_calls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CircuitBreaker, "trip", lambda self, why: None)


@caught_by(MUST_BE)
def an_operation_that_has_no_circuit_of_its_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Target, "circuit_of", lambda self, op: self.circuit)


@caught_by("its circuit is held open by its settings")
def a_circuit_that_is_held_open_and_lets_calls_through(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(layers, "_refuse", lambda target, call, *_: layers.Exchange(target)(call))


@caught_by("E904, and its circuit has the mode shadow")
def a_shadow_that_refuses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(layers.Shadow, "refuses", True)


# How it comes back.


def generation(patch: pytest.MonkeyPatch, then: Callable[[_Generation], None]) -> None:
    """Each is changed when it is made."""
    init = _Generation.__init__

    def changed(self: _Generation, *args: Any) -> None:
        init(self, *args)
        then(self)

    patch.setattr(_Generation, "__init__", changed)


@caught_by("while its circuit was HALF_OPEN: .* probes were out")
def a_probe_too_many(patch: pytest.MonkeyPatch) -> None:
    generation(patch, lambda made: setattr(made, "places", made.places + 1))


@caught_by(MUST_BE + "HALF_OPEN")
def a_circuit_that_closes_by_the_first_of_several_probes(patch: pytest.MonkeyPatch) -> None:
    generation(patch, lambda made: setattr(made, "missing", 1))


@caught_by("its budget is")
def a_probe_that_takes_as_long_as_any_call(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Permit, "is_probe", False)


@caught_by("before a probe was due")
def a_wait_that_does_not_grow(patch: pytest.MonkeyPatch) -> None:
    rest = Rest.__call__
    patch.setattr(Rest, "__call__", lambda self, reopened: rest(self, 0))


@caught_by("HALF_OPEN and lets a call through", "OPEN and lets a call through", r"the wait is .* ms")
def a_wait_that_is_too_long(patch: pytest.MonkeyPatch) -> None:
    rest = Rest.__call__
    patch.setattr(Rest, "__call__", lambda self, reopened: 2.5 * rest(self, reopened))


@caught_by("before a probe was due")
def a_breaker_that_does_not_hear_what_its_target_wishes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(layers.Breaker, "_rest_wanted", lambda self, call: 0.0)


@caught_by("after closing; the ramp is at")
def a_ramp_that_jumps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ramp, "limit", lambda self, elapsed, full: full)


@caught_by(r"E905 with \d+ places taken, \d+ of them by its circuit")
def a_ramp_that_stays_at_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ramp, "limit", lambda self, elapsed, full: 1)


@caught_by("it must be E904")
def a_limit_that_is_asked_before_the_circuit(patch: pytest.MonkeyPatch) -> None:
    layers_in_order = list(stack.PER_ATTEMPT)
    first, second = (
        next(at for at, layer in enumerate(layers_in_order) if layer.make is kind)
        for kind in (layers.OpenCircuit, layers.InflightLimit)
    )
    layers_in_order[first], layers_in_order[second] = layers_in_order[second], layers_in_order[first]
    patch.setattr(stack, "PER_ATTEMPT", tuple(layers_in_order))


@caught_by("the metric eaimw_breaker_would_refuse is")
def a_metric_that_leaves_out_what_a_shadow_lets_through(patch: pytest.MonkeyPatch) -> None:
    counted = metrics._counted
    patch.setattr(
        metrics,
        "_counted",
        lambda name, words, named, of: counted(name, words, [] if name == "breaker_would_refuse" else named, of),
    )


# Deadlines.


@caught_by("ms left, and a call needs")
def a_call_that_cannot_end_and_is_begun(patch: pytest.MonkeyPatch) -> None:
    init = layers.Deadline.__init__

    def without(self: layers.Deadline, *args: Any) -> None:
        init(self, *args)
        self._min_call = 0.0

    patch.setattr(layers.Deadline, "__init__", without)


@caught_by(r"E906 with \w+ ms left")
def a_call_that_could_end_and_is_not_begun(patch: pytest.MonkeyPatch) -> None:
    init = layers.Deadline.__init__

    def with_more(self: layers.Deadline, *args: Any) -> None:
        init(self, *args)
        self._min_call += 0.1

    patch.setattr(layers.Deadline, "__init__", with_more)


@caught_by("its budget is")
def an_operation_that_has_no_timeout_of_its_own(patch: pytest.MonkeyPatch) -> None:
    init = layers.Deadline.__init__

    def without(self: layers.Deadline, *args: Any) -> None:
        init(self, *args)
        self._of_ops = {}

    patch.setattr(layers.Deadline, "__init__", without)


# What is tried again.


def waiting_before_another(patch: pytest.MonkeyPatch, change: Callable[[Any, Call, Reply], float | None]) -> None:
    """Where there would be no other attempt, what `change` says; where there would be one, that."""
    wait = retry.Retry._wait_before_another

    def changed(self: retry.Retry, call: Call, reply: Reply) -> float | None:
        before = wait(self, call, reply)
        return change(self, call, reply) if before is None else before

    patch.setattr(retry.Retry, "_wait_before_another", changed)


@caught_by("it was called again after B2", "it was called again after 0000")
def a_retry_after_an_answer(patch: pytest.MonkeyPatch) -> None:
    waiting_before_another(patch, lambda self, call, reply: 0.0 if reply.outcome == "done" else None)


@caught_by("it must not be repeated")
def a_retry_of_what_must_not_be_repeated(patch: pytest.MonkeyPatch) -> None:
    def wait(self: Any, call: Call, reply: Reply) -> float | None:
        return 0.0 if reply.code in codes.FAILURES and call.attempts < self._settings.attempts else None

    waiting_before_another(patch, wait)


@caught_by(r"after \d attempts, of at most")
def an_attempt_too_many(patch: pytest.MonkeyPatch) -> None:
    def wait(self: Any, call: Call, reply: Reply) -> float | None:
        return 0.0 if reply.code in codes.FAILURES and call.attempts == self._settings.attempts else None

    waiting_before_another(patch, wait)


@caught_by("attempts were not first, and its retry budget allows")
def a_retry_that_asks_no_budget(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RetryBudget, "spend", lambda self: True)


@caught_by("the retry budget has .* tokens")
def a_budget_without_an_end(patch: pytest.MonkeyPatch) -> None:
    earned = RetryBudget.earn

    def earn(self: RetryBudget) -> None:
        earned(self)
        self._tokens *= 2

    patch.setattr(RetryBudget, "earn", earn)


@caught_by("it was called again after .* s; that must be from")
def a_retry_that_waits_too_long(patch: pytest.MonkeyPatch) -> None:
    jitter = full_jitter
    patch.setattr(retry, "full_jitter", lambda base, cap, n, u: 0.001 + 3 * jitter(base, cap, n, u))


@caught_by("it was called again after .* s; that must be from")
def a_retry_that_does_not_hear_what_its_target_wishes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retry, "retry_after", lambda value, now: None)


@caught_by("s left of its budget", "its budget is")
def a_retry_that_has_all_the_time(patch: pytest.MonkeyPatch) -> None:
    begin = layers.begin_attempt

    def anew(call: Call, now: float) -> None:
        call.budget_end = math.inf
        begin(call, now)

    patch.setattr(retry, "begin_attempt", anew)


@caught_by("it was called again with .* s left of its budget")
def a_retry_that_cannot_end_and_is_begun(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retry.Retry, "_min_call", 0.0)


@caught_by("it was called again, and its caller has gone")
def a_retry_for_nobody(patch: pytest.MonkeyPatch) -> None:
    after = retry.Retry._after

    async def for_nobody(self: retry.Retry, wait: float, call: Call, reply: Reply) -> Any:
        caller, call.caller = call.caller, None
        try:
            return await after(self, wait, call, reply)
        finally:
            call.caller = caller

    patch.setattr(retry.Retry, "_after", for_nobody)


def retrying(patch: pytest.MonkeyPatch, change: Callable[[Reply], Reply]) -> None:
    """The reply of a call that was tried more than once."""
    before = retry.Retry._retrying

    async def changed(self: retry.Retry, call: Call, answer: Coroutine[Any, Any, Reply]) -> Reply:
        reply = await before(self, call, answer)
        return change(reply) if reply.attempts > 1 else reply

    patch.setattr(retry.Retry, "_retrying", changed)


@caught_by(r"not_sent; by how its [2-9] attempts ended: E902, unknown")
def not_sent_after_an_attempt_that_was(patch: pytest.MonkeyPatch) -> None:
    def forgetting(reply: Reply) -> Reply:
        if reply.code == "E902":
            reply.outcome, reply.retryable = "not_sent", True
        return reply

    retrying(patch, forgetting)


@caught_by("it says attempts")
def attempts_that_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    def uncounted(reply: Reply) -> Reply:
        reply.attempts = 1
        return reply

    retrying(patch, uncounted)


@caught_by("its reply came .* s after its last attempt")
def a_reply_that_comes_late(patch: pytest.MonkeyPatch) -> None:
    before = retry.Retry._retrying

    async def late(self: retry.Retry, call: Call, answer: Coroutine[Any, Any, Reply]) -> Reply:
        reply = await before(self, call, answer)
        await asyncio.sleep(0.01)
        return reply

    patch.setattr(retry.Retry, "_retrying", late)


@caught_by("the metric eaimw_attempts is")
def a_retry_that_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(metrics, "_attempts", lambda target: {"first": target.attempts, "retry": 0})


@pytest.mark.parametrize("name", BREAKS)
def test_a_policy_that_is_broken_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In words that name what was broken."""
    breaks, words = BREAKS[name]
    breaks(monkeypatch)
    check_that_it_is_said(words)
