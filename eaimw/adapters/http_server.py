"""HTTP/1.1 for the hub's callers: `POST /tx`, `GET /healthz`, `GET /readyz`, on llhttp (httptools) under asyncio.

One request at a time per connection, pipelined ones in order. Everything that a caller can make grow has a limit, and
at the limit there is an answer. A caller that hangs up does not cancel its call: the target may have acted.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections import deque
from http import HTTPStatus
from typing import Any, NamedTuple

import httptools

from eaimw import codes
from eaimw.adapters.server_tls import BACKLOG, TlsListener, untaken
from eaimw.config import Address
from eaimw.errors import Malformed, Unusable
from eaimw.hub import Hub
from eaimw.model import Reply
from eaimw.wire import MAX_BYTES, read_transaction, with_headers, write_reply

MAX_HEAD = 16_384
ARRIVAL_LIMIT = 10.0  # seconds for a request to arrive, from its first byte
IDLE_LIMIT = 75.0  # seconds without a request, or with a reply that the caller does not take
LINGER_LIMIT = 1.0  # seconds that a refused caller has to read why, while what it still sends is thrown away
CLOSE_LIMIT = 1.0  # seconds for the last bytes at the end
STUCK_LIMIT = 5.0  # seconds that a reply may wait for a caller who does not take it while the hub goes down
SWEEP_EVERY = 0.5  # seconds between two looks at who is too late
MAX_CONNECTIONS = 10_000
# Bodies that are arriving, of all connections together: ten thousand callers must not fill the memory.
MAX_ARRIVING = 256 * MAX_BYTES

_ALLOWED = {b"/tx": b"POST", b"/healthz": b"GET", b"/readyz": b"GET"}
_PASSED_ON = {b"idempotency-key", b"x-priority", b"traceparent"}


class _Refused(NamedTuple):
    """Why a request is answered with an E400 of this HTTP status."""

    status: int
    why: str
    is_final: bool  # the framing is in doubt: nothing more of this connection is read


class _Request(NamedTuple):
    """A request that has arrived, or was refused on the way."""

    method: bytes
    path: bytes
    body: bytes
    headers: dict[bytes, bytes]
    keeps_alive: bool
    is_old: bool  # HTTP/1.0, which keeps a connection only if it is told so
    refused: _Refused | None


class HttpServer:
    """Serves a hub on one address, from `start()` to `close()`. url: where, once it is started. tls: for HTTPS."""

    def __init__(self, hub: Hub, *, tls: ssl.SSLContext | None = None, max_connections: int = MAX_CONNECTIONS) -> None:
        self.hub = hub
        self.url = ""
        self.tls = tls
        self.max_connections = max_connections
        self.connections: set[_Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.arriving = 0  # bytes of bodies
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
        # Looked at, not told: that is once in a hub's life, and an event would cost each request.
        while self.tasks or any(connection.has_work for connection in self.connections):  # noqa: ASYNC110
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
    """One caller's connection."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._waiting: deque[_Request] = deque()
        self._is_busy = False  # a request is being answered
        self._is_deaf = False  # what still comes is thrown away
        self._is_half_closed = False  # the caller sends no more, and may still read
        self._is_stuck = False  # the caller does not take its reply
        self._is_paused = False
        self._since = self._loop.time()  # of what it is doing: idle, arriving, stuck, lingering
        self._is_arriving = False
        self._unheard = 0  # bytes since the parser last told us something: of a name or value that may have no end
        self._begin()

    def _begin(self) -> None:
        self._path = b""
        self._head_size = 0
        self._has_head = False
        self._has_length = False
        self._codings = 0
        self._expects = False
        self._is_declining = False  # an upgrade: the request will be read once more without it
        self._lines: list[tuple[bytes, bytes]] = []  # all headers as they came
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()  # grows in place: chunks of one byte cost no more than one of all
        self._size = 0
        self._refused: _Refused | None = None

    @property
    def has_work(self) -> bool:
        """Is a reply of it not yet out?"""
        return self._is_busy or bool(self._waiting) or self._is_untaken

    @property
    def _is_untaken(self) -> bool:
        """Has the caller not yet taken all that was written?"""
        if self._transport.get_write_buffer_size() > 0:
            return True
        return self._server.tls is not None and untaken(self._transport.get_extra_info("socket")) > 0

    def close(self) -> None:
        """End it when what was written is out."""
        self._is_deaf = True
        self._transport.close()

    def abort(self) -> None:
        """End it at once."""
        self._is_deaf = True
        self._transport.abort()

    def look(self, now: float) -> None:
        """End what has taken too long."""
        age = now - self._since
        if self._is_stuck or (self._server.hub.is_going_down and self._is_untaken):
            if age > (STUCK_LIMIT if self._server.hub.is_going_down else IDLE_LIMIT):
                self.abort()
        elif self._is_busy or self._waiting:
            return
        elif self._is_deaf:
            if age > (IDLE_LIMIT if self._is_untaken else LINGER_LIMIT):
                self.abort()
        elif self._is_arriving:
            if age > ARRIVAL_LIMIT:
                self._refuse(408, f"the request has not arrived within {ARRIVAL_LIMIT:g} s")
                self._push(keeps_alive=False)
                self._next()
        elif age > IDLE_LIMIT:
            self.close()

    # asyncio calls these.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._server.connections.add(self)
        if len(self._server.connections) > self._server.max_connections:
            message = f"the hub has {self._server.max_connections:,} connections, which is its limit"
            self._is_deaf = True
            self._write(self._server.hub.refusal(codes.SHED, message), _request_of(None))

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._server.arriving -= self._size
        self._size = 0
        self._is_deaf = True
        self._waiting.clear()

    def eof_received(self) -> bool:
        self._is_half_closed = True
        # Half a request is none; what has arrived whole is answered (over TLS the loop has no half-close).
        return self._server.tls is None and (self._is_busy or bool(self._waiting))

    def pause_writing(self) -> None:
        self._is_stuck = True
        self._since = self._loop.time()

    def resume_writing(self) -> None:
        self._is_stuck = False
        self._since = self._loop.time()
        self._next()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if not self._is_arriving:
            if not data.strip(b"\r\n"):
                return  # old clients send a line end after a body
            self._is_arriving = True
            self._since = self._loop.time()
        self._unheard += len(data)
        self._feed(data)
        if self._unheard > MAX_HEAD:
            self._refuse(431, f"a header is longer than {MAX_HEAD:,} bytes")
        if self._refused is not None and self._refused.is_final:
            self._push(keeps_alive=False)
        self._next()
        if self._waiting and not self._is_paused and not self._is_deaf:
            self._is_paused = True
            self._transport.pause_reading()

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                head = self._declining_head()
                if head is not None:
                    self._parser = httptools.HttpRequestParser(self)
                    data = head + data[offer.args[0] :]
                    continue
                self._refuse(400, "the request asks for a tunnel")
            except httptools.HttpParserError as problem:
                self._refuse(400, f"the request is not HTTP: {problem}")
            return

    def _declining_head(self) -> bytes | None:
        """The head that has just arrived, without its offer of an upgrade; None if it has none.

        httptools ends a request with an offer there, its body unread. Java's client makes one always: it is declined
        by reading the head once more without it, and then what stands behind the head.
        """
        lines = [(name, value) for name, value in self._lines if name.lower() != b"upgrade"]
        if len(lines) == len(self._lines):
            return None
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        headers = b"".join(b"%s: %s\r\n" % line for line in lines)
        return b"%s %s HTTP/%s\r\n%s\r\n" % (method, self._path, version, headers)

    # httptools calls these. After a refusal that leaves the framing in doubt they have nothing more to say.

    def on_message_begin(self) -> None:
        if not self._is_deaf:
            self._begin()
            self._is_arriving = True

    def on_url(self, url: bytes) -> None:
        self._unheard = 0
        if not self._is_deaf:
            self._path += url
            self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unheard = 0
        if self._is_deaf:
            return
        self._count(len(name) + len(value) + 4)
        if self._has_head:
            return  # a trailer: whoever checked the head has not seen it
        self._lines.append((name, value))
        name = name.lower()
        if name == b"content-length":
            self._has_length = True
            if int(value) > MAX_BYTES:
                self._refuse(413, f"the body has {int(value):,} bytes; at most {MAX_BYTES:,} are allowed")
        elif name == b"transfer-encoding":
            self._codings += 1
            if value.strip().lower() != b"chunked" or self._codings > 1:
                self._refuse(400, "the only transfer coding allowed is chunked")
        elif name == b"expect":
            self._expects = value.strip().lower() == b"100-continue"
        elif name in _PASSED_ON:
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        self._unheard = 0
        if self._is_deaf:
            return
        self._is_declining = self._parser.should_upgrade()
        if self._is_declining:
            return
        self._has_head = True
        path = self._path.partition(b"?")[0]
        method = self._parser.get_method()
        self._expects = self._expects and self._parser.get_http_version() != "1.0"
        if path not in _ALLOWED:
            known = ", ".join(sorted(path.decode() for path in _ALLOWED))
            self._refuse(404, f"there is no such path; there are {known}", is_final=False)
        elif method != _ALLOWED[path]:
            self._refuse(405, f"the method must be {_ALLOWED[path].decode()}", is_final=False)
        elif method == b"POST" and not self._has_length and not self._codings:
            self._refuse(411, "the body has no length; send Content-Length or Transfer-Encoding: chunked")

    def on_body(self, body: bytes) -> None:
        self._unheard = 0
        if self._is_deaf:
            return
        self._expects = False  # it has not waited for our word
        self._size += len(body)
        self._server.arriving += len(body)
        if self._size > MAX_BYTES:
            self._refuse(413, f"the body has more than {MAX_BYTES:,} bytes")
        elif self._server.arriving > MAX_ARRIVING:
            self._refuse(503, f"more than {MAX_ARRIVING:,} bytes are arriving at the hub at once; send it again later")
        else:
            self._body += body

    def on_message_complete(self) -> None:
        self._unheard = 0
        if not self._is_deaf and not self._is_declining:
            self._push(keeps_alive=self._parser.should_keep_alive())

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > MAX_HEAD:
            self._refuse(431, f"the head is longer than {MAX_HEAD:,} bytes")

    def _refuse(self, status: int, why: str, *, is_final: bool = True) -> None:
        """Note the first refusal, and a final one in place of one that is not."""
        if not self._is_deaf:
            self._refused = _Refused(status, why, is_final)
            self._is_deaf = is_final

    def _push(self, *, keeps_alive: bool) -> None:
        """The request has arrived, or nothing more of it is wanted."""
        self._server.arriving -= self._size
        self._size = 0
        request = _Request(
            self._parser.get_method() if self._has_head else b"",
            self._path.partition(b"?")[0],
            bytes(self._body) if self._refused is None or not self._refused.is_final else b"",
            self._headers,
            keeps_alive and not self._server.hub.is_going_down,
            self._has_head and self._parser.get_http_version() == "1.0",
            self._refused,
        )
        self._begin()
        self._is_arriving = False
        self._waiting.append(request)

    # Answers, in order.

    def _next(self) -> None:
        """Answer the next request, if none is being answered."""
        while self._waiting and not self._is_busy and not self._is_stuck:
            request = self._waiting.popleft()
            if request.refused is None and request.path == b"/tx":
                self._is_busy = True
                task = self._loop.create_task(self._relay(request))
                self._server.tasks.add(task)
                task.add_done_callback(self._server.tasks.discard)
            elif request.refused is not None:
                self._write(self._refusal(request, request.refused), request)
            else:
                self._write_health(request)
        if self._waiting or self._is_busy or self._is_deaf:
            return
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        if self._has_head and self._expects:  # only now is it its turn
            self._expects = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _relay(self, request: _Request) -> None:
        hub = self._server.hub
        try:
            try:
                tx = with_headers(read_transaction(request.body), request.headers)
            except Malformed as problem:
                reply = hub.refuse_malformed(problem)
            else:
                reply = await hub.handle(tx)
            self._write(reply, request)
        except Exception as problem:
            hub.note_fault("a request", problem)
            self.abort()  # no reply can be made: the caller must not wait for one
        finally:
            self._is_busy = False
            self._next()

    def _refusal(self, request: _Request, refused: _Refused) -> Reply:
        hub = self._server.hub
        if request.body:  # only where a whole body was read a transaction was
            return hub.refuse_malformed(Malformed(refused.why))
        return hub.refusal(codes.SHED if refused.status == 503 else codes.MALFORMED, refused.why)

    def _write(self, reply: Reply, request: _Request) -> None:
        status = request.refused.status if request.refused is not None else codes.http_status(reply.code, reply.outcome)
        more = b""
        if reply.retry_after_ms is not None:
            more += b"Retry-After: %d\r\n" % max(1, math.ceil(reply.retry_after_ms / 1000))
        if status == 405:
            more += b"Allow: %s\r\n" % _ALLOWED[request.path]
        self._write_out(status, write_reply(reply), more, request)

    def _write_health(self, request: _Request) -> None:
        is_ready = request.path == b"/healthz" or not self._server.hub.is_going_down
        word = "alive" if request.path == b"/healthz" else "ready" if is_ready else "draining"
        self._write_out(200 if is_ready else 503, b'{"status":"%s"}' % word.encode(), b"", request)

    def _write_out(self, status: int, body: bytes, more: bytes, request: _Request) -> None:
        keeps_alive = request.keeps_alive and not self._is_half_closed
        if not keeps_alive:
            more += b"Connection: close\r\n"
        elif request.is_old:
            more += b"Connection: keep-alive\r\n"
        self._since = self._loop.time()
        if self._transport.is_closing():  # the caller has gone; its call is counted all the same
            return
        self._transport.write(
            b"%sContent-Length: %d\r\n%s\r\n%s"
            % (_START[status], len(body), more, b"" if request.method == b"HEAD" else body)
        )
        if not keeps_alive:
            self._is_deaf = True
            self._waiting.clear()
            if self._server.tls is not None or self._is_half_closed:
                self._transport.close()
            else:
                # To close with bytes of the caller unread would reset the connection before it has read the reply.
                self._transport.write_eof()


def _request_of(refused: _Refused | None) -> _Request:
    """A request of which nothing is known."""
    return _Request(b"", b"", b"", {}, False, False, refused)


_START = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n".encode()
    for status in HTTPStatus
}
