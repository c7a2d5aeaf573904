"""The order of the layers, written once. Order is behaviour: each line says why its layer stands where it does.

A layer that a target's settings do not ask for is not there, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from eaimw.circuit import Circuit
from eaimw.config import TargetSettings
from eaimw.layers import (
    Breaker,
    ByOp,
    Deadline,
    Exchange,
    HeldOpen,
    InflightLimit,
    OpenCircuit,
    RampLimit,
    Shadow,
    Stuck,
    Waiting,
)
from eaimw.retry import Retry
from eaimw.target import Handler, Target


class Layer(NamedTuple):
    """One line of an order. when: which settings ask for it, in words; is_wanted: do they?"""

    make: Callable[..., Any]
    why: str
    when: str = "always"
    is_wanted: Callable[[TargetSettings], object] = lambda settings: True


def _decides(settings: TargetSettings) -> bool:
    return settings.breaker.mode in ("normal", "shadow")


def _refuses(settings: TargetSettings) -> bool:
    return settings.breaker.mode == "normal"


def _watches(settings: TargetSettings) -> bool:
    breaker = settings.breaker
    return _decides(settings) and breaker.stuck_calls > 0 and breaker.slow_call > 0  # 0: no call is slow


# Outermost first. What a call goes through once:
PER_CALL = (
    Layer(Deadline, "one budget for everything below"),
    Layer(
        Retry,
        "decides on a finished attempt; each further one asks all below anew, so it meets no open circuit and holds "
        "no place while it waits",
        "`retry.attempts` above 1",
        lambda settings: settings.retry.attempts > 1,
    ),
)
# and what each attempt goes through, for a circuit.
PER_ATTEMPT = (
    Layer(
        HeldOpen,
        "nothing below is asked",
        '`breaker.mode` "open"',
        lambda settings: settings.breaker.mode == "open",
    ),
    Layer(
        Stuck,
        "above the limit: stuck calls are what fills it, and would be E905 until they time out",
        "`breaker.stuck_calls` above 0",
        _watches,
    ),
    Layer(
        OpenCircuit,
        "said before a place is asked for, so E904 even where all places are taken",
        '`breaker.mode` "normal"',
        _refuses,
    ),
    Layer(InflightLimit, "each call in flight holds one place, so that max-inflight is what the target feels"),
    Layer(
        RampLimit,
        "within the limit, which it can only make narrower; above the breaker, so that it cannot use a probe up",
        "`breaker.ramp` above 0",
        lambda settings: _refuses(settings) and settings.breaker.ramp > 0,
    ),
    Layer(
        Breaker,
        "inside the limits: a due probe that finds no place has used nothing up",
        '`breaker.mode` "normal"',
        _refuses,
    ),
    Layer(
        Shadow,
        "where a breaker would stand, and refuses nobody",
        '`breaker.mode` "shadow"',
        lambda settings: settings.breaker.mode == "shadow",
    ),
    Layer(Waiting, "innermost: a call that is refused waits for nothing", "as `Stuck`", _watches),
)


def build(target: Target) -> Handler:
    """The target's stack, down to its transport."""
    settings = target.settings
    exchange: Handler = Exchange(target).__call__

    def attempt(circuit: Circuit) -> Handler:
        handler = exchange
        for layer in reversed(PER_ATTEMPT):
            if layer.is_wanted(settings):
                handler = layer.make(handler, target, circuit).__call__  # bound: found once, not at each call
        return handler

    handler = ByOp(target, attempt).__call__ if settings.breaker.per == "op" else attempt(target.circuit)
    target.attempt = handler
    for layer in reversed(PER_CALL):
        if layer.is_wanted(settings):
            handler = layer.make(handler, target).__call__
    return handler
