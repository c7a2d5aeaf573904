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

Beside the count of failures in a row, rules of your own may open it, more probes than one be asked for, and the wait
grow with each reopening: `rules`, `probes`, `rest`. Left out they cost nothing.

The machine, whole. `TABLE` is what the tests run it against and what the README's diagram is made from:

    state      event                      next state   answer or effect
    ---------  -------------------------  -----------  ---------------------------------------------------
    CLOSED     ask                        CLOSED       yes
    CLOSED     success                    CLOSED       the count of consecutive failures goes to 0
    CLOSED     failure                    CLOSED       count + 1
    CLOSED     failure, the threshold-th  OPEN         the wait starts: opened_at = now
    CLOSED     an end, and a rule opens   OPEN         the same
    CLOSED     trip                       OPEN         the same: somebody has seen what no end has told yet
    OPEN       ask, wait not over         OPEN         no
    OPEN       ask, wait over             HALF_OPEN    yes: this call is the probe
    OPEN       success                    OPEN         nothing: a late answer
    OPEN       failure                    OPEN         nothing: a late answer; the wait is not lengthened
    HALF_OPEN  ask, probe out             HALF_OPEN    no
    HALF_OPEN  ask, probe's place free    HALF_OPEN    yes: one of several, or one was ignored, or its lease is over
    HALF_OPEN  success, probes missing    HALF_OPEN    one probe less is missing
    HALF_OPEN  success                    CLOSED       the last probe that was missing; the count starts at 0
    HALF_OPEN  failure                    OPEN         the wait starts anew
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
    (HALF_OPEN, "ask, probe out"): HALF_OPEN,
    (HALF_OPEN, "ask, probe's place free"): HALF_OPEN,
    (HALF_OPEN, "success, probes missing"): HALF_OPEN,
    (HALF_OPEN, "success"): CLOSED,
    (HALF_OPEN, "failure"): OPEN,
}

# The changes of state that can happen, as (from, to).
CHANGES = tuple(dict.fromkeys((state, after) for (state, _), after in TABLE.items() if state is not after))


class Change(NamedTuple):
    """One change of state. `at` is what the breaker's clock showed when the deciding call asked it.

    A change to CLOSED has None there: the answer of a probe reads no clock. why: the words of the rule, or of who
    tripped it; None: the table says it all.
    """

    before: State
    after: State
    at: Optional[float]
    why: Optional[str] = None


class Rule(Protocol):
    """Opens a CLOSED breaker by what it sees of the calls that end. The breaker calls it under its lock."""

    why: str  # after a True: the reason, in a few words

    def ended(self, now: float, failed: bool, seconds: float) -> bool:
        """A call has ended, at `now`, after `seconds`. True: open."""

    def clear(self) -> None:
        """The breaker has changed its state: what was seen before counts no more."""


