"""What the attempts of a call must be, told from outside: deadlines, retries and their budget, from what is promised.

How an attempt has ended is judged here once more, by a plain reading of what came.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from eaimw.config import HubSettings, TargetSettings
from eaimw.errors import CallFailed, LocalFault, NoReply, TimedOut
from eaimw.model import Answer, Call
from eaimw.sim.circuit import Circuit

__all__ = ["FAILURES", "Attempt", "Attempts", "Tried"]

FAILURES = ("E500", "E901", "E902")
DAY = 86_400.0  # a Retry-After that is longer is senseless
MOST_DEPTH = 100


@dataclass(slots=True)
class Attempt:
    """One call of a target. Seconds of the run.

    end: when it must be over at the latest. impatient: by the caller's own budget. ended: None: not yet.
    code, outcome: what a reply made of it says. is_final: the target says that the request is at fault.
    wish: seconds that the target wants to be left alone for.
    """

    began: float
    end: float
    impatient: bool
    ended: float | None = None
    code: str = ""
    outcome: str = ""
    is_local: bool = False
    is_final: bool = False
    wish: float = 0.0

    @property
    def sample(self) -> str:
        """What it says of the target's health."""
        if self.code not in FAILURES:
            return "success"
        return "none" if self.is_local or (self.impatient and self.code == "E901") else "failure"


@dataclass(slots=True)
class Tried:
    """A call that was tried. attempts: in order; only the last one may be under way."""

    target: str
    circuit: Circuit
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """As sure as all attempts together."""
        last = self.attempts[-1].outcome
        is_sure = last != "not_sent" or all(one.outcome == "not_sent" for one in self.attempts)
        return last if is_sure else "unknown"


