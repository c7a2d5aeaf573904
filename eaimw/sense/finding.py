"""What a rule sees, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from eaimw.config import OpSettings, TargetSettings
from eaimw.hub_file import value_of


@dataclass(frozen=True, slots=True)
class Finding:
    """A setting that can be used and makes no sense.

    level: `error` where something can never do what it is there for, else `warning`.
    key: as `targets.CORE.breaker.min_calls`. value: in force. origin: where it came from, as in `hub_file.HubFile`.
    reason: a sentence with the numbers. remedy: what to set.
    """

    level: Literal["error", "warning"]
    key: str
    value: object
    origin: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Subject:
    """One target, as its rules see it. ops: those that may go to it. origins: of its keys."""

    name: str
    target: TargetSettings
    ops: Mapping[str, OpSettings]
    origins: Mapping[str, str]

    def error(self, key: str, reason: str, remedy: str) -> Finding:
        return self._found("error", key, reason, remedy)

    def warning(self, key: str, reason: str, remedy: str) -> Finding:
        return self._found("warning", key, reason, remedy)

    def _found(self, level: Literal["error", "warning"], key: str, reason: str, remedy: str) -> Finding:
        return Finding(
            level, f"targets.{self.name}.{key}", value_of(self.target, key), self.origins[key], reason, remedy
        )


def said(number: float) -> str:
    """A number as a sentence can carry it: no more digits than it needs, thousands parted."""
    if number and not 0.001 <= abs(number) < 1e15:
        return f"{number:.3g}"
    text = f"{number:,.3f}"
    return text.rstrip("0").rstrip(".")
