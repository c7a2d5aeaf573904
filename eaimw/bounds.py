"""What a setting may be: each check raises SettingsError, which names the setting, what it is and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from eaimw.errors import SettingsError

MAX_SECONDS = 3_600.0


def is_number(value: object) -> bool:
    """Is it a finite int or float (a bool is no number here) that fits a float?"""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def check_number(
    setting: str, value: object, least: float, most: float = math.inf, *, unit: str = "", meaning: str = ""
) -> None:
    """A finite number within bounds. unit: as `seconds`. meaning: more for the message, as `0: off`."""
    if not is_number(value) or not least <= value <= most:  # type: ignore[operator] # it is a number
        up_to = f"from {least:,.9g} to {most:,.9g}" if most < math.inf else f"of {least:,g} or more"
        raise SettingsError(setting, value, f"a number {'of ' + unit + ' ' if unit else ''}{up_to}{_more(meaning)}")


def check_seconds(setting: str, value: object, *, meaning: str = "") -> None:
    """Seconds from 0 to an hour."""
    check_number(setting, value, 0, MAX_SECONDS, unit="seconds", meaning=meaning)


def check_some_seconds(setting: str, value: object) -> None:
    """Seconds above 0, to an hour."""
    if not is_number(value) or not 0 < value <= MAX_SECONDS:  # type: ignore[operator] # it is a number
        raise SettingsError(setting, value, f"seconds above 0, at most {MAX_SECONDS:,.0f}")


def check_share(setting: str, value: object) -> None:
    """A share above 0, of at most 1."""
    if not is_number(value) or not 0 < value <= 1:  # type: ignore[operator] # it is a number
        raise SettingsError(setting, value, "a share above 0, at most 1")


def check_integer(setting: str, value: object, least: int, most: int | None = None, *, meaning: str = "") -> None:
    """An int within bounds; a bool or a float with nothing behind its point is none."""
    if type(value) is not int or value < least or (most is not None and value > most):
        allowed = f"of at least {least:,}" if most is None else f"from {least:,} to {most:,}"
        raise SettingsError(setting, value, f"an integer {allowed}{_more(meaning)}")


def check_flag(setting: str, value: object) -> None:
    """True or false."""
    if type(value) is not bool:
        raise SettingsError(setting, value, "true or false")


def check_one_of(setting: str, value: object, names: Sequence[str]) -> None:
    """One of these strings."""
    if not isinstance(value, str) or value not in names:
        raise SettingsError(setting, value, f"one of {', '.join(names)}")


def _more(meaning: str) -> str:
    return f" ({meaning})" if meaning else ""
