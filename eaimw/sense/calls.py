"""Timeouts, places and retries, against each other and against what is expected of a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from eaimw.bounds import MAX_SECONDS
from eaimw.config import INFLIGHT
from eaimw.sense.finding import Finding, Subject, said

LEAST_TIMES, MOST_TIMES = 2, 5  # expected_p99
ROOMY = 10  # times the places that even slow calls need
# What a caller waits that has no deadline of its own: `eaimw send`, and nginx before its upstreams.
PATIENCE = 60.0  # seconds
FREE_OF_STORMS = 0.1  # tokens for each first attempt


def timeout_does_not_fit(seen: Subject) -> Iterator[Finding]:
    """Below the usual latency nothing is ever answered (error); outside 2 to 5 times the 99th percentile (warning).

    Twice the slow ones leaves room for a target under load; more than five times keeps places for what will not come.
    """
    target, p99 = seen.target, seen.target.expected_p99
    if target.timeout < target.expected_latency:
        yield seen.error(
            "timeout",
            f"a usual call takes {said(target.expected_latency)} s (expected_latency), so every usual call fails",
            f"set it to {said(LEAST_TIMES * max(p99, target.expected_latency))} seconds or more",
        )
    elif p99 and not round(LEAST_TIMES * p99, 9) <= target.timeout <= round(MOST_TIMES * p99, 9):
        is_short = target.timeout < LEAST_TIMES * p99
        consequence = "slow calls fail that would be answered" if is_short else "places are kept for what will not come"
        yield seen.warning(
            "timeout",
            f"it is {said(target.timeout / p99)} times expected_p99 ({said(p99)} s), so {consequence}",
            f"set it to {LEAST_TIMES} to {MOST_TIMES} times that: "
            f"{said(min(MAX_SECONDS, LEAST_TIMES * p99))} to {said(min(MAX_SECONDS, MOST_TIMES * p99))} seconds",
        )


def expected_times_contradict(seen: Subject) -> Iterator[Finding]:
    """The slow one of a hundred is no faster than the usual one."""
    latency, p99 = seen.target.expected_latency, seen.target.expected_p99
    if 0 < p99 < latency:
        yield seen.warning(
            "expected_p99",
            f"it is less than expected_latency ({said(latency)} s), so what is reasoned from them is wrong",
            f"set it to {said(latency)} seconds or more",
        )


def connection_outlasts_call(seen: Subject) -> Iterator[Finding]:
    """The inner timeout is the longer one."""
    timeout = seen.target.timeout
    if seen.target.connect_timeout > timeout:
        yield seen.warning(
            "connect_timeout",
            f"timeout ends the whole call after {said(timeout)} s, so it has no effect, and a host that is not there "
            "is not told from a slow answer",
            f"set it below {said(timeout)} seconds",
        )


def enough_time_is_refused(seen: Subject) -> Iterator[Finding]:
    """A caller who has left what a whole call may take has enough for a call."""
    timeout = seen.target.timeout
    if seen.target.min_call >= timeout:
        yield seen.error(
            "min_call",
            f"a caller who has as much time left as a call may take at most (timeout, {said(timeout)} s) is refused "
            "(E906)",
            f"set it well below {said(timeout)} seconds",
        )


def places_do_not_fit(seen: Subject) -> Iterator[Finding]:
    """Little's law: rate x seconds are in flight on average (J. D. C. Little, 1961).

    More than max_inflight at the usual latency: it refuses on an ordinary day (error). More at the 99th percentile: in
    a slow moment (warning); so wide is a pool that is sized as Hystrix advised, rate x p99. More than ten times that,
    and more than is built in: the limit would hold back nothing before the target is lost (warning).
    """
    target = seen.target
    usual = round(target.expected_rate * target.expected_latency, 9)
    slow = round(target.expected_rate * max(target.expected_p99, target.expected_latency), 9)
    at = f"at {said(target.expected_rate)}/s"
    if usual > target.max_inflight:
        yield seen.error(
            "max_inflight",
            f"{at} of {said(target.expected_latency)} s each {said(usual)} calls are in flight on average (Little's "
            "law), so calls are refused (E905) on an ordinary day",
            f"set it above {said(usual)}; `eaimw sim size` says how far",
        )
    elif slow > target.max_inflight:
        yield seen.warning(
            "max_inflight",
            f"{at} {said(slow)} calls are in flight while they take {said(target.expected_p99)} s each "
            "(expected_p99), so a slow moment is answered with E905",
            f"set it to {said(slow)} or more, or take that as the limit of what the target shall bear",
        )
    elif slow and target.max_inflight > max(INFLIGHT, ROOMY * slow):
        yield seen.warning(
            "max_inflight",
            f"{at} even slow calls keep {said(slow)} places, so the limit is reached only when "
            f"{said(target.max_inflight / slow)} times as many hang: it protects nobody",
            f"set it to {max(INFLIGHT, int(ROOMY * slow))} or less",
        )


def retry_does_not_fit(seen: Subject) -> Iterator[Finding]:
    """All attempts and the longest waits together: attempts x timeout + the sum of min(cap, base x 2^n).

    The caller's budget is the caller's, so it is held against what callers can say at most (timeout_ms, 3,600 s:
    error) and against what one waits that says nothing (60 s: warning).
    """
    retry, timeout = seen.target.retry, seen.target.timeout
    if retry.attempts == 1:
        return
    waits = sum(min(retry.cap, retry.base * 2**n) for n in range(retry.attempts - 1))
    total = retry.attempts * timeout + waits
    if total > PATIENCE:
        is_never = total > MAX_SECONDS
        find = seen.error if is_never else seen.warning
        budget = (
            f"no caller's timeout_ms is above {MAX_SECONDS:,.0f} s"
            if is_never
            else f"a caller who gives no timeout_ms waits about {PATIENCE:g} s"
        )
        yield find(
            "retry.attempts",
            f"{retry.attempts} attempts of {said(timeout)} s and waits of {said(waits)} s take up to {said(total)} s; "
            f"{budget}, so the last of them cannot help",
            f"set fewer, or a shorter timeout or cap, so that they fit into {PATIENCE:g} seconds",
        )


def retry_never_acts(seen: Subject) -> Iterator[Finding]:
    """Nothing may be repeated, or there is never a token to pay for it."""
    retry = seen.target.retry
    if retry.attempts == 1:
        return
    if not any(op.may_repeat for op in seen.ops.values()):
        yield seen.warning(
            "retry.attempts",
            "no operation that goes to this target is read or idempotent, so only calls that were not sent, or that "
            "have an idempotency key, are tried again",
            "declare [ops.OP] read or idempotent where that is so, or leave retry out",
        )
    if not retry.budget_ratio and not retry.budget_min:
        yield seen.error(
            "retry.budget_ratio",
            "no token is ever earned and budget_min is 0, so nothing is ever tried again",
            f"set it to {FREE_OF_STORMS:g}",
        )
    elif not retry.budget_ratio:
        yield seen.warning(
            "retry.budget_ratio",
            f"no token is ever earned, so after budget_min ({retry.budget_min}) attempts nothing is tried again",
            f"set it to {FREE_OF_STORMS:g}",
        )


def retry_can_storm(seen: Subject) -> Iterator[Finding]:
    """Each first attempt earns budget_ratio further ones, so a target that is down gets (1 + budget_ratio) x the load.

    A tenth is what Google's SRE book allows (Handling Overload: a retry budget of 10 %). And without waits all who
    failed together come together again.
    """
    retry = seen.target.retry
    if retry.attempts == 1:
        return
    if retry.budget_ratio > FREE_OF_STORMS:
        yield seen.warning(
            "retry.budget_ratio",
            f"a target that is down gets up to {said(1 + retry.budget_ratio)} times its load, while it has to recover",
            f"set it to {FREE_OF_STORMS:g} or less",
        )
    wait = min(retry.base, retry.cap)
    if not wait:
        yield seen.warning(
            "retry.base" if not retry.base else "retry.cap",
            "attempts follow without a wait, so all calls that failed together come together again",
            "set it to 0.1 seconds or more",
        )
    elif retry.base > retry.cap:
        yield seen.warning(
            "retry.base",
            f"no wait is above cap ({said(retry.cap)} s), so all are alike and none grows",
            f"set it below {said(retry.cap)} seconds",
        )


def attempts_multiply(seen: Subject) -> Iterator[Finding]:
    """Layers that each try again: the target behind them all is called by their product. One layer is enough."""
    target = seen.target
    layers = {
        "retry.attempts": target.retry.attempts,
        "upstream_attempts": target.upstream_attempts,
        "downstream_attempts": target.downstream_attempts,
    }
    repeating = [key for key, attempts in layers.items() if attempts > 1]
    if len(repeating) < 2:
        return
    upstream, own, downstream = target.upstream_attempts, target.retry.attempts, target.downstream_attempts
    calls = upstream * own * downstream
    rate = target.expected_rate
    load = f", so at {said(rate)}/s up to {said(rate * calls)} calls/s" if rate else ""
    yield seen.warning(
        repeating[0],
        f"{upstream} x {own} x {downstream} = {calls:,} calls (the caller, this hub, the target's side) may come of "
        f"one transaction{load}",
        "let one layer alone try again, and set the attempts of the others to 1",
    )


CALLS: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    timeout_does_not_fit,
    expected_times_contradict,
    connection_outlasts_call,
    enough_time_is_refused,
    places_do_not_fit,
    retry_does_not_fit,
    retry_never_acts,
    retry_can_storm,
    attempts_multiply,
)
