"""How long a thing takes, as a law of chance: service times of targets, think times of callers. In seconds.

A law is a frozen record; `draw` takes the stream of chance, so that the same seed gives the same run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from eaimw.sim.modes import Refused, shown

__all__ = ["NO_TIME", "Duration", "Exponential", "Fixed", "Lognormal", "check_number"]

# The standard normal distribution's 99th percentile.
_Z99 = 2.3263478740408408


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same number of seconds; 0 is one."""

    seconds: float

    def __post_init__(self) -> None:
        check_number("seconds", self.seconds, least=0)

    @property
    def mean(self) -> float:
        return self.seconds

    def draw(self, chance: Random) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Exponential:
    """Without memory, the service times of Erlang's formulas. mean: seconds, more than 0."""

    mean: float

    def __post_init__(self) -> None:
        check_number("mean", self.mean, above=0)

    def draw(self, chance: Random) -> float:
        return chance.expovariate(1 / self.mean)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """As measured latencies look: half within p50, 99 of 100 within p99, and a long tail. Seconds, 0 < p50 <= p99."""

    p50: float
    p99: float

    def __post_init__(self) -> None:
        check_number("p50", self.p50, above=0)
        check_number("p99", self.p99, least=self.p50)

    @property
    def sigma(self) -> float:
        """Of the logarithm."""
        return (math.log(self.p99) - math.log(self.p50)) / _Z99

    @property
    def mean(self) -> float:
        return self.p50 * math.exp(self.sigma**2 / 2)

    def draw(self, chance: Random) -> float:
        return chance.lognormvariate(math.log(self.p50), self.sigma)


Duration = Fixed | Exponential | Lognormal


def check_number(
    name: str, value: object, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
) -> None:
    """Raises Refused if it is no finite number of at least `least`, more than `above` and at most `most`."""
    if _is_finite(value) and least <= value <= most and value > above:  # type: ignore[operator]
        return
    bounds = {"of at least": least, "above": above, "up to": most}
    allowed = "".join(f" {word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound))
    raise Refused(f"{name} must be a finite number{allowed}; not {shown(value)}")


def _is_finite(value: object) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # an int such as 10**400
        return False


NO_TIME = Fixed(0.0)
