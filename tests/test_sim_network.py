"""The simulated network: what its links do to connections, by their conditions, and the names of its hosts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from ends import HOST, PORT, Seen, simulated

from eaimw.sim.link import Conditions, Way
from eaimw.sim.loop import NotSimulated
from eaimw.sim.network import Network, SimulatedResolver


@contextlib.contextmanager
def no_wait() -> Iterator[None]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    yield
    assert loop.time() == began


async def joined(network: Network, port: int = PORT, **on: Any) -> tuple[Seen, Seen]:
    """Two that are connected; `on` is what the far one does."""
    loop = asyncio.get_running_loop()
    near, far = Seen(), Seen(**on)
    server = await loop.create_server(lambda: far, HOST, port)
    await loop.create_connection(lambda: near, HOST, port)
    await far.until("made")
    server.close()
    return near, far


def test_bytes_take_their_latency_each_way() -> None:
    """One round trip to connect, half a one for each write, and nothing more."""

    async def story(network: Network) -> list[float]:
        near, far = await joined(network)
        near.transport.write(b"x")
        await far.until("data")
        far.transport.write(b"y")
        await near.until("data")
        return near.times + far.times

    times = simulated(story, Conditions(there=Way(latency=0.25), back=Way(latency=0.5)))
    assert times == [0.75, 1.75, 1.0, 1.25]


def test_the_ends_know_each_other() -> None:
    """There is no socket, but there are names; port 0 is a free one, and a taken one is refused."""

    async def story(network: Network) -> None:
        loop = asyncio.get_running_loop()
        first, second = [await loop.create_server(Seen, HOST, 0) for _ in range(2)]
        port = first.sockets[0].getsockname()[1]
        assert port != second.sockets[0].getsockname()[1]
        with pytest.raises(OSError) as raised:
            await loop.create_server(Seen, HOST, port)
        assert raised.value.errno == errno.EADDRINUSE
        second.close()
        await second.wait_closed()
        assert not second.sockets
        near, far = await joined(network)
        assert near.transport.get_extra_info("socket") is None
        assert near.transport.get_extra_info("peername") == far.transport.get_extra_info("sockname") == (HOST, PORT)
        assert far.transport.get_extra_info("peername") == near.transport.get_extra_info("sockname")
        near.transport.close()
        await far.until("lost:")

    simulated(story)


@pytest.mark.parametrize(("pieces", "count"), [("whole", 1), ("bytes", 400)])
def test_a_write_arrives_in_pieces(pieces: Any, count: int) -> None:
    """As one, or each byte by itself."""

    async def story(network: Network) -> Seen:
        near, far = await joined(network)
        near.transport.write(b"0123456789" * 40)
        await far.until(far.has(400))
        return far

    far = simulated(story, Conditions(there=Way(pieces=pieces)))
    assert (len(far.pieces), bytes(far.data)) == (count, b"0123456789" * 40)


def test_random_places_are_the_seeds() -> None:
    """Order is kept whatever each piece's latency; one seed gives one cutting."""

    def cut(seed: int) -> list[bytes]:
        async def story(network: Network) -> list[bytes]:
            near, far = await joined(network)
            for number in range(50):
                near.transport.write(b"%08d" % number)
            await far.until(far.has(400))
            return far.pieces

        way = Way(pieces="random", latency=lambda chance: chance.random())
        return simulated(story, Conditions(there=way), seed)

    first = cut(1)
    assert b"".join(first) == b"".join(b"%08d" % number for number in range(50))
    assert len({len(piece) for piece in first}) > 3
    assert first == cut(1) != cut(2)


def test_a_rate_is_kept() -> None:
    """Bytes per second, over all writes; the buffer bounds what is on its way."""

    async def story(network: Network) -> list[float]:
        near, far = await joined(network)
        near.transport.write(b"x" * 1000)
        near.transport.write(b"y" * 500)
        await near.until(lambda: near.transport.get_write_buffer_size() == 0)
        await far.until(far.has(1500))
        return far.times

    assert simulated(story, Conditions(there=Way(rate=1000, latency=0.0), back=Way(latency=0.0)))[1:] == [1.0, 1.5]


def test_a_refused_connection() -> None:
    """Though somebody listens."""

    async def story(network: Network) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_server(Seen, HOST, PORT)
        network.link(HOST, PORT).conditions = Conditions(connect="refuse")
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Seen, HOST, PORT)
        network.link(HOST, PORT).conditions = Conditions()
        await loop.create_connection(Seen, HOST, PORT)

    simulated(story)


