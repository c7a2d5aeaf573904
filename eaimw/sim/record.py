"""What a run of the hub was: plain records, as `play` gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from eaimw.kernel.breaker import State
from eaimw.model import Call, Reply
from eaimw.sim.callers import Sent
from eaimw.sim.target import Known

__all__ = ["Change", "Heard", "Record", "Sample"]


class Change(NamedTuple):
    """One change of a breaker's state, as the breaker log has it."""

    at: float
    target: str
    before: State
    after: State


class Heard(NamedTuple):
    """What the hub's access log heard: a reply at the moment in which it was made. call: None if it was malformed."""

    at: float
    reply: Reply
    call: Call | None


class Sample(NamedTuple):
    """One target at one moment.

    inflight: places taken at the hub. at_target: received there and not yet answered.
    """

    at: float
    target: str
    state: State
    inflight: int
    at_target: int


@dataclass(slots=True, repr=False)  # asyncio shows each task's result, and this one is long
class Record:
    """What a run was.

    sent: every transaction, in the order in which it was due. heard: what the hub answered, in the order of the
    answers. changes: of all breakers, in order. samples: each target's, every so often.
    codes: the hub's counts of replies by target (`-`: none) and code. snapshots: the hub's figures, by target.
    books: of each target, by tx_id. stats: of each target, as `GET /_stats` has them.
    left_over: what was not given back at rest, in sentences; empty if all is well.
    ended_at, events: virtual time at the end of the load and its answers, and steps of the loop so far.
    """

    seed: int
    sent: list[Sent]
    heard: list[Heard]
    changes: list[Change]
    samples: list[Sample]
    codes: dict[str, dict[str, int]]
    snapshots: dict[str, Any]
    books: dict[str, dict[str, Known]]
    stats: dict[str, dict[str, object]]
    left_over: list[str]
    ended_at: float
    events: int
