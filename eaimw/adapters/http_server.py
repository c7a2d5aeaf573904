"""HTTP/1.1 for the hub's callers: `POST /tx`, `GET /healthz`, `GET /readyz`, under asyncio.

One request at a time per connection, pipelined ones in order. Everything that a caller can make grow has a limit, and
at the limit there is an answer. A caller that hangs up does not cancel its call: the target may have acted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any

from eaimw import codes
from eaimw.adapters.drive import Drive
from eaimw.adapters.http_request import ALLOWED, Arrivals, Head, Refused, Request, RequestReader
from eaimw.adapters.server_tls import BACKLOG, TlsListener, untaken
from eaimw.config import Address
from eaimw.errors import Malformed, Unusable
from eaimw.hub import Hub
from eaimw.model import Reply
from eaimw.wire import read_transaction, with_headers, write_reply

ARRIVAL_LIMIT = 10.0  # seconds for a request to arrive, from its first byte
IDLE_LIMIT = 75.0  # seconds without a request, or with a reply that the caller does not take
LINGER_LIMIT = 1.0  # seconds that a refused caller has to read why, while what it still sends is thrown away
CLOSE_LIMIT = 1.0  # seconds for the last bytes at the end
STUCK_LIMIT = 5.0  # seconds that a reply may wait for a caller who does not take it while the hub goes down
SWEEP_EVERY = 0.5  # seconds between two looks at who is too late
MAX_CONNECTIONS = 10_000
# Of one connection in one turn of the loop, for whose end everybody else waits: requests that are taken up, and bytes
# of bodies after which no further one is; the costliest take 0.2 us a byte.
ANSWERS_PER_TURN = 4
BYTES_PER_TURN = 65_536

NO_REQUEST = Request(Head(), b"")


class HttpServer:
    """Serves a hub on one address, from `start()` to `close()`. url: where, once it is started. tls: for HTTPS."""

    def __init__(self, hub: Hub, *, tls: ssl.SSLContext | None = None, max_connections: int = MAX_CONNECTIONS) -> None:
        self.hub = hub
        self.url = ""
        self.tls = tls
        self.max_connections = max_connections
        self.connections: dict[_Connection, None] = {}  # in order: a run can be repeated
        self.calls = 0  # under way
        self.arrivals = Arrivals()
        self._server: asyncio.Server | TlsListener | None = None
        self._sweep: asyncio.TimerHandle | None = None

    async def start(self, address: Address) -> None:
        """Listen. Raises Unusable."""
        loop = asyncio.get_running_loop()
        try:
            if self.tls is None:
                self._server = await loop.create_server(lambda: _Connection(self), *address, backlog=BACKLOG)
            else:
                self._server = TlsListener(
                    self.tls,
                    lambda: _Connection(self),
                    room=lambda: self.max_connections - len(self.connections),
                    limit=ARRIVAL_LIMIT,
                    farewell=IDLE_LIMIT,  # `look` ends it sooner where nothing is left to be taken
                )
                await self._server.open(address)
        except (OSError, UnicodeError) as problem:
            raise Unusable(
                f"cannot listen on {address}: {getattr(problem, 'strerror', None) or problem}; "
                "end the program that has the port, or choose another (port 0: any free one)"
            ) from None
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self.tls is not None else ''}://{Address(address.host, port)}"
        self._sweep = loop.call_later(SWEEP_EVERY, self._look, loop)

    async def drain(self) -> None:
        """Refuse what is new (E911), and wait until every reply is out; the listener stays open till then."""
        self.hub.go_down()
        loop = asyncio.get_running_loop()
        over_at = loop.time()  # of the last call
        # Looked at, not told: that is once in a hub's life, and an event would cost each request.
        while self.calls or any(connection.has_work for connection in self.connections):
            if self.calls:
                over_at = loop.time()
            elif loop.time() > over_at + STUCK_LIMIT:
                return  # callers that do not take their E911, and others in their place, must not keep the hub up
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Listen no more, and end every connection."""
        if self._sweep is not None:
            self._sweep.cancel()
        if isinstance(self._server, TlsListener):
            await self._server.close()
        elif self._server is not None:
            self._server.close()
        for connection in [*self.connections]:
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT):
                while self.connections:  # noqa: ASYNC110 - as in drain
                    await asyncio.sleep(0.005)
        for connection in [*self.connections]:
            connection.abort()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in [*self.connections]:
            connection.look(now)
        self._sweep = loop.call_later(SWEEP_EVERY, self._look, loop)


