"""A circuit breaker in one file: standard library only, Python 3.9 and later.

While a target is ill, calling it only makes callers wait. The breaker counts consecutive failures; at the
threshold it opens and says no at once; after a rest it lets one call through, the probe, whose answer decides.

    breaker = CircuitBreaker(failure_threshold=5, reset_timeout=10)

    permit = breaker.acquire()          # the face that cannot be misread
    if permit is None:
        ...                             # refuse at once, do not call
    else:
        try:
            answer = call_the_target()
        except TargetError:
            permit.failure()
        except BaseException:
            permit.ignore()             # says nothing about the target
            raise
        else:
            permit.success()

`allow()`, `record_success()` and `record_failure()` are the same machine for callers that keep no permit.
It decides and nothing else: it never waits, calls the target, or keeps a timer. OPEN ends when someone asks.

Rules of your own may open it beside the count, several probes may be asked for, and the wait may grow with each
reopening: `rules`, `probes`, `rest`. Left out they cost nothing.

The machine, whole. `TABLE` is what the tests run it against and what the README's diagram is made from:

    state      event                      next state   answer or effect
    ---------  -------------------------  -----------  ---------------------------------------------------
    CLOSED     ask                        CLOSED       yes
    CLOSED     success                    CLOSED       the count of consecutive failures goes to 0
    CLOSED     failure                    CLOSED       count + 1
    CLOSED     failure, the threshold-th  OPEN         the wait starts: opened_at = now
    CLOSED     an end, and a rule opens   OPEN         the same
    CLOSED     trip                       OPEN         the same
    OPEN       ask, wait not over         OPEN         no
    OPEN       ask, wait over             HALF_OPEN    yes: this call is the probe
    OPEN       success                    OPEN         nothing: a late answer
    OPEN       failure                    OPEN         nothing: a late answer; the wait is not lengthened
    OPEN       trip                       OPEN         nothing
    HALF_OPEN  ask, probe out             HALF_OPEN    no
    HALF_OPEN  ask, probe's place free    HALF_OPEN    yes: one of several, or one was ignored, or its lease is over
    HALF_OPEN  success, probes missing    HALF_OPEN    one less is missing
    HALF_OPEN  success                    CLOSED       none is missing; the count starts at 0
    HALF_OPEN  failure                    OPEN         the wait starts anew
    HALF_OPEN  trip                       HALF_OPEN    nothing: the probes decide
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections import deque
from enum import Enum
from typing import Callable, NamedTuple, Optional, Protocol, Sequence

__all__ = ["CHANGES", "TABLE", "Change", "CircuitBreaker", "Permit", "Rule", "State"]


class State(str, Enum):
    """What a breaker is in; equal to, printed as and formatted as its name."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"

    def __str__(self) -> str:
        return self.value

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


CLOSED, OPEN, HALF_OPEN = State.CLOSED, State.OPEN, State.HALF_OPEN

# (state, event) -> next state; the events are named as in the table above.
TABLE = {
    (CLOSED, "ask"): CLOSED,
    (CLOSED, "success"): CLOSED,
    (CLOSED, "failure"): CLOSED,
    (CLOSED, "failure, the threshold-th"): OPEN,
    (CLOSED, "an end, and a rule opens"): OPEN,
    (CLOSED, "trip"): OPEN,
    (OPEN, "ask, wait not over"): OPEN,
    (OPEN, "ask, wait over"): HALF_OPEN,
    (OPEN, "success"): OPEN,
    (OPEN, "failure"): OPEN,
    (OPEN, "trip"): OPEN,
    (HALF_OPEN, "ask, probe out"): HALF_OPEN,
    (HALF_OPEN, "ask, probe's place free"): HALF_OPEN,
    (HALF_OPEN, "success, probes missing"): HALF_OPEN,
    (HALF_OPEN, "success"): CLOSED,
    (HALF_OPEN, "failure"): OPEN,
    (HALF_OPEN, "trip"): HALF_OPEN,
}

# The changes of state that can happen, as (from, to).
CHANGES = tuple(dict.fromkeys((state, after) for (state, _), after in TABLE.items() if state is not after))


class Change(NamedTuple):
    """One change of state. `at` is what the breaker's clock showed when the deciding call asked it.

    A change to CLOSED has None there: the answer of a probe needs no clock. why: the words of the rule that opened it,
    or of who tripped it; else None.
    """

    before: State
    after: State
    at: Optional[float]
    why: Optional[str] = None


