"""One short wrapper per decision: ask the kernel, call what is inside, report. Their order is in `stack.py`.

A layer is made with the handler inside it and what it decides by. Called with a Call, it gives the Reply if it
refuses, and else what to await for it: a refusal costs no coroutine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any

from eaimw import codes
from eaimw.circuit import Circuit
from eaimw.errors import CallFailed, LocalFault, TimedOut
from eaimw.kernel.backoff import retry_after
from eaimw.kernel.breaker import Permit, State
from eaimw.kernel.bulkhead import Bulkhead
from eaimw.model import Answer, Call, Reply
from eaimw.replies import answered, failed, refused
from eaimw.target import Handler, Target
from eaimw.verdict import judge_by

Answering = Reply | Coroutine[Any, Any, Reply]


class Deadline:
    """One budget for everything inside, the caller's; and the timeout of each attempt, which it may shorten."""

    def __init__(self, inside: Handler, target: Target) -> None:
        self._inside = inside
        self._target = target
        self._timeout = target.settings.timeout
        self._min_call = target.settings.min_call
        self._of_ops = {op: min(known.timeout, self._timeout) for op, known in target.ops.items() if known.timeout}

    def __call__(self, call: Call) -> Answering:
        timeout = self._timeout
        if self._of_ops:
            timeout = self._of_ops.get(call.tx.op or "", timeout)
        call.timeout = timeout
        if call.tx.timeout_ms is not None:
            left = call.tx.timeout_ms / 1000
            if left < self._min_call or not left:
                return _too_late(self._target, call, left)
            call.budget_end = call.started + left
        begin_attempt(call, call.started)
        return self._inside(call)


def begin_attempt(call: Call, now: float) -> None:
    """The deadline of an attempt: the nearer of its timeout and the end of the caller's budget."""
    call.deadline = now + call.timeout
    call.impatient = call.budget_end < call.deadline
    if call.impatient:
        call.deadline = call.budget_end


class ByOp:
    """Each operation goes through a stack of its own, with its own circuit; places and connections are the target's."""

    def __init__(self, target: Target, build: Callable[[Circuit], Handler]) -> None:
        self._target = target
        self._build = build
        self._stacks: dict[Circuit, Handler] = {}

    def __call__(self, call: Call) -> Answering:
        circuit = self._target.circuit_of(call.tx.op)
        stack = self._stacks.get(circuit)
        if stack is None:
            stack = self._stacks[circuit] = self._build(circuit)
        return stack(call)


class Stuck:
    """Opens the circuit when too many calls have been waiting for too long, without waiting for their timeouts.

    Looked at when somebody asks: until then nobody is harmed. What `Waiting` knows is in the order of its beginning.
    """

    def __init__(self, inside: Handler, target: Target, circuit: Circuit) -> None:
        self._inside = inside
        self._circuit = circuit
        self._now = target.clock.monotonic
        self._calls = target.settings.breaker.stuck_calls
        self._slow = target.settings.breaker.slow_call

    def __call__(self, call: Call) -> Answering:
        waiting = self._circuit.waiting
        if len(waiting) >= self._calls:
            began = next(islice(waiting.values(), self._calls - 1, None))
            if self._now() - began > self._slow:
                self._circuit.breaker.trip(f"{self._calls} calls have been waiting longer than {self._slow:g} s")
        return self._inside(call)


class Waiting:
    """Knows the calls under way, for `Stuck`."""

    def __init__(self, inside: Handler, target: Target, circuit: Circuit) -> None:
        self._inside = inside
        self._waiting = circuit.waiting
        self._now = target.clock.monotonic

    async def __call__(self, call: Call) -> Reply:
        self._waiting[call] = self._now()
        try:
            answer = self._inside(call)
            return answer if isinstance(answer, Reply) else await answer
        finally:
            self._waiting.pop(call, None)


