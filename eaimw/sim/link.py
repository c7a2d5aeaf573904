"""How the network treats the connections to one destination: plain records, and the link that has them in force."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from eaimw.sim.transport import Connection

Draw = Callable[[Random], float]
Pieces = Literal["whole", "random", "bytes"]
Connect = Literal["accept", "refuse", "swallow"]

BUFFER = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One direction of a link. Bytes are counted from a connection's start, and order is always kept.

    latency: seconds that a piece is on its way; a number, or a function of the link's stream of chance.
    pieces: how a write arrives: `whole`, cut at `random` places, or `bytes`, each by itself.
    rate: bytes per second that get through, for a reader who is slow; inf: all at once.
    buffer: bytes between writer and reader; what does not fit waits in the writer's transport, as with a socket.
    reset_after: after so many bytes both ends are reset. None: never; so with the next two.
    close_after: after so many bytes the reader sees the end, and what is still written vanishes.
    stall_after: after so many bytes nothing more gets through, not even an end, for `stall_for` seconds.
    close_delay: seconds by which an end or a reset arrives later than bytes would.
    """

    latency: float | Draw = 0.0005
    pieces: Pieces = "whole"
    rate: float = math.inf
    buffer: int = BUFFER
    reset_after: int | None = None
    close_after: int | None = None
    stall_after: int | None = None
    stall_for: float = math.inf
    close_delay: float = 0.0

    def __post_init__(self) -> None:
        if not callable(self.latency):
            _check("latency", self.latency, math.isfinite(self.latency) and self.latency >= 0, "0 or more, finite")
        _check("pieces", self.pieces, self.pieces in get_args(Pieces), f"one of {get_args(Pieces)}")
        _check("rate", self.rate, self.rate > 0, "above 0")
        _check("buffer", self.buffer, self.buffer >= 1, "at least 1")
        _check("stall_for", self.stall_for, self.stall_for >= 0, "0 or more")
        _check("close_delay", self.close_delay, 0 <= self.close_delay < math.inf, "0 or more, finite")
        for name in ("reset_after", "close_after", "stall_after"):
            value = getattr(self, name)
            _check(name, value, value is None or value >= 0, "0 or more, or None")

    @property
    def cuts(self) -> bool:
        """Does anything but time happen to the bytes?"""
        return (self.pieces, self.reset_after, self.close_after, self.stall_after) != ("whole", None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """A link's conditions.

    there, back: the way to the destination, and from it.
    connect: `accept`: as its listener does; `refuse`: as if nobody listened; `swallow`: connecting just hangs.
        For one that accepts and never answers: `there=Way(stall_after=0)`.
    reset_within: each new connection is reset at a random instant within so many seconds. None: it is not.
    idle_limit: a connection without bytes for so many seconds is ended towards both ends, as a firewall or a load
        balancer does; what is then still written is answered with a reset. None: it is not.
    """

    there: Way = field(default_factory=Way)
    back: Way = field(default_factory=Way)
    connect: Connect = "accept"
    reset_within: float | None = None
    idle_limit: float | None = None

    def __post_init__(self) -> None:
        _check("connect", self.connect, self.connect in get_args(Connect), f"one of {get_args(Connect)}")
        for name in ("reset_within", "idle_limit"):
            value = getattr(self, name)
            _check(name, value, value is None or 0 < value < math.inf, "above 0, finite, or None")


class Link:
    """All connections to one destination, with its own stream of chance.

    connections: those of which an end is not yet gone, oldest first. opened: how many there have been.
    """

    def __init__(self, name: str, random: Random, conditions: Conditions) -> None:
        self.name = name
        self.random = random
        self.connections: dict[Connection, None] = {}
        self.opened = 0
        self._conditions = conditions

    @property
    def conditions(self) -> Conditions:
        """What is in force; setting it concerns every byte that is written from now on, and ends a stall."""
        return self._conditions

    @conditions.setter
    def conditions(self, conditions: Conditions) -> None:
        self._conditions = conditions
        for connection in [*self.connections]:
            connection.apply(conditions)

    def latency(self, way: Way) -> float:
        """Seconds that the next piece is on this way. Raises ValueError for a draw that is no time."""
        if not callable(way.latency):
            return way.latency
        drawn = way.latency(self.random)
        if not 0 <= drawn < math.inf:
            raise ValueError(f"a drawn latency must be 0 or more, finite, not {drawn!r}")
        return drawn

    def reset(self) -> None:
        """Reset every connection at once, as a firewall that is started anew."""
        for connection in [*self.connections]:
            connection.reset()


def _check(name: str, value: object, is_good: bool, allowed: str) -> None:
    if not is_good:
        raise ValueError(f"{name} must be {allowed}, not {value!r}")
