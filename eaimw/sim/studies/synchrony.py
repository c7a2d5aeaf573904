"""A thousand callers who have failed at the same moment, and how they come again.

The target serves 250 a second (10 at a time, 40 ms each) with room for 50 more that wait; beyond that it refuses at
once. Who is refused waits and tries again, until all are served. After the n-th failure the wait is: fixed, 1 s;
exponential backoff, 1 s times 2 to the power of n - 1, at most 30 s; full jitter, a random time up to that. The last
row is the same crowd before our hub, each waiting as long as the hub's refusal says (`retry_after_ms`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from eaimw import codes
from eaimw.sim.capacity import REFUSED, Capacity, Station, Work
from eaimw.sim.chance import stream
from eaimw.sim.durations import Fixed
from eaimw.sim.findings import Column, Findings, Table
from eaimw.sim.loop import VirtualLoop
from eaimw.sim.studies.one_target import send, serve, world_of

CALLERS = 1000
SERVERS, QUEUE = 10, 50
CAPACITY = Capacity(Fixed(0.040), SERVERS, QUEUE)
FIRST_WAIT = 1.0
LONGEST_WAIT = 30.0
BIN = 0.1  # seconds in which calls are counted together
COLUMNS = (
    Column("name"),
    Column("peak_100ms", "simulated"),
    Column("calls", "simulated"),
    Column("target_calls", "simulated"),
    Column("all_served_s", "simulated", 1),
)
FIGURES_NOTE = (
    f"{CALLERS:,} callers have failed at 0 s and come again until each is served, by a target that serves "
    f"{SERVERS / CAPACITY.service.mean:g}/s, lets {QUEUE} wait, and refuses the rest. peak_100ms: the most calls of "
    "theirs within 100 ms. calls: all that they make; target_calls: those that reach the target. all_served_s: when "
    "the last was served."
)
WAITS_NOTE = (
    f"fixed wait: {FIRST_WAIT:g} s. exponential backoff: {FIRST_WAIT:g} s, twice as long each time, at most "
    f"{LONGEST_WAIT:g} s. full jitter: a random time from 0 to that. our hub: max-inflight {SERVERS + QUEUE} before "
    "the same target, and each caller waits the retry_after_ms of its refusal: 1 s and a random 0 to 50 % more."
)

Wait = Callable[[int, Random], float]


def fixed(attempt: int, chance: Random) -> float:
    """Seconds before the next attempt, after so many that failed."""
    return FIRST_WAIT


def backoff(attempt: int, chance: Random) -> float:
    """As `fixed`, twice as long each time, at most LONGEST_WAIT."""
    return float(min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(attempt - 1, 30)))


def full_jitter(attempt: int, chance: Random) -> float:
    """As `backoff`, but anything from 0 up to it."""
    return chance.random() * backoff(attempt, chance)


ROWS: dict[str, Wait] = {"fixed wait": fixed, "exponential backoff": backoff, "full jitter": full_jitter}


def study(seed: int) -> Findings:
    """A row for each way of coming again."""
    rows = [(name, *at_station(seed, name, wait)) for name, wait in ROWS.items()]
    rows.append(("our hub's retry_after_ms", *through_hub(seed)))
    return Findings("synchrony", seed, Table(COLUMNS, tuple(rows)), (FIGURES_NOTE, WAITS_NOTE))


Figures = tuple[int, int, int, float]


def at_station(seed: int, name: str, wait: Wait) -> Figures:
    """The callers before the target alone: the peak, calls, calls of the target, when all were served."""
    loop = VirtualLoop()
    station: Station[asyncio.Future[None]] = Station(CAPACITY, stream(seed, "capacity"))
    chance = stream(seed, f"callers {name}")
    calls: Counter[int] = Counter()

    def begin(work: Work[asyncio.Future[None]]) -> None:
        loop.call_at(work.ends, end, work.who)

    def end(who: asyncio.Future[None]) -> None:
        who.set_result(None)
        following = station.ended(loop.time())
        if following is not None:
            begin(following)

    async def caller() -> None:
        attempt = 1
        while True:
            await asyncio.sleep(wait(attempt, chance))
            calls[_bin(loop)] += 1
            served = loop.create_future()
            begun = station.arrive(served, loop.time())
            if isinstance(begun, Work):
                begin(begun)
            if begun != REFUSED:
                await served
                return
            attempt += 1

    async def story() -> float:
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        return loop.time()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        last = runner.run(story())
    return max(calls.values()), calls.total(), calls.total(), last


def through_hub(seed: int) -> Figures:
    """The same crowd before our hub; all come again after the wait of a refusal."""
    world = world_of(seed, max_inflight=SERVERS + QUEUE)
    loop, chance = world.loop, stream(seed, "callers hub")
    calls: Counter[int] = Counter()

    async def caller(number: int) -> None:
        await asyncio.sleep(FIRST_WAIT * (1 + chance.random() / 2))  # refused by the hub at 0 s, as all the others
        attempt = 1
        while True:
            calls[_bin(loop)] += 1
            reply = await send(world, f"{number}-{attempt}")
            if reply.code == codes.OK:
                return
            assert reply.retry_after_ms is not None, reply
            await asyncio.sleep(reply.retry_after_ms / 1000)
            attempt += 1

    async def story() -> tuple[int, float]:
        service = await serve(world, capacity=CAPACITY)
        callers: list[Coroutine[Any, Any, None]] = [caller(number) for number in range(CALLERS)]
        await asyncio.gather(*callers)
        return service.target.calls, loop.time()

    received, last = world.run(story)
    return max(calls.values()), calls.total(), received, last


def _bin(loop: VirtualLoop) -> int:
    return int(loop.time() / BIN)
