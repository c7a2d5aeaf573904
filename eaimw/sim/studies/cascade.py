"""One slow target, and what each layer of protection makes of it: the experiment of which many tables tell.

100 transactions a second for 12 s come to 32 callers. Each caller takes the next one, waits until it is due, sends it
through the hub and waits for the answer; while all are busy, transactions wait in the order in which they are due.
The target takes 40 ms, and from second 3 on 4 s, for those that it receives then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from eaimw import codes
from eaimw.policy import BreakerSettings
from eaimw.sim.findings import Column, Findings, Table, percentile
from eaimw.sim.modes import settings_from
from eaimw.sim.studies.one_target import send, serve, world_of
from eaimw.sim.timeline import Fault, Timeline
from eaimw.sim.world import World

RATE = 100  # transactions a second
SECONDS = 12
CALLERS = 32
SOON = 1.0  # seconds after it was due, within which an answer is still of use to who waits for it
SLOW_FROM = 3.0
TIMELINE = Timeline(
    (
        Fault(0.0, settings_from({"delay_ms": 40}, "normal")),
        Fault(SLOW_FROM, settings_from({"delay_ms": 4000}, "slow")),
    )
)
TIMEOUT = 0.3
# As the published one: half of the last 20 calls, three probes after 2 s.
BREAKER = BreakerSettings(
    rules=("ratio",), window_calls=20, min_calls=20, failure_ratio=0.5, reset_timeout=2.0, probes=3
)
BULKHEAD = 8
# What the hub is told in each row.
ROWS: dict[str, dict[str, Any]] = {
    "no protection": {},
    "timeout": {"timeout": TIMEOUT},
    "timeout, breaker": {"timeout": TIMEOUT, "breaker": BREAKER},
    "timeout, breaker, bulkhead": {"timeout": TIMEOUT, "breaker": BREAKER, "max_inflight": BULKHEAD},
}
COLUMNS = (
    Column("name"),
    *(Column(name, "simulated") for name in ("sent", "ok", "timeout", "circuit_open", "bulkhead_full")),
    *(Column(name, "simulated") for name in ("p50_ms", "p99_ms", "calls")),
    Column("last_s", "simulated", 1),
    Column("ok_within_1s", "simulated"),
)
PUBLISHED = Table(
    tuple(
        Column(name, "published" if name != "name" else None) for name in ("name", "ok", "timeout", "p50_ms", "p99_ms")
    ),
    tuple(
        (name, *figures)
        for name, figures in zip(
            ROWS, ((302, None, 4012, 4088), (300, None, 301, 312), (300, 62, 0, 301), (300, 22, 0, 118)), strict=True
        )
    ),
    "As a well-known table of this experiment gives it:",
)
REBUILT = Table(
    tuple(Column(name, "published" if name != "name" else None) for name in ("name", "timeout", "circuit_open")),
    (("timeout, breaker", 47, 829), ("timeout, breaker, bulkhead", 26, 810)),
    "As it comes out when it is rebuilt from its own code, with the breaker over the last 20 calls (810: about). With "
    "the 10 s window of its own settings the breaker opens at 6.3 s, after 330 timeouts: the 62 do not come of them.",
)
FIGURES_NOTE = (
    f"ok: answered 0000, however late. ok_within_1s: of them those within {SOON:g} s of when they were due, which is "
    "what the published `ok` seems to count. p50_ms and p99_ms begin when a caller takes the transaction up, as in the "
    "published table; how long transactions waited for a caller shows in last_s, when the last was answered. calls: "
    "what the target received."
)
BREAKER_NOTE = (
    f"The breaker is the published one: it opens when half of the last {BREAKER.window_calls} calls failed, and lets "
    f"{BREAKER.probes} probes through after {BREAKER.reset_timeout:g} s."
)


@dataclass(slots=True)
class Sent:
    """What became of one transaction. Seconds."""

    code: str
    taken_up: float
    answered: float
    due: float


class _Run(NamedTuple):
    sent: list[Sent]
    calls: int


def study(seed: int) -> Findings:
    """The rows of the table. Nothing in it is left to chance, so every seed gives the same."""
    rows = tuple((name, *_figures(_run(seed, settings))) for name, settings in ROWS.items())
    return Findings("cascade", seed, Table(COLUMNS, rows), (FIGURES_NOTE, BREAKER_NOTE), (PUBLISHED, REBUILT))


def _run(seed: int, settings: dict[str, Any]) -> _Run:
    world = world_of(seed, **settings)

    async def story() -> _Run:
        service = await serve(world, timeline=TIMELINE)
        waiting = iter(range(RATE * SECONDS))
        sent: list[Sent] = []
        await asyncio.gather(*(_caller(world, waiting, sent) for _ in range(CALLERS)))
        return _Run(sent, service.target.calls)

    return world.run(story)


async def _caller(world: World, waiting: Iterator[int], sent: list[Sent]) -> None:
    for number in waiting:
        due = number / RATE
        await asyncio.sleep(due - world.loop.time())
        taken_up = world.loop.time()
        reply = await send(world, number)
        sent.append(Sent(reply.code, taken_up, world.loop.time(), due))


def _figures(run: _Run) -> tuple[float | None, ...]:
    by_code = [one.code for one in run.sent]
    took = [(one.answered - one.taken_up) * 1000 for one in run.sent]
    return (
        len(run.sent),
        *(by_code.count(code) for code in (codes.OK, codes.TIMEOUT, codes.CIRCUIT_OPEN, codes.FULL)),
        percentile(took, 0.5),
        percentile(took, 0.99),
        run.calls,
        max(one.answered for one in run.sent),
        sum(one.code == codes.OK and one.answered - one.due <= SOON for one in run.sent),
    )
