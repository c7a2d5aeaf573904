"""Recorded transactions, read: what `eaimw relay --record` has written, or an access log as far as it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from eaimw import codes
from eaimw.config import NAME_ALLOWED, NAME_PATTERN
from eaimw.errors import EaimwError, Unusable, shown
from eaimw.kernel.breaker import State
from eaimw.wire import MAX_TIMEOUT_MS

MAX_TRANSACTIONS = 2_000_000
MAX_SPAN = 366 * 86_400.0  # seconds from the first to the last
MAX_LINE = 4_096  # bytes; ours have at most 512
# Refused because of settings that a replay can change; what else was refused would be so with any settings.
_BY_SETTINGS = frozenset({codes.CIRCUIT_OPEN, codes.FULL})


class BadRecording(EaimwError):
    """A file that is no record; the message is a sentence that begins with the file, and the line where it is one."""


class Past(msgspec.Struct, frozen=True, gc=False):
    """One transaction as it was, or as it was replayed.

    at: when the hub took it, in seconds since the first of the file was taken. took: seconds of its call; None: it was
    refused. sample: what the call said of the target's health. state: the circuit's when it was decided whether to
    call.
    """

    at: float
    target: str
    op: str | None
    timeout_ms: int | None
    code: str
    outcome: codes.Outcome
    took: float | None
    sample: codes.Sample
    state: State | None

    @property
    def ended(self) -> float:
        """When its call ended, or it was refused."""
        return self.at + (self.took or 0.0)


@dataclass(frozen=True, slots=True)
class Recording:
    """A file's transactions in the order in which they were taken.

    kind: `record` or `access log`. refused_anyhow: how many it has beside these, which no settings would have served:
    malformed ones, those for no target, those that came while the hub was going down.
    """

    kind: str
    transactions: list[Past]
    refused_anyhow: int


_Time = Annotated[datetime, Meta(tz=True)]
_Name = Annotated[str, Meta(pattern=rf"\A{NAME_PATTERN}\Z")]
_Code = Annotated[str, Meta(pattern=rf"\A{codes.CODE_PATTERN}\Z")]
_Milliseconds = Annotated[int, Meta(ge=0, le=MAX_TIMEOUT_MS)]


class _Recorded(msgspec.Struct, gc=False):
    """A line of a record."""

    time: _Time
    target: _Name | None
    op: _Name | None
    timeout_ms: _Milliseconds | None
    code: _Code
    outcome: codes.Outcome
    duration: Annotated[float, Meta(ge=0, le=1e6)] | None
    sample: codes.Sample
    state: State | None

    def past(self) -> Past:
        return Past(
            self.time.timestamp(),
            self.target or "",
            self.op,
            self.timeout_ms,
            self.code,
            self.outcome,
            self.duration,
            self.sample,
            self.state,
        )


class _Accessed(msgspec.Struct, gc=False):
    """A line of an access log."""

    time: _Time
    target: _Name | None
    op: _Name | None
    code: _Code
    outcome: codes.Outcome
    attempts: Annotated[int, Meta(ge=0)]
    elapsed_ms: Annotated[float, Meta(ge=0, le=1e9)]
    state: State | None

    def past(self) -> Past:
        """Nothing waits in a hub before its call: what it took in the hub, to a tenth of a millisecond, is the call."""
        took = self.elapsed_ms / 1000
        is_called = self.attempts > 0
        return Past(
            self.time.timestamp() - took,
            self.target or "",
            self.op,
            None,
            self.code,
            self.outcome,
            took if is_called else None,
            codes.of_target(self.code).sample if is_called else "none",
            self.state,
        )


_ALLOWED = {
    "time": "a time as 2026-11-29T20:51:03.123456+00:00",
    "target": f"{NAME_ALLOWED}, or null",
    "op": f"{NAME_ALLOWED}, or null",
    "timeout_ms": f"an integer from 0 to {MAX_TIMEOUT_MS:,}, or null",
    "code": codes.CODE_ALLOWED,
    "outcome": f"one of {', '.join(codes.OUTCOMES)}",
    "duration": "seconds from 0 to 1,000,000, or null where no call was made",
    "sample": "one of success, failure, none",
    "state": f"one of {', '.join(State)}, or null",
    "attempts": "an integer of at least 0",
    "elapsed_ms": "milliseconds from 0 to 1,000,000,000",
}


def read_recording(path: Path) -> Recording:
    """The file. Raises Unusable if it cannot be read, and BadRecording."""
    try:
        with path.open("rb") as file:
            return _read(path, lambda: file.readline(MAX_LINE + 1))
    except OSError as problem:
        raise Unusable(
            f"{path} cannot be read: {problem.strerror}; name a file that `eaimw relay --record` has written"
        ) from None


def _read(path: Path, next_line: Callable[[], bytes]) -> Recording:
    kind = "record"
    shape: type[_Recorded | _Accessed] = _Recorded
    decode: Callable[[bytes], Any] | None = None
    pasts: list[Past] = []
    refused_anyhow = number = 0
    while line := next_line():
        number += 1
        if len(line) > MAX_LINE:
            raise BadRecording(f"{path} line {number}: it has more than {MAX_LINE:,} bytes; no line of a record does")
        if line.isspace():
            continue
        if decode is None:  # the first line says what kind of file it is
            if b'"elapsed_ms"' in line:
                kind, shape = "access log", _Accessed
            decode = msgspec.json.Decoder(shape).decode
        try:
            past = decode(line).past()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise BadRecording(f"{path} line {number}: {_fault(line, kind, shape, problem)}") from None
        if past.took is None and past.code not in _BY_SETTINGS:
            refused_anyhow += 1
            continue
        if len(pasts) == MAX_TRANSACTIONS:
            raise BadRecording(f"{path} line {number}: {MAX_TRANSACTIONS:,} transactions are the most; split the file")
        pasts.append(past)
    return Recording(kind, _from_zero(path, pasts), refused_anyhow)


def _from_zero(path: Path, pasts: list[Past]) -> list[Past]:
    """In order, with the first at 0.0; to a microsecond, so that what was at one instant is at one."""
    pasts.sort(key=lambda past: past.at)
    first = pasts[0].at if pasts else 0.0
    if pasts and pasts[-1].at - first > MAX_SPAN:
        days = (pasts[-1].at - first) / 86_400
        raise BadRecording(f"{path}: its transactions span {days:,.0f} days; at most {MAX_SPAN / 86_400:.0f} can be")
    return [msgspec.structs.replace(past, at=round(past.at - first, 6)) for past in pasts]


def _fault(line: bytes, kind: str, shape: type[msgspec.Struct], problem: Exception) -> str:
    """What is wrong with a line: the field, what was found, what is allowed."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        return f"it is not JSON: {fault}"
    if not isinstance(found, dict):
        return f"it is {shown(found)}; it must be a JSON object"
    fields = msgspec.structs.fields(shape)
    for field in fields:
        if field.name not in found:
            return f"{field.name} is missing; a line of a {kind} has {', '.join(each.name for each in fields)}"
        try:
            msgspec.convert(found[field.name], field.type)
        except msgspec.ValidationError:
            return f"{field.name} is {shown(found[field.name])}; it must be {_ALLOWED[field.name]}"
    return str(problem)