class _Generation:
    """The time between two changes of state, with what is known only in it.

    A permit belongs to one of these. When the breaker has moved on, the object is no longer the breaker's, so an
    answer that comes late cannot be taken for one of now. There is no number that could wrap or be confused.
    """

    __slots__ = ("began_at", "failures", "missing", "places", "reopened", "rest", "state")

    def __init__(self, state: State, began_at: float) -> None:
        self.state = state
        self.began_at = began_at  # OPEN: when the wait began; HALF_OPEN: when a probe last got its yes
        self.failures = 0  # CLOSED: consecutive ones
        self.rest: Optional[float] = None  # OPEN: seconds; None: the breaker's reset_timeout
        self.places = 0  # HALF_OPEN: probes that may still pass
        self.missing = 0  # HALF_OPEN: good answers that are still to come
        self.reopened = 0  # times that it opened again since it was CLOSED


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
        if generation is not None and (generation.failures or generation.state is not CLOSED or self._breaker.rules):
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
    """Opens after consecutive failures, refuses while it is open, closes by one good probe.

    failure_threshold: consecutive failures that open it; an int >= 1.
    reset_timeout: seconds it stays OPEN before a probe may pass; finite, >= 0 (0: the next call is the probe).
    clock: seconds as a float, monotonic. Time is read only through it, outside the lock, at most once per call.
    probes: calls that may pass in HALF_OPEN, at once and in all; all must succeed, the first failure opens again.
    probe_lease: seconds after which probes that have not reported lose their places, so that a lost permit cannot
        keep the breaker half-open for ever; their late answers change nothing. None: a probe has all the time it
        wants. Choose it longer than the longest call.
    rules: what opens it beside the count; each sees every call that ends while it is CLOSED.
    rest: seconds to stay OPEN, asked at each opening with the times that it has opened again since it was CLOSED.
        None: always reset_timeout.
    on_change: called with each `Change`, in order, one at a time, outside the lock (in whichever thread is free
        to do it). What it raises goes to `sys.excepthook`, which shows it: a listener cannot harm a call.

    All verbs are safe to call from any number of threads. Raises ValueError for an argument out of range. What is
    given is public, and may be changed while it runs.
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
        for name, value in (("failure_threshold", failure_threshold), ("probes", probes)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be an int of at least 1, not {_shown(value)}")
        if not _is_seconds(reset_timeout):
            raise ValueError(
                f"reset_timeout must be a finite number of seconds of at least 0, not {_shown(reset_timeout)}"
            )
        if not callable(clock):
            raise ValueError(f"clock must be a function that returns seconds, not {_shown(clock)}")
        if probe_lease is not None and not (_is_seconds(probe_lease) and probe_lease > 0):
            raise ValueError(
                f"probe_lease must be None or a finite number of seconds above 0, not {_shown(probe_lease)}"
            )
        self.failure_threshold = failure_threshold
        self.reset_timeout = reset_timeout
        self.clock = clock
        self.probes = probes
        self.probe_lease = probe_lease
        self.rules = rules
        self.rest = rest
        self.on_change = on_change
        self._now = _Generation(CLOSED, 0.0)
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
        return self._now.failures

    def wait(self) -> float:
        """Seconds until a call may pass: 0.0 at once; math.inf while a probe is out. Changes nothing."""
        generation = self._now
        if generation.state is CLOSED:
            return 0.0
        now = self.clock()
        if generation.state is OPEN:
            return max(0.0, generation.began_at + self._rest_of(generation) - now)
        return 0.0 if generation.places or self._is_lease_over(generation, now) else math.inf

    def allow(self) -> bool:
        """May this call pass? A True in HALF_OPEN is the one probe, and must be reported."""
        if self._now.state is CLOSED:  # no lock: the answer may be as old as a lock would make it
            return True
        return self._ask() is not None

    def record_success(self) -> None:
        """The call that was let through got an answer."""
        generation = self._now
        if generation.failures or generation.state is not CLOSED or self.rules:
            self._succeed(generation)

    def record_failure(self) -> None:
        """The call that was let through failed."""
        self._fail(self._now)

    def trip(self, why: str) -> None:
        """Open it if it is CLOSED, for a reason that no call that has ended could tell, as calls that hang."""
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
                # In this form: now - opened_at >= reset_timeout misses exact steps in floating point.
                if not now >= generation.began_at + self._rest_of(generation):
                    return None
                probe = self._move(HALF_OPEN, now)
            elif generation.places:
                generation.places -= 1
                generation.began_at = now
                probe = generation
            elif self._is_lease_over(generation, now):
                # A generation of its own, so that the answers of the probes before it come too late.
                probe = self._now = self._half_open(now, generation.reopened)
            else:
                return None
        try:
            self._publish()
        except BaseException:  # the caller never gets its yes, so nobody will report
            self._free_place(probe)
            raise
        return probe

    def _succeed(self, generation: _Generation, seconds: float = 0.0) -> None:
        now = self.clock() if self.rules else 0.0
        with self._lock:
            if generation is not self._now:
                return
            if generation.state is CLOSED:
                generation.failures = 0
                why = self._why_opens(now, False, seconds)
                if why is not None:
                    self._move(OPEN, now, why)
            elif generation.state is HALF_OPEN:
                generation.missing -= 1
                if not generation.missing:
                    self._move(CLOSED, None)
        self._publish()

    def _fail(self, generation: _Generation, seconds: float = 0.0, at_least: float = 0.0) -> None:
        if generation.state is OPEN:
            return
        now = self.clock()
        with self._lock:
            if generation is not self._now:
                return
            why = None
            if generation.state is CLOSED:
                generation.failures += 1
                why = self._why_opens(now, True, seconds)
                if why is None and generation.failures < self.failure_threshold:
                    return
            self._move(OPEN, now, why, at_least)
        self._publish()

    def _free_place(self, generation: _Generation) -> None:
        with self._lock:
            if generation is self._now:
                generation.places += 1

    def _move(
        self, state: State, now: Optional[float], why: Optional[str] = None, at_least: float = 0.0
    ) -> _Generation:
        """Start a new generation. The lock is held."""
        before = self._now
        if self.on_change is not None:
            self._changes.append(Change(before.state, state, now, why))
        for rule in self.rules:
            rule.clear()
        # Made whole before it is seen: `wait` and `state` look without the lock.
        if state is HALF_OPEN and now is not None:
            generation = self._half_open(now, before.reopened)
        else:
            generation = _Generation(state, 0.0 if now is None else now)
            if state is OPEN:
                generation.reopened = before.reopened + (before.state is HALF_OPEN)
                rest = None if self.rest is None else self.rest(generation.reopened)
                if at_least > (self.reset_timeout if rest is None else rest):
                    rest = at_least
                generation.rest = rest
        self._now = generation
        return generation

    def _half_open(self, now: float, reopened: int) -> _Generation:
        """With one place taken, by whoever asked."""
        generation = _Generation(HALF_OPEN, now)
        generation.missing = self.probes
        generation.places = self.probes - 1
        generation.reopened = reopened
        return generation

    def _why_opens(self, now: float, failed: bool, seconds: float) -> Optional[str]:
        """The words of a rule that opens on this end of a call. Every rule sees it."""
        words = [rule.why for rule in self.rules if rule.ended(now, failed, seconds)]
        return words[0] if words else None

    def _rest_of(self, generation: _Generation) -> float:
        return self.reset_timeout if generation.rest is None else generation.rest

    def _is_lease_over(self, generation: _Generation, now: float) -> bool:
        return self.probe_lease is not None and now >= generation.began_at + self.probe_lease

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
