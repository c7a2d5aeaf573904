"""What waits when more comes in than gets done, and what further attempts add to it.

80 a second come in; the target does 60 a second for 120 s and 100 a second from then on. The fluid model is the water
in a tub: what comes in less what flows out, never below 0. The same in events: one server with a queue without end.
And the hub before that target: it keeps nobody waiting, so what it cannot take is refused while it can be said.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from eaimw import codes
from eaimw.adapters.drive import Drive
from eaimw.model import Reply
from eaimw.sim.capacity import Capacity, Station, Work
from eaimw.sim.durations import Fixed
from eaimw.sim.findings import Column, Findings, Table
from eaimw.sim.load import Constant
from eaimw.sim.studies.one_target import NAME, serve, transaction, world_of

DEMAND = 80.0  # a second
EXTRA = 40.0  # attempts a second, by those who were not served in time
SLOW = Capacity(Fixed(1 / 60), servers=1)
FAST = Capacity(Fixed(1 / 100), servers=1)
MENDED_AT = 120.0
UNTIL = 360.0
HUB_UNTIL = 180.0  # a whole hub takes its time, and from then on nothing changes
TIMES = (0.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0)
MAX_INFLIGHT = 10
NO_CHANCE = Random(0)  # everything comes and is done in even steps
COLUMNS = (
    Column("t_s", "modelled"),
    Column("model", "modelled"),
    Column("events", "simulated"),
    Column("model_extra", "modelled"),
    Column("events_extra", "simulated"),
    Column("hub_inflight", "simulated"),
    Column("hub_refused", "simulated"),
)
EVENTS_NOTE = (
    "model, events: how many wait at t_s for a target that does 60/s until 120 s and 100/s after, with 80/s coming in; "
    "model_extra, events_extra: with 40/s of further attempts besides, which never let it come to rest."
)
HUB_NOTE = (
    "hub_inflight: transactions in our hub at t_s, before that target with 80/s coming in and max-inflight "
    f"{MAX_INFLIGHT}: nothing waits beyond that. hub_refused: those that it has refused by then (E905, E904), each at "
    f"once, so that its caller knows that nothing was sent. After {HUB_UNTIL:g} s there is nothing new to see of it."
)


class Seen(NamedTuple):
    """At one time: transactions in the hub, and those that it has refused so far."""

    inflight: int
    refused: int


def study(seed: int) -> Findings:
    """What waits each minute. Nothing in it is left to chance, so every seed gives the same."""
    events, events_extra = in_events(DEMAND), in_events(DEMAND + EXTRA)
    hub = through_hub(seed, DEMAND)
    rows = tuple(
        (t, fluid(DEMAND, t), events[n], fluid(DEMAND + EXTRA, t), events_extra[n], *hub.get(t, (None, None)))
        for n, t in enumerate(TIMES)
    )
    return Findings("backlog", seed, Table(COLUMNS, rows), (EVENTS_NOTE, HUB_NOTE))


def fluid(rate: float, t: float) -> float:
    """What waits at t seconds by the fluid model, with so many a second coming in."""
    slow, fast = (1 / capacity.service.mean for capacity in (SLOW, FAST))
    at_mending = max(0.0, (rate - slow) * min(t, MENDED_AT))
    return max(0.0, at_mending + (rate - fast) * max(0.0, t - MENDED_AT))


def in_events(rate: float) -> list[int]:
    """What waits at each of TIMES, in discrete events."""
    station: Station[float] = Station(SLOW, NO_CHANCE)
    seen: list[int] = []
    work: Work[float] | None = None
    coming = Constant(rate).times(NO_CHANCE, UNTIL)
    due = next(coming)
    for until, capacity in ((t, FAST if t >= MENDED_AT else SLOW) for t in TIMES):
        while (now := min(due, UNTIL if work is None else work.ends)) < until:
            if work is not None and now == work.ends:
                work = station.ended(now)
            else:
                begun = station.arrive(now, now)
                work = begun if isinstance(begun, Work) else work
                due = next(coming, UNTIL)
        seen.append(station.waiting)
        station.capacity = capacity
    return seen


def through_hub(seed: int, rate: float) -> dict[float, Seen]:
    """What our hub holds and has refused at each of TIMES up to HUB_UNTIL, with the same target behind it."""
    world = world_of(seed, timeout=3.0, max_inflight=MAX_INFLIGHT)
    loop, hub = world.loop, world.hub
    seen: dict[float, Seen] = {}
    coming = enumerate(Constant(rate).times(NO_CHANCE, HUB_UNTIL))
    ended = loop.create_future()

    async def story() -> None:
        service = await serve(world, capacity=SLOW)
        loop.call_at(MENDED_AT, setattr, service.station, "capacity", FAST)
        for t in TIMES:
            if t <= HUB_UNTIL:
                loop.call_at(t, look, t)
        loop.call_at(HUB_UNTIL, ended.set_result, None)
        send_next()
        await ended

    def send_next() -> None:
        """At its time: a timer for each in turn costs less than a task."""
        number, due = next(coming, (0, UNTIL))
        loop.call_at(due, send, number)

    def send(number: int) -> None:
        answer = hub.begin(transaction(number))
        if not isinstance(answer, Reply):
            Drive(answer, _over)
        send_next()

    def look(t: float) -> None:
        target = hub.targets[NAME]
        seen[t] = Seen(target.bulkhead.inflight, target.codes[codes.FULL] + target.codes[codes.CIRCUIT_OPEN])

    world.run(story)
    return seen


def _over(reply: Reply | None, problem: BaseException | None) -> None:
    """A call has ended; the hub has counted it."""
    if problem is not None:
        raise problem
