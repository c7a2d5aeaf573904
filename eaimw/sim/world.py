"""The real hub in a simulated world: the counterpart of `app.open_hub`.

    world = World(settings, seed=7)
    world.link("CORE").conditions = Conditions(connect="refuse")
    reply = world.run(lambda: world.hub.handle_tx({"tx_id": "T1", "target": "CORE"}))

One seed is one run, to the byte. What answers for the targets listens at `world.address("CORE")`.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from eaimw.adapters.http_client import HttpTransport
from eaimw.config import Address, HubSettings
from eaimw.hub import Hub
from eaimw.kernel.breaker import State
from eaimw.ports import AccessLog, Transport
from eaimw.sim.chance import stream
from eaimw.sim.link import Link
from eaimw.sim.loop import SimulationError, VirtualClock, VirtualLoop
from eaimw.sim.network import Network, SimulatedResolver, is_address

T = TypeVar("T")


class Complaint(SimulationError):
    """The loop or the hub met a fault that nobody had foreseen; the first one is the cause."""


class Recorded:
    """`ports.Telemetry` that keeps what it is told: changes as (seconds, target, from, to), faults of the hub."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.changes: list[tuple[float, str, State, State]] = []
        self.faults: list[tuple[str, BaseException]] = []

    def changed(self, target: str, before: State, after: State) -> None:
        """A breaker changed its state."""
        self.changes.append((self._now(), target, before, after))

    def unforeseen(self, where: str, problem: BaseException) -> None:
        """A fault of the hub itself."""
        self.faults.append((where, problem))


class World:
    """A hub with everything around it simulated; for one `run`.

    seed: what all chance comes from. loop: with other bounds or a charge.
    access_log: hears of every transaction, as the hub's own does. make_transport: what carries the hub's calls.
    """

    def __init__(
        self,
        settings: HubSettings,
        *,
        seed: int = 0,
        loop: VirtualLoop | None = None,
        access_log: AccessLog | None = None,
        make_transport: Callable[..., Transport] = HttpTransport,
    ) -> None:
        self.seed = seed
        self.loop = VirtualLoop() if loop is None else loop
        self.clock = VirtualClock(self.loop)
        self.network = Network(self.loop, seed)
        self.resolver = SimulatedResolver()
        self.telemetry = Recorded(self.loop.time)
        self._complaints: list[dict[str, Any]] = []
        self._addresses: dict[str, Address] = {}
        for number, (name, target) in enumerate(settings.targets.items(), start=1):
            host = target.endpoint.host
            if not is_address(host):  # a name stands for an address of its own
                self.resolver.names[host] = [f"192.0.2.{number}"]
                host = f"192.0.2.{number}"
            self._addresses[name] = Address(host, target.endpoint.port)
            self.network.link(host, target.endpoint.port, name)
        self.hub = Hub(
            settings,
            clock=self.clock,
            telemetry=self.telemetry,
            make_transport=lambda name, target: make_transport(name, target, clock=self.clock, resolver=self.resolver),
            make_random=self.make_random,
            access_log=access_log,
        )

    def make_random(self, name: str) -> Random:
        """The hub's stream of chance for a target; another than its link's."""
        return stream(self.seed, f"hub {name}")

    def address(self, target: str) -> Address:
        """Where a target listens, if it does."""
        return self._addresses[target]

    def link(self, target: str) -> Link:
        """The connections to a target."""
        return self.network.link(*self._addresses[target])

    def run(self, story: Callable[[], Awaitable[T]]) -> T:
        """What the story gives; the hub is closed after it, and so is the loop.

        Raises Complaint for what the loop's exception handler was told or the hub's telemetry calls unforeseen, and
        what the loop raises: Deadlock, Runaway, NotSimulated.
        """
        self.loop.set_exception_handler(lambda _, context: self._complaints.append(context))
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            try:
                result = runner.run(self._tell(story))
            except BaseException as problem:
                for context in self._complaints:
                    problem.add_note(f"the loop was told: {context}")
                raise
        gc.collect(1)  # an exception that nobody has retrieved is complained of when its future is collected
        for context in self._complaints:
            raise Complaint(str(context)) from context.get("exception")
        for where, fault in self.telemetry.faults:
            raise Complaint(f"a fault of the hub in {where}: {fault!r}") from fault
        return result

    async def _tell(self, story: Callable[[], Awaitable[T]]) -> T:
        try:
            return await story()
        finally:
            await self.hub.close()
