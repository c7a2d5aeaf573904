"""One connection to a target, as an asyncio Protocol: writes a request, reads the one reply to it, within limits.

llhttp (httptools) parses. What it lets through and we do not: more than one reply, a 1xx taken for the reply or
with a body, a status below 100, control characters in a reason, a transfer coding other than chunked, a head or a
body without end, bytes that nobody asked for. A whole reply whose head is that of the one before, byte for byte, is
not parsed anew: the same bytes mean the same.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import Callable
from typing import Any, Protocol

import httptools

from eaimw.errors import CallFailed, NoConnection, NoReply
from eaimw.model import Answer
from eaimw.wire import MAX_BYTES

# Bytes of everything before the body, 1xx replies included, and once more of all trailers.
MAX_HEAD = 65_536
# All bytes of one reply, framing included: a chunked one may spend more on framing than it carries.
MAX_RAW = 8 * MAX_BYTES

# As the hub gives a target's word on; a date has 29.
_is_retry_after = re.compile(rb"[ -~]{1,64}").fullmatch
_has_control = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search


class Taker(Protocol):
    """Whoever an exchange is for; a `Waiter`, as a rule. Gets one of the two, once."""

    def settle(self, value: Answer) -> None:
        """The reply."""

    def fail(self, problem: CallFailed) -> None:
        """There will be none."""


class Connection(asyncio.Protocol):
    """A kept-alive connection with at most one exchange on it.

    is_closed: it has ended, or must not be used any more. deadline: of the exchange under way, on the hub's clock.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self._transport: Any = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: Taker | None = None
        self._poll: Callable[[int], object] | None = None
        self._body: bytes | bytearray
        self.is_closed = False
        self.idle_since = 0.0
        self.deadline = 0.0
        self._gone: asyncio.Future[None] | None = None
        self._known = b""  # the head of the last reply, if it came whole, and what it said
        self._known_status = 0
        self._known_retry_after: str | None = None
        self._known_size = 0  # with the body
        self._begin()

    @property
    def is_usable(self) -> bool:
        """Is it open, as far as the loop has looked? A closing transport has not yet told its protocol."""
        return not self.is_closed and not self._transport.is_closing()

    def has_news(self) -> bool:
        """Has something come on the idle connection that the loop has not read yet?

        An end would make the next outcome unknown, and bytes would be taken for its reply.
        """
        return self._poll is not None and bool(self._poll(0))

    def exchange(self, request: bytes, deadline: float, waiter: Taker) -> None:
        """Write the request; `waiter` gets the Answer or a CallFailed, at the latest when the connection ends."""
        self._begin()
        self.deadline = deadline
        self._waiter = waiter
        self._transport.write(request)

    @property
    def is_under_way(self) -> bool:
        """Is a reply still due?"""
        return self._waiter is not None

    def outlast(self, problem: CallFailed, deadline: float, late: Taker) -> None:
        """Fail the exchange for its waiter alone: `late` gets what still comes, until the later deadline."""
        waiter, self._waiter = self._waiter, late
        self.deadline = deadline
        if waiter is not None:
            waiter.fail(problem)

    def fail(self, problem: CallFailed) -> None:
        """End the exchange, and the connection with it."""
        waiter, self._waiter = self._waiter, None
        self._body = b""
        self.abort()
        if waiter is not None:
            waiter.fail(problem)

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
        self._first = b""  # the bytes with which the reply began
        self._raw = 0  # bytes of this reply so far
        self._trailers = 0  # bytes of the names and values after the body
        self._has_begun = False  # a byte of the reply itself, not of a 1xx
        self._has_head = False
        self._status = 0
        self._codings = 0
        self._has_length = False
        self._retry_after: str | None = None  # empty: there is one, of no use
        self._ends_with_connection = False
        self._fault: str | None = None
        self._body = b""
        self._is_whole = False
        self._is_reusable = False

    # asyncio calls these four.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.loop = asyncio.get_running_loop()  # asked once: it is a call of the system
        self._gone = self.loop.create_future()
        sock = transport.get_extra_info("socket")
        if sock is not None:
            poller = select.poll()
            poller.register(sock.fileno(), select.POLLIN)
            self._poll = poller.poll

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self.abort()  # nobody asked: whatever this is, it is not the reply to what comes next
            return
        if not self._has_begun:
            if len(data) == self._known_size and data.startswith(self._known) and self._has_written():
                self._settle(Answer(self._known_status, data[len(self._known) :], self._known_retry_after))
                return
            self._first = data
        self._has_begun = True
        had_head, room = self._has_head, MAX_HEAD - self._raw
        self._raw += len(data)
        if had_head or self._raw <= MAX_HEAD:
            self._feed(data)
        else:
            self._feed(data[:room])
            if self._has_head:
                self._feed(data[room:])
            else:
                self._refuse(f"the reply's head is longer than {MAX_HEAD:,} bytes")
        if self._raw > MAX_RAW:
            self._refuse(f"the reply is longer than {MAX_RAW:,} bytes with its framing")
        if self._fault is not None:
            self.fail(NoReply(self._fault))
        elif self._is_whole:
            self._finish()

    def eof_received(self) -> None:
        if self._ends_with_connection and self._fault is None:
            self._finish()
        else:
            self._end(None)  # connection_lost would come only after the rest of a request that nobody reads

    def connection_lost(self, exc: Exception | None) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        self._end(exc)

    def _end(self, exc: Exception | None) -> None:
        self.is_closed = True
        if self._waiter is None:
            return
        if self._has_begun:
            self.fail(NoReply("the connection ended before the reply did"))
        else:
            why = f": {exc}" if exc is not None else ""
            self.fail(NoConnection(f"the connection ended before the reply began{why}", handed_over=True))

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse("the target wants to switch protocols")
        except httptools.HttpParserError as problem:
            self._refuse(f"not HTTP: {problem}")
            self._is_reusable = False

    def _refuse(self, fault: str) -> None:
        """The first fault counts, and none after a whole reply."""
        if not self._is_whole and self._fault is None:
            self._fault = fault

    # httptools calls these.

    def on_message_begin(self) -> None:
        self._has_begun = True
        if self._is_whole:
            self._is_reusable = False  # more after a whole reply: dropped with its connection

    def on_status(self, reason: bytes) -> None:
        if reason != b"OK" and _has_control(reason):
            self._refuse("the reply's reason has a control character")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            self._trailers += len(name) + len(value) + 4
            if self._trailers > MAX_HEAD:
                self._refuse(f"the reply's trailers are longer than {MAX_HEAD:,} bytes")
        size = len(name)
        if size == 17 and name.lower() == b"transfer-encoding":
            self._codings += 1
            if value.strip().lower() != b"chunked" or self._codings > 1:
                self._refuse("the reply has a transfer coding other than chunked")
        elif size == 14 and name.lower() == b"content-length":
            self._has_length = True
            if int(value) > MAX_BYTES:
                self._refuse(f"the reply is longer than {MAX_BYTES:,} bytes: it announces {int(value):,}")
        elif size == 11 and not self._has_head and self._retry_after is None and name.lower() == b"retry-after":
            value = value.strip(b" \t")
            self._retry_after = value.decode() if _is_retry_after(value) else ""

    def on_headers_complete(self) -> None:
        if self._is_whole:
            return
        self._status = self._parser.get_status_code()
        if self._status < 100:
            self._refuse(f"not HTTP: the status is {self._status}")
        elif self._status == 101:
            self._refuse("the target wants to switch protocols")
        self._has_head = True
        self._ends_with_connection = not self._has_length and not self._codings and self._status >= 200

    def on_body(self, body: bytes) -> None:
        if self._is_whole or self._fault is not None:
            return
        if self._status < 200:
            self._refuse(f"not HTTP: a reply with the status {self._status} has a body")
        elif len(self._body) + len(body) > MAX_BYTES:
            self._refuse(f"the reply is longer than {MAX_BYTES:,} bytes")
            self._body = b""
        elif not self._body:
            self._body = body
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)  # grows in place: chunks of one byte cost no more than one of all
            self._body += body

    def on_message_complete(self) -> None:
        if self._is_whole or self._fault is not None:
            return
        if self._status < 200:  # a 1xx is not yet the reply
            self._has_begun = self._has_head = self._has_length = False
            self._codings = 0
            self._retry_after = None
            return
        self._is_whole = True
        # A reply that came before the whole request was written leaves the rest of it in the way of the next.
        self._is_reusable = self._parser.should_keep_alive() and self._has_written()

    def _has_written(self) -> bool:
        return bool(self._transport.get_write_buffer_size() == 0)

    def _finish(self) -> None:
        answer = Answer(self._status, bytes(self._body), self._retry_after or None)
        self._body = b""
        self._ends_with_connection = False
        if self._is_reusable:
            self._learn(answer)
        else:
            self.abort()
        self._settle(answer)

    def _learn(self, answer: Answer) -> None:
        """Remember the head, if the reply came whole and its head and body are all that came."""
        end = self._first.find(b"\r\n\r\n") + 4
        if self._raw == len(self._first) == end + len(answer.body):
            self._known, self._known_size = self._first[:end], self._raw
            self._known_status, self._known_retry_after = answer.status, answer.retry_after
        self._first = b""

    def _settle(self, answer: Answer) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.settle(answer)  # which may begin the next exchange on this connection
