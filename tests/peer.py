"""For tests: a scripted target over raw TCP that sends any bytes and cuts anywhere, and a hub run against it.

    def script(line):
        line.read()                       # one whole request
        line.send(GOOD[:20])
        line.reset()

    with Peer(script) as peer:
        answer = run_on("uvloop", peer.hub, ask)

A script runs once per accepted connection, in a thread of its own; when it returns, the connection is closed.
"""

import contextlib
import json
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from hubs import PATIENCE, ask, hub_of, run_on

from eaimw.hub import Hub


class Request(NamedTuple):
    """What the peer received, taken apart with nothing of the hub's."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for header, value in self.headers if header.lower() == name.lower()]

    @property
    def json(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.body)
        return fields


class Line:
    """One accepted connection. number: the how-manieth, from 0."""

    def __init__(self, peer: "Peer", sock: socket.socket, number: int) -> None:
        self.number = number
        self._peer = peer
        self._sock = sock
        self._buffer = b""

    def read(self, within: float = PATIENCE) -> Request | None:
        """The next whole request; None if the hub ended the connection, or sent nothing within so many seconds."""
        while b"\r\n\r\n" not in self._buffer:
            if not self._more(within):
                return None
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("utf-8").split("\r\n")
        headers = [(name, value.strip(" ")) for name, _, value in (line.partition(":") for line in lines)]
        size = int(next(value for name, value in headers if name.lower() == "content-length"))
        self._buffer = rest
        while len(self._buffer) < size:
            if not self._more(within):
                return None
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        request = Request(first, headers, body)
        self._peer.requests.append(request)
        return request

    def read_some(self) -> None:
        """The first bytes of a request, and no more."""
        self._sock.recv(1)

    def send(self, *pieces: bytes) -> None:
        """Each piece in a segment of its own, as far as TCP lets one say so."""
        for piece in pieces:
            self._sock.sendall(piece)

    def send_for_ever(self, piece: bytes) -> None:
        """Until the hub ends the connection."""
        with contextlib.suppress(OSError):
            while not self._peer.is_ending:
                self._sock.sendall(piece)

    def drip(self, start: bytes, piece: bytes, every: float = 0.005) -> None:
        """The start, then the piece again and again, slowly, until the hub ends the connection."""
        with contextlib.suppress(OSError):
            self._sock.sendall(start)
            while not self._peer.is_ending:
                self._sock.sendall(piece)
                time.sleep(every)

    def half_close(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def say_goodbye(self) -> None:
        """The orderly end of TLS; the connection itself ends after it."""
        assert isinstance(self._sock, ssl.SSLSocket)
        with contextlib.suppress(OSError):
            self._sock.unwrap()

    def reset(self) -> None:
        """End it with RST instead of FIN."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def stay(self) -> None:
        """Send and read nothing more until the hub has ended the connection."""
        poller = select.poll()
        poller.register(self._sock, select.POLLRDHUP)
        if poller.poll(PATIENCE * 1000):
            self._peer.ended += 1

    def until_ended(self) -> None:
        """Wait until the hub has ended the connection; what it sends meanwhile is dropped."""
        try:
            while self._sock.recv(1 << 20):
                pass
        except TimeoutError:
            return
        except OSError:
            pass
        self._peer.ended += 1

    def _more(self, within: float) -> bool:
        try:
            self._sock.settimeout(within)
            data = self._sock.recv(1 << 20)
            self._sock.settimeout(PATIENCE)
        except OSError:
            return False
        self._buffer += data
        return data != b""


SOON = 5000  # milliseconds; what takes longer has waited for the timeout

Script = Callable[[Line], None]


class Peer:
    """Listens on any free port of 127.0.0.1.

    accepted: connections so far. requests: those received whole. ended: connections that the hub was seen to end.
    """

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.accepted = 0
        self.ended = 0
        self.requests: list[Request] = []
        self.is_ending = False
        self._script = script
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}/tx"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._wrong: list[BaseException] = []

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_ending = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for sock in self._sockets:
            sock.close()
        if self._wrong:
            raise self._wrong[0]

    def hub(self, **settings: Any) -> contextlib.AbstractAsyncContextManager[Hub]:
        """A hub whose CORE is this peer."""
        return hub_of(self.url, **settings)

    def times(self, tx_id: str) -> int:
        """How often a transaction was received."""
        return sum(request.json["tx_id"] == tx_id for request in self.requests)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(PATIENCE)
            self._sockets.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock, self.accepted))
            self.accepted += 1
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
                self._sockets.append(sock)
            line = Line(self, sock, number)
            self._script(line)
            line.close()
        except OSError:  # the hub has ended it: the test sees by other means whether it should have
            sock.close()
        except BaseException as problem:
            self._wrong.append(problem)
            sock.close()


# Replies and scripts.


def body_of(**fields: object) -> bytes:
    """A good answer to T-1, or with other fields."""
    return json.dumps({"tx_id": "T-1", "code": "0000", **fields}).encode()


def http(body: bytes = b"", status: str = "200 OK", *headers: str, length: bool = True) -> bytes:
    """An HTTP reply with these very bytes."""
    lines = [f"HTTP/1.1 {status}", *headers, *([f"Content-Length: {len(body)}"] if length else []), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def chunked(*chunks: bytes, trailers: str = "") -> bytes:
    """A chunked reply with these chunks."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return http(body + b"0\r\n" + trailers.encode() + b"\r\n", "200 OK", "Transfer-Encoding: chunked", length=False)


GOOD = http(body_of())
GOOD_CHUNKED = chunked(body_of()[:9], body_of()[9:])
GOOD_UNTIL_CLOSE = http(body_of(), length=False)


def answering(*replies: bytes) -> Script:
    """The n-th request of all gets the n-th of these, and every further one the last; connections stay open."""
    left = list(replies)

    def script(line: Line) -> None:
        while line.read() is not None:
            line.send(left.pop(0) if len(left) > 1 else left[0])

    return script


def once(*pieces: bytes) -> Script:
    """The first request of each connection gets these bytes; then the hub must end it."""

    def script(line: Line) -> None:
        if line.read() is not None:
            line.send(*pieces)
            line.until_ended()

    return script


def closing(*pieces: bytes) -> Script:
    """As `once`, but the peer ends the connection, orderly."""

    def script(line: Line) -> None:
        if line.read() is not None:
            line.send(*pieces)

    return script


@contextmanager
def unanswered(host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """The URL of a listener whose queue is full: the system answers no further connection, and refuses none."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind((host, port))
        listener.listen(0)
        first.connect(listener.getsockname())
        second.setblocking(False)
        second.connect_ex(listener.getsockname())
        yield f"http://{host}:{listener.getsockname()[1]}/tx"


def free_port() -> int:
    """A port where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def replies(loop: str, script: Script, count: int = 1, **settings: Any) -> list[dict[str, Any]]:
    """What so many transactions, one after another, get from a target that acts so."""

    async def story(hub: Hub) -> list[dict[str, Any]]:
        return [await ask(hub) for _ in range(count)]

    with Peer(script) as peer:
        return run_on(loop, lambda: peer.hub(**settings), story)