class HeldOpen:
    """Refuses everybody: the circuit is open by its settings."""

    def __init__(self, inside: Handler, target: Target, circuit: Circuit) -> None:
        self._target = target
        self._circuit = circuit

    def __call__(self, call: Call) -> Answering:
        call.state = State.OPEN
        why = f"{self._circuit.name}'s circuit is {self._circuit.standing.why}: not called"
        return _refuse(self._target, call, codes.CIRCUIT_OPEN, why)


class OpenCircuit:
    """Refuses while the circuit is open and its probe not due, before anything is spent."""

    def __init__(self, inside: Handler, target: Target, circuit: Circuit) -> None:
        self._inside = inside
        self._target = target
        self._circuit = circuit
        self._wait = circuit.breaker.wait

    def __call__(self, call: Call) -> Answering:
        wait = self._wait()
        if wait > 0.0:
            return _circuit_open(self._target, self._circuit, call, wait)
        return self._inside(call)


class InflightLimit:
    """The bulkhead: a call holds one place from here to its end, or is refused at once."""

    def __init__(self, inside: Handler, target: Target, circuit: Circuit) -> None:
        self._inside = inside
        self._target = target
        self._circuit = circuit
        self._bulkhead = target.bulkhead

    def __call__(self, call: Call) -> Answering:
        if not self._bulkhead.acquire():
            message = f"{self._target.name} has {self._bulkhead.limit} calls in flight, which is its limit: not called"
            return _full(self._target, self._circuit, call, message)
        return _placed(self._bulkhead, self._inside, call, has_holds=True)


class RampLimit:
    """For a while after the circuit has closed fewer calls may be in flight: a target that comes back is still cold.

    Calls that have timed out count no more here, though the bulkhead holds their places: those of before it opened
    could else leave no room for any call.
    """

    def __init__(self, inside: Handler, target: Target, circuit: Circuit) -> None:
        self._inside = inside
        self._target = target
        self._circuit = circuit
        self._now = target.clock.monotonic
        self._places = circuit.ramped

    def __call__(self, call: Call) -> Answering:
        now = self._now()
        limit = self._circuit.places(now)
        if limit != self._places.limit:
            self._places.resize(limit)
        if not self._places.acquire():
            ago = f"{now - self._circuit.closed_at:.1f} s ago"
            message = f"{self._circuit.name} has closed {ago}, and so far {limit} calls may be in flight: not called"
            return _full(self._target, self._circuit, call, message)
        return _placed(self._places, self._inside, call, has_holds=False)


def _placed(bulkhead: Bulkhead, inside: Handler, call: Call, *, has_holds: bool) -> Answering:
    """What comes of a call that has a place, which it gives back: at its end, or with has_holds when the target too
    has ended or been given up.
    """
    try:
        answer = inside(call)
    except BaseException:
        bulkhead.release()
        raise
    if isinstance(answer, Reply):
        bulkhead.release()
        return answer
    return _held(bulkhead, answer, call, has_holds)


async def _held(bulkhead: Bulkhead, answer: Coroutine[Any, Any, Reply], call: Call, has_holds: bool) -> Reply:
    try:
        return await answer
    finally:
        if call.hold is None or not has_holds:
            bulkhead.release()
        else:
            call.hold.on_end(bulkhead.release)