class Rule(Protocol):
    """Opens a CLOSED breaker by what it sees of the calls that end.

    The breaker asks it under its lock: it decides at once, and does not use the breaker.
    """

    why: str  # after a True: the reason, in a few words

    def ended(self, now: float, failed: bool, seconds: float) -> bool:
        """A call has ended, at `now`, after `seconds`. True: open."""

    def clear(self) -> None:
        """The breaker changes its state: what was seen before counts no more."""


class _Generation:
    """The time between two changes of state, with what is known only in it.

    A permit belongs to one of these. When the breaker has moved on, the object is no longer the breaker's, so an
    answer that comes late cannot be taken for one of now. There is no number that could wrap or be confused.
    """

    __slots__ = ("at_least", "began_at", "failures", "missing", "places", "reopened", "rest", "state")

    def __init__(self, state: State, began_at: float, reopened: int, probes: int) -> None:
        self.state = state
        self.began_at = began_at  # OPEN: when the wait began; HALF_OPEN: when a probe last got its yes
        self.reopened = reopened  # times that it has opened again since it was CLOSED
        # CLOSED: consecutive ones. Else -1, so that one look tells whether a success means anything.
        self.failures = 0 if state is CLOSED else -1
        self.rest: Optional[float] = None  # OPEN: seconds; None: the breaker's reset_timeout
        self.at_least = 0.0  # OPEN: seconds below which it does not end
        self.places = probes - 1  # HALF_OPEN: probes that may still pass, whoever began it being one
        self.missing = probes  # HALF_OPEN: successes that are still to come


class Permit:
    """A yes of the breaker. End it once, with `success()`, `failure()` or `ignore()`; a second end does nothing.

    It is good for the generation in which it was given: after any change of state its answer changes nothing.
    """

    __slots__ = ("_breaker", "_generation")

    def __init__(self, breaker: CircuitBreaker, generation: _Generation) -> None:
        self._breaker = breaker
        self._generation = generation

    @property
    def is_probe(self) -> bool:
        """Was it given in HALF_OPEN? False once it has ended."""
        generation: Optional[_Generation] = getattr(self, "_generation", None)
        return generation is not None and generation.state is HALF_OPEN

    def success(self, seconds: float = 0.0) -> None:
        """The target answered, be it with a denial. seconds: how long the call took, for the rules."""
        generation = self._end()
        if generation is not None and (generation.failures or self._breaker.rules):
            self._breaker._succeed(generation, seconds)

    def failure(self, seconds: float = 0.0, at_least: float = 0.0) -> None:
        """The target failed, or did not answer. at_least: seconds that it wants to be left alone, if this opens."""
        generation = self._end()
        if generation is not None:
            self._breaker._fail(generation, seconds, at_least)

    def ignore(self) -> None:
        """The call says nothing about the target. A probe's place becomes free; nobody has voted."""
        generation = self._end()
        if generation is not None and generation.state is HALF_OPEN:
            self._breaker._free_place(generation)

    def _end(self) -> Optional[_Generation]:
        """Its generation, once; then None."""
        try:
            generation = self._generation
            del self._generation  # of two threads that end it together only one gets past this
        except AttributeError:
            return None
        return generation