class _Connection(asyncio.Protocol):
    """One caller's connection, and for the hub its `Caller`.

    has_gone: it has ended, or the caller's side of it. A caller that closes has said no more than one that sends no
    more and still reads: so either gets its reply, and nothing is tried again for it. While its reading is paused
    (pipelined requests wait) its end is noticed only later.
    """

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(server.arrivals)
        self._waiting = self._reader.requests
        self._request = NO_REQUEST  # the one whose call is under way
        self.has_gone = False
        self._transport: Any = None
        self._is_busy = False  # a call is under way
        self._is_answering = False  # `_next` is at work
        self._is_deaf = False  # what still comes is thrown away
        self._is_half_closed = False  # the caller sends no more, and may still read
        self._is_stuck = False  # the caller does not take its reply
        self._is_paused = False
        self._since = self._loop.time()  # of what it is doing: idle, arriving, stuck, lingering

    @property
    def has_work(self) -> bool:
        """Is a reply of it not yet out?"""
        return self._is_busy or self._has_waiting or self._is_untaken

    @property
    def _is_untaken(self) -> bool:
        """Has the caller not yet taken all that was written?"""
        if self._transport.get_write_buffer_size() > 0:
            return True
        return self._server.tls is not None and untaken(self._transport.get_extra_info("socket")) > 0

    def close(self) -> None:
        """End it when what was written is out."""
        self._hear_no_more()
        self._transport.close()

    def abort(self) -> None:
        """End it at once."""
        self.has_gone = True
        self._hear_no_more()
        self._transport.abort()

    def look(self, now: float) -> None:
        """End what has taken too long."""
        age = now - self._since
        if self._is_stuck or (self._server.hub.is_going_down and self._is_untaken):
            if age > (STUCK_LIMIT if self._server.hub.is_going_down else IDLE_LIMIT):
                self.abort()
        elif self._is_busy or self._has_waiting:
            return
        elif self._is_deaf:
            if age > (IDLE_LIMIT if self._is_untaken else LINGER_LIMIT):
                self.abort()
        elif self._reader.is_arriving:
            if age > ARRIVAL_LIMIT:
                self._reader.refuse_late(f"the request has not arrived within {ARRIVAL_LIMIT:g} s")
                self._next()
        elif age > IDLE_LIMIT:
            self.close()

    # asyncio calls these.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._server.connections[self] = None
        if len(self._server.connections) > self._server.max_connections:
            message = f"the hub has {self._server.max_connections:,} connections, which is its limit"
            self._hear_no_more()
            self._write(self._server.hub.refusal(codes.SHED, message), NO_REQUEST)

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_gone = True
        self._server.connections.pop(self, None)
        self._hear_no_more()

    def eof_received(self) -> bool:
        self._is_half_closed = self.has_gone = True
        # Half a request is none; what has arrived whole is answered (over TLS the loop has no half-close).
        return self._server.tls is None and (self._is_busy or self._has_waiting)

    def pause_writing(self) -> None:
        self._is_stuck = True
        self._since = self._loop.time()
        self._pause()  # who does not take replies sends nothing more

    def resume_writing(self) -> None:
        self._is_stuck = False
        self._since = self._loop.time()
        self._next()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if self._is_deaf or reader.is_over:
            return
        was_arriving = reader.is_arriving
        reader.feed(data)
        if reader.is_arriving and not was_arriving:
            self._since = self._loop.time()
        self._next()
        if self._waiting or reader.kept:
            self._pause()

    # Answers, in order.

    def _next(self) -> None:
        """Answer the requests that have arrived, as far as none is being answered."""
        if self._is_answering:  # what was begun below has ended at once: the loop is still there and goes on
            return
        self._is_answering = True
        waiting, reader = self._waiting, self._reader
        answers, size = ANSWERS_PER_TURN, BYTES_PER_TURN
        while answers and size > 0 and not self._is_busy and not self._is_stuck:
            if not waiting:
                if reader.kept:
                    reader.go_on()
                if not waiting:
                    break
            request = reader.take()
            answers -= 1
            size -= len(request.body)
            self._answer(request)
        self._is_answering = False
        if self._is_busy:
            return
        if not answers or size <= 0:  # the others' turn
            self._pause()
            self._loop.call_soon(self._next)
            return
        if self._is_deaf or self._is_stuck or waiting or reader.kept:
            return
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        if self._reader.waits_for_our_word():  # only now is it its turn
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    @property
    def _has_waiting(self) -> bool:
        """Has it sent what is not yet being answered?"""
        return bool(self._waiting or self._reader.kept)

    def _pause(self) -> None:
        if not self._is_paused and not self._is_deaf:
            self._is_paused = True
            self._transport.pause_reading()

    def _answer(self, request: Request) -> None:
        if request.refused is not None:
            self._write(self._refusal(request, request.refused), request)
            return
        if request.head.path != b"/tx":
            self._write_health(request)
            return
        try:
            answer = self._begin(request)
        except Exception as problem:
            self._give_up(problem)
            return
        if isinstance(answer, Reply):
            self._write(answer, request)
            return
        self._is_busy = True
        self._server.calls += 1
        self._request = request
        Drive(answer, self._called)

    def _begin(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        hub = self._server.hub
        try:
            tx = read_transaction(request.body)
            if request.head.headers:
                tx = with_headers(tx, request.head.headers, hub.clock.time)
        except Malformed as problem:
            return hub.refuse_malformed(problem)
        return hub.begin(tx, caller=self)

    def _called(self, reply: Reply | None, problem: BaseException | None) -> None:
        """The call that was under way is over."""
        self._is_busy = False
        self._server.calls -= 1
        request, self._request = self._request, NO_REQUEST  # its body is not kept while the connection rests
        if reply is not None:
            self._write(reply, request)
        elif problem is not None:
            self._give_up(problem)
        self._next()

    def _give_up(self, problem: BaseException) -> None:
        """A fault of ours, and no reply can be made: the caller must not wait for one."""
        self._server.hub.note_fault("a request", problem)
        self.abort()

    def _hear_no_more(self) -> None:
        """What still comes is thrown away, and what waits is not answered."""
        self._is_deaf = True
        self._reader.end()

    def _refusal(self, request: Request, refused: Refused) -> Reply:
        hub = self._server.hub
        if request.body:  # only where a whole body was read a transaction was
            return hub.refuse_malformed(Malformed(refused.why))
        return hub.refusal(codes.SHED if refused.status == 503 else codes.MALFORMED, refused.why)

    def _write(self, reply: Reply, request: Request) -> None:
        refused = request.refused
        status = codes.http_status(reply.code, reply.outcome) if refused is None else refused.status
        more = b""
        if reply.retry_after_ms is not None:
            more = b"Retry-After: %d\r\n" % max(1, -(-reply.retry_after_ms // 1000))
        if status == 405:
            more += b"Allow: %s\r\n" % ALLOWED[request.head.path]
        try:
            body = write_reply(reply)
        except Exception as problem:
            self._give_up(problem)
        else:
            self._write_out(status, body, more, request.head)

    def _write_health(self, request: Request) -> None:
        is_ready = request.head.path == b"/healthz" or not self._server.hub.is_going_down
        word = "alive" if request.head.path == b"/healthz" else "ready" if is_ready else "draining"
        self._write_out(200 if is_ready else 503, b'{"status":"%s"}' % word.encode(), b"", request.head)

    def _write_out(self, status: int, body: bytes, more: bytes, head: Head) -> None:
        # Where no more is to come, or taken, the last one that has arrived ends the connection.
        is_last = (self._is_half_closed or self._server.hub.is_going_down) and not self._has_waiting
        keeps_alive = head.keeps_alive and not is_last
        if not keeps_alive:
            more += b"Connection: close\r\n"
        elif head.is_old:
            more += b"Connection: keep-alive\r\n"
        self._since = self._loop.time()
        if self._transport.is_closing():  # the caller has gone; its call is counted all the same
            return
        self._transport.write(
            b"%sContent-Length: %d\r\n%s\r\n%s"
            % (_START[status], len(body), more, b"" if head.method == b"HEAD" else body)
        )
        if not keeps_alive:
            self._hear_no_more()
            if self._server.tls is not None or self._is_half_closed:
                self._transport.close()
            else:
                # To close with bytes of the caller unread would reset the connection before it has read the reply.
                self._transport.write_eof()
                if self._is_paused:
                    self._is_paused = False
                    self._transport.resume_reading()


_START = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n".encode()
    for status in HTTPStatus
}