class Breaker:
    """Innermost gate: it sees what the target did alone, so our refusals can neither open it nor strand a probe."""

    refuses = True

    def __init__(self, inside: Handler, target: Target, circuit: Circuit) -> None:
        self._inside = inside
        self._target = target
        self._circuit = circuit
        self._breaker = circuit.breaker
        self._clock = target.clock
        settings = target.settings.breaker
        self._probe_timeout = settings.probe_timeout
        self._longest_rest = max(settings.reset_timeout, settings.reopen_max)

    def __call__(self, call: Call) -> Answering:
        permit = self._breaker.acquire()
        call.state = self._breaker.state
        if permit is None:  # another thread took the probe's place since OpenCircuit looked
            if self.refuses:
                return _circuit_open(self._target, self._circuit, call, self._breaker.wait())
            self._circuit.would_refuse += 1
            return self._inside(call)
        if self._probe_timeout and permit.is_probe and self.refuses:
            end = self._clock.monotonic() + self._probe_timeout
            if end < call.deadline:
                call.deadline, call.impatient = end, False
        return self._permitted(call, permit)

    async def _permitted(self, call: Call, permit: Permit) -> Reply:
        try:
            answer = self._inside(call)
            return answer if isinstance(answer, Reply) else await answer
        finally:
            # Whatever was raised, the permit ends; where the call says nothing of the target, as nobody's vote.
            if call.sample == "success":
                permit.success(call.took or 0.0)
            elif call.sample == "failure":
                permit.failure(call.took or 0.0, self._rest_wanted(call) if call.retry_after else 0.0)
            else:
                permit.ignore()

    def _rest_wanted(self, call: Call) -> float:
        """What the target asks for in its Retry-After, in seconds: no more than the longest wait of ours."""
        wanted = retry_after(call.retry_after or "", self._clock.time())
        return min(wanted or 0.0, self._longest_rest)


class Shadow(Breaker):
    """A breaker that decides, and refuses nobody: what it would have refused is counted. It shortens no probe."""

    refuses = False


class Exchange:
    """The seam to the transport: one attempt, judged."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._send = target.transport.send
        self._judge = judge_by(target.settings.code_field)
        self._now = target.clock.monotonic
        self._figures = target.figures

    async def __call__(self, call: Call) -> Reply:
        target, figures = self._target, self._figures
        target.attempts += 1
        call.attempts += 1
        call.sample = "none"
        answer: Answer | None = None
        began = self._now()
        try:
            try:
                answer = await self._send(call)
            finally:
                ended = figures.ended(began)
                call.took = ended - began
            call.has_left = True
            verdict = self._judge(answer, call.tx.tx_id)
        except CallFailed as problem:
            call.has_left |= problem.handed_over
            call.retry_after = None if answer is None else answer.retry_after
            # What the hub itself lacks, no asking again mends.
            call.is_final = isinstance(problem, LocalFault) or (answer is not None and _is_final(answer))
            # A call cut by the caller's own budget is no sample: nobody opens a circuit for others by being impatient.
            is_ours = isinstance(problem, LocalFault) or (call.impatient and isinstance(problem, TimedOut))
            reply = failed(problem, call, target.name)
            if not is_ours:
                call.sample = "failure"
                figures.failed(ended, reply.code, str(problem))
            return reply
        call.sample = verdict.rule.sample
        # Noted before the breaker hears of it: where it changes its state, this is the call that was why.
        if call.sample == "success":
            figures.success_at, figures.success_code = ended, verdict.code
        else:
            figures.failed(ended, verdict.code)
            call.retry_after, call.is_final = answer.retry_after, _is_final(answer)
        if not verdict.rule.is_known:
            target.unknown_codes += 1
        return answered(verdict, call, target.name, target.random)


def _is_final(answer: Answer) -> bool:
    """Has the target said that the request is at fault, so that it would say so again?"""
    return 400 <= answer.status < 500 and answer.status != 429


def _circuit_open(target: Target, circuit: Circuit, call: Call, wait: float) -> Reply:
    call.state = circuit.breaker.state
    return _refuse(target, call, codes.CIRCUIT_OPEN, f"{circuit.name}'s circuit is open: not called", wait)


def _full(target: Target, circuit: Circuit, call: Call, message: str) -> Reply:
    call.state = circuit.standing.state
    return _refuse(target, call, codes.FULL, message)


def _too_late(target: Target, call: Call, left: float) -> Reply:
    call.state = target.standing.state
    message = f"{left * 1000:g} ms are left of the caller's budget, and a call needs {target.settings.min_call:g} s"
    return _refuse(target, call, codes.TOO_LATE, message + ": not called")


def _refuse(target: Target, call: Call, code: str, message: str, wait: float = math.inf) -> Reply:
    return refused(
        code, message, target.random, tx_id=call.tx.tx_id, target=target.name, attempts=call.attempts, wait=wait
    )
