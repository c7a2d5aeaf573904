"""Step 6: the breaker log against what happened. What happened is known from the relay's own replies."""

from __future__ import annotations

import re
import time
from datetime import datetime
from itertools import pairwise, zip_longest
from pathlib import Path

from eaimw.grade.scene import PAUSE_S, Scene
from eaimw.grade.steps import Failed

LINE = re.compile(r"([^|]*)\|([^|]*)\|(\w+)->(\w+)")
FORM = (
    "A line is time|target|FROM->TO, for instance 2026-11-29T20:51:03.123456+00:00|CORE|CLOSED->OPEN: the time in ISO "
    "8601, the target's name, states in capitals (an Enum may print as State.OPEN: write its value)."
)


def changes_are_logged(scene: Scene) -> None:
    """A burst opens CORE, a probe fails, a probe succeeds; then CLAIM opens."""
    happened = ["CORE|CLOSED->OPEN"]
    scene.core.become("fail", delay_ms=200)
    scene.together("CORE", scene.options.fail_threshold + 3)  # each is let through; the late failures log nothing
    scene.settle()
    scene.core.become("fail")
    _probe(scene, happened, "OPEN")
    scene.core.become("normal")
    _probe(scene, happened, "CLOSED")
    scene.settle()
    scene.claim.become("fail")
    scene.one_by_one("CLAIM", scene.options.fail_threshold)
    happened.append("CLAIM|CLOSED->OPEN")

    came_in_time = _has_lines(scene, len(happened))
    scene.relay.finish(scene.options.timeout + scene.patience)
    must_tell(scene.log, happened)
    if not came_in_time:
        raise Failed(
            "the lines reached the log only when the relay ended",
            "Whoever watches the log sees nothing until then: flush after each line, or open, write and close.",
        )


def _probe(scene: Scene, happened: list[str], after: str) -> None:
    """Wait for the probe, whose answer leads to `after`."""
    if scene.until("CORE", lambda code: code != "E904") == "E904":
        raise Failed(
            f"long after --reset-timeout {scene.options.reset_timeout:g} CORE's circuit still let no probe through",
            "Give the breaker the number of seconds from --reset-timeout, and report what came of each call that "
            "was let through.",
        )
    happened += ["CORE|OPEN->HALF_OPEN", f"CORE|HALF_OPEN->{after}"]


def _has_lines(scene: Scene, wanted: int) -> bool:
    deadline = time.monotonic() + min(2.0, scene.patience)
    while len(_lines(scene.log)) < wanted:
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE_S)
    return True


def _lines(log: Path) -> list[str]:
    return log.read_bytes().decode("utf-8", "replace").splitlines() if log.exists() else []


def must_tell(log: Path, happened: list[str]) -> None:
    """Failed unless the log tells just what happened, once each, in order."""
    if not log.exists():
        raise Failed("the file named by --breaker-log was not written", FORM)
    lines = _lines(log)
    for number, line in enumerate(lines, 1):
        parts = LINE.fullmatch(line)
        if parts is None or parts[2] not in ("CORE", "CLAIM") or not _is_time(parts[1]):
            raise Failed(f"line {number} of the log is {line[:120]!r}", FORM)
    told = [line.partition("|")[2] for line in lines]
    for number, (found, wanted) in enumerate(zip_longest(told, happened), 1):
        if found != wanted:
            raise Failed(
                f"line {number} of the log says {found or 'nothing'}, and what happened was {wanted or 'nothing more'}",
                _advice(told, happened),
            )


def _advice(told: list[str], happened: list[str]) -> str:
    if any(one == other for one, other in pairwise(told)):
        return (
            "Each change is logged once: compare the state before and after the breaker's verb, and let no other "
            "thread come between (a lock over both looks and the write)."
        )
    if set(happened) - set(told):
        return (
            f"Not logged: {', '.join(sorted(set(happened) - set(told)))}. Every verb can change the state, allow() too "
            "(OPEN->HALF_OPEN): look at the state before and after each of the three, and log under the name of the "
            "target whose breaker it is."
        )
    return "One line for each change, in the order in which they happened, and no line where the state stays."


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return "T" in text or " " in text