def test_a_swallowed_connection_hangs() -> None:
    """Until the caller has enough; nothing is left of it then."""

    async def story(network: Network) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_server(Seen, HOST, PORT)
        network.link(HOST, PORT).conditions = Conditions(connect="swallow")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await loop.create_connection(Seen, HOST, PORT)
        assert loop.time() == 3600
        assert network.open_connections() == []

    simulated(story)


@pytest.mark.parametrize("microseconds", range(0, 2001, 250))
def test_whoever_gives_up_connecting_leaves_nothing(microseconds: int) -> None:
    """At whatever moment, the one in which the connection is there included."""

    async def story(network: Network) -> None:
        loop = asyncio.get_running_loop()
        far = Seen()
        await loop.create_server(lambda: far, HOST, PORT)
        task = asyncio.ensure_future(loop.create_connection(Seen, HOST, PORT))
        await asyncio.sleep(microseconds / 1e6)
        was_there = task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await task)[0].close()
        await asyncio.sleep(1)
        assert network.open_connections() == []
        assert far.log == (["made", "eof", "lost:"] if was_there or far.log else [])

    simulated(story)


def test_a_connection_that_is_lost_at_once_is_still_given() -> None:
    """Who connects gets its protocol, though that has seen the end already."""

    async def story(network: Network) -> list[str]:
        near = Seen(made=lambda near: near.transport.abort())
        await asyncio.get_running_loop().create_server(Seen, HOST, PORT)
        _, given = await asyncio.get_running_loop().create_connection(lambda: near, HOST, PORT)
        assert given is near
        await asyncio.sleep(1)
        assert network.open_connections() == []
        return near.log

    assert simulated(story) == ["made", "lost:"]


def test_a_listener_that_goes_while_somebody_connects() -> None:
    """Who has connected to it is reset."""

    async def story(network: Network) -> list[str]:
        loop = asyncio.get_running_loop()
        near, far = Seen(), Seen()
        server = await loop.create_server(lambda: far, HOST, PORT)
        await loop.create_connection(lambda: near, HOST, PORT)
        server.close()
        await near.until("lost:ConnectionError")
        await asyncio.sleep(1)
        assert network.open_connections() == []
        return far.log

    assert simulated(story) == []


CUT = "lost:ConnectionError"
# The way of near's bytes to far; how many of 100 far got; what near and far saw.
FAULTS: dict[str, tuple[Way, int, list[str], list[str]]] = {
    "reset": (Way(reset_after=60), 60, ["made", CUT], ["made", "data", CUT]),
    "reset at once": (Way(reset_after=0), 0, ["made", CUT], ["made", CUT]),
    "reset after all": (Way(reset_after=100), 100, ["made", CUT], ["made", "data", CUT]),
    "not yet": (Way(reset_after=101, close_after=101, stall_after=101), 100, ["made"], ["made", "data"]),
    "half-close": (Way(close_after=60), 60, ["made", "eof", "lost:"], ["made", "data", "eof", "lost:"]),
    "stall": (Way(stall_after=60), 60, ["made"], ["made", "data"]),
    "stall, reset": (Way(stall_after=10, stall_for=5, reset_after=60), 60, ["made", CUT], ["made", "data", CUT]),
}


