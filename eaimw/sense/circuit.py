"""A circuit that can never open, that opens by chance, or that can never close again.

Nothing is said where `mode` is `off`: there is no breaker then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from eaimw.policy import MAX_WINDOW_CALLS
from eaimw.sense.chance import DAY, FAILURES_TAKEN, at_least, calls_for, opens_per_day, threshold_for
from eaimw.sense.finding import Finding, Subject, said

NOTICED = 60.0  # seconds of nothing but failures; whoever is on duty has noticed by then
LONG_REST = 3_600.0  # seconds
MOST = 10**15  # calls in a row; an int has no bound, and arithmetic has
BY_CHANCE = f"where {FAILURES_TAKEN:.0%} of the calls fail by chance"


def threshold_is_noise(seen: Subject) -> Iterator[Finding]:
    """Chance opens it once a day or more.

    As `eaimw sim size` has it: rate x 86,400 x 0.95 x 0.05^threshold >= 1. At 50/s the least that is not noise is 6.
    """
    rate, threshold = seen.target.expected_rate, min(seen.target.breaker.fail_threshold, MOST)
    if not rate or "consecutive" not in seen.target.breaker.rules:
        return
    opens = opens_per_day(rate, FAILURES_TAKEN, threshold)
    if opens >= 1:
        yield seen.warning(
            "breaker.fail_threshold",
            f"{BY_CHANCE}, {threshold} in a row come {said(opens)} times a day at {said(rate)}/s, and all of them "
            f"within {said(threshold / rate)} s",
            f"set it to {threshold_for(rate, FAILURES_TAKEN)} or more",
        )


def threshold_is_out_of_reach(seen: Subject) -> Iterator[Finding]:
    """So many calls are not even made within a minute (warning), or within a day (error)."""
    rate, threshold = seen.target.expected_rate, min(seen.target.breaker.fail_threshold, MOST)
    if not rate or "consecutive" not in seen.target.breaker.rules:
        return
    seconds, least = threshold / rate, threshold_for(rate, FAILURES_TAKEN)
    if seconds > NOTICED and threshold > least:
        find = seen.error if seconds > DAY else seen.warning
        yield find(
            "breaker.fail_threshold",
            f"at {said(rate)}/s a target that fails every call is noticed after {said(seconds)} s",
            f"set it lower; {least} in a row come less than once a day by chance",
        )


def window_never_holds_enough(seen: Subject) -> Iterator[Finding]:
    """The ratio rule decides nothing with less than min_calls ended calls in its window.

    Of the last window_calls calls there are never more than those (error). In seconds there are rate x window on
    average, and by chance (a Poisson process) 1 window in 700 has three times the root of that more: if even that is
    too little it is an error, else a warning.
    """
    breaker, rate = seen.target.breaker, seen.target.expected_rate
    if "ratio" not in breaker.rules:
        return
    if breaker.window_calls:
        if breaker.min_calls > breaker.window_calls:
            yield seen.error(
                "breaker.min_calls",
                f"the window holds {breaker.window_calls:,} calls (window_calls), so the ratio rule can never decide",
                f"set it to {breaker.window_calls} or less, or window_calls to {breaker.min_calls} or more",
            )
        return
    held = rate * breaker.window
    if rate and held < breaker.min_calls:
        is_never = held + 3 * math.sqrt(held) < breaker.min_calls
        find = seen.error if is_never else seen.warning
        yield find(
            "breaker.min_calls",
            f"at {said(rate)}/s a window of {said(breaker.window)} s holds {said(held)} calls on average, so the ratio "
            f"rule {'can never' if is_never else 'can only now and then'} decide",
            f"set it to {max(1, int(held))} or less, or window to {said(breaker.min_calls / rate)} seconds or more",
        )


def hanging_target_fills_no_window(seen: Subject) -> Iterator[Finding]:
    """Where nothing else would notice: a target that never answers ends too few calls for the ratio rule.

    Each place ends a call by its timeout (and is held after it) once every timeout + hold seconds, so at most
    max_inflight x ceil(window / (timeout + hold)) end within one window.
    """
    target, breaker = seen.target, seen.target.breaker
    if tuple(breaker.rules) != ("ratio",) or breaker.window_calls or breaker.stuck_calls:
        return
    cycle = target.timeout + target.hold_after_timeout
    if target.max_inflight * breaker.window / cycle >= breaker.min_calls:
        return
    ended = target.max_inflight * math.ceil(breaker.window / cycle)
    if ended < breaker.min_calls:
        yield seen.error(
            "breaker.min_calls",
            f"of a target that never answers, at most {ended:,} calls end within {said(breaker.window)} s "
            f"({target.max_inflight:,} in flight, {said(cycle)} s each), so the ratio rule can never open the circuit",
            f'set it to {ended} or less, lengthen window, or add "consecutive" to rules',
        )


def ratio_is_noise(seen: Subject) -> Iterator[Finding]:
    """So few calls are judged that chance opens the circuit: rate x 86,400 judgements a day, each of min_calls calls.

    A judgement of n calls opens by chance as the upper tail of the binomial distribution says. Windows are fuller
    than min_calls most of the time; after each closing, and in quiet hours, they are not. A failure_ratio that a
    healthy target reaches opens whatever is counted.
    """
    breaker, rate = seen.target.breaker, seen.target.expected_rate
    if "ratio" not in breaker.rules:
        return
    if breaker.failure_ratio <= FAILURES_TAKEN:
        yield seen.warning(
            "breaker.failure_ratio",
            f"a target that is well enough to be called may fail {FAILURES_TAKEN:.0%} of its calls",
            "set it to 0.2 or more",
        )
        return
    failures = max(1, math.ceil(breaker.failure_ratio * breaker.min_calls - 1e-9))
    chance = at_least(failures, breaker.min_calls, FAILURES_TAKEN)
    if rate * DAY * chance >= 1:
        calls = calls_for(rate, breaker.failure_ratio, FAILURES_TAKEN)
        yield seen.warning(
            "breaker.min_calls",
            f"{failures:,} of {breaker.min_calls:,} calls are enough to open the circuit; {BY_CHANCE}, that is 1 "
            f"judgement in {said(1 / chance)}, and at {said(rate)}/s there are {said(rate * DAY)} a day",
            f"set it to {calls:,} or more, and the window so that it holds them"
            if calls <= MAX_WINDOW_CALLS
            else "set failure_ratio to 0.2 or more",
        )


def stuck_calls_never_stick(seen: Subject) -> Iterator[Finding]:
    """More than can be in flight, or waiting longer than a slow_call that is not there (0)."""
    stuck = seen.target.breaker.stuck_calls
    if stuck > seen.target.max_inflight:
        yield seen.error(
            "breaker.stuck_calls",
            f"no more than {seen.target.max_inflight:,} calls are ever in flight (max_inflight), so it can never open "
            "the circuit",
            f"set it to {seen.target.max_inflight} or less",
        )
    if stuck and not seen.target.breaker.slow_call:
        yield seen.error(
            "breaker.stuck_calls",
            "slow_call is 0, so no call counts as stuck and it can never open the circuit",
            f"set slow_call to some seconds below timeout ({said(seen.target.timeout)}), or leave it out",
        )


def slow_call_is_never_reached(seen: Subject) -> Iterator[Finding]:
    """A call ends by its timeout at the latest: what is slow only then is a failure and nothing else."""
    breaker, timeout = seen.target.breaker, seen.target.timeout
    if not uses_slow_call(seen):
        return
    if breaker.slow_call >= timeout:
        yield seen.error(
            "breaker.slow_call",
            f"timeout ends a call after {said(timeout)} s, so none can be slow before it has failed",
            f"set it below {said(timeout)} seconds",
        )
    elif breaker.slow_call <= seen.target.expected_latency:
        yield seen.warning(
            "breaker.slow_call",
            f"a usual call takes {said(seen.target.expected_latency)} s (expected_latency), so a usual call is slow",
            f"set it above what the slow ones take (expected_p99), and below timeout ({said(timeout)})",
        )


def rest_is_endless(seen: Subject) -> Iterator[Finding]:
    """While the circuit is open nobody is served, however well the target is: an hour is long, a day is for ever."""
    breaker = seen.target.breaker
    key = "reset_timeout"
    if breaker.reopen_factor > 1 and 0 < breaker.reset_timeout < breaker.reopen_max:
        key = "reopen_max"
    rest = float(getattr(breaker, key))
    if rest > LONG_REST:
        find = seen.error if rest > DAY else seen.warning
        yield find(
            f"breaker.{key}",
            f"a target that is well again is refused for up to {said(rest)} s ({said(rest / 3600)} h)",
            "set it to 60 seconds or less: one call in that time harms no target",
        )


def rest_does_not_grow(seen: Subject) -> Iterator[Finding]:
    """reopen_factor lengthens each wait up to reopen_max: not if that is reached at once, nor from 0."""
    breaker = seen.target.breaker
    if breaker.reopen_factor == 1:
        return
    if breaker.reset_timeout == 0:
        yield seen.warning(
            "breaker.reopen_factor",
            f"reset_timeout is 0, and {said(breaker.reopen_factor)} times 0 is 0, so it has no effect",
            "set reset_timeout to some seconds, or leave it out",
        )
    elif breaker.reopen_max <= breaker.reset_timeout:
        yield seen.warning(
            "breaker.reopen_max",
            f"reset_timeout is {said(breaker.reset_timeout)} s already, so reopen_factor lengthens nothing",
            f"set it above {said(breaker.reset_timeout)} seconds, or leave reopen_factor out",
        )


def probes_overlap_old_calls(seen: Subject) -> Iterator[Finding]:
    """A probe interval shorter than the call timeout: calls from before the opening are still out at the probe."""
    rest, timeout = seen.target.breaker.reset_timeout, seen.target.timeout
    if rest < timeout:
        yield seen.warning(
            "breaker.reset_timeout",
            f"it is shorter than timeout ({said(timeout)} s): the target gets a probe while calls from before the "
            "opening may still wait in it",
            f"set it to {said(timeout)} seconds or more",
        )


def probe_cannot_succeed(seen: Subject) -> Iterator[Finding]:
    """A probe that ends before a usual call does fails, so the circuit stays open. Longer than timeout it is idle."""
    probe, timeout, latency = seen.target.breaker.probe_timeout, seen.target.timeout, seen.target.expected_latency
    if 0 < probe < latency:
        yield seen.error(
            "breaker.probe_timeout",
            f"a usual call takes {said(latency)} s (expected_latency), so a usual probe fails and the circuit never "
            "closes",
            f"set it above {said(max(latency, seen.target.expected_p99))} seconds, or to 0: as any call",
        )
    if probe > timeout:
        yield seen.warning(
            "breaker.probe_timeout",
            f"timeout ends every call after {said(timeout)} s, so it has no effect",
            f"set it below {said(timeout)} seconds, or to 0: as any call",
        )


def mode_refuses_everybody(seen: Subject) -> Iterator[Finding]:
    """`open` is for maintenance; it does not end by itself."""
    if seen.target.breaker.mode == "open":
        yield seen.warning(
            "breaker.mode", "every call is refused (E904) until it is changed", 'set it to "normal" when all is well'
        )


def uses_slow_call(seen: Subject) -> bool:
    """Is there a slow_call, and does anything ask for it?"""
    breaker = seen.target.breaker
    return breaker.slow_call > 0 and ("ratio" in breaker.rules or breaker.stuck_calls > 0)


CIRCUIT: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    threshold_is_noise,
    threshold_is_out_of_reach,
    window_never_holds_enough,
    hanging_target_fills_no_window,
    ratio_is_noise,
    stuck_calls_never_stick,
    slow_call_is_never_reached,
    rest_is_endless,
    rest_does_not_grow,
    probes_overlap_old_calls,
    probe_cannot_succeed,
    mode_refuses_everybody,
)
