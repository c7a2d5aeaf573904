"""The modes of a simulated target, their settings, and who may say what (`POST /_ctl`).

A mode says how an ill back-end behaves towards every call, a repeated one too; only `deny` is the trade's own word:

    mode      executes             answer
    --------  -------------------  -----------------------------------------------------------------
    normal    on arrival           the trade's, after delay_ms
    fail      no                   HTTP 500, code E500, after delay_ms
    slow      on arrival           the trade's, after delay_ms
    deny      no                   B299, after delay_ms; to one that was executed before its first answer
    hang      no                   never; the connection stays open until the caller closes it
    drop      on arrival           none: the connection is closed without a byte
    garbage   on arrival           HTTP 200, a page of HTML
    flaky     its good ones        by chance (`rate`) that of `fail`, else that of `normal`
    drip      on arrival           the trade's, a byte each delay_ms

On arrival: where the target has a capacity (`capacity.py`), when its work on the call begins.
`execute` turns the second column: `never` answers as if it had executed; `before` lets `fail` and `hang` execute
what they give no answer to. `deny` cannot execute: its answer is final, and would be a lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["MODES", "Refused", "Settings", "settings_from"]

LONGEST_DELAY_MS = 3_600_000

# mode -> what it takes, with the defaults. Every mode takes a seed: chance may be set up before it is needed.
MODES: dict[str, dict[str, Any]] = {
    "normal": {"delay_ms": 0, "execute": "before", "seed": None},
    "fail": {"delay_ms": 0, "execute": "never", "seed": None},
    "slow": {"delay_ms": 2000, "execute": "before", "seed": None},
    "deny": {"delay_ms": 0, "execute": "never", "seed": None},
    "hang": {"execute": "never", "seed": None},
    "drop": {"execute": "before", "seed": None},
    "garbage": {"execute": "before", "seed": None},
    "flaky": {"rate": 0.5, "delay_ms": 0, "execute": "before", "seed": None},
    "drip": {"delay_ms": 100, "execute": "before", "seed": None},
}


class Refused(ValueError):
    """The caller's fault: the message names what was found and what is allowed. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is in force; made by `settings_from`, which checks.

    delay_ms: milliseconds before the answer; with `drip` before each byte of its body. 0 to 3,600,000.
    rate: the share of `flaky`'s calls that fail, 0 to 1.
    execute: `before` (the answer) or `never`.
    seed: makes chance repeatable; None: it is not.
    """

    mode: str = "normal"
    delay_ms: float = 0
    rate: float = 0.0
    execute: str = "before"
    seed: int | None = None

    def shown(self) -> dict[str, object]:
        """The mode and what it takes, as `POST /_ctl` answers it."""
        return {"mode": self.mode, **{key: getattr(self, key) for key in MODES[self.mode]}}


def settings_from(wanted: object, mode_now: str) -> Settings:
    """Settings from a parsed JSON object: no `mode` means `mode_now`, what else is not given the mode's default.

    Raises Refused for an unknown mode, key or value.
    """
    if not isinstance(wanted, Mapping):
        raise Refused(f'the settings must be a JSON object such as {{"mode": "fail"}}, not {shown(wanted)}')
    mode = wanted.get("mode", mode_now)
    if not isinstance(mode, str) or mode not in MODES:
        raise Refused(f"mode must be one of {', '.join(MODES)}; not {shown(mode)}")
    given = {key: value for key, value in wanted.items() if key != "mode"}
    for key, value in given.items():
        if key not in MODES[mode]:
            raise Refused(f"mode {mode} takes {', '.join(MODES[mode])}; not {shown(key)}")
        _check(mode, key, value)
    return Settings(mode, **{**MODES[mode], **given})


def shown(value: object) -> str:
    """repr, cut to what a message can carry."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int too long for Python to print; a thing too deep
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 100 else text[:97] + "..."


def _check(mode: str, key: str, value: object) -> None:
    if key == "execute":
        allowed = ("never",) if mode == "deny" else ("before", "never")
        if value not in allowed:
            raise Refused(f"execute must be {' or '.join(allowed)} in mode {mode}; not {shown(value)}")
    elif key == "seed":
        if value is not None and type(value) is not int:
            raise Refused(f"seed must be an integer, or null for none; not {shown(value)}")
    else:
        most = 1 if key == "rate" else LONGEST_DELAY_MS
        # A bool is no number here; the comparison is false for NaN and both infinities, and exact for any int.
        if type(value) not in (int, float) or not 0 <= value <= most:  # type: ignore[operator]
            raise Refused(f"{key} must be a number from 0 to {most}; not {shown(value)}")
