"""What a target feels when it comes back, with everybody waiting for it.

100 transactions a second come to the hub, and whoever is not served comes again after 1 s and a random 0 to 50 % more
(or the `retry_after_ms` of the hub's refusal), until it is. For 5 s nobody listens at the target. It comes back with a
capacity of 250 a second (10 at a time, 40 ms each) and room for 50 that wait, and refuses the rest with HTTP 503.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, NamedTuple

from eaimw import codes
from eaimw.policy import BreakerSettings
from eaimw.sim.capacity import Capacity
from eaimw.sim.chance import stream
from eaimw.sim.durations import Fixed
from eaimw.sim.findings import Cell, Column, Findings, Table
from eaimw.sim.link import Conditions
from eaimw.sim.load import Constant
from eaimw.sim.studies.one_target import NAME, send, serve, world_of
from eaimw.sim.target import NO_CODE, Target

RATE = 100.0
DOWN_FROM, BACK_AT = 2.0, 7.0
UNTIL = 16.0  # the last new transaction comes before
SERVERS, QUEUE = 10, 50
CAPACITY = Capacity(Fixed(0.040), SERVERS, QUEUE)
WAIT = 1.0
BREAKER = BreakerSettings(fail_threshold=5, reset_timeout=1.0)
ROWS: dict[str, dict[str, Any]] = {
    "no breaker": {},
    "breaker": {"breaker": BREAKER},
    "breaker, max-inflight": {"breaker": BREAKER, "max_inflight": SERVERS},
}
COLUMNS = (
    Column("name"),
    Column("tried_down", "simulated"),
    Column("calls_1s", "simulated"),
    Column("peak_100ms", "simulated"),
    Column("refused_1s", "simulated"),
    Column("served_1s", "simulated"),
    Column("first_ok_s", "simulated", 2),
    Column("all_served_s", "simulated", 2),
)
FIGURES_NOTE = (
    f"{RATE:g}/s come, until {UNTIL - BACK_AT:g} s after the target is back; for {BACK_AT - DOWN_FROM:g} s nobody "
    "listens there, and whoever is not served comes again. tried_down: connections tried in that time. In the second "
    "after it comes back, calls_1s: requests that the target receives; peak_100ms: the most of them within 100 ms; "
    "refused_1s: those that it refuses because its queue is full; served_1s: those that it answers well. Seconds after "
    "it came back, first_ok_s: the first answer; all_served_s: all who came before it are served."
)
ROWS_NOTE = (
    f"breaker: {BREAKER.fail_threshold} failures open it, {BREAKER.reset_timeout:g} s before the one probe. "
    f"max-inflight: {SERVERS}, as many as the target works on at a time. Without it the crowd that the probe lets in "
    "overruns the target, whose refusals open the circuit again."
)


class _Felt(NamedTuple):
    """What a target has received, refused and answered well so far."""

    received: int
    refused: int
    served: int

    @classmethod
    def of(cls, target: Target) -> _Felt:
        by_code = target.stats()["by_code"]
        assert isinstance(by_code, dict)
        return cls(target.calls, by_code.get(NO_CODE, 0), by_code.get(codes.OK, 0))


class _Run(NamedTuple):
    """felt: at each tenth of the second. served: those who came before the target was back, when they were served."""

    tried_down: int
    felt: list[_Felt]
    first_ok: float
    all_served: float


def study(seed: int) -> Findings:
    """A row for each protection."""
    rows = tuple((name, *_figures(_run(seed, settings))) for name, settings in ROWS.items())
    return Findings("recover", seed, Table(COLUMNS, rows), (FIGURES_NOTE, ROWS_NOTE))


def _figures(run: _Run) -> tuple[Cell, ...]:
    first, last = run.felt[0], run.felt[-1]
    return (
        run.tried_down,
        last.received - first.received,
        max(after.received - before.received for before, after in pairwise(run.felt)),
        last.refused - first.refused,
        last.served - first.served,
        run.first_ok - BACK_AT,
        run.all_served - BACK_AT,
    )


def _run(seed: int, settings: dict[str, Any]) -> _Run:
    world = world_of(seed, timeout=3.0, **settings)
    loop, link, target = world.loop, world.link(NAME), world.hub.targets[NAME]
    chance = stream(seed, "callers")
    tried: list[int] = []
    felt: list[_Felt] = []
    served: list[tuple[float, float]] = []  # when each was due, and when it was served

    async def caller(number: int, due: float) -> None:
        await asyncio.sleep(due - loop.time())
        attempt = 1
        while (reply := await send(world, f"{number}-{attempt}")).code != codes.OK:
            attempt += 1
            wait = WAIT * (1 + chance.random() / 2)
            await asyncio.sleep(wait if reply.retry_after_ms is None else reply.retry_after_ms / 1000)
        served.append((due, loop.time()))

    def fall() -> None:
        link.conditions = Conditions(connect="refuse")
        link.reset()
        tried.append(target.attempts)

    def rise() -> None:
        link.conditions = Conditions()
        tried.append(target.attempts)

    async def story() -> None:
        service = await serve(world, capacity=CAPACITY)
        loop.call_at(DOWN_FROM, fall)
        loop.call_at(BACK_AT, rise)
        for tenth in range(11):
            loop.call_at(BACK_AT + tenth / 10, lambda: felt.append(_Felt.of(service.target)))
        dues = Constant(RATE).times(chance, UNTIL)
        await asyncio.gather(*(caller(number, due) for number, due in enumerate(dues)))

    world.run(story)
    return _Run(
        tried[1] - tried[0],
        felt,
        first_ok=min(at for _, at in served if at >= BACK_AT),
        all_served=max(at for due, at in served if due < BACK_AT),
    )
