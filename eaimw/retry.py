"""The layer that tries again: what can do no harm, within the caller's budget and the target's, never for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from eaimw import codes
from eaimw.kernel.backoff import full_jitter, retry_after
from eaimw.layers import Answering, begin_attempt
from eaimw.model import Call, Reply
from eaimw.policy import RetrySettings
from eaimw.target import Handler, Target


class Retry:
    """Decides on a finished attempt. A refusal of our own ends it, so an open circuit is never hammered.

    The reply is that of the last attempt that was made. Its outcome is no more certain than all of them together:
    `not_sent` only if none may have been received. A further attempt is one by the settings that are in force then.
    """

    def __init__(self, inside: Handler, target: Target) -> None:
        self._inside = inside
        self._target = target
        self._random = target.random.random
        self._clock = target.clock

    @property
    def _settings(self) -> RetrySettings:
        return self._target.settings.retry

    @property
    def _min_call(self) -> float:
        return self._target.settings.min_call

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
            another = await self._after(wait, call, reply)
            if another is None:
                return reply
            was_unknown = reply.outcome == "unknown"
            reply = await another
            if was_unknown and reply.outcome == "not_sent":
                reply.outcome, reply.retryable = "unknown", False

    def _wait_before_another(self, call: Call, reply: Reply) -> float | None:
        """Seconds; None: there will be no other attempt."""
        settings = self._settings
        if reply.code not in codes.FAILURES or call.is_final:
            return None
        if reply.outcome in ("done", "accepted"):  # so says a hub behind this one, whatever else went wrong there
            return None
        if not self._may_repeat(call, reply):
            return None
        wait = full_jitter(settings.base, settings.cap, call.attempts - 1, self._random())
        if call.retry_after is not None:
            wait = max(wait, retry_after(call.retry_after, self._clock.time()) or 0.0)
        # Where the caller gave no budget a target could else make it wait for as long as it likes.
        end = min(call.budget_end, call.started + settings.attempts * (call.timeout + settings.cap))
        return wait if self._clock.monotonic() + wait + self._min_call <= end else None

    def _may_repeat(self, call: Call, reply: Reply) -> bool:
        """By the settings of this moment."""
        if call.attempts >= self._settings.attempts:
            return False
        if call.tx.idempotency_key is not None or (reply.code == codes.NO_CONNECTION and reply.outcome == "not_sent"):
            return True
        known = self._target.ops.get(call.tx.op or "")
        return known is not None and known.may_repeat

    async def _after(self, wait: float, call: Call, reply: Reply) -> Coroutine[Any, Any, Reply] | None:
        """Another attempt, for a token that was paid; None, and the token is back, if there is to be none."""
        another: Answering | None = None
        state, inside = call.state, self._target.attempt
        try:
            await asyncio.sleep(wait)
            now = self._clock.monotonic()
            has_gone = call.caller is not None and call.caller.has_gone
            is_allowed = self._target.attempt is inside or self._may_repeat(call, reply)
            if not has_gone and is_allowed and now + self._min_call <= call.budget_end:
                begin_attempt(call, now)
                call.hold = None  # the earlier attempt's place comes back by its own
                another = self._target.attempt(call)
        finally:
            if another is None or isinstance(another, Reply):
                self._target.budget.give_back()
        if another is None or isinstance(another, Reply):
            call.state = state  # of the attempt that is answered for
            return None
        self._target.retries += 1
        return another
