"""When a simulated target is ill, and how: changes of mode at times, as data.

    [[targets.CORE.faults]]
    at = 3.0                # seconds from the start of the run
    until = 8.0             # left out: until the next fault, or the end
    mode = "slow"           # and what that mode takes, as POST /_ctl has it
    delay_ms = 4000

Before, between and after its faults a target is `normal`. Faults do not overlap: what would hold then?
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from eaimw.sim.durations import check_number
from eaimw.sim.modes import Refused, Settings, settings_from, shown

__all__ = ["Fault", "Timeline"]

NORMAL = settings_from({}, "normal")


@dataclass(frozen=True, slots=True)
class Fault:
    """Settings that are in force from `at`, that moment included, to `until`, that moment not. Raises Refused."""

    at: float
    settings: Settings
    until: float | None = None

    def __post_init__(self) -> None:
        check_number("at", self.at, least=0)
        if self.until is not None:
            check_number("until", self.until, above=self.at)

    @classmethod
    def of(cls, wanted: object) -> Fault:
        """From one table of TOML. Raises Refused for what is missing, unknown or out of range."""
        if not isinstance(wanted, Mapping):
            raise Refused(f"it must be a table such as at = 3.0, mode = 'fail'; not {shown(wanted)}")
        for name in ("at", "mode"):
            if name not in wanted:
                raise Refused(f"{name} is missing")
        settings = {key: value for key, value in wanted.items() if key not in ("at", "until")}
        return cls(wanted["at"], settings_from(settings, "normal"), wanted.get("until"))


@dataclass(frozen=True, slots=True)
class Timeline:
    """The settings of a target over a run. faults: in any order. Raises Refused where two overlap."""

    faults: tuple[Fault, ...] = ()
    changes: tuple[tuple[float, Settings], ...] = field(init=False)  # the first at 0, in order of time

    def __post_init__(self) -> None:
        faults = sorted(self.faults, key=lambda fault: fault.at)
        for before, after in pairwise(faults):
            if after.at == before.at or (before.until is not None and after.at < before.until):
                raise Refused(f"at must not lie within another fault; {after.at:g} lies in the one at {before.at:g}")
        object.__setattr__(self, "faults", tuple(faults))
        object.__setattr__(self, "changes", tuple(_changes(faults)))

    @classmethod
    def of(cls, wanted: object) -> Timeline:
        """From an array of tables of TOML. Raises Refused, naming which of them by its number, from 1."""
        if not isinstance(wanted, Sequence) or isinstance(wanted, (str, bytes)):
            raise Refused(f"faults must be an array of tables; not {shown(wanted)}")
        faults = []
        for number, one in enumerate(wanted, 1):
            try:
                faults.append(Fault.of(one))
            except Refused as problem:
                raise Refused(f"fault {number}: {problem}") from None
        return cls(tuple(faults))

    def at(self, moment: float) -> Settings:
        """The settings in force; before 0 those of 0."""
        return self.changes[max(0, self._index(moment))][1]

    def next_change(self, moment: float) -> float:
        """The first time after this moment at which others come into force; inf if none does."""
        following = self._index(moment) + 1
        return self.changes[following][0] if following < len(self.changes) else math.inf

    def _index(self, moment: float) -> int:
        return bisect_right(self.changes, moment, key=lambda change: change[0]) - 1


def _changes(faults: Iterable[Fault]) -> Iterable[tuple[float, Settings]]:
    at, settings = 0.0, NORMAL
    for fault in faults:
        if fault.at > at:
            yield at, settings
        at, settings = fault.at, fault.settings
        if fault.until is not None:
            yield at, settings
            at, settings = fault.until, NORMAL
    yield at, settings
