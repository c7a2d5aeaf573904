"""The bytes of one connection in one direction, on their way through what the link's conditions make of it."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from eaimw.sim.link import Way
from eaimw.sim.loop import VirtualLoop

if TYPE_CHECKING:
    from eaimw.sim.transport import Connection, End

END = None  # stands in a queue behind the last byte


class Pipe:
    """The bytes of one connection on their way in one direction."""

    def __init__(self, loop: VirtualLoop, connection: Connection, way: Way) -> None:
        self._loop = loop
        self._connection = connection
        self._link = connection.link
        self._context = contextvars.copy_context()
        self.source: End
        self.sink: End
        self._inside = 0  # bytes written and not yet read
        self._written = 0
        self._free_at = 0.0  # when the last byte so far is through, as `rate` has it
        self._last = 0.0  # arrival of the last piece so far: nothing overtakes
        self._held: list[bytes | OSError | None] = []  # what a stall holds up
        self._is_stalled = False
        self._stall_end: asyncio.TimerHandle | None = None
        self._served: Way | None = None  # the way whose stall is over
        self._is_ended = self._is_reset = self._is_cut = False
        self._set(way)

    @property
    def room(self) -> int:
        """Bytes that may be written now."""
        return self._way.buffer - self._inside

    def apply(self, way: Way) -> None:
        """If the way has changed, a stall of the old one is over."""
        if way != self._way:
            self._set(way)
            self._go_on()
            self.read(0)  # there may be more room now

    def write(self, data: bytes) -> None:
        """Send it on; not more than there is room for."""
        self._inside += len(data)
        self._connection.used_at = self._loop.time()
        if self._is_plain and not self._is_ended:
            self._written += len(data)
            self._launch(self._latency, self.sink.arrive, data)
        elif self._is_cut:
            self._inside -= len(data)
            self.source.outgoing_cut()
        elif self._is_ended:
            self.read(len(data))
        else:
            self._write_by_the_way(data)

    def end(self) -> None:
        """The writer has no more to say."""
        if self._is_ended:
            return
        if self._is_stalled:
            self._held.append(END)
            return
        self._is_ended = True
        self._launch(self._link.latency(self._way) + self._way.close_delay, self.sink.arrive, END)

    def reset(self, problem: OSError) -> None:
        """The reader gets this in the place of the rest; what has been sent arrives before it."""
        if self._is_reset:
            return
        if self._is_stalled:
            self._held.append(problem)
            return
        self._is_ended = self._is_reset = True
        self._launch(self._link.latency(self._way) + self._way.close_delay, self.sink.arrive_reset, problem)

    def tell(self, callback: Callable[[], None]) -> None:
        """Call it at the other end, in order with the bytes."""
        self._launch(self._link.latency(self._way), callback)

    def cut(self) -> None:
        """Between the ends the connection is no longer known."""
        self.end()
        self._is_cut = True

    def read(self, size: int) -> None:
        """The reader has taken so many bytes, or they are lost: there is room again."""
        self._inside -= size
        if self.source.unsent:
            self._loop.call_soon(self.source.flush, context=self._context)

    def _write_by_the_way(self, data: bytes) -> None:
        """Up to the nearest fault; there it happens, and the rest goes on as it may."""
        while not self._is_ended and not self._is_stalled:
            way, before = self._way, len(data)
            stall = way.stall_after if self._served is not way else None
            faults = [at for at in (stall, way.reset_after, way.close_after) if at is not None]
            room = max(0, min(faults) - self._written) if faults else math.inf
            if room > before:
                self._cut_up(data)
                return
            self._cut_up(data[: int(room)])
            data = data[int(room) :]
            if stall is not None and stall <= self._written:
                self._stall(way.stall_for)
            elif way.reset_after is not None and way.reset_after <= self._written:
                self._connection.reset()
            else:
                self.end()
        if self._is_stalled:
            self._held.append(data)
        elif data:
            self.read(len(data))

    def _cut_up(self, data: bytes) -> None:
        """Send it on in the pieces that the way makes of it."""
        self._written += len(data)
        left = len(data)
        while left:
            size = left
            if self._way.pieces == "bytes":
                size = 1
            elif self._way.pieces == "random":
                size = 1 + int(self._link.random.random() * left)
            start = len(data) - left
            now = self._loop.time()
            self._free_at = max(self._free_at, now) + size / self._way.rate
            piece = data[start : start + size]
            self._launch(self._free_at - now + self._link.latency(self._way), self.sink.arrive, piece)
            left -= size

    def _set(self, way: Way) -> None:
        self._way = way
        # What is written on a plain way takes the short way through here.
        self._is_plain = not way.cuts and way.rate == math.inf and not callable(way.latency)
        self._latency = way.latency if not callable(way.latency) else math.nan

    def _stall(self, seconds: float) -> None:
        self._is_stalled = True
        if seconds < math.inf:
            self._stall_end = self._loop.call_later(seconds, self._stall_is_over, context=self._context)

    def _stall_is_over(self) -> None:
        self._served = self._way
        self._go_on()

    def _go_on(self) -> None:
        self._is_stalled = False
        if self._stall_end is not None:
            self._stall_end.cancel()
            self._stall_end = None
        held, self._held = self._held, []
        for item in held:
            if isinstance(item, bytes):
                self._write_by_the_way(item)
            elif item is END:
                self.end()
            else:
                self.reset(item)

    def _launch(self, seconds: float, arrive: Callable[..., None], *item: object) -> None:
        at = self._loop.time() + seconds
        if at < self._last:
            at = self._last
        self._last = at
        self._loop.call_at(at, arrive, *item, context=self._context)


def reset_by_peer() -> ConnectionResetError:
    """What the system says of a connection that the other side has reset."""
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
