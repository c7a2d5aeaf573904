"""What must hold of a run: `CLAIM.ok_share >= 0.999`, one figure of one target against a number."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eaimw.errors import nearest
from eaimw.sim.modes import Refused, shown

__all__ = ["FIGURES", "Expectation"]

# What can be asked for, with its meaning; and beside these any reply code, which is how many replies had it.
FIGURES = {
    "sent": "transactions sent to it",
    "ok": "replies with 0000",
    "ok_share": "of those sent, the share with 0000",
    "denied": "replies with B2xx",
    "lost": "transactions without a reply",
    "p50_ms": "milliseconds until the reply: half were no slower",
    "p99_ms": "the same, 99 of 100",
    "calls": "calls that the target received",
    "peak_inflight": "the most calls that were in flight at the target",
    "openings": "how often its circuit opened",
    "open_s": "seconds in which its circuit was open",
}
_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}
_FORM = re.compile(r"\s*([A-Za-z0-9_.-]+)\.(\w+)\s*(<=|>=|==|<|>)\s*(\S+)\s*")
_CODE = re.compile(r"[A-Z0-9]{4}")


@dataclass(frozen=True, slots=True)
class Expectation:
    """text: as it was written."""

    text: str
    target: str
    figure: str
    comparison: str
    number: float

    @classmethod
    def of(cls, text: object, targets: Sequence[str] | None) -> Expectation:
        """From its text. targets: those that there are, if that is known. Raises Refused."""
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            form = "TARGET.FIGURE, one of <= >= == < >, and a number, as in CLAIM.ok_share >= 0.999"
            raise Refused(f"it is {shown(text)}; it must be {form}")
        target, figure, comparison, number = match.groups()
        if targets is not None and target not in targets:
            raise Refused(f"there is no target {target}; there are {', '.join(targets)}{nearest(target, targets)}")
        if figure not in FIGURES and not _CODE.fullmatch(figure):
            known = f"{', '.join(FIGURES)}, or a reply code{nearest(figure, [*FIGURES])}"
            raise Refused(f"there is no figure {figure}; there are {known}")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise Refused(f"it compares with {shown(number)}; it must be a finite number")
        return cls(" ".join((f"{target}.{figure}", comparison, number)), target, figure, comparison, value)

    def holds(self, found: float | None) -> bool:
        """Does it hold of this figure? None: there is no such figure, so nothing can be said of it."""
        return found is not None and _COMPARED[self.comparison](found, self.number)

    def margin(self, found: float | None) -> float:
        """By how much it holds, in the figure's unit; the smaller, the worse."""
        if found is None:
            return -math.inf
        if self.comparison == "==":
            return -abs(found - self.number)
        return self.number - found if self.comparison.startswith("<") else found - self.number
