"""The targets of a hub as a table for people: what the admin plane's `GET /targets` tells, in 80 columns or more."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from eaimw.codes import most_first

TITLES = ("TARGET", "STATE", "PROBE", "IN FLIGHT", "P50", "P95", "P99", "SUCCESS", "FAILURE")
COLOURS = {"OPEN": "red", "HALF_OPEN": "yellow", "CLOSED": "green"}
SHORTEST_NAME = 8  # characters of a name that are shown, however narrow the terminal is
GAP = "  "
# How long something took or is ago: up to so many seconds in this unit, of so many seconds.
_UNITS = ((1.0, 0.001, "ms"), (120.0, 1.0, "s"), (7_200.0, 60.0, "m"), (172_800.0, 3_600.0, "h"))


def table(targets: Mapping[str, Mapping[str, Any]], now: datetime, width: int | None = None) -> list[str]:
    """Its lines: for each target one of figures, one of why it is so and since when, one of its replies by code, and
    one for each operation whose own circuit is not closed.

    now: to say how long ago a state began. width: columns that a line may have; None: as many as it needs. States are
    in colour, which click.echo leaves out where no terminal shows it. Raises KeyError, TypeError, ValueError and
    AttributeError for what is no answer of an admin plane.
    """
    rows = [_row(target) for target in targets.values()]
    widths = [max(map(len, column)) for column in zip(TITLES, *rows, strict=True)]
    if width is not None:
        widths[0] = min(widths[0], max(SHORTEST_NAME, width - sum(widths[1:]) - len(GAP) * (len(widths) - 1)))
    lines = [_cut(_joined(TITLES, widths), width)]
    for row, target in zip(rows, targets.values(), strict=True):
        figures = _cut(_joined(row, widths), width)
        begin = widths[0] + len(GAP)
        end = begin + len(row[1])
        state = click.style(figures[begin:end], fg=COLOURS.get(row[1]), bold=row[1] != "CLOSED")
        lines += [
            figures[:begin] + state + figures[end:],
            _cut(f"{GAP}{_since(target['since'], now)}: {target['why']}", width),
            GAP + _codes(target["codes"], None if width is None else width - len(GAP)),
            *_of_ops(target.get("ops", {}), now, width),
        ]
    return lines


def span(seconds: float) -> str:
    """A length of time as people say it: 0.4ms, 3.1s, 17s, 4m, 3h, 2d."""
    unit, name = next(((unit, name) for limit, unit, name in _UNITS if seconds < limit), (86_400.0, "d"))
    number = seconds / unit
    return f"{number:.1f}{name}" if number < 9.95 and unit <= 1.0 else f"{number:.0f}{name}"


def _row(target: Mapping[str, Any]) -> tuple[str, ...]:
    probe, latency = target["next_probe_in"], target["latency"]
    return (
        str(target["name"]),
        str(target["state"]),
        "-" if probe is None else f"in {span(probe)}" if probe > 0 else "due",
        f"{target['inflight']:,}/{target['max_inflight']:,}",
        *("-" if latency[share] is None else span(latency[share]) for share in ("p50", "p95", "p99")),
        *("-" if target[last] is None else f"{span(target[last])} ago" for last in ("since_success", "since_failure")),
    )


def _of_ops(circuits: Mapping[str, Mapping[str, Any]], now: datetime, width: int | None) -> list[str]:
    """Where each operation has its own circuit, those that are not closed."""
    return [
        _cut(f"{GAP}{op} {circuit['state']} {_since(circuit['since'], now)}: {circuit['why']}", width)
        for op, circuit in circuits.items()
        if circuit["state"] != "CLOSED"
    ]


def _joined(row: tuple[str, ...], widths: list[int]) -> str:
    """Name and state stand left, figures right."""
    left = (f"{_cut(row[0], widths[0]):{widths[0]}}", f"{row[1]:{widths[1]}}")
    return GAP.join((*left, *(f"{cell:>{width}}" for cell, width in zip(row[2:], widths[2:], strict=True))))


def _since(text: str, now: datetime) -> str:
    """In UTC, as the breaker log has it."""
    since = datetime.fromisoformat(text).astimezone(UTC)
    return f"since {since:%Y-%m-%d %H:%M:%S} UTC ({span(max(0.0, (now - since).total_seconds()))})"


def _codes(counts: Mapping[str, int], width: int | None) -> str:
    """Replies by code, the most frequent first; as many codes as there is room for."""
    parts = [f"{code} {count:,}" for code, count in most_first(counts)]
    for shown in range(len(parts), 0, -1):
        rest = [f"and {len(parts) - shown} more"] if shown < len(parts) else []
        line = GAP.join(parts[:shown] + rest)
        if width is None or len(line) <= width:
            return _cut(line, None)
    return _cut(GAP.join(parts) or "no replies yet", width)


def _cut(text: str, width: int | None) -> str:
    """In so many columns, without what a terminal might obey."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if width is None or len(text) <= width else text[: max(0, width - 3)] + "..."
