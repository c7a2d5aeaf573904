"""The real hub in a simulated world: what it says under each fault of the network, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httptools
import pytest

from eaimw.adapters.drive import Drive
from eaimw.adapters.http_server import HttpServer
from eaimw.config import Address, HubSettings, TargetSettings
from eaimw.model import Reply
from eaimw.policy import BreakerSettings
from eaimw.sim.forbidden import forbidden
from eaimw.sim.link import Conditions, Way
from eaimw.sim.loop import NotSimulated
from eaimw.sim.world import Complaint, World
from eaimw.wire import read_transaction

T = TypeVar("T")
Json = dict[str, Any]


class Tiny(asyncio.Protocol):
    """A target of ten lines: `answer` makes the bytes for a request's tx_id, or None for silence, b"" for an end."""

    def __init__(self, answer: Callable[[str], bytes | None]) -> None:
        self._answer = answer
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        tx, self._body = json.loads(self._body), b""
        answer = self._answer(tx["tx_id"])
        if answer:
            self._transport.write(answer)
        elif answer is not None:
            self._transport.close()


def fine(tx_id: str) -> bytes:
    body = json.dumps({"tx_id": tx_id, "code": "0000"}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def silent(tx_id: str) -> None:
    return None


def dropping(tx_id: str) -> bytes:
    return b""


def world(seed: int = 0, **settings: Any) -> World:
    """CORE at an address, CLAIM at a name; patient circuits unless told otherwise."""
    more: Json = {"breaker": BreakerSettings(1_000_000), "max_inflight": 1000, **settings}
    core, claim = TargetSettings("http://10.0.0.1:9201/tx", **more), TargetSettings("http://claim.bank:9202/tx", **more)
    return World(HubSettings({"CORE": core, "CLAIM": claim}), seed=seed)


async def serve(made: World, name: str, answer: Callable[[str], bytes | None] = fine) -> asyncio.AbstractServer:
    host, port = made.address(name)
    server: asyncio.AbstractServer = await made.loop.create_server(lambda: Tiny(answer), host, port)
    return server


def told(made: World, story: Callable[[], Awaitable[T]]) -> T:
    """What the story gives, with nothing of the real world; then no place is taken and no connection open."""

    async def tell() -> T:
        result = await story()
        for target in made.hub.targets.values():
            assert target.bulkhead.inflight == 0
            transport: Any = target.transport
            assert not transport._busy
            assert not transport._held
        await made.hub.close()
        for name in made.hub.targets:
            made.link(name).conditions = Conditions()  # what was stalled may go on
        await asyncio.sleep(100)
        assert made.network.open_connections() == []
        return result

    with forbidden():
        return made.run(tell)


async def ask(made: World, tx_id: str = "T-1", target: str = "CORE") -> Json:
    return await made.hub.handle_tx({"tx_id": tx_id, "target": target})


ROUGH = Way(latency=lambda chance: chance.expovariate(200), pieces="random")


def a_day(seed: int) -> str:
    """A thousand transactions over rough links, within a day; all replies, as one text."""
    made = world(seed)

    async def story() -> list[Json]:
        for name in ("CORE", "CLAIM"):
            await serve(made, name)
            made.link(name).conditions = Conditions(there=ROUGH, back=ROUGH, reset_within=60.0)
        replies = []
        for number in range(500):
            replies += await asyncio.gather(*(ask(made, f"{name}-{number}", name) for name in ("CORE", "CLAIM")))
            await asyncio.sleep(172 * made.make_random(f"pause {number}").random())
        return replies

    text = json.dumps(told(made, story))
    assert made.loop.time() > 10 * 3600
    return text


def test_a_thousand_transactions_of_a_day_take_a_moment() -> None:
    """One seed gives the same replies to the byte, elapsed_ms too; another seed gives others."""
    began = time.process_time()
    first = a_day(1)
    assert time.process_time() - began < 5
    assert first == a_day(1) != a_day(2)
    codes = [reply["code"] for reply in json.loads(first)]
    assert len(codes) == 1000
    assert codes.count("0000") > 900


PLAIN = Way()
# The link's conditions, the target, and what comes of it: code, outcome, and elapsed_ms from and to.
FAULTS: dict[str, tuple[Conditions, Callable[[str], bytes | None], tuple[str, str, float, float]]] = {
    "none": (Conditions(), fine, ("0000", "done", 2, 2)),
    "refused": (Conditions(connect="refuse"), fine, ("E902", "not_sent", 1, 1)),
    "no answer to connecting": (Conditions(connect="swallow"), fine, ("E902", "not_sent", 500, 500)),
    "too far": (Conditions(there=Way(latency=0.6)), fine, ("E902", "not_sent", 500, 500)),
    "slow": (Conditions(there=Way(latency=0.4)), fine, ("0000", "done", 801, 802)),
    "accepts and takes nothing": (Conditions(there=Way(stall_after=0)), fine, ("E901", "unknown", 3000, 3000)),
    "stalls in the request": (Conditions(there=Way(stall_after=50)), fine, ("E901", "unknown", 3000, 3000)),
    "stalls before the reply": (Conditions(back=Way(stall_after=0)), fine, ("E901", "unknown", 3000, 3000)),
    "stalls in the reply": (Conditions(back=Way(stall_after=30)), fine, ("E901", "unknown", 3000, 3000)),
    "stalls for a while": (Conditions(back=Way(stall_after=30, stall_for=2)), fine, ("0000", "done", 2000, 2005)),
    "reset in the request": (Conditions(there=Way(reset_after=50)), fine, ("E902", "unknown", 1, 3)),
    "reset before the reply": (Conditions(back=Way(reset_after=0)), fine, ("E902", "unknown", 1, 3)),
    "reset in the reply": (Conditions(back=Way(reset_after=30)), fine, ("E500", "unknown", 1, 3)),
    "reset at some instant": (Conditions(reset_within=2.0), silent, ("E902", "unknown", 1, 2001)),
    "ends in the request": (Conditions(there=Way(close_after=50)), fine, ("E902", "unknown", 1, 4)),
    "ends before the reply": (Conditions(back=Way(close_after=0)), fine, ("E902", "unknown", 1, 3)),
    "ends in the reply": (Conditions(back=Way(close_after=30)), fine, ("E500", "unknown", 1, 3)),
    "idle for too long": (Conditions(idle_limit=1.5), silent, ("E902", "unknown", 1500, 1505)),
    "a slow line": (Conditions(back=Way(rate=100.0)), fine, ("0000", "done", 500, 1000)),
    "too slow a line": (Conditions(back=Way(rate=10.0)), fine, ("E901", "unknown", 3000, 3000)),
    "in pieces": (Conditions(there=ROUGH, back=ROUGH), fine, ("0000", "done", 2, 500)),
    "byte by byte": (Conditions(there=Way(pieces="bytes"), back=Way(pieces="bytes")), fine, ("0000", "done", 2, 2)),
    "a buffer of a byte": (Conditions(there=Way(buffer=1)), fine, ("0000", "done", 2, 500)),
    "dropped": (Conditions(), dropping, ("E902", "unknown", 2, 3)),
    "dropped, told late": (Conditions(back=Way(close_delay=1.0)), dropping, ("E902", "unknown", 1000, 1005)),
    "dropped, told too late": (Conditions(back=Way(close_delay=9.0)), dropping, ("E901", "unknown", 3000, 3000)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_outcome_of_a_fault_is_honest(fault: str) -> None:
    """Not sent only where nothing can have arrived; and the next transaction over a sound link is served."""
    conditions, answer, (code, outcome, least, most) = FAULTS[fault]
    made = world()
    asked: list[str] = []

    def noting(tx_id: str) -> bytes | None:
        asked.append(tx_id)
        return answer(tx_id)

    async def story() -> tuple[Json, Json]:
        made.link("CORE").conditions = conditions
        server = await serve(made, "CORE", noting)
        reply = await ask(made)
        server.close()
        made.link("CORE").conditions = Conditions()
        await serve(made, "CORE")
        return reply, await ask(made, "T-2")

    reply, after = told(made, story)
    assert (reply["code"], reply["outcome"]) == (code, outcome)
    assert least <= reply["elapsed_ms"] <= most
    assert after["code"] == "0000"
    if outcome == "not_sent":
        assert asked == []


@pytest.mark.parametrize(("names", "delay", "elapsed"), [({}, 0.0, 0.0), ({}, 0.2, 200.0), ({"x": ["y"]}, 9.0, 500.0)])
def test_a_name_that_is_not_found_is_not_sent(names: dict[str, list[str]], delay: float, elapsed: float) -> None:
    """Nor one whose look-up takes too long."""
    made = world()

    async def story() -> Json:
        if not names:
            made.resolver.names.clear()
        made.resolver.delays["claim.bank"] = delay
        return await ask(made, target="CLAIM")

    reply = told(made, story)
    assert (reply["code"], reply["outcome"], reply["elapsed_ms"]) == ("E902", "not_sent", elapsed)


def test_nobody_listens() -> None:
    """Refused, after one way there and back."""
    made = world()
    reply = told(made, lambda: ask(made))
    assert (reply["code"], reply["outcome"], reply["elapsed_ms"]) == ("E902", "not_sent", 1.0)


def test_a_connection_that_ended_while_idle_is_replaced() -> None:
    """Nothing is lost by it, and the hub drops its own before the usual keep-alive ends."""
    made = world()

    async def story() -> list[str]:
        await serve(made, "CORE")
        made.link("CORE").conditions = Conditions(idle_limit=1.0)
        codes = []
        for pause in (0.5, 2.0, 0.0, 30.0, 0.0):
            codes.append((await ask(made))["code"])
            await asyncio.sleep(pause)
        return codes

    assert told(made, story) == ["0000"] * 5
    assert made.link("CORE").opened == 3


def test_an_end_that_is_still_on_its_way_makes_the_outcome_unknown() -> None:
    """The race of every keep-alive: the request meets an end that the hub could not know of."""
    made = world()

    async def story() -> list[Json]:
        await serve(made, "CORE")
        made.link("CORE").conditions = Conditions(
            there=Way(latency=0.1), back=Way(latency=0.1, close_delay=0.3), idle_limit=1.0
        )
        replies = [await ask(made)]
        await asyncio.sleep(1.1)
        return [*replies, await ask(made), await ask(made)]

    assert [(reply["code"], reply["outcome"]) for reply in told(made, story)] == [
        ("0000", "done"),
        ("E902", "unknown"),
        ("0000", "done"),
    ]


def test_a_circuit_opens_and_closes_again_in_virtual_time() -> None:
    """At the instants that its settings say; the telemetry has them."""
    made = world(breaker=BreakerSettings(3, 10.0), timeout=1.0)

    async def story() -> list[str]:
        await serve(made, "CORE")
        made.link("CORE").conditions = Conditions(back=Way(stall_after=0))
        codes = [(await ask(made))["code"] for _ in range(4)]
        made.link("CORE").conditions = Conditions()
        await asyncio.sleep(10)
        return [*codes, (await ask(made))["code"]]

    assert told(made, story) == ["E901", "E901", "E901", "E904", "0000"]
    assert [(round(at, 3), name, str(before), str(after)) for at, name, before, after in made.telemetry.changes] == [
        (3.0, "CORE", "CLOSED", "OPEN"),
        (13.0, "CORE", "OPEN", "HALF_OPEN"),
        (13.002, "CORE", "HALF_OPEN", "CLOSED"),
    ]


def test_what_core_does_changes_no_time_of_claim() -> None:
    """Every reply of CLAIM is the same to the byte, whether CORE is idle or wild."""

    def claim_beside(core: Conditions | None) -> str:
        made = world(7, timeout=0.2)

        async def storm(name: str) -> list[Json]:
            replies = []
            for number in range(150):
                replies.append(await ask(made, f"{name}-{number}", name))
                await asyncio.sleep(0.01)
            return replies

        async def story() -> list[Json]:
            for name in ("CORE", "CLAIM"):
                await serve(made, name)
            made.link("CLAIM").conditions = Conditions(there=ROUGH, back=ROUGH, reset_within=1.0)
            if core is None:
                return await storm("CLAIM")
            made.link("CORE").conditions = core
            return (await asyncio.gather(storm("CLAIM"), *(storm("CORE") for _ in range(5))))[0]

        return json.dumps(told(made, story))

    alone = claim_beside(None)
    wild = Conditions(there=ROUGH, back=Way(pieces="bytes", reset_after=3000), reset_within=0.5)
    assert alone.count("0000") > 75
    assert claim_beside(wild) == claim_beside(Conditions(connect="swallow")) == alone


# The hub's server, with simulated callers.


class Served:
    """A hub that serves in a world, and what calls it."""

    def __init__(self, made: World) -> None:
        self.made = made
        self.server = HttpServer(made.hub)

    async def start(self) -> None:
        await self.server.start(Address("10.9.9.9", 0))

    @property
    def at(self) -> tuple[str, int]:
        host, _, port = self.server.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    async def caller(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.at)


def request(tx_id: str, *headers: str) -> bytes:
    body = json.dumps({"tx_id": tx_id, "target": "CORE"}).encode()
    lines = ["POST /tx HTTP/1.1", "Host: hub", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def reply_of(reader: asyncio.StreamReader) -> tuple[int, Json]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    size = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("Content-Length"))
    return int(head.split()[1]), json.loads(await reader.readexactly(size))


def served(story: Callable[[Served], Awaitable[T]], seed: int = 0) -> T:
    """What the story of a served hub gives; its server has no connection and no task left."""
    made = world(seed)
    hub = Served(made)

    async def tell() -> T:
        await serve(made, "CORE")
        await hub.start()
        result = await story(hub)
        await hub.server.drain()
        await hub.server.close()
        assert hub.server.connections == {}
        assert hub.server.calls == 0
        assert hub.server.arrivals.bytes == 0
        return result

    return told(made, tell)


def test_a_thousand_calls_over_http() -> None:
    """Callers who send in pieces, over rough links both ways: each gets its reply, the same for the same seed."""

    async def story(hub: Served) -> list[tuple[int, Json]]:
        hub.made.network.link(*hub.at).conditions = Conditions(there=ROUGH, back=ROUGH)
        hub.made.link("CORE").conditions = Conditions(there=ROUGH, back=ROUGH)

        async def call(name: str) -> list[tuple[int, Json]]:
            reader, writer = await hub.caller()
            replies = []
            for number in range(100):
                writer.write(request(f"{name}-{number}"))
                replies.append(await reply_of(reader))
            writer.close()
            return replies

        return [reply for replies in await asyncio.gather(*(call(f"C{n}") for n in range(10))) for reply in replies]

    first = served(story, 1)
    assert [(status, reply["code"]) for status, reply in first] == [(200, "0000")] * 1000
    assert [reply["tx_id"] for _, reply in first] == [f"C{n}-{number}" for n in range(10) for number in range(100)]
    assert json.dumps(first) == json.dumps(served(story, 1)) != json.dumps(served(story, 2))


def test_a_caller_that_goes_away_leaves_nothing() -> None:
    """At whatever byte it is reset, stalled or ended; its call is counted if its body had arrived."""

    async def story(hub: Served) -> None:
        link = hub.made.network.link(*hub.at)
        size = len(request("T-1"))
        for after in (*range(0, size, 7), size):
            for way in (Way(reset_after=after), Way(close_after=after), Way(stall_after=after, stall_for=200)):
                link.conditions = Conditions(there=way)
                _, writer = await hub.caller()
                writer.write(request("T-1"))
                await asyncio.sleep(0.05)
                writer.close()
        assert hub.server.connections
        await asyncio.sleep(100)  # those that are stalled are too late (408), or have been idle for too long
        assert hub.server.connections == {}
        assert hub.made.hub.targets["CORE"].codes == {"0000": 4}

    served(story)


def test_the_server_keeps_its_own_times() -> None:
    """408 after 10 s for a request that does not arrive, an end after 75 s for a caller that rests."""

    async def story(hub: Served) -> list[float]:
        loop, ended = hub.made.loop, []
        for first in (b"POST /tx HT", request("T-1")):
            began = loop.time()
            reader, writer = await hub.caller()
            writer.write(first)
            status, _ = await reply_of(reader)
            assert status == (200 if first == request("T-1") else 408)
            assert await reader.read() == b""
            ended.append(loop.time() - began)
            writer.close()
        return ended

    arrival, idle = served(story)
    assert 10 <= arrival < 10.6
    assert 75 <= idle < 75.6


# The world itself.


def test_a_fault_that_nobody_foresaw_is_said() -> None:
    """What the loop is told of, and what the hub calls its own."""
    made = world()

    async def complain() -> None:
        made.loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(Complaint, match="ZeroDivisionError"):
        made.run(complain)
    made = world()

    async def fault() -> None:
        made.hub.note_fault("a test", LookupError("something"))

    with pytest.raises(Complaint, match="LookupError"):
        made.run(fault)


def test_tls_is_not_simulated() -> None:
    """And no E902 hides it."""
    made = World(HubSettings({"CORE": TargetSettings("https://10.0.0.1:9201/tx")}))
    with pytest.raises(NotSimulated, match="ssl"):
        made.run(lambda: ask(made))


def test_calls_that_end_at_one_instant_end_in_the_order_in_which_they_began() -> None:
    """Else one seed is not one run: the order of equals is another in each."""
    made = world()
    ended: list[str] = []

    async def call(tx_id: str) -> None:
        ended.append((await ask(made, tx_id))["tx_id"])

    async def story() -> list[str]:
        await serve(made, "CORE")
        made.link("CORE").conditions = Conditions(back=Way(stall_after=0))
        begun = [f"T-{number}" for number in range(12)]
        await asyncio.gather(*(call(tx_id) for tx_id in begun))
        return begun

    assert told(made, story) == ended


def test_a_call_begun_by_one_that_timed_out_leaves_one_alarm() -> None:
    """As pipelined requests do: each is begun in the turn in which the alarm has ended the one before."""
    made = world(timeout=1.0)
    transport: Any = made.hub.targets["CORE"].transport
    rings = 0
    ring = transport._ring

    def counted(loop: asyncio.AbstractEventLoop) -> None:
        nonlocal rings
        rings += 1
        ring(loop)

    transport._ring = counted

    async def story() -> None:
        await serve(made, "CORE", lambda tx_id: None if tx_id.startswith("slow") else fine(tx_id))
        await asyncio.gather(*(ask(made, f"T-{number}") for number in range(40)))  # connections at rest
        left = 40
        ended = asyncio.Event()

        def begin() -> None:
            tx = read_transaction(b'{"tx_id":"slow-%d","target":"CORE","timeout_ms":100}' % left)
            answer = made.hub.begin(tx)
            assert not isinstance(answer, Reply)
            Drive(answer, on_end)

        def on_end(reply: Reply | None, problem: BaseException | None) -> None:
            nonlocal left
            assert reply is not None
            assert reply.code == "E901"
            left -= 1
            if left:
                begin()
            else:
                ended.set()

        begin()
        await ended.wait()

    told(made, story)
    assert rings == 40
