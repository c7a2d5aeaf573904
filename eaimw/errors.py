"""What can go wrong, and whose fault it is.

    EaimwError
    |-- SettingsError       the operator's: a setting is out of range; mend it and start again
    |-- BadFile             the operator's: all that is wrong in a hub.toml or a scenario (in `toml_file`)
    |-- Unusable            the place's: a file or an address cannot be used; the message says why and what to do
    |-- Malformed           the caller's: the transaction cannot be taken (E400); mend it before sending it again
    `-- CallFailed          the target's or the network's, one call of it
        |-- TimedOut        no whole reply in time (E901)
        |-- NoConnection    not reached, or gone before the reply began (E902)
        |-- NoReply         what came is no reply (E500)
        |-- NoHub           before a hub's first reply: what listens there is none, or not to be called so (`send`)
        `-- LocalFault      nothing that the target did: the hub was closed, or has no descriptor left (E902, no sample)

A `CallFailed` says with `handed_over` whether a byte of the request was given to a connection: if not, the target
cannot have seen it and the caller may send again; if so, look it up first.
Foreign exceptions are turned into these once, at the adapter that meets them.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

import msgspec


class EaimwError(Exception):
    """Any fault that eaimw foresees."""


class SettingsError(EaimwError, ValueError):
    """A setting that cannot be used: names it, what was found and what is allowed."""

    def __init__(self, setting: str, found: object, allowed: str) -> None:
        super().__init__(f"{setting} must be {allowed}, not {shown(found)}")
        self.setting = setting
        self.allowed = allowed


class Unusable(EaimwError):
    """A file, folder, address or stream that cannot be used."""


class Malformed(EaimwError):
    """A transaction that cannot be taken. tx_id and target: as far as they could be read, else None."""

    def __init__(self, message: str, tx_id: str | None = None, target: str | None = None) -> None:
        super().__init__(message)
        self.tx_id = tx_id
        self.target = target


class CallFailed(EaimwError):
    """One call of a target that brought no answer of it."""

    def __init__(self, message: str, *, handed_over: bool) -> None:
        super().__init__(message)
        self.handed_over = handed_over


class TimedOut(CallFailed):
    """The wall-clock limit of the call has passed."""


class NoConnection(CallFailed):
    """Refused, not resolved, TLS failed, not there in time, or ended before the first byte of the reply."""


class LocalFault(CallFailed):
    """The hub's own doing or lack; it says nothing about the target."""


class NoReply(CallFailed):
    """What the target sent is not one whole reply. data: the object it sent, if it sent a valid one."""

    def __init__(self, message: str, data: msgspec.Raw | None = None) -> None:
        super().__init__(message, handed_over=True)
        self.data = data


class NoHub(CallFailed):
    """No hub has answered yet, and what is there is none, or takes no calls of this kind; says what to do."""


_brief = reprlib.Repr()  # looks at the first few members alone: a value may have a mebibyte of them
_brief.maxstring = _brief.maxother = _brief.maxlong = 200
_brief.maxlist = _brief.maxdict = 4


def shown(value: object, limit: int = 80) -> str:
    """A value as a message can carry it: as JSON spells null, true and false, else its repr; cut to `limit`."""
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    try:
        text = _brief.repr(value)
    except Exception:  # an int too long to print, or a foreign __repr__ that fails
        text = f"a {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def nearest(name: object, known: Iterable[str]) -> str:
    """For the end of a message about an unknown name: the known one that looks most like it, if any does."""
    import difflib  # only where somebody has erred

    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
