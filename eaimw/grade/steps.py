"""What the seven steps are, and what a verdict on one of them is."""

from __future__ import annotations

from dataclasses import dataclass

TITLES = {
    1: "opens on consecutive failures and then refuses",
    2: "after the wait one probe, also under threads, closes or reopens",
    3: "open means no call, E904",
    4: "full means no wait, E905",
    5: "CORE's failure or saturation leaves CLAIM alone",
    6: "changes are logged",
    7: "business denials are not failures",
}
BREAKER_STEPS = (1, 2)
RELAY_STEPS = (3, 4, 5, 6, 7)


@dataclass(frozen=True)
class Verdict:
    """One step's result. `reason` and `hint` are empty if it was passed."""

    step: int
    reason: str = ""
    hint: str = ""

    @property
    def passed(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        if self.passed:
            return f"step {self.step}: passed: {TITLES[self.step]}"
        return f"step {self.step}: failed: {self.reason}\n    hint: {self.hint}"


class Failed(Exception):
    """A step is not passed. Raised where it is seen; what was seen is the reason, what to look at the hint."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = " ".join(reason.split())  # one line per step, whatever was quoted in it
        self.hint = " ".join(hint.split())
