"""One seed proved: its random run keeps every invariant, and what ails the other targets changes nothing for CLAIM."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from eaimw.sim.callers import Sent
from eaimw.sim.forbidden import Forbidden, forbidden
from eaimw.sim.invariants import MOMENT, Broken, Checker
from eaimw.sim.loop import NotSimulated
from eaimw.sim.record import Record
from eaimw.sim.rough import rough
from eaimw.sim.stage import Stage

__all__ = ["Failure", "Proved", "checked", "differences", "prove", "told"]

T = TypeVar("T")

Watch = Callable[[Stage], Callable[[], None]]


class Failure(NamedTuple):
    """What was broken, in a sentence, and what happened before it."""

    seed: int
    why: str
    story: list[str]


class Proved(NamedTuple):
    """A seed that kept every promise: how many transactions, how many steps of the loop."""

    seed: int
    transactions: int
    steps: int


def prove(seed: int) -> Proved | Failure:
    """Play the run of a seed as it is, and with all targets but CLAIM well, every invariant checked at every step."""
    run = rough(seed)
    others = [name for name in run.settings.targets if name != "CLAIM"]
    records = told(seed, lambda: (checked(run.play), checked(run.with_healthy(*others).play)))
    if isinstance(records, Failure):
        return records
    record, healthy = records
    unlike = differences(record, healthy, until=math.inf if run.down_at is None else run.down_at)
    if unlike:
        why = f"what ails {' and '.join(others)} changes {len(unlike)} replies of CLAIM: {unlike[0]}"
        return Failure(seed, why, unlike[:20])
    return Proved(seed, len(record.sent) + len(healthy.sent), record.events + healthy.events)


def told(seed: int, story: Callable[[], T]) -> T | Failure:
    """What a story gives in which nothing may come from the real world; a Failure for whatever it raises."""
    try:
        with forbidden():
            return story()
    except Broken as broken:
        return Failure(seed, str(broken), broken.story)
    except (Exception, NotSimulated, Forbidden) as problem:
        return Failure(seed, f"{type(problem).__name__}: {problem}", getattr(problem, "__notes__", []))


def checked(play: Callable[[Watch], Record], slack: float = MOMENT) -> Record:
    """The record of a run, which is played with the `watch` that it is given. slack: see `Checker`.

    Raises Broken where an invariant is, and what `play` raises, with the story as its notes.
    """
    checkers: list[Checker] = []

    def watch(stage: Stage) -> Callable[[], None]:
        checkers.append(Checker(stage, slack))
        return checkers[0].step

    try:
        record = play(watch)
    except BaseException as problem:
        for line in checkers[0].story if checkers else ():
            problem.add_note(line)
        raise
    checkers[0].finish(record)
    return record


def differences(one: Record, other: Record, target: str = "CLAIM", until: float = math.inf) -> list[str]:
    """Where two runs differ in what a target's callers were told, to the byte, and when. until: of what was told then.

    Once a hub has begun to go down, how long it takes is a matter of all its targets, and so is who still gets in.
    """
    ones, others = ([_told(sent) for sent in record.sent if sent.target == target] for record in (one, other))
    ones, others = ([told for told in some if told.at < until] for some in (ones, others))
    unlike = [f"{a} here, {b} there" for a, b in zip(ones, others, strict=False) if a != b]
    if len(ones) != len(others):
        unlike.append(f"{len(ones)} were told something here, {len(others)} there")
    return unlike


class _Told(NamedTuple):
    due: float
    tx_id: str
    at: float
    status: int | None
    reply: bytes | None
    lost: str | None


def _told(sent: Sent) -> _Told:
    return _Told(sent.due, sent.tx_id, sent.settled_at, sent.status, sent.reply, sent.lost)
