"""The stage of a run: the hub's world, the targets behind it and the callers before it, and what happens in order."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from eaimw.adapters.drive import Drive
from eaimw.adapters.http_client import HttpTransport
from eaimw.adapters.http_server import HttpServer
from eaimw.config import Address, HubSettings, TargetSettings
from eaimw.errors import Malformed
from eaimw.kernel.breaker import State
from eaimw.model import Call, Reply
from eaimw.sim.backend import Backend, Phases
from eaimw.sim.bank import TRADES, Anything
from eaimw.sim.callers import GARBLED, Crowd, Manners, Sent
from eaimw.sim.capacity import Station
from eaimw.sim.chance import stream
from eaimw.sim.link import Conditions, Link
from eaimw.sim.load import ClosedLoop, Load, arrivals, chance_of
from eaimw.sim.loop import VirtualLoop
from eaimw.sim.record import Change, Heard, Record, Sample
from eaimw.sim.tap import Tap, Tapped
from eaimw.sim.target import Target, Trade
from eaimw.sim.target_protocol import Exchange, Service
from eaimw.sim.world import World
from eaimw.wire import read_transaction, write_reply

__all__ = ["Door", "Stage"]

Door = Literal["http", "hub"]


# Where the hub listens; the callers of each load come in by an address of their own, so that it is a link of its own.
HUB = Address("203.0.113.1", 80)
# Seconds beyond the longest timeout in which every transaction must have come to its end.
SETTLE = 30.0
# Seconds that a closed loop's caller needs between an answer and its next, so that time passes whatever it is told.
LEAST_THINK = 0.001
# Seconds after the end in which connections end, and what has long been given up by the hub is done by the targets.
REST = 120.0


class Stage:
    """A run under way, for `play` and for who watches it.

    world: the hub and its network. server: before the hub, at the http door. services: the targets, by name.
    sent, heard, changes, samples: as in Record, so far. tap: hears of more.
    backends, manners, callers: as given to `play`, with what was left out. down_at: when the hub was told to go down.
    """

    def __init__(
        self, settings: HubSettings, backends: Mapping[str, Backend], loads: Sequence[Load], seed: int, until: float,
        door: Door, manners: Mapping[str, Manners], callers: Mapping[str, Phases], loop: VirtualLoop,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.sent: list[Sent] = []
        self.heard: list[Heard] = []
        self.samples: list[Sample] = []
        self.services: dict[str, Service] = {}
        self.server: HttpServer | None = None
        self.loop = loop
        self.tap: Tap | None = None
        self.down_at: float | None = None
        self.world = World(settings, seed=seed, loop=loop, access_log=self, make_transport=self._transport)
        self.backends = {name: backends.get(name, Backend()) for name in settings.targets}
        self._loads = loads
        self._seed = seed
        self._until = until
        self._door = door
        self.manners = {load.name: manners.get(load.name, Manners()) for load in loads}
        self.callers = callers
        self._arrivals = arrivals(loads, seed, until)
        self._words = {load.name: stream(seed, f"words of {load.name}") for load in loads}
        self._thinking = {load.name: chance_of(load, seed) for load in loads}
        self._numbers: Counter[str] = Counter()
        self._crowds: dict[str, Crowd] = {}
        self._door_links: dict[str, Link] = {}
        self._listeners: dict[str, asyncio.AbstractServer] = {}
        self._going_down: asyncio.Task[None] | None = None
        self._due = 0  # transactions that are still to be sent, as far as is known
        self._open = 0  # sent, and not settled
        self._is_over: asyncio.Future[None] | None = None
        self._sampling: asyncio.TimerHandle | None = None

    @property
    def changes(self) -> list[Change]:
        """Of all breakers, in order."""
        return [Change(*change) for change in self.world.telemetry.changes]

    def answered(self, reply: Reply, call: Call | None) -> None:
        """`ports.AccessLog`."""
        heard = Heard(self.loop.time(), reply, call)
        self.heard.append(heard)
        if self.tap is not None:
            self.tap.heard(heard)

    def _transport(self, name: str, settings: TargetSettings, **ports: Any) -> HttpTransport:
        return Tapped(name, settings, tap=lambda: self.tap, **ports)

    # What happens, in order.

    async def set_up(self) -> None:
        """Targets, server, callers; and every change that time will bring."""
        for name, backend in self.backends.items():
            chance = stream(self._seed, f"target {name}")
            make_trade: Callable[[], Trade] = backend.make_trade or TRADES.get(name) or Anything
            station: Station[Exchange] | None = None
            if backend.capacity is not None:
                station = Station(backend.capacity, stream(self._seed, f"service of {name}"))
            self.services[name] = Service(
                Target(make_trade, chance),
                timeline=backend.timeline,
                station=station,
                choose=backend.chooser(stream(self._seed, f"forms of {name}")),
            )
            await self._rise(name)
            for begin, end in backend.down:
                self.loop.call_at(begin, self._fall, name)
                self.loop.call_at(end, self._rise_soon, name)
            self.world.resolver.delays[self.settings.targets[name].endpoint.host] = backend.look_up
            self._phase(self.world.link(name), backend.conditions)
        if self._door == "http":
            await self._open_door()

    async def _open_door(self) -> None:
        self.server = HttpServer(self.world.hub)
        await self.server.start(HUB)
        for number, load in enumerate(self._loads, 2):
            address = (HUB.host, HUB.port + number)
            self.world.network.alias(address, HUB)
            link = self._door_links[load.name] = self.world.network.link(*address, f"callers of {load.name}")
            self._phase(link, self.callers.get(load.name, ()))
            chance = stream(self._seed, f"callers of {load.name}")
            self._crowds[load.name] = Crowd(self.loop, address, self.manners[load.name], chance, self._settled)

    async def perform(self) -> None:
        """The loads send, and each transaction comes to its end, within a bound."""
        self._is_over = self.loop.create_future()
        self._due = 1  # the open loads', as long as there are any
        for load in self._loads:
            if isinstance(load.process, ClosedLoop):
                for moment in load.process.starts(self._thinking[load.name]):
                    self._send_at(moment, load)
        self._send_next()
        longest = max(
            target.retry.attempts * (target.timeout + target.retry.cap) for target in self.settings.targets.values()
        )
        await asyncio.wait((self._is_over,), timeout=self._until + longest + SETTLE)

    async def clear(self) -> Record:
        """End everything as it should end, and look what is left."""
        hub, ended_at = self.world.hub, self.loop.time()
        if self._sampling is not None:
            self._sampling.cancel()
        self.go_down()
        if self._going_down is not None:
            await self._going_down
        for crowd in self._crowds.values():
            crowd.close()
        left_over = [] if self._open == 0 else [f"{self._open} transactions have had no answer"]
        longest = max(target.hold_after_timeout for target in self.settings.targets.values())
        if longest:
            await asyncio.sleep(longest + 1.0)  # what is held is over by itself
        left_over += self._left_of_calls()
        await hub.close()
        for link in (*map(self.world.link, self.backends), *self._door_links.values()):
            link.conditions = Conditions()  # what was stalled may go on
        await asyncio.sleep(REST)
        left_over += self._left_at_rest()
        for name in self.backends:
            self._fall(name)
        targets = {name: service.target for name, service in self.services.items()}
        return Record(
            self._seed, self.sent, self.heard, self.changes, self.samples,
            codes={"-": dict(hub.untargeted), **{name: dict(target.codes) for name, target in hub.targets.items()}},
            snapshots=hub.snapshot(),
            books={name: {tx_id: t.known(tx_id) for tx_id in t.tx_ids()} for name, t in targets.items()},
            stats={name: target.stats() for name, target in targets.items()},
            left_over=left_over,
            ended_at=ended_at,
            events=self.loop.events,
        )  # fmt: skip

    def _left_of_calls(self) -> list[str]:
        """What has not been given back though no call is under way; before the hub is closed, which ends all."""
        found = []
        for name, target in self.world.hub.targets.items():
            transport: Any = target.transport
            for count, what in (
                (target.bulkhead.inflight, "places are taken"),
                (len(transport._busy), "connections are busy"),
                (len(transport._held), "connections are held"),
                (len(transport._connecting), "connections are being made"),
            ):
                if count:
                    found.append(f"{name}: {count} {what}")
            # A probe that nobody can report any more would keep its circuit half-open.
            found += [
                f"{circuit.name}: the probe's place is taken"
                for circuit in target.circuits
                if circuit.breaker.state is State.HALF_OPEN and circuit.breaker.wait() > 0
            ]
        return found

    def _left_at_rest(self) -> list[str]:
        """What has not been given back though everything is over."""
        found = []
        if self.server is not None:
            for what, count in (
                ("connections of callers", len(self.server.connections)),
                ("bytes of arriving requests", self.server.arrivals.bytes),
            ):
                if count:
                    found.append(f"the server has {count} {what}")
        connections = self.world.network.open_connections()
        if connections:
            found.append(f"{len(connections)} connections are open: {connections[0].near} and so on")
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            found.append(f"{len(tasks)} tasks go on: {sorted(task.get_name() for task in tasks)}")
        for name, service in self.services.items():
            if service.target.inflight:
                found.append(f"{name}: {service.target.inflight} calls are in flight at the target")
        return found

    # Load.

    def _send_next(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            self._due -= 1
            self._look_whether_over()
        else:
            self.loop.call_at(arrival.at, self._arrive, arrival.load, arrival.number)

    def _arrive(self, load: Load, number: int) -> None:
        self._send(load, number)
        self._send_next()

    def _send_at(self, moment: float, load: Load) -> None:
        """A caller of a closed loop sends its next, if there is still time for it."""
        if moment < self._until:
            self._due += 1
            self.loop.call_at(moment, self._come_again, load)

    def _come_again(self, load: Load) -> None:
        self._due -= 1
        self._numbers[load.name] += 1
        self._send(load, self._numbers[load.name])

    def _send(self, load: Load, number: int) -> None:
        sent = self._worded(load, number)
        self.sent.append(sent)
        self._open += 1
        if self._door == "http":
            self._crowds[load.name].send(sent)
        else:
            self._hand_over(sent)

    def _worded(self, load: Load, number: int) -> Sent:
        """What is sent: always so many draws, whatever comes of them."""
        manners, chance = self.manners[load.name], self._words[load.name]
        is_garbled = chance.random() < manners.garbles
        repeated = 1 + int(chance.random() * number) if chance.random() < manners.repeats else number
        garbled = GARBLED[int(chance.random() * len(GARBLED))]
        if is_garbled:
            return Sent(load, number, self.loop.time(), garbled, is_garbled=True)
        return Sent(load, repeated, self.loop.time(), json.dumps(load.tx(repeated)).encode())

    def _hand_over(self, sent: Sent) -> None:
        """To the hub itself: as its server does, or where the caller hangs up, as a task that is cancelled."""
        hub, manners = self.world.hub, self.manners[sent.load.name]
        chance = self._words[sent.load.name]
        hangs_up, patience = chance.random() < manners.hangs_up, chance.random() * manners.patience
        sent.sent_at = self.loop.time()
        try:
            transaction = read_transaction(sent.raw)
        except Malformed as problem:
            self._replied(sent, hub.refuse_malformed(problem), None)
            return
        if hangs_up:
            task = self.loop.create_task(hub.handle(transaction))
            task.add_done_callback(lambda task: self._task_ended(sent, task))
            self.loop.call_later(patience, task.cancel)
            return
        answer = hub.begin(transaction)
        if isinstance(answer, Reply):
            self._replied(sent, answer, None)
        else:
            Drive(answer, lambda reply, problem: self._replied(sent, reply, problem))

    def _task_ended(self, sent: Sent, task: asyncio.Task[Reply]) -> None:
        if task.cancelled():
            sent.lost = "hung up"
            self._settled(sent)
        else:
            self._replied(sent, *((None, problem) if (problem := task.exception()) else (task.result(), None)))

    def _replied(self, sent: Sent, reply: Reply | None, problem: BaseException | None) -> None:
        if sent.is_settled:
            sent.extra += 1
            return
        if reply is None:
            sent.lost = f"the hub failed: {problem!r}"
        else:
            sent.answered_at = self.loop.time()
            sent.reply = write_reply(reply)
        self._settled(sent)

    def _settled(self, sent: Sent) -> None:
        self._open -= 1
        now = sent.settled_at = self.loop.time()
        process = sent.load.process
        if isinstance(process, ClosedLoop):
            again = process.again(now, self._thinking[sent.load.name])
            self._send_at(max(again, now + LEAST_THINK), sent.load)
        self._look_whether_over()

    def _look_whether_over(self) -> None:
        if self._due == 0 and self._open == 0 and self._is_over is not None and not self._is_over.done():
            self._is_over.set_result(None)

    # What time brings.

    def _phase(self, link: Link, phases: Phases) -> None:
        for at, conditions in phases:
            if at <= 0:
                link.conditions = conditions
            else:
                self.loop.call_at(at, setattr, link, "conditions", conditions)

    def _fall(self, name: str) -> None:
        """The target's process dies."""
        listener = self._listeners.pop(name, None)
        if listener is not None:
            listener.close()
        self.services[name].abort()

    async def _rise(self, name: str) -> None:
        service = self.services[name]
        self._listeners[name] = await self.loop.create_server(service.connection, *self.world.address(name))

    def _rise_soon(self, name: str) -> None:
        self.loop.create_task(self._rise(name))

    def go_down(self) -> None:
        """The hub refuses what comes from now on; its server goes on to its last reply."""
        if self.down_at is None:
            self.down_at = self.loop.time()
        self.world.hub.go_down()
        if self.server is not None and self._going_down is None:
            self._going_down = self.loop.create_task(_end(self.server))

    def sample(self, every: float) -> None:
        """Now, and again and again."""
        now = self.loop.time()
        for name, target in self.world.hub.targets.items():
            at_target = self.services[name].target.inflight
            self.samples.append(Sample(now, name, target.breaker.state, target.bulkhead.inflight, at_target))
        self._sampling = self.loop.call_later(every, self.sample, every)


async def _end(server: HttpServer) -> None:
    await server.drain()
    await server.close()
