"""A hub with one simulated target behind it, which is what most studies are about."""

from __future__ import annotations

import asyncio
from typing import Final

from eaimw.bounds import MAX_SECONDS
from eaimw.config import MAX_INFLIGHT, HubSettings, TargetSettings
from eaimw.model import Reply, Transaction
from eaimw.policy import BreakerSettings
from eaimw.sim.bank import Core
from eaimw.sim.capacity import Capacity, Station
from eaimw.sim.chance import stream
from eaimw.sim.target import Target
from eaimw.sim.target_protocol import Exchange, Service
from eaimw.sim.timeline import Timeline
from eaimw.sim.world import World
from eaimw.wire import read_transaction

NAME: Final = "CORE"
URL = "http://10.0.0.1:9201/tx"
NO_BREAKER = BreakerSettings(mode="off")
# These cannot be left out of the hub, but neither is ever reached in a study.
NO_TIMEOUT = MAX_SECONDS
NO_BULKHEAD = MAX_INFLIGHT


def world_of(
    seed: int,
    *,
    timeout: float = NO_TIMEOUT,
    breaker: BreakerSettings = NO_BREAKER,
    max_inflight: int = NO_BULKHEAD,
) -> World:
    """A world with a hub for one target; each layer that is not asked for does nothing."""
    target = TargetSettings(URL, timeout=timeout, breaker=breaker, max_inflight=max_inflight)
    return World(HubSettings({NAME: target}), seed=seed)


async def serve(world: World, *, timeline: Timeline | None = None, capacity: Capacity | None = None) -> Service:
    """The target, listening from now on; its timeline begins now."""
    target = Target(Core, stream(world.seed, f"target {NAME}"))
    station: Station[Exchange] | None = None
    if capacity is not None:
        station = Station(capacity, stream(world.seed, f"capacity {NAME}"))
    service = Service(target, timeline=timeline, station=station)
    host, port = world.address(NAME)
    await asyncio.get_running_loop().create_server(service.connection, host, port)
    return service


def transaction(number: object) -> Transaction:
    """One that the target executes and answers well. number: each once, or the target takes it for a repeat."""
    return read_transaction(b'{"tx_id":"T-%s","target":"%s"}' % (str(number).encode(), NAME.encode()))


async def send(world: World, number: object) -> Reply:
    """One transaction through the hub."""
    return await world.hub.handle(transaction(number))
