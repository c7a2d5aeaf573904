"""The settings of a target's policies: when its circuit opens and closes, and what is tried again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eaimw.bounds import (
    MAX_SECONDS,
    check_integer,
    check_number,
    check_one_of,
    check_seconds,
    check_share,
    check_some_seconds,
)
from eaimw.errors import SettingsError

RULES = ("consecutive", "ratio")
MODES = ("normal", "shadow", "open", "off")
SCOPES = ("target", "op")
# A window of calls keeps a byte for each of them.
MAX_WINDOW_CALLS = 100_000
MAX_PROBES = 1_000
MAX_ATTEMPTS = 10
# Tokens that a retry budget holds at most.
MAX_TOKENS = 100

FAIL_THRESHOLD = 5
RESET_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When a target's circuit opens, how long it rests, and how it comes back.

    fail_threshold: consecutive failures that open it. Lower notices sooner, higher forgives more.
    reset_timeout: seconds OPEN before a probe; 0: the next transaction is the probe.
    rules: what opens it: `consecutive` (fail_threshold), `ratio` (from window to slow_ratio), or both.
    window: seconds of ended calls that `ratio` looks at. window_calls: if not 0, so many last calls instead.
    min_calls: ended calls below which `ratio` decides nothing.
    failure_ratio: share of failures among them that opens it.
    slow_call: seconds; a call that takes longer is slow. 0: none is. slow_ratio: share of slow ones that opens it.
    stuck_calls: calls in flight that have all been waiting longer than slow_call, and open it before they time out;
        0: off, as it is while no call is slow.
    probes: calls that may pass in HALF_OPEN, at once and in all; all must succeed.
    probe_timeout: seconds for a probe, if that is shorter than for any call; 0: as any call.
    reopen_factor: each further wait is so many times the one before; 1: all are alike. reopen_max: seconds that a
        wait grows to at most.
    jitter: a wait is lengthened by chance by up to this share of it, so that several hubs do not probe together.
    ramp: seconds after closing in which max_inflight grows from 1 to what it is; 0: it is there at once.
    mode: `normal`; `shadow` refuses nobody, and counts what it would have refused; `open` refuses everybody;
        `off`: there is no breaker.
    per: `target`; or `op`: each operation has a breaker of its own, so that a failing report cannot cut orders.
    """

    fail_threshold: int = FAIL_THRESHOLD
    reset_timeout: float = RESET_TIMEOUT
    rules: Sequence[str] = ("consecutive",)
    window: float = 10.0
    window_calls: int = 0
    min_calls: int = 20
    failure_ratio: float = 0.5
    slow_call: float = 0.0
    slow_ratio: float = 0.8
    stuck_calls: int = 0
    probes: int = 1
    probe_timeout: float = 0.0
    reopen_factor: float = 1.0
    reopen_max: float = 60.0
    jitter: float = 0.0
    ramp: float = 0.0
    mode: str = "normal"
    per: str = "target"

    def __post_init__(self) -> None:
        check_integer("fail_threshold", self.fail_threshold, 1)
        check_number("reset_timeout", self.reset_timeout, 0, unit="seconds")
        if not isinstance(self.rules, (list, tuple)) or not self.rules or not set(map(str, self.rules)) <= set(RULES):
            raise SettingsError("rules", self.rules, f"a list of one or both of {', '.join(RULES)}")
        object.__setattr__(self, "rules", tuple(rule for rule in RULES if rule in self.rules))  # as TOML has it: a list
        check_some_seconds("window", self.window)
        check_integer("window_calls", self.window_calls, 0, MAX_WINDOW_CALLS, meaning="0: `window` counts")
        check_integer("min_calls", self.min_calls, 1, MAX_WINDOW_CALLS)
        check_share("failure_ratio", self.failure_ratio)
        check_seconds("slow_call", self.slow_call, meaning="0: no call is slow")
        check_share("slow_ratio", self.slow_ratio)
        check_integer("stuck_calls", self.stuck_calls, 0, MAX_WINDOW_CALLS, meaning="0: off")
        check_integer("probes", self.probes, 1, MAX_PROBES)
        check_seconds("probe_timeout", self.probe_timeout, meaning="0: as any call")
        check_number("reopen_factor", self.reopen_factor, 1, 100)
        check_number("reopen_max", self.reopen_max, 0, unit="seconds")
        check_number("jitter", self.jitter, 0, 1)
        check_seconds("ramp", self.ramp, meaning="0: none")
        check_one_of("mode", self.mode, MODES)
        check_one_of("per", self.per, SCOPES)

    @property
    def is_exact(self) -> bool:
        """Is every wait just reset_timeout?"""
        return self.reopen_factor == 1 and self.jitter == 0


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """What is tried again: only what can do no harm, and never so much that it could hold a target down.

    attempts: in all, the first one too; 1: nothing is tried again.
    base, cap: seconds; the wait before attempt n + 2 is chance, uniform from 0 to the lesser of cap and base x 2^n.
    budget_ratio: tokens that a first attempt earns; a further attempt costs one. Above 0.1 it can amplify an outage.
    budget_min: tokens at the start, so that a few calls can be tried again before many were made.
    """

    attempts: int = 1
    base: float = 0.1
    cap: float = 2.0
    budget_ratio: float = 0.1
    budget_min: int = 10

    def __post_init__(self) -> None:
        check_integer("attempts", self.attempts, 1, MAX_ATTEMPTS)
        check_seconds("base", self.base)
        check_number("cap", self.cap, 0, MAX_SECONDS, unit="seconds")
        check_number("budget_ratio", self.budget_ratio, 0, 1)
        check_integer("budget_min", self.budget_min, 0, MAX_TOKENS)
