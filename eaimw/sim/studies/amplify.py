"""How retries multiply: a chain of hubs, each of whose callers tries again, before a target that fails.

With N layers of A attempts each, one operation becomes A to the power of N calls. The hub itself has no retry yet, so
the attempts are made by a small client that stands before each hub of the chain: it sends again, at once, what came
back as a failure of the target (E500, E901, E902), and passes on everything else.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from eaimw import codes
from eaimw.adapters.http_client import HttpTransport
from eaimw.adapters.http_server import HttpServer
from eaimw.config import Address, HubSettings, TargetSettings
from eaimw.hub import Hub
from eaimw.model import Caller, Reply, Transaction
from eaimw.policy import BreakerSettings
from eaimw.sim.findings import Column, Findings, Table
from eaimw.sim.modes import settings_from
from eaimw.sim.studies.one_target import NAME, NO_BREAKER, NO_TIMEOUT, serve, transaction, world_of
from eaimw.sim.timeline import Fault, Timeline
from eaimw.sim.world import World

FAILING = Timeline((Fault(0.0, settings_from({}, "fail")),))
COLUMNS = (
    Column("depth", "modelled"),
    Column("model", "modelled"),
    Column("hubs", "simulated"),
    Column("model_one", "modelled"),
    Column("hubs_one", "simulated"),
    Column("hubs_breakers", "simulated"),
)


class Persistent(Hub):
    """A hub with the small client before it. attempts: how often it sends each transaction at most."""

    attempts = 1

    def begin(
        self, tx: Transaction, started: float | None = None, caller: Caller | None = None
    ) -> Coroutine[Any, Any, Reply]:
        """As the hub's, and again while the answer is a failure of the target."""
        return self._persist(tx)

    async def _persist(self, tx: Transaction) -> Reply:
        for _ in range(self.attempts - 1):
            reply = await self._once(tx)
            if reply.code not in codes.FAILURES:
                return reply
        return await self._once(tx)

    async def _once(self, tx: Transaction) -> Reply:
        answer = super().begin(tx)
        return answer if isinstance(answer, Reply) else await answer


def study(seed: int, layers: int, attempts: int) -> Findings:
    """Calls per operation at each depth. layers, attempts: 1 to 5. Nothing in it is left to chance."""
    every = [attempts] * layers
    one = [1] * (layers - 1) + [attempts]
    columns = (
        modelled(every), in_hubs(seed, every, NO_BREAKER),
        modelled(one), in_hubs(seed, one, NO_BREAKER),
        in_hubs(seed, every, BreakerSettings()),
    )  # fmt: skip
    rows = tuple((depth, *figures) for depth, figures in enumerate(zip(*columns, strict=True)))
    figures_note = (
        f"Calls that one operation makes at each depth of a chain of {layers} hubs before a target that fails; depth 0 "
        f"is the operation itself, depth {layers} the target. model: {attempts} attempts at each layer, multiplied; "
        "hubs: counted behind real hubs, their circuits kept closed. model_one, hubs_one: only the layer before the "
        "target tries again. hubs_breakers: all layers do, with each hub's circuit as it is by default (5 failures)."
    )
    retry_note = (
        "The hub itself has no retry yet: the attempts are made by a small client before each hub, at once, after "
        "E500, E901 and E902 alone. Nor has it a budget for retries, which would bound this by calls, not by layers."
    )
    return Findings("amplify", seed, Table(COLUMNS, rows), (figures_note, retry_note))


def modelled(attempts: list[int]) -> list[int]:
    """Calls at each depth: the attempts of the layers above, multiplied."""
    calls = [1]
    for each in attempts:
        calls.append(calls[-1] * each)
    return calls


def in_hubs(seed: int, attempts: list[int], breaker: BreakerSettings) -> list[int]:
    """The same, counted: attempts of each layer's hub, outermost first, and requests that the target received."""
    world = world_of(seed)

    async def story() -> list[int]:
        service = await serve(world, timeline=FAILING)
        hubs: list[Persistent] = []
        servers: list[HttpServer] = []
        address = world.address(NAME)
        for layer in range(len(attempts), 0, -1):  # from the target up: each hub's target is the server made before
            hub = _hub(world, layer, attempts[layer - 1], address, breaker)
            server = HttpServer(hub)
            address = Address(f"10.1.0.{layer}", 8080)
            await server.start(address)
            hubs.insert(0, hub)
            servers.insert(0, server)
        await hubs[0].handle(transaction(1))
        for hub, server in zip(hubs, servers, strict=True):
            await server.drain()
            await server.close()
            await hub.close()
        calls = [hub.targets[NAME].attempts for hub in hubs]
        assert calls[-1] == service.target.calls
        return [1, *calls]

    return world.run(story)


def _hub(world: World, layer: int, attempts: int, to: Address, breaker: BreakerSettings) -> Persistent:
    """A hub in the same world, with one target."""
    target = TargetSettings(f"http://{to}/tx", timeout=NO_TIMEOUT, breaker=breaker)
    hub = Persistent(
        HubSettings({NAME: target}),
        clock=world.clock,
        telemetry=world.telemetry,
        make_transport=lambda name, each: HttpTransport(name, each, clock=world.clock, resolver=world.resolver),
        make_random=lambda name: world.make_random(f"layer {layer} {name}"),
    )
    hub.attempts = attempts
    return hub