class CircuitBreaker:
    """Opens after consecutive failures, refuses while it is open, closes by good probes.

    failure_threshold: consecutive failures that open it; an int >= 1.
    reset_timeout: seconds it stays OPEN before a probe may pass; finite, >= 0 (0: the next call is the probe).
    clock: seconds as a float, monotonic. Time is read only through it, outside the lock, at most once per call.
    probes: calls that may pass in HALF_OPEN, at once and in all; all must succeed, the first failure opens again.
    probe_lease: seconds after the last probe's yes after which, if all are out, they are asked for anew, so that a
        lost permit cannot keep the breaker half-open for ever; their late answers change nothing. None: a probe has
        all the time it wants. Choose it longer than the longest call.
    rules: what opens it beside the count; each sees every call that ends while it is CLOSED.
    rest: seconds to stay OPEN, asked for at each opening with the times that it has opened again since it was CLOSED
        (0, 1, ...). None: always reset_timeout.
    on_change: called with each `Change`, in order, one at a time, outside the lock (in whichever thread is free
        to do it). What it raises goes to `sys.excepthook`, which shows it: a listener cannot harm a call.

    All verbs are safe to call from any number of threads. Raises ValueError for an argument out of range. What is
    given is public, and may be changed while it runs. What a rule or `rest` raises goes to the caller whose verb asked
    it, and the state stays; if it was a probe's answer, another probe may pass.
    """

    def __init__(
        self,
        failure_threshold: int,
        reset_timeout: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        probes: int = 1,
        probe_lease: Optional[float] = None,
        rules: Sequence[Rule] = (),
        rest: Optional[Callable[[int], float]] = None,
        on_change: Optional[Callable[[Change], object]] = None,
    ) -> None:
        lease_is_right = probe_lease is None or (_is_seconds(probe_lease) and probe_lease > 0)
        _check("failure_threshold", failure_threshold, _is_count(failure_threshold), "an int of at least 1")
        _check("reset_timeout", reset_timeout, _is_seconds(reset_timeout), "a finite number of seconds of at least 0")
        _check("clock", clock, callable(clock), "a function that returns seconds")
        _check("probes", probes, _is_count(probes), "an int of at least 1")
        _check("probe_lease", probe_lease, lease_is_right, "None or a finite number of seconds above 0")
        _check("rest", rest, rest is None or callable(rest), "None or a function that returns seconds")
        self.failure_threshold = failure_threshold
        self.reset_timeout = reset_timeout
        self.clock = clock
        self.probes = probes
        self.probe_lease = probe_lease
        self.rules: Sequence[Rule] = tuple(rules)
        self.rest = rest
        self.on_change = on_change
        self._now = _Generation(CLOSED, 0.0, 0, probes)
        self._lock = threading.Lock()
        self._changes: deque[Change] = deque()
        self._publishing = threading.Lock()

    def __repr__(self) -> str:
        return f"<CircuitBreaker {self.state} {self.failure_threshold} failures, {self.reset_timeout} s>"

    @property
    def state(self) -> State:
        """CLOSED, OPEN or HALF_OPEN. Reading it reads no clock and changes nothing."""
        return self._now.state

    @property
    def failures(self) -> int:
        """Consecutive failures counted while CLOSED."""
        return max(0, self._now.failures)

    def wait(self) -> float:
        """Seconds until a call may pass: 0.0 at once; math.inf while all probes are out. Changes nothing."""
        generation = self._now
        if generation.state is CLOSED:
            return 0.0
        now = self.clock()
        if generation.state is OPEN:
            return max(0.0, generation.began_at + self._rest_of(generation) - now)
        return 0.0 if generation.places or self._is_lease_over(generation, now) else math.inf

    def allow(self) -> bool:
        """May this call pass? A True in HALF_OPEN is a probe, and must be reported."""
        if self._now.state is CLOSED:  # no lock: the answer may be as old as a lock would make it
            return True
        return self._ask() is not None

    def record_success(self) -> None:
        """The call that was let through got an answer."""
        generation = self._now
        if generation.failures or self.rules:
            self._succeed(generation)

    def record_failure(self) -> None:
        """The call that was let through failed."""
        self._fail(self._now)

    def trip(self, why: str) -> None:
        """Open it if it is CLOSED, for what no call that has ended can tell, such as that many hang."""
        now = self.clock()
        with self._lock:
            if self._now.state is CLOSED:
                self._move(OPEN, now, why)
        self._publish()

    def acquire(self) -> Optional[Permit]:
        """A permit for one call, or None: do not call."""
        generation = self._now
        if generation.state is CLOSED:
            return Permit(self, generation)
        probe = self._ask()
        return None if probe is None else Permit(self, probe)

    # The private verbs below are the table; each decides under the lock and publishes outside it.

    def _ask(self) -> Optional[_Generation]:
        """The generation in which the call may pass, or None."""
        now = self.clock()
        with self._lock:
            generation = self._now
            if generation.state is CLOSED:
                return generation
            if generation.state is OPEN:
                # In this form: now - began_at >= rest misses exact steps in floating point.
                if not now >= generation.began_at + self._rest_of(generation):
                    return None
                probe = self._move(HALF_OPEN, now)
            elif generation.places:
                generation.places -= 1
                generation.began_at = max(now, generation.began_at)  # of two, the later look at the clock
                probe = generation
            elif self._is_lease_over(generation, now):
                # A generation of its own, so that the answers of the probes before it come too late.
                probe = self._now = _Generation(HALF_OPEN, now, generation.reopened, self.probes)
            else:
                return None
        try:
            self._publish()
        except BaseException:  # the caller never gets its yes, so nobody will report
            self._free_place(probe)
            raise
        return probe

    def _succeed(self, generation: _Generation, seconds: float = 0.0) -> None:
        if generation.state is OPEN:
            return
        rules = self.rules
        now = self.clock() if rules else 0.0
        with self._lock:
            if generation is not self._now:
                return
            if generation.state is CLOSED:
                why = _why_opens(rules, now, False, seconds) if rules else None
                generation.failures = 0
                if why is not None:
                    self._move(OPEN, now, why)
            elif generation.missing > 1:
                generation.missing -= 1
            else:
                self._move(CLOSED, None)
        self._publish()

    def _fail(self, generation: _Generation, seconds: float = 0.0, at_least: float = 0.0) -> None:
        if generation.state is OPEN:
            return
        rules = self.rules
        now = self.clock()
        with self._lock:
            if generation is not self._now:
                return
            why = None
            if generation.state is CLOSED:
                why = _why_opens(rules, now, True, seconds) if rules else None
                generation.failures += 1
                if why is None and generation.failures < self.failure_threshold:
                    return
            self._move(OPEN, now, why, at_least)
        self._publish()

    def _free_place(self, generation: _Generation) -> None:
        with self._lock:
            generation.places += 1  # if the generation is over, nobody looks

    def _move(
        self, state: State, now: Optional[float], why: Optional[str] = None, at_least: float = 0.0
    ) -> _Generation:
        """Start a new generation. The lock is held."""
        before, rest = self._now, self.rest
        reopened = 0 if state is CLOSED else before.reopened + (before.state is HALF_OPEN)
        # Made whole before it is seen: `wait` and `state` look without the lock.
        after = _Generation(state, 0.0 if now is None else now, reopened, self.probes)
        after.at_least = at_least
        try:
            if state is OPEN and rest is not None:
                after.rest = rest(reopened)
            for rule in self.rules:
                rule.clear()
        except BaseException:
            before.places += 1  # if this was a probe's answer, it is lost
            raise
        if self.on_change is not None:
            self._changes.append(Change(before.state, state, now, why))
        self._now = after
        return after

    def _rest_of(self, generation: _Generation) -> float:
        return max(self.reset_timeout if generation.rest is None else generation.rest, generation.at_least)

    def _is_lease_over(self, generation: _Generation, now: float) -> bool:
        lease = self.probe_lease
        return lease is not None and now >= generation.began_at + lease

    def _publish(self) -> None:
        """Hand out what was recorded: in order, one at a time, and never while the lock is held.

        Whoever finds the baton free hands out for all; the outer loop sees a change that was recorded between
        another thread's last look and its putting the baton down.
        """
        while self._changes and self._publishing.acquire(blocking=False):
            try:
                while self._changes:
                    self._tell(self._changes.popleft())
            finally:
                self._publishing.release()

    def _tell(self, change: Change) -> None:
        listener = self.on_change
        if listener is None:
            return
        try:
            listener(change)
        except Exception as problem:
            # Told as what nobody has caught: it is nobody's fault but the listener's.
            with contextlib.suppress(Exception):
                sys.excepthook(type(problem), problem, problem.__traceback__)


def _why_opens(rules: Sequence[Rule], now: float, failed: bool, seconds: float) -> Optional[str]:
    """The words of the first rule that opens on this end of a call. Every rule sees it."""
    words = [rule.why for rule in rules if rule.ended(now, failed, seconds)]
    return words[0] if words else None


def _check(name: str, value: object, is_right: bool, right: str) -> None:
    if not is_right:
        raise ValueError(f"{name} must be {right}, not {_shown(value)}")


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_seconds(value: object) -> bool:
    """Is it a finite int or float >= 0 (a bool is not a number here) that fits a float?"""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value) and value >= 0
    except OverflowError:  # an int such as 10**400
        return False


def _shown(value: object) -> str:
    """repr, also for an int too long for Python to print, and cut to what a message can carry."""
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 100 else text[:97] + "..."
