"""The order of the layers, written once. Order is behaviour: each line says why its layer stands where it does."""

from __future__ import annotations

from eaimw.layers import Breaker, Deadline, Exchange, InflightLimit, OpenCircuit
from eaimw.target import Handler, Target

# Outermost first.
ORDER = (
    (Deadline, "one budget for everything below"),
    (OpenCircuit, "an open circuit is said before a place is asked for, so E904 even where all places are taken"),
    (InflightLimit, "each call in flight holds one place, so that max-inflight is what the target feels"),
    (Breaker, "inside the limit: a due probe that finds no place has used nothing up"),
)


def build(target: Target) -> Handler:
    """The target's stack, down to its transport."""
    handler: Handler = Exchange(target).__call__
    for layer, _ in reversed(ORDER):
        handler = layer(handler, target).__call__  # bound: found once, not at each call
    return handler
