"""The layer that tries again: what can do no harm, within the caller's budget and the target's, never for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from eaimw import codes
from eaimw.kernel.backoff import full_jitter, retry_after
from eaimw.layers import Answering, begin_attempt
from eaimw.model import Call, Reply
from eaimw.target import Handler, Target


class Retry:
    """Decides on a finished attempt. A refusal of our own ends it, so an open circuit is never hammered.

    The reply is that of the last attempt that was made. Its outcome is no more certain than all of them together:
    `not_sent` only if none may have been received.
    """

    def __init__(self, inside: Handler, target: Target) -> None:
        self._inside = inside
        self._target = target
        self._settings = target.settings.retry
        self._min_call = target.settings.min_call
        self._repeatable = {op for op, known in target.ops.items() if known.may_repeat}
        self._random = target.random.random
        self._clock = target.clock

    def __call__(self, call: Call) -> Answering:
        answer = self._inside(call)
        return answer if isinstance(answer, Reply) else self._retrying(call, answer)

    async def _retrying(self, call: Call, answer: Coroutine[Any, Any, Reply]) -> Reply:
        budget = self._target.budget
        reply = await answer
        if call.has_left:
            budget.earn()
        while True:
            wait = self._wait_before_another(call, reply)
            if wait is None or not budget.spend():
                return reply
            another = await self._after(wait, call)
            if another is None:
                return reply
            was_unknown = reply.outcome == "unknown"
            reply = await another
            if was_unknown and reply.outcome == "not_sent":
                reply.outcome, reply.retryable = "unknown", False

    def _wait_before_another(self, call: Call, reply: Reply) -> float | None:
        """Seconds; None: there will be no other attempt."""
        settings = self._settings
        if reply.code not in codes.FAILURES or call.is_final or call.attempts >= settings.attempts:
            return None
        if reply.outcome in ("done", "accepted"):  # so says a hub behind this one, whatever else went wrong there
            return None
        tx = call.tx
        may_repeat = tx.idempotency_key is not None or tx.op in self._repeatable
        if not may_repeat and not (reply.code == codes.NO_CONNECTION and reply.outcome == "not_sent"):
            return None
        wait = full_jitter(settings.base, settings.cap, call.attempts - 1, self._random())
        if call.retry_after is not None:
            wait = max(wait, retry_after(call.retry_after, self._clock.time()) or 0.0)
        # Where the caller gave no budget a target could else make it wait for as long as it likes.
        end = min(call.budget_end, call.started + settings.attempts * (call.timeout + settings.cap))
        return wait if self._clock.monotonic() + wait + self._min_call <= end else None

    async def _after(self, wait: float, call: Call) -> Coroutine[Any, Any, Reply] | None:
        """Another attempt, for a token that was paid; None, and the token is back, if there is to be none."""
        another: Answering | None = None
        state = call.state
        try:
            await asyncio.sleep(wait)
            now = self._clock.monotonic()
            has_gone = call.caller is not None and call.caller.has_gone
            if not has_gone and now + self._min_call <= call.budget_end:
                begin_attempt(call, now)
                call.hold = None  # the earlier attempt's place comes back by its own
                another = self._inside(call)
        finally:
            if another is None or isinstance(another, Reply):
                self._target.budget.give_back()
        if another is None or isinstance(another, Reply):
            call.state = state  # of the attempt that is answered for
            return None
        self._target.retries += 1
        return another
