"""One short wrapper per decision: ask the kernel, call what is inside, report. Their order is in `stack.py`.

A layer is made with the handler inside it and its target. Called with a Call, it gives the Reply if it refuses, and
else what to await for it: a refusal costs no coroutine.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine
from typing import Any

from eaimw import codes
from eaimw.errors import CallFailed, LocalFault, TimedOut
from eaimw.kernel.breaker import Permit
from eaimw.model import Call, Reply
from eaimw.replies import answered, failed, refused
from eaimw.target import Handler, Target
from eaimw.verdict import judge_by


class Deadline:
    """One budget for everything inside: the nearer of the target's timeout and what the caller gives."""

    def __init__(self, inside: Handler, target: Target) -> None:
        self._inside = inside
        self._timeout = target.settings.timeout

    def __call__(self, call: Call) -> Reply | Coroutine[Any, Any, Reply]:
        budget = self._timeout
        if call.tx.timeout_ms is not None and call.tx.timeout_ms < budget * 1000:
            budget = call.tx.timeout_ms / 1000
            call.impatient = True
        call.deadline = call.started + budget
        return self._inside(call)


class OpenCircuit:
    """Refuses while the circuit is open and its probe not due, before anything is spent."""

    def __init__(self, inside: Handler, target: Target) -> None:
        self._inside = inside
        self._target = target
        self._wait = target.breaker.wait

    def __call__(self, call: Call) -> Reply | Coroutine[Any, Any, Reply]:
        wait = self._wait()
        if wait > 0.0:
            return _circuit_open(self._target, call, wait)
        return self._inside(call)


class InflightLimit:
    """The bulkhead: a call holds one place from here to its end, or is refused at once."""

    def __init__(self, inside: Handler, target: Target) -> None:
        self._inside = inside
        self._target = target
        self._bulkhead = target.bulkhead

    def __call__(self, call: Call) -> Reply | Coroutine[Any, Any, Reply]:
        if not self._bulkhead.acquire():
            message = f"{self._target.name} has {self._bulkhead.limit} calls in flight, which is its limit: not called"
            return _refuse(self._target, call, codes.FULL, message)
        try:
            answer = self._inside(call)
        except BaseException:
            self._bulkhead.release()
            raise
        if isinstance(answer, Reply):
            self._bulkhead.release()
            return answer
        return self._held(answer)

    async def _held(self, answer: Coroutine[Any, Any, Reply]) -> Reply:
        try:
            return await answer
        finally:
            self._bulkhead.release()


class Breaker:
    """Innermost gate: it sees what the target did alone, so our refusals can neither open it nor strand a probe."""

    def __init__(self, inside: Handler, target: Target) -> None:
        self._inside = inside
        self._target = target
        self._breaker = target.breaker

    def __call__(self, call: Call) -> Reply | Coroutine[Any, Any, Reply]:
        permit = self._breaker.acquire()
        if permit is None:  # another thread took the probe's place since OpenCircuit looked
            return _circuit_open(self._target, call, self._breaker.wait())
        call.state = self._breaker.state
        return self._permitted(call, permit)

    async def _permitted(self, call: Call, permit: Permit) -> Reply:
        try:
            answer = self._inside(call)
            return answer if isinstance(answer, Reply) else await answer
        finally:
            # Whatever was raised, the permit ends; where the call says nothing of the target, as nobody's vote.
            if call.sample == "success":
                permit.success()
            elif call.sample == "failure":
                permit.failure()
            else:
                permit.ignore()


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
            call.has_left = problem.handed_over
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
        if not verdict.rule.is_known:
            target.unknown_codes += 1
        return answered(verdict, call, target.name, target.random)


def _circuit_open(target: Target, call: Call, wait: float) -> Reply:
    return _refuse(target, call, codes.CIRCUIT_OPEN, f"{target.name}'s circuit is open: not called", wait)


def _refuse(target: Target, call: Call, code: str, message: str, wait: float = math.inf) -> Reply:
    call.state = target.breaker.state
    return refused(
        code, message, target.random, tx_id=call.tx.tx_id, target=target.name, attempts=call.attempts, wait=wait
    )
