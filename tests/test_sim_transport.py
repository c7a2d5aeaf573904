"""The transports of the simulated network: the same stories over real sockets and in memory."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable

import pytest
from ends import HOST, PORT, Seen, simulated
from hubs import LOOPS

from eaimw.sim.link import Conditions, Way
from eaimw.sim.loop import VirtualLoop
from eaimw.sim.network import Network

Story = Callable[[Seen, Seen], Awaitable[None]]


async def tell(near: Seen, far: Seen, story: Story) -> None:
    """The story of two that are joined: `near` has connected to `far`."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        server = await loop.create_server(lambda: far, HOST, 0)
        try:
            await loop.create_connection(lambda: near, HOST, server.sockets[0].getsockname()[1])
            await far.until("made")
            await story(near, far)
        finally:
            for end in (near, far):
                if end.transport is not None and not end.transport.is_closing():
                    end.transport.abort()
            server.close()


def on_real(loop: str, story: Story, make: Callable[[], tuple[Seen, Seen]]) -> tuple[Seen, Seen]:
    async def run() -> tuple[Seen, Seen]:
        near, far = make()
        await tell(near, far, story)
        return near, far

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(run())


def on_virtual(story: Story, make: Callable[[], tuple[Seen, Seen]], conditions: Conditions) -> tuple[Seen, Seen]:
    async def run(network: Network) -> tuple[Seen, Seen]:
        near, far = make()
        await tell(near, far, story)
        await asyncio.sleep(10)
        assert network.open_connections() == []
        return near, far

    return simulated(run, conditions)


HARD = Conditions(
    there=Way(latency=lambda chance: chance.expovariate(1000), pieces="random", buffer=30_000),
    back=Way(latency=0.0, pieces="random", buffer=30_000),
)


def same(story: Story, make: Callable[[], tuple[Seen, Seen]] = lambda: (Seen(), Seen())) -> tuple[list[str], list[str]]:
    """What both ends saw, which is the same on asyncio's loop, on uvloop and in memory, smooth or rough."""
    ends = [on_real(loop, story, make) for loop in LOOPS]
    ends += [on_virtual(story, make, conditions) for conditions in (Conditions(), HARD)]
    seen = [(near.log, bytes(near.data), far.log, bytes(far.data)) for near, far in ends]
    assert all(each == seen[0] for each in seen), [(each[0], each[2]) for each in seen]
    return seen[0][0], seen[0][2]


def test_an_exchange() -> None:
    """Bytes arrive in order; who closes last sees no end of the other's."""

    async def story(near: Seen, far: Seen) -> None:
        for word in (b"one ", b"two ", bytearray(b"three "), memoryview(b"four")):
            near.transport.write(word)
        await far.until(far.has(b"one two three four"))
        far.transport.writelines([b"answer", b"ed"])
        await near.until(near.has(b"answered"))
        near.transport.close()
        assert near.transport.is_closing()
        assert near.log[-1] == "data", "connection_lost within close()"
        await far.until("lost:")
        await near.until("lost:")

    assert same(story) == (["made", "data", "lost:"], ["made", "data", "eof", "lost:"])


def test_a_half_close() -> None:
    """Who has said all can still read; who keeps it open on the end can still write."""

    def make() -> tuple[Seen, Seen]:
        return Seen(), Seen(eof=lambda far: True)

    async def story(near: Seen, far: Seen) -> None:
        assert near.transport.can_write_eof()
        near.transport.write(b"question")
        near.transport.write_eof()
        await far.until("eof")
        with pytest.raises(RuntimeError, match="write_eof"):
            near.transport.write(b"more")
        far.transport.write(b"answer")
        far.transport.close()
        await near.until("lost:")
        await far.until("lost:")
        assert bytes(near.data) == b"answer"

    assert same(story, make) == (["made", "data", "eof", "lost:"], ["made", "data", "eof", "lost:"])


def test_an_end_that_is_not_kept_open_closes() -> None:
    """What was written before still goes out."""

    def answer(far: Seen) -> bool:
        far.transport.write(b"x" * 60_000)
        return False

    async def story(near: Seen, far: Seen) -> None:
        near.transport.write_eof()
        await near.until("lost:")
        await far.until("lost:")
        assert len(near.data) == 60_000

    seen = same(story, lambda: (Seen(), Seen(eof=answer)))
    assert seen == (["made", "data", "eof", "lost:"], ["made", "eof", "lost:"])


def test_an_abort_with_bytes_unread_resets() -> None:
    """The peer learns that what it wrote was not taken."""

    async def story(near: Seen, far: Seen) -> None:
        far.transport.pause_reading()
        near.transport.write(b"never read")
        await asyncio.sleep(0.05)  # loopback has delivered when the loop has turned; in memory it takes a latency
        far.transport.abort()
        await far.until("lost:")
        await near.until("lost:ConnectionError")

    assert same(story) == (["made", "lost:ConnectionError"], ["made", "lost:"])