@pytest.mark.parametrize("pieces", ["whole", "random", "bytes"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_comes_after_so_many_bytes(fault: str, pieces: Any) -> None:
    """To the byte, however the bytes are written or cut."""
    way, got, near_saw, far_saw = FAULTS[fault]

    async def story(network: Network) -> tuple[Seen, Seen]:
        network.link(HOST, PORT).conditions = Conditions(there=replace(way, pieces=pieces))
        near, far = await joined(network)
        near.transport.write(b"x" * 30)
        near.transport.write(b"x" * 70)
        await asyncio.sleep(100)
        return near, far

    near, far = simulated(story)
    assert (bytes(far.data), near.log, far.log) == (b"x" * got, near_saw, far_saw)


def test_a_stall_ends_after_its_time() -> None:
    """Once for each connection; what was held up comes in order, the end too."""

    async def story(network: Network) -> Seen:
        near, far = await joined(network)
        near.transport.write(b"12345")
        near.transport.write(b"6789")
        near.transport.close()
        await far.until("lost:")
        return far

    far = simulated(story, Conditions(there=Way(stall_after=3, stall_for=7, latency=0.0), back=Way(latency=0.0)))
    assert (bytes(far.data), far.times) == (b"123456789", [0.0, 0.0, 7.0, 7.0, 7.0, 7.0])


def test_conditions_change_while_it_runs() -> None:
    """Those who wait in a stall go on when it is lifted, and a new one takes hold at the next byte."""

    async def story(network: Network) -> list[float]:
        link = network.link(HOST, PORT)
        near, far = await joined(network)
        near.transport.write(b"1")
        await far.until(far.has(1))
        link.conditions = Conditions(there=Way(stall_after=0))
        near.transport.write(b"2")
        await asyncio.sleep(10)
        link.conditions = Conditions(there=Way(stall_after=0, stall_for=5))
        await asyncio.sleep(10)
        link.conditions = Conditions(there=Way(stall_after=0))
        near.transport.write(b"3")
        await asyncio.sleep(10)
        link.conditions = Conditions(there=Way(latency=1.0))
        await far.until(far.has(b"123"))
        return [round(at, 4) for at in far.times[2:]]

    assert simulated(story) == [15.0025, 31.002]


def test_a_stall_fills_the_buffers() -> None:
    """What a stalled way cannot take stops the writer, and nothing of it is lost."""

    async def story(network: Network) -> None:
        link = network.link(HOST, PORT)
        link.conditions = Conditions(there=Way(stall_after=0, buffer=1000))
        near, far = await joined(network)
        near.transport.write(b"x" * 100_000)
        assert near.log == ["made", "pause"]
        assert near.transport.get_write_buffer_size() == 99_000
        await asyncio.sleep(60)
        link.conditions = Conditions()
        await far.until(far.has(100_000))
        assert near.log == ["made", "pause", "resume"]

    simulated(story)


def test_a_reset_at_a_random_instant() -> None:
    """Within its time, at another instant for each connection, the same ones for the same seed."""

    def instants(seed: int) -> list[float]:
        async def story(network: Network) -> list[float]:
            found = []
            for port in range(1, 20):
                near, far = await joined(network, port)
                await far.until("lost:ConnectionError")
                await near.until("lost:ConnectionError")
                found.append(near.times[-1] - near.times[0])
            return found

        return simulated(story, Conditions(reset_within=2.0), seed)

    assert instants(1) == instants(1) != instants(2)
    assert all(0 < at < 2.001 for at in instants(1))
    assert max(instants(1)) - min(instants(1)) > 1


def test_an_idle_connection_is_ended() -> None:
    """Both ends see it; whoever writes on nevertheless is reset."""

    async def story(network: Network) -> tuple[Seen, Seen]:
        near, far = await joined(network, eof=lambda far: True)
        await asyncio.sleep(8)
        near.transport.write(b"still here")
        await near.until("lost:")
        await far.until("eof")
        far.transport.write(b"hello?")
        await asyncio.sleep(1)
        far.transport.write(b"hello?")
        await far.until("lost:ConnectionError")
        assert network.open_connections() == []
        return near, far

    near, _ = simulated(story, Conditions(idle_limit=10.0))
    assert near.log == ["made", "eof", "lost:"]
    assert round(near.times[1]) == 18


def test_an_end_may_be_told_late() -> None:
    """Bytes are not delayed by it."""

    async def story(network: Network) -> list[float]:
        near, far = await joined(network)
        near.transport.write(b"x")
        near.transport.close()
        await far.until("lost:")
        return far.times

    times = simulated(story, Conditions(there=Way(close_delay=4.0, latency=0.0), back=Way(latency=0.0)))
    assert times == [0.0, 0.0, 4.0, 4.0]


def test_the_end_of_a_stall_belongs_to_its_conditions() -> None:
    """One that was lifted does not shorten the next, be it the same."""

    async def story(network: Network) -> float:
        link, stalled = network.link(HOST, PORT), Conditions(there=Way(stall_after=0, stall_for=10))
        near, far = await joined(network)
        link.conditions = stalled
        near.transport.write(b"1")
        await asyncio.sleep(6)
        link.conditions = Conditions()
        await far.until(far.has(b"1"))
        link.conditions = stalled
        near.transport.write(b"2")
        await far.until(far.has(b"12"))
        return round(far.times[-1], 1)

    assert simulated(story) == 16.0


def test_a_link_is_reset_as_a_whole() -> None:
    """And no other."""

    async def story(network: Network) -> None:
        first, second = [await joined(network, port) for port in (1, 2)]
        network.link(HOST, 1).reset()
        await first[0].until("lost:ConnectionError")
        await first[1].until("lost:ConnectionError")
        assert second[0].log == ["made"]

    simulated(story)


def test_what_one_link_does_changes_no_time_on_another() -> None:
    """However wild it is, whatever it draws: to the last digit."""

    def claim_beside(core: Conditions | None) -> list[float]:
        way = Way(latency=lambda chance: chance.expovariate(100), pieces="random")

        async def chat(network: Network, port: int) -> list[float]:
            near, far = await joined(network, port, data=lambda far: far.transport.write(b"answer"))
            for number in range(200):
                near.transport.write(b"question %d" % number)
                enough = 6 * number + 6
                await near.until(lambda size=enough: len(near.data) >= size or near.transport.is_closing())  # type: ignore[misc]
            return near.times + far.times

        async def story(network: Network) -> list[float]:
            network.link(HOST, 2).conditions = Conditions(there=way, back=way)
            talks = [chat(network, 2)]
            if core is not None:
                network.link(HOST, 1).conditions = core
                talks += [chat(network, 1)]
            return (await asyncio.gather(*talks))[0]

        return simulated(story)

    alone = claim_beside(None)
    assert len(alone) > 300
    wild = Way(latency=lambda chance: chance.random() / 50, pieces="random")
    short = Conditions(there=Way(pieces="bytes", reset_after=500))
    for core in (Conditions(), Conditions(there=wild, back=wild, idle_limit=0.05), short):
        assert claim_beside(core) == alone


def test_names_are_looked_up() -> None:
    """Known ones have their addresses, unknown ones an error as the system's, addresses stand for themselves."""

    async def story(network: Network) -> None:
        resolver = SimulatedResolver()
        resolver.names["core.bank"] = ["10.0.0.1", "10.0.0.2"]
        resolver.delays["core.bank"] = 2.0
        assert await resolver.resolve("10.9.9.9") == ("10.9.9.9",)
        assert await resolver.resolve("::1") == ("::1",)
        with no_wait(), pytest.raises(socket.gaierror) as raised:
            await resolver.resolve("nowhere.bank")
        assert isinstance(raised.value, OSError)
        assert raised.value.errno == socket.EAI_NONAME
        assert list(await resolver.resolve("core.bank")) == ["10.0.0.1", "10.0.0.2"]
        assert asyncio.get_running_loop().time() == 2.0

    simulated(story)


@pytest.mark.parametrize(
    "wish",
    [
        lambda loop: loop.create_connection(Seen, HOST, PORT, ssl=True),
        lambda loop: loop.create_server(Seen, HOST, PORT, ssl=True),
        lambda loop: loop.create_server(Seen, None, PORT),
        lambda loop: loop.create_server(Seen, HOST, PORT, reuse_port=True),
        lambda loop: loop.create_connection(Seen, HOST, PORT, local_addr=("x", 1)),
    ],
)
def test_what_is_not_simulated_says_so(wish: Callable[[Any], Awaitable[object]]) -> None:
    """TLS, all addresses at once, and options that nobody here uses."""

    async def story(network: Network) -> None:
        await wish(asyncio.get_running_loop())

    with pytest.raises(NotSimulated):
        simulated(story)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Way(latency=-1.0),
        lambda: Way(latency=float("nan")),
        lambda: Way(pieces="some"),  # type: ignore[arg-type]
        lambda: Way(rate=0.0),
        lambda: Way(buffer=0),
        lambda: Way(reset_after=-1),
        lambda: Way(stall_for=-0.1),
        lambda: Way(close_delay=float("inf")),
        lambda: Conditions(connect="maybe"),  # type: ignore[arg-type]
        lambda: Conditions(reset_within=0.0),
        lambda: Conditions(idle_limit=-3.0),
    ],
)
def test_conditions_that_make_no_sense_are_refused(make: Callable[[], object]) -> None:
    """With the name of the setting, what it was, and what is allowed."""
    with pytest.raises(ValueError, match=r"must be .*, not "):
        make()


def test_a_latency_that_is_no_time_is_refused() -> None:
    """It would let bytes arrive before they were sent."""

    async def story(network: Network) -> None:
        with pytest.raises(ValueError, match="drawn latency"):
            await joined(network)

    simulated(story, Conditions(there=Way(latency=lambda chance: -1.0)))


def test_a_link_has_one_name() -> None:
    """Its stream of chance hangs on it."""

    async def story(network: Network) -> None:
        core = network.link(HOST, 1, "CORE")
        assert network.link(HOST, 1) is network.link(HOST, 1, "CORE") is core
        with pytest.raises(ValueError, match="CORE"):
            network.link(HOST, 1, "CLAIM")
        assert isinstance(core.random, Random)
        assert core.random.random() != network.link(HOST, 2, "CLAIM").random.random()

    simulated(story)
