"""For tests: one end of a connection that keeps what it sees, and a virtual loop that must not complain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from eaimw.sim.link import Conditions
from eaimw.sim.loop import VirtualLoop
from eaimw.sim.network import Network

HOST = "127.0.0.1"
PORT = 9201

T = TypeVar("T")


class Seen(asyncio.Protocol):
    """Writes down what it is called with; `on` holds what it does then."""

    def __init__(self, **on: Callable[[Seen], object]) -> None:
        self.transport: Any = None
        self.log: list[str] = []
        self.data = bytearray()
        self.pieces: list[bytes] = []
        self.times: list[float] = []
        self._on = on
        self._news = asyncio.Event()
        self._depth = 0

    async def until(self, happened: str | Callable[[], object]) -> None:
        """Until this has been called, or this is true."""
        while not (happened in self.log if isinstance(happened, str) else happened()):
            assert not self.log or not self.log[-1].startswith("lost"), f"waits for {happened}: {self.log}"
            self._news.clear()
            await self._news.wait()

    def has(self, data: bytes | int) -> Callable[[], bool]:
        """As many bytes, or these, have come."""
        return lambda: len(self.data) >= data if isinstance(data, int) else bytes(self.data) == data

    def _note(self, what: str, *, repeats: bool = True) -> Any:
        assert not any(entry.startswith("lost") for entry in self.log), f"{what} after the end: {self.log}"
        assert what == "made" or self.log, f"{what} before connection_made"
        assert self._depth == 0, f"{what} from within another call of this protocol"
        self.times.append(asyncio.get_running_loop().time())
        if repeats or self.log[-1] != what:
            self.log.append(what)
        self._news.set()
        self._depth += 1
        try:
            return self._on.get(what.partition(":")[0], _nothing)(self)
        finally:
            self._depth -= 1

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._note("made")

    def data_received(self, data: bytes) -> None:
        assert data
        self.data += data
        self.pieces.append(data)
        self._note("data", repeats=False)

    def eof_received(self) -> bool:
        return bool(self._note("eof"))

    def connection_lost(self, exc: Exception | None) -> None:
        kind = "" if exc is None else "ConnectionError" if isinstance(exc, ConnectionError) else type(exc).__name__
        self._note(f"lost:{kind}")

    def pause_writing(self) -> None:
        depth, self._depth = self._depth, 0  # the one call that comes from within write()
        self._note("pause")
        self._depth = depth

    def resume_writing(self) -> None:
        self._note("resume")


def _nothing(_: Seen) -> None:
    """What an end does that is told nothing."""


def simulated(story: Callable[[Network], Awaitable[T]], conditions: Conditions | None = None, seed: int = 0) -> T:
    """What the story gives on a virtual loop; fails if the loop complains."""
    loop = VirtualLoop()
    complaints: list[object] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    network = Network(loop, seed, conditions)

    async def run() -> T:
        return await story(network)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(run())
    assert complaints == []
    return result
