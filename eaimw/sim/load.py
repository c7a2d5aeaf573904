"""Who calls, when, and with what: loads of transactions on a simulated hub, as data.

An open load sends at times that do not depend on the answers, as a crowd does; a closed one is so many callers who
each wait for their answer, think, and send again. Times are seconds of the run. Each load draws from a stream of its
own, made of the seed and its name, so that one more load changes nothing for the others.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from eaimw.sim.durations import NO_TIME, Duration, check_number
from eaimw.sim.modes import Refused, shown

__all__ = ["Arrival", "Bursts", "ClosedLoop", "Constant", "Load", "Piece", "Poisson", "arrivals", "chance_of"]

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,100}")
MOST_RATE = 1e6  # beyond it the steps drown in what a float can tell apart, and time stands still
Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Constant:
    """One every 1/rate seconds, the first after as long. rate: per second, more than 0, at most 1,000,000."""

    rate: float

    def __post_init__(self) -> None:
        check_number("rate", self.rate, above=0, most=MOST_RATE)

    def times(self, chance: Random, until: float) -> Iterator[float]:
        number = 1
        while (moment := number / self.rate) < until:  # not a running sum, which would drift
            yield moment
            number += 1


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent callers, so many per second on average. rate: more than 0, at most 1,000,000."""

    rate: float

    def __post_init__(self) -> None:
        check_number("rate", self.rate, above=0, most=MOST_RATE)

    def times(self, chance: Random, until: float) -> Iterator[float]:
        moment = chance.expovariate(self.rate)
        while moment < until:
            yield moment
            moment += chance.expovariate(self.rate)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some time with one rate. seconds: at least 0.001. rate: per second, at most 1,000,000; 0: nobody calls."""

    seconds: float
    rate: float

    def __post_init__(self) -> None:
        check_number("seconds", self.seconds, least=0.001)
        check_number("rate", self.rate, least=0, most=MOST_RATE)


@dataclass(frozen=True, slots=True)
class Bursts:
    """A Poisson process whose rate changes from piece to piece; after the last comes the first again."""

    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        if not any(piece.rate > 0 for piece in self.pieces):
            raise Refused(f"pieces must have one with a rate above 0; not {shown(self.pieces)}")

    def times(self, chance: Random, until: float) -> Iterator[float]:
        """A draw of mean 1 is used up at the rate of each piece, so that the pieces' ends cost no accuracy."""
        begin, due = 0.0, chance.expovariate(1.0)
        while True:
            for piece in self.pieces:
                end = begin + piece.seconds
                moment = begin
                while piece.rate > 0 and (following := moment + due / piece.rate) < end:
                    moment, due = following, chance.expovariate(1.0)
                    if moment >= until:
                        return
                    yield moment
                due -= (end - moment) * piece.rate
                due = max(0.0, due)
                begin = end
            if begin >= until:
                return


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many callers; each sends, waits for its answer, thinks, sends again. A policy: the answers make its times.

    callers: 1 or more. think: seconds between an answer and the next request of the same caller.
    """

    callers: int
    think: Duration = NO_TIME

    def __post_init__(self) -> None:
        if type(self.callers) is not int or self.callers < 1:
            raise Refused(f"callers must be an integer of at least 1; not {shown(self.callers)}")

    def starts(self, chance: Random) -> list[float]:
        """When each caller sends its first, in no order: after having thought once, so not all at once."""
        return [self.think.draw(chance) for _ in range(self.callers)]

    def again(self, answered_at: float, chance: Random) -> float:
        """When a caller that was answered then sends its next."""
        return answered_at + self.think.draw(chance)


Process = Constant | Poisson | Bursts | ClosedLoop


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of transaction and the process that sends it.

    name: begins its tx_ids; 1 to 100 of A-Z a-z 0-9 . _ : - . fields: what else stands in each transaction.
    """

    name: str
    target: str
    process: Process
    op: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise Refused(f"name must be 1 to 100 of A-Z a-z 0-9 . _ : - ; not {shown(self.name)}")
        for taken in ("tx_id", "target", "op"):
            if taken in self.fields:
                raise Refused(f"fields must not have {taken}, which the load gives itself")
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))

    def tx(self, number: int) -> Json:
        """Its transaction of that number; each number once, or a target takes it for a repeat."""
        tx: Json = {"tx_id": f"{self.name}-{number}", "target": self.target}
        if self.op is not None:
            tx["op"] = self.op
        tx.update(self.fields)
        return tx


class Arrival(NamedTuple):
    """A transaction is sent at this moment: the load's, with this number."""

    at: float
    load: Load
    number: int


def chance_of(load: Load, seed: int) -> Random:
    """The load's stream, at its start; a closed loop draws its think times from it."""
    return Random(f"{seed}/{load.name}")


def arrivals(loads: Sequence[Load], seed: int, until: float) -> Iterator[Arrival]:
    """All that the open loads send before `until`, in order of time; closed ones are not in it.

    Raises Refused if two loads have one name: their tx_ids would be the same.
    """
    names = [load.name for load in loads]
    for name in names:
        if names.count(name) > 1:
            raise Refused(f"name must not be that of another load; it is {shown(name)}")
    return heapq.merge(*(_of(load, seed, until) for load in loads), key=lambda arrival: arrival.at)


def _of(load: Load, seed: int, until: float) -> Iterator[Arrival]:
    if isinstance(load.process, ClosedLoop):
        return
    for number, at in enumerate(load.process.times(chance_of(load, seed), until), 1):
        yield Arrival(at, load, number)
