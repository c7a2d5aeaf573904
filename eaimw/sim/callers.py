"""Simulated callers of a hub over HTTP: a crowd per load, on kept-alive connections, with manners good and bad.

Nothing of the hub is imported. What a crowd does at its own times it draws from a stream of its own, a fixed number of
draws per transaction, so that how long an answer takes changes nothing of what comes after it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from random import Random
from typing import Any

import httptools

from eaimw.sim.durations import check_number
from eaimw.sim.load import Load

__all__ = ["Address", "Crowd", "Manners", "Sent"]

Address = tuple[str, int]

# In so many pieces a dawdler sends.
PIECES = 4
# What a garbling caller sends: no transaction at all, and some that are nearly one.
GARBLED = (
    b"\x00\xff\xfe",
    b"[1, 2",
    b'"tx"',
    b'{"tx_id": "G-1"}',
    b'{"tx_id": null, "target": "CORE"}',
    b'{"tx_id": "G-2", "target": "CORE", "target": "CLAIM"}',
    b'{"tx_id": "G-3", "target": "CORE", "timeout_ms": 0}',
    b'{"tx_id": "G-4", "target": "CORE", "n": ' + b"[" * 200 + b"]" * 200 + b"}",
    b'{"tx_id": "G-5", "target": "CORE", "n": NaN}',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How the callers of a load behave. Each is a share of its transactions, from 0 to 1.

    Those that call the hub itself, without HTTP, hang up (their task is cancelled), garble and repeat.
    hangs_up: the caller ends its connection a moment (up to `patience` seconds) after it has sent.
    half_closes: it says with its request that it will send no more.
    pipelines: it sends on a connection on which another answer is still awaited, if there is one.
    dawdles: it sends the request in pieces, over up to `patience` seconds. chunks: it sends the body in chunks.
    garbles: what it sends is no transaction. repeats: it sends one of its transactions once more.
    """

    hangs_up: float = 0.0
    half_closes: float = 0.0
    pipelines: float = 0.0
    dawdles: float = 0.0
    chunks: float = 0.0
    garbles: float = 0.0
    repeats: float = 0.0
    patience: float = 0.5

    def __post_init__(self) -> None:
        for field in fields(self):
            check_number(field.name, getattr(self, field.name), least=0, most=60 if field.name == "patience" else 1)


@dataclass(slots=True, eq=False)
class Sent:
    """One transaction of a load, and what its caller knows of it. Times are seconds of the run.

    due: when its caller had it. sent_at: when it was written, if there was a connection. answered_at, status, reply:
    the one answer to it; None: there was none, and `lost` says why. is_garbled: it was no transaction at all.
    settled_at: when it was answered or lost; inf: it never was. extra: answers that came beyond the one.
    """

    load: Load
    number: int
    due: float
    raw: bytes
    is_garbled: bool = False
    sent_at: float | None = None
    answered_at: float | None = None
    status: int | None = None
    reply: bytes | None = None
    lost: str | None = None
    settled_at: float = math.inf
    extra: int = 0

    @property
    def tx_id(self) -> str:
        """Of the transaction; of one that is garbled, nobody's."""
        return f"{self.load.name}-{self.number}"

    @property
    def target(self) -> str:
        return self.load.target

    @property
    def is_settled(self) -> bool:
        """Has it come to its end for its caller?"""
        return self.reply is not None or self.lost is not None