def test_a_close_with_bytes_unread_resets() -> None:
    """An orderly close is none if something was left lying."""

    async def story(near: Seen, far: Seen) -> None:
        far.transport.pause_reading()
        near.transport.write(b"never read")
        await asyncio.sleep(0.05)  # as above
        far.transport.close()
        await near.until("lost:ConnectionError")
        await far.until("lost:")

    assert same(story) == (["made", "lost:ConnectionError"], ["made", "lost:"])


def test_an_abort_with_nothing_unread_is_an_end() -> None:
    """What the system had taken still arrives."""

    async def story(near: Seen, far: Seen) -> None:
        near.transport.write(b"last words")
        await far.until("data")
        near.transport.abort()
        near.transport.abort()
        near.transport.close()
        await near.until("lost:")
        await far.until("lost:")

    assert same(story) == (["made", "lost:"], ["made", "data", "eof", "lost:"])


def test_a_close_flushes() -> None:
    """However much waits."""

    async def story(near: Seen, far: Seen) -> None:
        near.transport.write(b"x" * 8_000_000)
        assert near.transport.get_write_buffer_size() > 0
        near.transport.close()
        near.transport.close()
        await far.until("lost:")
        await near.until(lambda: near.log[-1] == "lost:")
        assert len(far.data) == 8_000_000

    assert same(story) == (["made", "pause", "resume", "lost:"], ["made", "data", "eof", "lost:"])


def test_an_abort_drops_what_waits() -> None:
    """It is never more than the peer has room for."""

    async def story(near: Seen, far: Seen) -> None:
        far.transport.pause_reading()
        near.transport.write(b"x" * 20_000_000)
        near.transport.abort()
        await near.until("lost:")
        far.transport.resume_reading()
        await far.until("lost:")
        assert len(far.data) < 20_000_000
        far.data.clear()

    assert same(story) == (["made", "pause", "lost:"], ["made", "data", "eof", "lost:"])


def test_bytes_for_one_who_has_gone_are_answered_with_a_reset() -> None:
    """Who kept its half open learns of it when it writes on."""

    def make() -> tuple[Seen, Seen]:
        return Seen(), Seen(eof=lambda far: True)

    async def story(near: Seen, far: Seen) -> None:
        near.transport.close()
        await far.until("eof")
        while "lost:ConnectionError" not in far.log:
            far.transport.write(b"are you there?")
            await asyncio.sleep(0.01)

    assert same(story, make) == (["made", "lost:"], ["made", "eof", "lost:ConnectionError"])


def test_backpressure() -> None:
    """A reader who does not read stops the writer; nothing is lost when it reads on."""

    async def story(near: Seen, far: Seen) -> None:
        far.transport.pause_reading()
        assert not far.transport.is_reading()
        near.transport.write(b"x" * 20_000_000)
        await near.until("pause")
        assert near.transport.get_write_buffer_size() > 65_536
        near.transport.write(b"y")
        far.transport.resume_reading()
        await near.until("resume")
        await far.until(far.has(20_000_001))
        near.transport.close()
        await far.until("lost:")
        await near.until("lost:")

    assert same(story) == (["made", "pause", "resume", "lost:"], ["made", "data", "eof", "lost:"])


def test_pausing_within_a_call_holds_the_rest_back() -> None:
    """From then on nothing comes, not even the end, until it is asked for."""

    async def story(near: Seen, far: Seen) -> None:
        near.transport.write(b"first")
        await far.until("data")
        far.transport.pause_reading()
        far.transport.pause_reading()
        near.transport.write(b"second")
        near.transport.close()
        await asyncio.sleep(0.05)  # nothing is to happen
        assert far.log == ["made", "data"]
        assert b"first".startswith(far.data)
        far.transport.resume_reading()
        await far.until("lost:")
        await near.until("lost:")
        assert far.data == b"firstsecond"

    same(story, lambda: (Seen(), Seen()))


def test_a_protocol_that_fails_loses_its_connection() -> None:
    """The loop is told, the protocol and the peer see an end."""
    told: list[object] = []

    def fail(far: Seen) -> None:
        raise LookupError("a fault")

    async def story(near: Seen, far: Seen) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        near.transport.write(b"x")
        await far.until("lost:LookupError")
        await near.until("lost:")

    assert same(story, lambda: (Seen(), Seen(data=fail))) == (
        ["made", "eof", "lost:"],
        ["made", "data", "lost:LookupError"],
    )
    assert [type(problem) for problem in told] == [LookupError] * 4


def refusal(runner: asyncio.Runner, port: int) -> OSError:
    async def story() -> OSError:
        with pytest.raises(OSError) as raised:
            await asyncio.get_running_loop().create_connection(Seen, HOST, port)
        return raised.value

    return runner.run(story())


@pytest.mark.parametrize("real", LOOPS)
def test_where_nobody_listens_connecting_is_refused(real: str) -> None:
    """As the system says it."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        with asyncio.Runner(loop_factory=LOOPS[real]) as runner:
            on_real = refusal(runner, free.getsockname()[1])
    loop = VirtualLoop()
    Network(loop)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        in_memory = refusal(runner, PORT)
    assert type(in_memory) is type(on_real) is ConnectionRefusedError
    assert in_memory.errno == on_real.errno == errno.ECONNREFUSED
    assert loop.time() == 0.001  # there and back
