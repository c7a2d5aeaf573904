"""One connection in memory: two transports that behave as asyncio's over TCP do, joined by two pipes.

A transport is what asyncio knows of a socket and what the system keeps for it: bytes that have arrived and are not
yet read, the peer's end, a reset. Closing with bytes unread resets, as TCP does; bytes for a socket that is gone are
answered with a reset. Nothing here is ever called from within the peer's own calls.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio.transports import _FlowControlMixin
from collections import deque
from collections.abc import Callable
from typing import Any

from eaimw.sim.link import Conditions, Link
from eaimw.sim.loop import NotSimulated, VirtualLoop
from eaimw.sim.pipe import END, Pipe, reset_by_peer

Address = tuple[str, int]


class Connection:
    """Two ends and what is between them. used_at: when a byte last was written."""

    def __init__(self, loop: VirtualLoop, link: Link, near: Address, far: Address) -> None:
        conditions = link.conditions
        self.link = link
        self.used_at = loop.time()
        self._loop = loop
        self._there = Pipe(loop, self, conditions.there)
        self._back = Pipe(loop, self, conditions.back)
        self.near = End(loop, self, self._there, self._back, near, far)
        self.far = End(loop, self, self._back, self._there, far, near)
        link.connections[self] = None
        link.opened += 1
        self._idle: asyncio.TimerHandle | None = None
        self._fate: asyncio.TimerHandle | None = None
        if conditions.reset_within is not None:
            self._fate = loop.call_later(link.random.random() * conditions.reset_within, self.reset)
        self._watch()

    def apply(self, conditions: Conditions) -> None:
        """The link's conditions have changed."""
        self._there.apply(conditions.there)
        self._back.apply(conditions.back)
        self._watch()

    def reset(self) -> None:
        """Both ends learn that the other has reset the connection."""
        for pipe in (self._there, self._back):
            pipe.reset(reset_by_peer())

    def acknowledge(self, accept: Callable[[], None]) -> None:
        """The caller's end is there: the other end learns of it before any byte."""
        self._there.tell(accept)

    def end_is_gone(self) -> None:
        """One of the ends has closed its socket."""
        if self.near.is_gone and self.far.is_gone:
            for timer in (self._idle, self._fate):
                if timer is not None:
                    timer.cancel()
            self._idle = self._fate = None
            self.link.connections.pop(self, None)

    def _watch(self) -> None:
        """End the connection when it has rested for too long."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        limit = self.link.conditions.idle_limit
        if limit is None:
            return
        if self._loop.time() >= self.used_at + limit:
            self._there.cut()
            self._back.cut()
        else:
            self._idle = self._loop.call_at(self.used_at + limit, self._watch)


class End(_FlowControlMixin):
    """`asyncio.Transport` for one end of a connection. unsent: what waits for room in the pipe."""

    _loop: VirtualLoop
    _maybe_pause_protocol: Callable[[], None]
    _maybe_resume_protocol: Callable[[], None]

    def __init__(
        self, loop: VirtualLoop, connection: Connection, outgoing: Pipe, incoming: Pipe, own: Address, peer: Address
    ) -> None:
        super().__init__({"sockname": own, "peername": peer}, loop)
        self._connection = connection
        self._context = contextvars.copy_context()
        self._outgoing = outgoing
        self._incoming = incoming
        outgoing.source = incoming.sink = self
        self._protocol: Any = None
        self.unsent = bytearray()
        self._unread: deque[bytes | None] = deque()
        self._problem: OSError | None = None  # the connection was reset, as far as the system knows
        self._is_reading = False
        self._is_paused = False
        self._will_read = False
        self._is_closing = False
        self._is_ending = False  # connection_lost is on its way
        self._has_ended = False  # write_eof
        self.is_gone = False  # the socket is closed

    def __repr__(self) -> str:
        state = "gone" if self.is_gone else "closing" if self._is_closing else "open"
        return f"<End {self.get_extra_info('sockname')} to {self.get_extra_info('peername')}, {state}>"

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        """The protocol learns of the connection, and then what comes."""
        if isinstance(protocol, asyncio.BufferedProtocol):
            raise NotSimulated("asyncio.BufferedProtocol")
        self._protocol = protocol
        self._soon(protocol.connection_made, self)
        self._soon(self._begin)

    # asyncio.Transport.

    def write(self, data: Any) -> None:
        if type(data) is not bytes:
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
            data = bytes(data)
        if self._has_ended:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self._is_ending:
            return
        if self._problem is not None:
            self._fail(self._problem, "")
            return
        if not self.unsent:
            room = self._outgoing.room
            if len(data) <= room:
                self._outgoing.write(data)
                return
            if room > 0:
                self._outgoing.write(data[:room])
                data = data[room:]
        self.unsent += data
        self._maybe_pause_protocol()

    def write_eof(self) -> None:
        if self._is_closing or self._has_ended:
            return
        self._has_ended = True
        if not self.unsent:
            self._outgoing.end()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def is_reading(self) -> bool:
        return not self._is_closing and not self._is_paused

    def pause_reading(self) -> None:
        if self.is_reading():
            self._is_paused = True
            self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_closing and self._is_paused:
            self._is_paused = False
            self._is_reading = True
            self._read_soon()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._is_reading = False
        if not self.unsent:
            self._end_soon(None)

    def abort(self) -> None:
        self._force_close(None)

    # The pipes call these.

    def arrive(self, data: bytes | None) -> None:
        """Bytes, or the peer's end, have arrived."""
        if self._is_reading and not self._unread:
            self._take(data)
        elif not self.is_gone:
            self._unread.append(data)
        elif data is not END:
            self._incoming.read(len(data))
            self._outgoing.reset(reset_by_peer())

    def arrive_reset(self, problem: OSError) -> None:
        """The peer's reset has arrived."""
        if self.is_gone:
            return
        self._problem = problem
        if self.unsent or (self._is_reading and not self._unread):
            self._fail(problem, "")

    def flush(self) -> None:
        """There is room for more of what waits."""
        room = self._outgoing.room
        if not self.unsent or self._is_ending or room <= 0:
            return
        data = bytes(self.unsent[:room])
        del self.unsent[:room]
        self._outgoing.write(data)
        self._maybe_resume_protocol()  # may write more
        if not self.unsent:
            if self._is_closing:
                self._end_soon(None)
            elif self._has_ended:
                self._outgoing.end()

    def outgoing_cut(self) -> None:
        """What was written went to a connection that nobody knows any more."""
        self._incoming.reset(reset_by_peer())

    # What happens to it.

    def _soon(self, callback: Any, *args: object) -> None:
        self._loop.call_soon(callback, *args, context=self._context)

    def _begin(self) -> None:
        if not self._is_closing and not self._is_paused:
            self._is_reading = True
            self._read_soon()

    def _read_soon(self) -> None:
        if (self._unread or self._problem is not None) and not self._will_read:
            self._will_read = True
            self._soon(self._read)

    def _read(self) -> None:
        self._will_read = False
        if not self._is_reading:
            return
        if self._unread:
            self._take(self._unread.popleft())
        elif self._problem is not None:
            self._fail(self._problem, "")
        if self._is_reading:
            self._read_soon()

    def _take(self, data: bytes | None) -> None:
        try:
            if data is not END:
                self._incoming.read(len(data))
                self._protocol.data_received(data)
            else:
                self._is_reading = False  # there is nothing more to read
                if not self._protocol.eof_received():
                    self.close()
        except Exception as problem:
            self._fail(problem, "Fatal error: a protocol's data_received() or eof_received() call failed.")

    def _fail(self, problem: BaseException, message: str) -> None:
        if not isinstance(problem, OSError):
            context = {"message": message, "exception": problem, "transport": self, "protocol": self._protocol}
            self._loop.call_exception_handler(context)
        self._force_close(problem)

    def _force_close(self, problem: BaseException | None) -> None:
        if self._is_ending:
            return
        self.unsent.clear()
        self._is_closing = True
        self._is_reading = False
        self._end_soon(problem)

    def _end_soon(self, problem: BaseException | None) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._soon(self._lose, problem)

    def _lose(self, problem: BaseException | None) -> None:
        try:
            if self._protocol is not None:
                self._protocol.connection_lost(problem)
        finally:
            self.is_gone = True
            self._protocol = None
            unread = sum(len(data) for data in self._unread if data is not END)
            self._unread.clear()
            if unread:
                self._incoming.read(unread)
            if self._problem is None:
                if unread:
                    self._outgoing.reset(reset_by_peer())
                else:
                    self._outgoing.end()
            self._connection.end_is_gone()