class Crowd:
    """The callers of one load. on_settled: called once for each transaction that is sent."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        manners: Manners,
        chance: Random,
        on_settled: Callable[[Sent], None],
    ) -> None:
        self.loop = loop
        self.lines: dict[_Line, None] = {}
        self.idle: list[_Line] = []  # the last one in is the first one out
        self._address = address
        self._manners = manners
        self._chance = chance
        self._on_settled = on_settled
        self._opening: dict[asyncio.Task[None], None] = {}

    def send(self, sent: Sent) -> None:
        """On an idle connection, or a new one."""
        manners, draw = self._manners, self._chance.random
        way = _Way(
            hang_up_after=_if(draw() < manners.hangs_up, draw() * manners.patience),
            half_closes=draw() < manners.half_closes,
            dawdle=_if(draw() < manners.dawdles, draw() * manners.patience),
            chunks=draw() < manners.chunks,
        )
        if draw() < manners.pipelines:
            for line in self.lines:
                if line.takes_more:
                    line.send(sent, way)
                    return
        while self.idle:
            line = self.idle.pop()
            if line.takes_more:
                line.send(sent, way)
                return
        task = self.loop.create_task(self._open(sent, way))
        self._opening[task] = None
        task.add_done_callback(self._opening.pop)

    def close(self) -> None:
        """Everybody hangs up."""
        for task in [*self._opening]:
            task.cancel()
        for line in [*self.lines]:
            line.hang_up("the run is over")

    def settle(self, sent: Sent) -> None:
        """It has its answer, or never will."""
        self._on_settled(sent)

    async def _open(self, sent: Sent, way: _Way) -> None:
        try:
            _, line = await self.loop.create_connection(lambda: _Line(self), *self._address)
        except OSError as problem:
            sent.lost = f"no connection: {problem}"
            self.settle(sent)
        else:
            line.send(sent, way)


@dataclass(frozen=True, slots=True)
class _Way:
    """How one request is sent."""

    hang_up_after: float | None
    half_closes: bool
    dawdle: float | None
    chunks: bool


def _if(is_so: bool, value: float) -> float | None:
    return value if is_so else None


class _Line(asyncio.Protocol):
    """One connection of a caller; answers come in the order of the requests."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._transport: Any = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: deque[Sent] = deque()
        self._last: Sent | None = None
        self._body = b""
        self._rest = b""  # what a dawdler has still to send
        self._is_over = False  # nothing more is sent here
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def takes_more(self) -> bool:
        """May another request be sent?"""
        return not self._is_over and not self._rest and not self._transport.is_closing()

    def send(self, sent: Sent, way: _Way) -> None:
        """Write the request, by and by if so."""
        if self._is_over or self._transport.is_closing():  # it ended in the moment in which it came about
            sent.lost = "the connection ended at once"
            self._crowd.settle(sent)
            return
        loop = self._crowd.loop
        self._waiting.append(sent)
        sent.sent_at = loop.time()
        self._is_over = way.half_closes or way.hang_up_after is not None
        raw = b"POST /tx HTTP/1.1\r\nHost: hub\r\n"
        if way.chunks:
            raw += b"Transfer-Encoding: chunked\r\n\r\n1\r\n%b\r\n" % sent.raw[:1]
            raw += b"%x\r\n%b\r\n0\r\n\r\n" % (len(sent.raw) - 1, sent.raw[1:])
        else:
            raw += b"Content-Length: %d\r\n\r\n%b" % (len(sent.raw), sent.raw)
        if way.dawdle is not None:
            self._rest = raw
            self._dawdle(-(-len(raw) // PIECES), way.dawdle / (PIECES - 1), way.half_closes)
        else:
            self._transport.write(raw)
            if way.half_closes:
                self._transport.write_eof()
        if way.hang_up_after is not None:
            self._timers.append(loop.call_later(way.hang_up_after, self.hang_up, "hung up"))

    def hang_up(self, why: str) -> None:
        """Be gone, with or without an answer."""
        self._lose(why)
        self._transport.abort()

    def _dawdle(self, size: int, pause: float, half_closes: bool) -> None:
        piece, self._rest = self._rest[:size], self._rest[size:]
        self._transport.write(piece)
        if self._rest:
            self._timers.append(self._crowd.loop.call_later(pause, self._dawdle, size, pause, half_closes))
        elif half_closes:
            self._transport.write_eof()

    def _lose(self, why: str) -> None:
        self._is_over = True
        self._rest = b""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        while self._waiting:
            sent = self._waiting.popleft()
            sent.lost = why
            self._crowd.settle(sent)

    # asyncio calls these.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._crowd.lines[self] = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # a fault of ours, which must not pass for one of the hub
        except httptools.HttpParserError as problem:
            self.hang_up(f"the hub's answer is no HTTP: {problem}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.lines.pop(self, None)
        self._lose(f"the connection ended: {exc or 'closed'}")

    # httptools calls these.

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if not self._waiting:
            if self._last is not None:
                self._last.extra += 1
            return
        sent = self._last = self._waiting.popleft()
        sent.answered_at = self._crowd.loop.time()
        sent.status = self._parser.get_status_code()
        sent.reply = self._body
        if not self._parser.should_keep_alive():
            self._lose("the hub takes no more on this connection")
            self._transport.close()
        elif not self._waiting and self.takes_more:
            self._crowd.idle.append(self)
        self._crowd.settle(sent)
