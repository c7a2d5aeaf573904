"""Random policies of a target, and what is known of operations: for `rough`, from streams of their own.

About half of the targets are plain, as most of their settings are in most files; what is drawn for the others is small,
so that windows fill, ramps end and budgets run out within a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from eaimw.config import OpSettings, TargetSettings
from eaimw.policy import BreakerSettings, RetrySettings
from eaimw.sim.backend import Backend, Phases
from eaimw.sim.forms import WISHES
from eaimw.sim.link import Conditions
from eaimw.sim.load import Load

__all__ = ["known_ops", "with_policies", "with_resets", "with_wishes", "with_words"]

OPS = ("BALANCE", "DEPOSIT", "WITHDRAW", "SELL", "SUBMIT", "STATUS")
MODES = ("normal",) * 14 + ("shadow",) * 4 + ("off", "open")


def with_policies(draw: Random, plain: TargetSettings) -> TargetSettings:
    """The target as it is, or with policies."""
    if draw.random() < 0.5:
        return plain
    return replace(
        plain,
        breaker=_breaker(draw, plain.breaker) if draw.random() < 0.8 else plain.breaker,
        retry=_retry(draw) if draw.random() < 0.6 else plain.retry,
        min_call=draw.choice((plain.min_call, 0.0, 0.003, 0.06)),
        hold_after_timeout=draw.choice((0.0, 0.0, draw.uniform(0.01, 5.0))),
    )


def with_wishes(draw: Random, backend: Backend) -> Backend:
    """The target as it is, or one that asks to be left alone for a while."""
    room = 1 - sum(backend.forms.values())
    if draw.random() < 0.7 or room < 0.1:
        return backend
    wishes = draw.sample(WISHES, draw.randint(1, 2))
    share = min(room, draw.uniform(0.1, 0.4)) / len(wishes)
    return replace(backend, forms={**backend.forms, **dict.fromkeys(wishes, share)})


def with_words(draw: Random, load: Load, target: TargetSettings) -> Load:
    """The load as it is, or with what a retry goes by: a key, so that all may be tried again, and a budget."""
    more: dict[str, object] = {}
    if draw.random() < 0.4:
        more["idempotency_key"] = f"key of {load.name}"
    if draw.random() < 0.4:
        more["timeout_ms"] = draw.choice((100, 300, 1000, 3000))
    if target.retry.attempts == 1:
        return load
    return replace(load, fields={**more, **load.fields})


def with_resets(draw: Random, phases: Phases, target: TargetSettings) -> Phases:
    """The callers' link as it is, or one that is reset before all that may be tried has been.

    A caller that closes its end may still read, for all that the hub knows, but nothing is tried again for it.
    """
    if draw.random() < 0.6 or target.retry.attempts == 1:
        return phases
    return ((0.0, Conditions(reset_within=draw.choice((0.1, 1.0)))),)


def known_ops(draw: Random) -> Mapping[str, OpSettings]:
    """Some of them, and what may be done with them."""
    known = {}
    for op in OPS:
        is_known, read, idempotent = draw.random() < 0.6, draw.random() < 0.4, draw.random() < 0.4
        timeout = draw.choice((0.0, 0.0, draw.uniform(0.02, 1.0)))
        if is_known:
            known[op] = OpSettings(read, idempotent, timeout)
    return known


def _breaker(draw: Random, plain: BreakerSettings) -> BreakerSettings:
    return replace(
        plain,
        rules=draw.choice((("consecutive",), ("ratio",), ("consecutive", "ratio"))),
        window=draw.choice((draw.uniform(0.1, 2.0), draw.uniform(2.0, 20.0))),
        window_calls=draw.choice((0, 0, draw.randint(1, 30))),
        min_calls=draw.choice((1, 2, 5, draw.randint(1, 20))),
        failure_ratio=draw.choice((0.1, 0.3, 0.5, 0.8, 1.0)),
        slow_call=draw.choice((0.0, 10 ** draw.uniform(-2.5, -0.5))),
        slow_ratio=draw.choice((0.2, 0.5, 0.8, 1.0)),
        stuck_calls=draw.choice((0, 0, 1, 2, 3)),
        probes=draw.choice((1, 1, 2, 3, 5)),
        probe_timeout=draw.choice((0.0, 0.0, draw.uniform(0.01, 0.3))),
        reopen_factor=draw.choice((1.0, 1.5, 2.0, 10.0)),
        reopen_max=draw.choice((60.0, draw.uniform(0.1, 5.0))),
        jitter=draw.choice((0.0, 0.1, 1.0)),
        ramp=draw.choice((0.0, 0.0, draw.uniform(0.1, 3.0))),
        mode=draw.choice(MODES),
        per=draw.choice(("target", "target", "op")),
    )


def _retry(draw: Random) -> RetrySettings:
    return RetrySettings(
        attempts=draw.choice((2, 3, 4)),
        base=draw.choice((0.0, 10 ** draw.uniform(-2.5, -0.3))),
        cap=draw.choice((2.0, draw.uniform(0.0, 0.5))),
        budget_ratio=draw.choice((0.0, 0.1, 0.5, 1.0)),
        budget_min=draw.choice((0, 1, 3, 10)),
    )
