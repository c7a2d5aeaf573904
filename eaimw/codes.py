"""The reply codes, as one table: what each means, its outcome, its sample for the breaker, its HTTP status.

A code is four of `A-Z 0-9`. `of_hub` is what the hub says by itself; `of_target` judges a code that a target gave.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

Outcome = Literal["done", "not_sent", "unknown", "accepted"]
Sample = Literal["success", "failure", "none"]

OUTCOMES: tuple[Outcome, ...] = ("done", "not_sent", "unknown", "accepted")

OK = "0000"
SYSTEM_ERROR = "E500"
MALFORMED = "E400"
TIMEOUT = "E901"
NO_CONNECTION = "E902"
NO_TARGET = "E903"
CIRCUIT_OPEN = "E904"
FULL = "E905"
TOO_LATE = "E906"
SHED = "E908"
GOING_DOWN = "E911"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a code means for the caller, for the breaker and for HTTP.

    outcome: what the hub knows (see also MAY_BE_UNSENT).
    sample: what the breaker learns. http: the status of the reply.
    comes_again: with `not_sent`, a later sending may be served. says_when: the reply carries retry_after_ms.
    is_known: False for what is only passed on. is_of_a_hub: said by a target that is itself a hub (E9xx).
    """

    meaning: str
    outcome: Outcome
    sample: Sample
    http: int
    comes_again: bool = True
    says_when: bool = False
    is_known: bool = True
    is_of_a_hub: bool = False


_DENIAL = Rule("business denial: the target is healthy and said no", "done", "success", 200)
_OTHER = Rule("passed on as it is", "done", "success", 200, is_known=False)
_OTHER_HUB = Rule("a refusal of a hub behind this one", "unknown", "success", 502)

RULES: dict[str, Rule] = {
    OK: Rule("success", "done", "success", 200),
    MALFORMED: Rule("the transaction is malformed", "not_sent", "none", 400, comes_again=False),
    SYSTEM_ERROR: Rule("system error of the target, or a reply that is no reply", "unknown", "failure", 502),
    TIMEOUT: Rule("no whole reply within the timeout", "unknown", "failure", 504),
    NO_CONNECTION: Rule("no connection, or it ended before the reply began", "unknown", "failure", 502),
    NO_TARGET: Rule("no such target, or no route for this op", "not_sent", "none", 404, comes_again=False),
    CIRCUIT_OPEN: Rule("circuit open: not called", "not_sent", "none", 503, says_when=True),
    FULL: Rule("max-inflight reached: not called, never queued", "not_sent", "none", 503, says_when=True),
    TOO_LATE: Rule("the deadline is past or too near", "not_sent", "none", 504, comes_again=False),
    "E907": Rule("rate limit", "not_sent", "none", 429, says_when=True),
    SHED: Rule("shed: the hub is overloaded", "not_sent", "none", 503, says_when=True),
    "E909": Rule("the same operation is running, or its outcome is not yet known", "unknown", "none", 409),
    "E910": Rule("the idempotency key was used before with other content", "not_sent", "none", 422, comes_again=False),
    GOING_DOWN: Rule("the hub is going down, or maintenance", "not_sent", "none", 503, says_when=True),
    "E912": Rule("a stored operation outlived its expiry undelivered", "unknown", "none", 200),
    "E913": Rule("could not be recorded or queued", "not_sent", "none", 503, says_when=True),
}

# Unknown only if a byte of the request was handed to a connection; else the target cannot have seen it.
MAY_BE_UNSENT = frozenset({TIMEOUT, NO_CONNECTION})
FAILURES = frozenset(code for code, rule in RULES.items() if rule.sample == "failure")

CODE_PATTERN = r"[A-Z0-9]{4}"
CODE_ALLOWED = "a string of four of A-Z 0-9"
_is_code = re.compile(CODE_PATTERN).fullmatch
_is_denial = re.compile(r"B2[0-9]{2}").fullmatch
_is_of_a_hub = re.compile(r"E9[0-9]{2}").fullmatch


def is_code(value: object) -> bool:
    """Is it a string of exactly four of A-Z 0-9?"""
    return isinstance(value, str) and _is_code(value) is not None


@lru_cache(maxsize=1024)
def of_target(code: str) -> Rule:
    """The rule for a code that a target gave in a whole reply.

    To the breaker an answer shows a target that is alive, whatever it says, but for E500, E901 and E902.
    """
    if _is_of_a_hub(code):
        rule = RULES.get(code, _OTHER_HUB)
        return replace(rule, outcome="unknown", sample="failure" if code in FAILURES else "success", is_of_a_hub=True)
    if code in (OK, SYSTEM_ERROR):
        return RULES[code]
    return _DENIAL if _is_denial(code) else _OTHER


@lru_cache(maxsize=1024)
def http_status(code: str, outcome: Outcome | str) -> int:
    """The HTTP status of a reply: by the code if it is the hub's word or a hub's behind it, else 200 or 202."""
    if outcome == "accepted":
        return 202
    if _is_of_a_hub(code):
        return RULES.get(code, _OTHER_HUB).http
    return RULES[code].http if code == SYSTEM_ERROR or (code == MALFORMED and outcome == "not_sent") else 200


def most_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Replies by code, as people are shown them: the most frequent first, those that are equal by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