class Attempts:
    """Those of a whole run. firsts: first attempts that left the hub, by target; extras: attempts that were not first.

    slack: seconds by which a bound on time may be missed. time: seconds since 1970.
    """

    def __init__(self, settings: HubSettings, slack: float, time: Callable[[], float]) -> None:
        self.firsts: Counter[str] = Counter()
        self.extras: Counter[str] = Counter()
        self._settings = settings
        self._slack = slack
        self._time = time

    def begin(self, tried: Tried, call: Call, now: float) -> Iterator[str]:
        """Another attempt begins; its circuit knows of it. What is wrong with that, in sentences."""
        target = self._settings.targets[tried.target]
        began = now
        if tried.attempts:
            yield from self._faults_of_retry(tried, call, now)
            self.extras[tried.target] += 1
            retry = target.retry
            may = retry.budget_min + retry.budget_ratio * self.firsts[tried.target] + 1e-6
            if self.extras[tried.target] > may:
                yield f"{self.extras[tried.target]} attempts were not first, and its retry budget allows {may:g}"
        else:
            began = call.started
            if self.is_too_late(tried.target, call, began):
                yield f"it was called with {call.tx.timeout_ms} ms left, and a call needs {target.min_call:g} s"
        timeout, budget_end = self.timeout(tried.target, call), _budget_end(call)
        attempt = Attempt(now, min(began + timeout, budget_end), budget_end < began + timeout)
        probe_end = now + target.breaker.probe_timeout
        if target.breaker.probe_timeout and tried.circuit.is_probe(call) and probe_end < attempt.end:
            attempt.end, attempt.impatient = probe_end, False
        tried.attempts.append(attempt)

    def end(self, tried: Tried, call: Call, what: Answer | CallFailed, now: float) -> Iterator[str]:
        """An attempt has ended, so. What is wrong with that, in sentences."""
        attempt = tried.attempts[-1]
        attempt.ended = now
        if isinstance(what, Answer):
            attempt.code, attempt.outcome = _told(what, call.tx.tx_id)
            attempt.is_final = 400 <= what.status < 500 and what.status != 429
            if attempt.code in FAILURES and what.retry_after is not None:
                attempt.wish = self._seconds(what.retry_after)
        else:
            attempt.code = "E901" if isinstance(what, TimedOut) else "E500" if isinstance(what, NoReply) else "E902"
            attempt.outcome = "unknown" if what.handed_over else "not_sent"
            attempt.is_local = isinstance(what, LocalFault)
        if len(tried.attempts) == 1 and attempt.outcome != "not_sent":
            self.firsts[tried.target] += 1
        if now > attempt.end + self._slack:
            yield f"it took {now - attempt.began:.6f} s, and its budget is {attempt.end - attempt.began:g} s"
        if attempt.code == "E901" and not isinstance(what, Answer) and now < attempt.end - self._slack:
            yield f"E901 after {now - attempt.began:.6f} s, and its budget is {attempt.end - attempt.began:g} s"

    def replied(self, tried: Tried, call: Call, code: str, outcome: str, now: float) -> Iterator[str]:
        """The call has its reply. What is wrong with it, in sentences."""
        last, target = tried.attempts[-1], self._settings.targets[tried.target]
        if last.ended is None:
            yield f"{code}, and its last attempt is under way"
            return
        if (code, outcome) != (last.code, tried.outcome):
            yield f"{code}, {outcome}; by how its {len(tried.attempts)} attempts ended: {last.code}, {tried.outcome}"
        latest = last.ended
        if self._why_no_other(tried, call) is None:
            latest = min(last.ended + self._longest_wait(tried), self.longest_end(target, call))
        if now > latest + self._slack:
            yield f"its reply came {now - last.ended:.6f} s after its last attempt"

    def is_too_late(self, target: str, call: Call, now: float) -> bool:
        """Is less left of the caller's budget than a call needs?"""
        return _budget_end(call) - now < self._settings.targets[target].min_call - 1e-9

    def timeout(self, target: str, call: Call) -> float:
        """Seconds that an attempt may take: what the target allows, or its operation, if that is less."""
        op = self._settings.ops.get(call.tx.op or "")
        timeout = self._settings.targets[target].timeout
        return min(timeout, op.timeout) if op is not None and op.timeout else timeout

    def longest_end(self, target: TargetSettings, call: Call) -> float:
        """When a call must be over that is tried again and again, whatever the target wishes."""
        return min(_budget_end(call), call.started + target.retry.attempts * (target.timeout + target.retry.cap))

    def _faults_of_retry(self, tried: Tried, call: Call, now: float) -> Iterator[str]:
        target, last = self._settings.targets[tried.target], tried.attempts[-1]
        why = self._why_no_other(tried, call)
        if why is not None:
            yield f"it was called again {why}"
        if call.caller is not None and call.caller.has_gone:
            yield "it was called again, and its caller has gone"
        if last.ended is None:
            yield "it was called again, and the attempt before is under way"
            return
        waited, most = now - last.ended, self._longest_wait(tried)
        if not last.wish - self._slack <= waited <= most + self._slack:
            yield f"it was called again after {waited:.6f} s; that must be from {last.wish:g} to {most:g} s"
        if now > self.longest_end(target, call) + self._slack or self.is_too_late(tried.target, call, now):
            yield f"it was called again with {self.longest_end(target, call) - now:.6f} s left of its budget"

    def _why_no_other(self, tried: Tried, call: Call) -> str | None:
        """Why what was tried must not be tried again, if it must not."""
        most, last, op = self._settings.targets[tried.target].retry.attempts, tried.attempts[-1], call.tx.op or ""
        if len(tried.attempts) >= most:
            return f"after {len(tried.attempts)} attempts, of at most {most}"
        if last.code not in FAILURES or last.is_final or last.is_local:
            return f"after {last.code}{', the fault of the request' if last.is_final else ''}"
        known = self._settings.ops.get(op)
        may_repeat = call.tx.idempotency_key is not None or (known is not None and (known.read or known.idempotent))
        if not may_repeat and not (last.code == "E902" and last.outcome == "not_sent"):
            return f"after {last.code}, {last.outcome}, and it must not be repeated"
        return None

    def _longest_wait(self, tried: Tried) -> float:
        retry = self._settings.targets[tried.target].retry
        most = retry.base
        for _ in tried.attempts[1:]:
            most = min(2 * most, retry.cap)
        return max(min(most, retry.cap), tried.attempts[-1].wish)

    def _seconds(self, value: str) -> float:
        """Of a Retry-After; 0.0 for a senseless one."""
        if value.isdigit():
            seconds = float(value)
        else:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - self._time()
            except ValueError:
                return 0.0
        return max(0.0, seconds) if seconds <= DAY else 0.0


def _budget_end(call: Call) -> float:
    return math.inf if call.tx.timeout_ms is None else call.started + call.tx.timeout_ms / 1000


def _told(answer: Answer, tx_id: str) -> tuple[str, str]:
    """The code and the outcome that the hub owes its caller for a target's answer."""
    code = _code(answer.body, tx_id)
    is_hub = code.startswith("E9")
    is_ill = answer.status == 429 or not (200 <= answer.status < 300 or 400 <= answer.status < 500)
    if is_ill and not (is_hub and answer.status >= 429):
        code = "E500"
    return code, "unknown" if code == "E500" or is_hub else "done"


def _code(body: bytes, tx_id: str) -> str:
    """The code of an object that is one; E500 if it is none, or is the answer to somebody else."""
    try:
        said = json.loads(body.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return "E500"
    code = said.get("code") if isinstance(said, dict) else None
    is_code = isinstance(code, str) and len(code) == 4 and code.isascii() and code.isalnum() and code.upper() == code
    if not is_code or said.get("tx_id", tx_id) != tx_id or (body.count(b"[") > 50 and _depth(said) > MOST_DEPTH):
        return "E500"
    return str(code)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name in ("code", "tx_id"):
        if sum(name == other for other, _ in pairs) > 1:
            raise ValueError(f"{name} stands twice")
    return dict(pairs)


def _depth(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(_depth, inside), default=0)
