"""How much a simulated target can do at once: so many servers, a queue before them, and how long each request takes.

A machine that decides and never waits: times come in, and what begins when comes out. Who carries it out sets the
timers. First come, first served:

    what happens              a server is free    all busy, room in the queue    no room
    ------------------------  ------------------  -----------------------------  -------
    `arrive`                  Work, until `ends`  WAITS                          REFUSED
    `ended` (a work is over)  the first that waits, if one does, is the next Work
    `leave` (caller hung up)  out of the queue; what is worked on goes on to its end

The last is how a real back-end behaves towards callers that time out: nobody waits for the answer any more, and its
server is busy all the same. There is no setting for it to be otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from random import Random
from typing import Final, Generic, Literal, TypeVar

from eaimw.sim.durations import NO_TIME, Duration
from eaimw.sim.modes import Refused, shown

__all__ = ["REFUSED", "WAITS", "Capacity", "Station", "Work"]

WAITS: Final = "waits"
REFUSED: Final = "refused"

T = TypeVar("T", bound=Hashable)

_NoWork = Literal["waits", "refused"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a target can do. Raises Refused for what is out of range.

    service: how long a request keeps its server, the delay of a mode not counted.
    servers: requests worked on at once, 1 or more; None: without limit, and then nothing ever waits.
    queue: requests that wait at most, 0 or more; one more is refused at once. None: without limit.
    """

    service: Duration = NO_TIME
    servers: int | None = None
    queue: int | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("servers", self.servers, 1), ("queue", self.queue, 0)):
            if value is not None and (type(value) is not int or value < least):
                raise Refused(f"{name} must be an integer of at least {least}, or None; not {shown(value)}")


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """`who` is worked on until `ends`, a moment of the clock whose times come in."""

    who: T
    ends: float


class Station(Generic[T]):
    """The servers and the queue. What arrives is told apart by identity and hash; it must not be in here already."""

    def __init__(self, capacity: Capacity, chance: Random) -> None:
        self.capacity = capacity
        self.busy = 0
        self._chance = chance
        self._queue: OrderedDict[T, None] = OrderedDict()  # who leaves from the middle costs no search

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def arrive(self, who: T, now: float) -> Work[T] | _NoWork:
        """One more request: worked on at once, or waiting, or refused and not in here."""
        capacity = self.capacity
        if capacity.servers is None or self.busy < capacity.servers:
            self.busy += 1
            return self._begun(who, now)
        if capacity.queue is not None and len(self._queue) >= capacity.queue:
            return REFUSED
        self._queue[who] = None
        return WAITS

    def ended(self, now: float) -> Work[T] | None:
        """A server has done its work. The work that it takes up now, or None if nobody waits."""
        if not self._queue:
            self.busy -= 1
            return None
        who, _ = self._queue.popitem(last=False)
        return self._begun(who, now)

    def leave(self, who: T) -> bool:
        """The caller has hung up. Has it waited, and will now never be worked on?"""
        if who not in self._queue:
            return False
        del self._queue[who]
        return True

    def _begun(self, who: T, now: float) -> Work[T]:
        return Work(who, now + self.capacity.service.draw(self._chance))
