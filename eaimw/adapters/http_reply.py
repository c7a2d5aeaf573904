"""One connection to a target, as an asyncio Protocol: writes a request, reads the one reply to it, within limits.

llhttp (httptools) parses. What it lets through and we do not: more than one reply, a 1xx taken for the reply, a
transfer coding other than chunked, a head or a body without end, bytes that nobody asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools

from eaimw.errors import CallFailed, NoConnection, NoReply
from eaimw.model import Answer
from eaimw.wire import MAX_BYTES

MAX_HEAD = 65_536
# All bytes of one reply, framing included: a chunked one may spend more on framing than it carries.
MAX_RAW = 8 * MAX_BYTES


class Connection(asyncio.Protocol):
    """A kept-alive connection with at most one exchange on it.

    is_closed: it has ended, or must not be used any more. deadline: of the exchange under way, on the hub's clock.
    """

    def __init__(self) -> None:
        self._transport: Any = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[Answer] | None = None
        self.is_closed = False
        self.idle_since = 0.0
        self.deadline = 0.0
        self._gone: asyncio.Future[None] | None = None
        self._begin()

    @property
    def is_usable(self) -> bool:
        """May the next request go over it? A closing transport has not yet told its protocol."""
        return not self.is_closed and not self._transport.is_closing()

    def exchange(self, request: bytes, deadline: float, waiter: asyncio.Future[Answer]) -> None:
        """Write the request; `waiter` gets the Answer or a CallFailed."""
        self._begin()
        self.deadline = deadline
        self._waiter = waiter
        self._transport.write(request)

    def fail(self, problem: CallFailed) -> None:
        """End the exchange, and the connection with it."""
        waiter, self._waiter = self._waiter, None
        self.abort()
        if waiter is not None and not waiter.done():
            waiter.set_exception(problem)

    def abort(self) -> None:
        """Close at once; what is not yet written is dropped."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    async def gone(self) -> None:
        """Wait until an aborted connection has really ended."""
        if self._transport is not None and self._gone is not None:
            await asyncio.shield(self._gone)

    def _begin(self) -> None:
        self._raw = 0  # bytes of this reply so far
        self._head = 0  # bytes of header names and values
        self._has_begun = False  # a byte of the reply itself, not of a 1xx
        self._has_head = False
        self._status = 0
        self._codings = 0
        self._has_length = False
        self._ends_with_connection = False
        self._fault: str | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._is_whole = False
        self._is_reusable = False

    # asyncio calls these four.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._gone = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self.abort()  # nobody asked: whatever this is, it is not the reply to what comes next
            return
        self._has_begun = True
        self._raw += len(data)
        had_head = self._has_head
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fault = self._fault or "the target wants to switch protocols"
        except httptools.HttpParserError as problem:
            if not self._is_whole:
                self._fault = self._fault or f"not HTTP: {problem}"
            self._is_reusable = False
        if not self._has_head and not had_head and self._raw > MAX_HEAD:
            self._fault = self._fault or f"the reply's head is longer than {MAX_HEAD:,} bytes"
        elif self._raw > MAX_RAW:
            self._fault = self._fault or f"the reply is longer than {MAX_RAW:,} bytes with its framing"
        if self._fault is not None:
            self.fail(NoReply(self._fault))
        elif self._is_whole:
            self._finish()

    def eof_received(self) -> None:
        if self._waiter is not None and self._ends_with_connection and self._fault is None:
            self._is_whole = True
            self._is_reusable = False
            self._finish()
        self.is_closed = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        if self._waiter is None:
            return
        if self._has_begun:
            self.fail(NoReply("the connection ended before the reply did"))
        else:
            why = f": {exc}" if exc is not None else ""
            self.fail(NoConnection(f"the connection ended before the reply began{why}", handed_over=True))

    # httptools calls these.

    def on_message_begin(self) -> None:
        if self._is_whole:
            self._is_reusable = False  # more after a whole reply: dropped with its connection

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value) + 4
        if self._head > MAX_HEAD:
            self._fault = self._fault or f"the reply's head is longer than {MAX_HEAD:,} bytes"
        size = len(name)
        if size == 17 and name.lower() == b"transfer-encoding":
            self._codings += 1
            if value.strip().lower() != b"chunked" or self._codings > 1:
                self._fault = self._fault or "the reply has a transfer coding other than chunked"
        elif size == 14 and name.lower() == b"content-length":
            self._has_length = True

    def on_headers_complete(self) -> None:
        if self._is_whole:
            return
        self._status = self._parser.get_status_code()
        self._has_head = True
        self._ends_with_connection = (
            not self._has_length and not self._codings and self._status >= 200 and self._status not in (204, 304)
        )

    def on_body(self, body: bytes) -> None:
        if self._is_whole or self._fault is not None:
            return
        self._size += len(body)
        if self._size > MAX_BYTES:
            self._fault = f"the reply is longer than {MAX_BYTES:,} bytes"
            self._body.clear()
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._is_whole:
            return
        if self._status < 200:  # a 1xx is not yet the reply
            self._has_begun = self._has_head = self._has_length = False
            self._codings = 0
            return
        self._is_whole = True
        # A reply that came before the whole request was written leaves the rest of it in the way of the next.
        self._is_reusable = self._parser.should_keep_alive() and self._transport.get_write_buffer_size() == 0

    def _finish(self) -> None:
        waiter, self._waiter = self._waiter, None
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        if not self._is_reusable:
            self.abort()
        if waiter is not None and not waiter.done():
            waiter.set_result(Answer(self._status, body))
