"""How often a healthy target opens its circuit by chance: each call fails by itself, as often as any other."""

from __future__ import annotations

import math

DAY = 86_400.0  # seconds
# The share of calls that fail though the target is well enough to be called.
FAILURES_TAKEN = 0.05


def opens_per_day(rate: float, share: float, threshold: int) -> float:
    """How often on average so many calls in a row fail by chance: once for each success that they follow."""
    return rate * DAY * (1 - share) * float(share) ** threshold


def threshold_for(rate: float, share: float) -> int:
    """The least that opens less than once a day by chance."""
    threshold = 1
    while opens_per_day(rate, share, threshold) >= 1:
        threshold += 1
    return threshold


def at_least(count: int, calls: int, share: float) -> float:
    """The chance that of so many calls at least `count` fail: the upper tail of the binomial distribution."""
    log = math.lgamma(calls + 1) - math.lgamma(count + 1) - math.lgamma(calls - count + 1)
    term = total = math.exp(log + count * math.log(share) + (calls - count) * math.log1p(-share))
    while count < calls and term > total * 1e-9:
        term *= (calls - count) / (count + 1) * share / (1 - share)
        count += 1
        total += term
    return total


def calls_for(rate: float, ratio: float, share: float) -> int:
    """So many calls that a failing `ratio` of them, above `share`, comes less than once a day by chance.

    From Chernoff's bound (H. Chernoff, 1952): the chance is at most exp(-n D), where D is the relative entropy of
    `ratio` and `share`. Enough for certain, if not the least.
    """
    entropy = ratio * math.log(ratio / share)
    if ratio < 1:
        entropy += (1 - ratio) * math.log((1 - ratio) / (1 - share))
    return max(1, math.ceil(math.log(max(1.0, rate * DAY)) / max(entropy, 1e-9)))  # 0 where they are hardly apart
