"""A random run, made of its seed: settings, loads, callers, targets, links, and everything that can be wrong with them.

Seeds are cheap and strange: what nobody would set up by hand stands beside what everybody has. Whatever comes out can
be played in a fraction of a second, and its parts draw from streams of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from eaimw.config import HubSettings, TargetSettings
from eaimw.policy import BreakerSettings
from eaimw.sim.backend import Backend, Phases
from eaimw.sim.callers import Manners
from eaimw.sim.capacity import Capacity
from eaimw.sim.chance import stream
from eaimw.sim.durations import Duration, Exponential, Fixed, Lognormal
from eaimw.sim.forms import FORMS, WISHES
from eaimw.sim.link import Conditions, Draw, Pieces, Way
from eaimw.sim.load import Bursts, ClosedLoop, Constant, Load, Piece, Poisson, Process
from eaimw.sim.modes import settings_from
from eaimw.sim.play import Record, Stage, play
from eaimw.sim.policies import known_ops, with_policies, with_resets, with_wishes, with_words
from eaimw.sim.stage import Door
from eaimw.sim.timeline import Fault, Timeline

__all__ = ["Run", "rough"]

# Forms of a megabyte are rare, and where bytes go one by one, each a step, there is none of these.
HUGE = {"largest", "too_long", "too_long_in_chunks"}
LARGE = HUGE | {"long_head"}


@dataclass(frozen=True, slots=True)
class Run:
    """All that `play` takes."""

    seed: int
    settings: HubSettings
    backends: Mapping[str, Backend]
    loads: tuple[Load, ...]
    until: float
    door: Door
    manners: Mapping[str, Manners]
    callers: Mapping[str, Phases]
    down_at: float | None

    def play(self, watch: Callable[[Stage], Callable[[], object]] | None = None, charge: float = 0.0) -> Record:
        """Play it."""
        return play(
            self.settings, self.backends, self.loads, seed=self.seed, until=self.until, door=self.door,
            manners=self.manners, callers=self.callers, down_at=self.down_at, charge=charge, watch=watch,
        )  # fmt: skip

    def with_healthy(self, *names: str) -> Run:
        """The same, but that these targets are well, over sound links."""
        return replace(self, backends={**self.backends, **dict.fromkeys(names, Backend())})


def rough(seed: int) -> Run:
    """The run of a seed: two or three targets and 50 to 300 transactions, or a few more."""
    draw = stream(seed, "the run")
    names = ["CORE", "CLAIM", "CARDS"][: draw.choice((2, 2, 3))]
    until = draw.choice((draw.uniform(2.0, 20.0), draw.uniform(1.0, 5.0), draw.uniform(20.0, 60.0)))
    is_fine = draw.random() < 0.15  # bytes go one by one, so there are not many of them
    targets = {name: _settings(stream(seed, f"settings of {name}"), number) for number, name in enumerate(names, 1)}
    backends = {name: _backend(stream(seed, f"backend {name}"), until, is_fine) for name in names}
    for name in names:
        chance = stream(seed, f"policies of {name}")
        targets[name], backends[name] = with_policies(chance, targets[name]), with_wishes(chance, backends[name])
    loads, manners, callers = [], {}, {}
    share = draw.uniform(50, 280) / len(names)
    for name in names:
        chance = stream(seed, f"loads on {name}")
        kinds = chance.choice((1, 1, 2, 3))
        for number in range(kinds):
            load = _load(chance, f"{name.lower()}-{number}", name, share / kinds, until, is_fine)
            own = stream(seed, f"policies of {load.name}")
            loads.append(with_words(own, load, targets[name]))
            if chance.random() < 0.5:
                manners[load.name] = _manners(chance)
            if chance.random() < 0.3:
                callers[load.name] = _phases(chance, until, is_fine, _caller_conditions)
            callers[load.name] = with_resets(own, callers.get(load.name, ()), targets[name])
    if draw.random() < 0.1:
        loads.append(Load("lost", "NOWHERE", Poisson(3 / until)))
    return Run(
        seed, HubSettings(targets, ops=known_ops(stream(seed, "operations"))), backends, tuple(loads), until,
        door="http" if draw.random() < 0.7 else "hub",
        manners=manners,
        callers=callers,
        down_at=draw.uniform(0, until) if draw.random() < 0.15 else None,
    )  # fmt: skip


def _settings(draw: Random, number: int) -> TargetSettings:
    rest = draw.choice((0.0, draw.uniform(0.01, 0.5), draw.uniform(0.5, 5.0)))
    host = f"10.0.0.{number}" if draw.random() < 0.8 else f"target-{number}.bank"
    return TargetSettings(
        f"http://{host}:{9200 + number}/tx",
        timeout=draw.choice((draw.uniform(0.02, 0.3), draw.uniform(0.3, 3.0))),
        max_inflight=draw.choice((1, 2, 3, 5, draw.randint(1, 12))),
        breaker=BreakerSettings(draw.choice((1, 2, 3, 5, 10)), rest),
        connect_timeout=draw.choice((0.5, draw.uniform(0.005, 0.5))),
    )


def _backend(draw: Random, until: float, is_fine: bool) -> Backend:
    forms = {}
    if draw.random() < 0.6:
        avoided = LARGE if is_fine else HUGE if draw.random() < 0.9 else ()
        chosen = draw.sample([form for form in FORMS if form not in avoided and form not in WISHES], draw.randint(1, 4))
        forms = {form: draw.uniform(0.02, 0.25) for form in chosen}
    down: tuple[tuple[float, float], ...] = ()
    if draw.random() < 0.2:
        begin = draw.uniform(0, until)
        down = ((begin, begin + draw.uniform(0.05, until / 3)),)
    return Backend(
        capacity=_capacity(draw) if draw.random() < 0.7 else None,
        timeline=_timeline(draw, until),
        conditions=_phases(draw, until, is_fine, _target_conditions) if draw.random() < 0.6 else (),
        forms=forms,
        down=down,
        look_up=draw.choice((0.0, 0.0, draw.uniform(0, 0.1), math.inf)),
    )


def _capacity(draw: Random) -> Capacity:
    servers = draw.choice((None, 1, 2, 4, 8))
    queue = None if servers is None else draw.choice((None, 0, 1, 5))
    return Capacity(_duration(draw, 10 ** draw.uniform(-3.5, -0.5)), servers, queue)


def _duration(draw: Random, mean: float) -> Duration:
    return draw.choice((Fixed(mean), Exponential(mean), Lognormal(mean, mean * draw.uniform(1, 20))))


def _timeline(draw: Random, until: float) -> Timeline:
    """Up to four faults, one after the other."""
    moments = sorted(draw.uniform(0, until) for _ in range(2 * draw.choice((0, 0, 1, 1, 2, 3, 4))))
    faults = []
    for begin, end in zip(moments[::2], moments[1::2], strict=True):
        mode = draw.choice(("fail", "slow", "deny", "hang", "drop", "garbage", "flaky", "drip"))
        wanted: dict[str, Any] = {"mode": mode}
        if mode in ("slow", "fail", "deny", "flaky"):
            wanted["delay_ms"] = round(10 ** draw.uniform(0, 3.6))
        elif mode == "drip":
            wanted["delay_ms"] = draw.choice((1, 3, 30))
        if mode != "deny" and draw.random() < 0.3:
            wanted["execute"] = draw.choice(("before", "never"))
        if end > begin:
            faults.append(Fault(begin, settings_from(wanted, "normal"), end))
    return Timeline(tuple(faults))


def _phases(draw: Random, until: float, is_fine: bool, make: Callable[[Random, bool], Conditions]) -> Phases:
    """Conditions one after the other, sound ones between; the first may be there from the start."""
    moments = sorted(draw.uniform(0, until) for _ in range(draw.randint(1, 4)))
    if draw.random() < 0.3:
        moments[0] = 0.0
    return tuple((at, Conditions() if draw.random() < 0.25 else make(draw, is_fine)) for at in moments)


def _target_conditions(draw: Random, is_fine: bool) -> Conditions:
    return Conditions(
        there=_way(draw, is_fine),
        back=_way(draw, is_fine),
        connect=draw.choice(("accept", "accept", "accept", "accept", "refuse", "swallow")),
        reset_within=_some(draw, 0.1, lambda: draw.uniform(0.05, 5)),
        idle_limit=_some(draw, 0.1, lambda: draw.uniform(0.05, 2)),
    )


def _caller_conditions(draw: Random, is_fine: bool) -> Conditions:
    """Rough, but a caller gets through or learns that it does not: nobody waits for ever."""
    there, back = (replace(_way(draw, is_fine), rate=draw.choice((1e5, 1e6)), buffer=262_144) for _ in range(2))
    there, back = (way if way.stall_after is None else replace(way, stall_for=1.0) for way in (there, back))
    return Conditions(there=there, back=back, reset_within=_some(draw, 0.1, lambda: draw.uniform(0.5, 5)))


def _way(draw: Random, is_fine: bool) -> Way:
    pieces: Pieces = draw.choice(("whole", "random", "bytes" if is_fine else "random"))
    buffer = draw.choice((262_144, 262_144, draw.randint(100, 10_000)))
    if not is_fine and pieces != "whole":  # through a full buffer even much would trickle byte by byte
        buffer = 262_144
    return Way(
        latency=_latency(draw),
        pieces=pieces,
        rate=draw.choice((math.inf, math.inf, 10 ** draw.uniform(3, 6))),
        buffer=buffer,
        reset_after=_some(draw, 0.06, lambda: draw.randint(0, 3000)),
        close_after=_some(draw, 0.06, lambda: draw.randint(0, 3000)),
        stall_after=_some(draw, 0.06, lambda: draw.randint(0, 3000)),
        stall_for=draw.choice((math.inf, draw.uniform(0.01, 1.0))),
        close_delay=draw.choice((0.0, 0.0, draw.uniform(0, 0.3))),
    )


def _latency(draw: Random) -> float | Draw:
    mean = 10 ** draw.uniform(-4, -1.3)
    return draw.choice((0.0005, 0.0, mean, lambda chance: chance.expovariate(1 / mean)))


def _some(draw: Random, share: float, make: Callable[[], Any]) -> Any:
    value = make()
    return value if draw.random() < share else None


def _load(draw: Random, name: str, target: str, number: float, until: float, is_fine: bool) -> Load:
    """About so many transactions."""
    fields: dict[str, object] = {}
    op = None
    if target == "CORE" and draw.random() < 0.5:
        op = draw.choice(("BALANCE", "DEPOSIT", "WITHDRAW", "SELL"))
        fields = {"account": draw.choice(("A-1", "A-99")), "amount": draw.choice((1, 600, -1))}
    elif target == "CLAIM" and draw.random() < 0.5:
        op, fields = draw.choice(("SUBMIT", "STATUS")), {"policy": "P-1", "claim": "C-1", "amount": 100}
    if draw.random() < 0.2:
        fields["timeout_ms"] = draw.choice((1, 5, 50, 500, 5000))
    if draw.random() < 0.2:
        fields["note"] = "x" * draw.choice((100, 1000) if is_fine else (1000, 5000, 60_000))
    if draw.random() < 0.2:
        fields["priority"] = draw.choice(("high", "normal", "low"))
    if draw.random() < 0.1:
        fields["idempotency_key"] = f"key of {name}"
    return Load(name, target, _process(draw, number, until), op, fields)


def _process(draw: Random, number: float, until: float) -> Process:
    rate = number / until
    callers = draw.randint(1, 6)
    think = max(0.002, until * callers / number)
    bursts = Bursts((Piece(until / 10, 0.0), Piece(until / 20, 2 * rate), Piece(until / 50, 5 * rate)))
    return draw.choice((Constant(rate), Poisson(rate), Poisson(rate), bursts, ClosedLoop(callers, Exponential(think))))


def _manners(draw: Random) -> Manners:
    def some() -> float:
        return draw.choice((0.0, 0.0, 0.05, 0.3))

    return Manners(
        hangs_up=some(), half_closes=some(), pipelines=draw.choice((0.0, 0.3, 0.9)), dawdles=some(), chunks=some(),
        garbles=some(), repeats=some(), patience=draw.choice((0.0, 0.01, 0.2, 1.0)),
    )  # fmt: skip
