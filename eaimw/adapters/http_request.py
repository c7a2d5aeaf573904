"""Reads a caller's requests, on llhttp (httptools), within limits: bytes in, whole requests out, refused ones with why.

Nothing here writes or waits. A caller sends the same head again and again, so a whole request whose head has been read
before is not parsed anew: the same bytes mean the same.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import httptools
import msgspec

from eaimw.wire import MAX_BYTES

MAX_HEAD = 16_384
# Bytes of all connections together, of bodies that are arriving and of what is kept: ten thousand callers must not
# fill the memory.
MAX_ARRIVING = 256 * MAX_BYTES
# Requests of one connection that may have arrived and not been answered; what a caller has sent beyond them is kept as
# the bytes that it is. Between bodies so many bytes are parsed before the next look at how many have arrived.
MOST_WAITING = 16
PIECE = 1_024
# Heads that are known, of all connections together, and how long one of them may be.
KNOWN_HEADS = 1_024
MAX_KNOWN = 1_024

_LINE_ENDS = b"\r\n"
ALLOWED = {b"/tx": b"POST", b"/healthz": b"GET", b"/readyz": b"GET"}
# These differ from request to request: a head with one of them will not come again. What is left of a budget often is
# the same, and whoever passes on what is left of another's says until when as well.
_OF_ONE_REQUEST = {b"idempotency-key", b"traceparent", b"x-deadline"}
_OF_TIME = {b"x-timeout-ms", b"x-deadline"}
_PASSED_ON = {b"x-priority"} | _OF_TIME | _OF_ONE_REQUEST


class Refused(NamedTuple):
    """Why a request is not taken: with this HTTP status it is answered E400, with 503 E908."""

    status: int
    why: str
    is_final: bool  # the framing is in doubt: nothing more of this connection is read


class Head(msgspec.Struct, frozen=True):
    """What a request's head says. headers: those that are passed on, by their names in lower case."""

    method: bytes = b""
    path: bytes = b""
    headers: dict[bytes, bytes] = {}
    keeps_alive: bool = False
    is_old: bool = False  # HTTP/1.0, which keeps a connection only if it is told so


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request that has arrived, or was refused on the way."""

    head: Head
    body: bytes
    refused: Refused | None = None


class Arrivals:
    """What all connections of a server share: the room for bodies, and the heads that were read before."""

    def __init__(self) -> None:
        self.bytes = 0  # of bodies that are arriving or wait for their turn, and of what is kept
        self._heads: dict[bytes, tuple[Head, int]] = {}  # with the length of the body

    def known(self, data: bytes) -> Request | None:
        """The request, if this is a whole one, and its head is known."""
        end = data.find(b"\r\n\r\n") + 4
        known = self._heads.get(data[:end])
        if known is None or len(data) - end != known[1]:
            return None
        return Request(known[0], data[end:])

    def learn(self, data: bytes, request: Request) -> None:
        """Remember the head of a request that these bytes were, if it is one that may come again."""
        head = request.head
        end = data.find(b"\r\n\r\n") + 4
        if (
            request.refused is None
            and head.keeps_alive
            and head.headers.keys().isdisjoint(_OF_ONE_REQUEST)
            and data.startswith(b"POST ")  # not a line end, which llhttp skips
            and len(data) - end == len(request.body)  # as with a Content-Length alone
            and end <= MAX_KNOWN
        ):
            if len(self._heads) >= KNOWN_HEADS:
                self._heads.clear()
            self._heads[data[:end]] = head, len(request.body)


def _both(before: bytes | None, value: bytes) -> bytes:
    """Of a header that stands twice: two values are one list, as in RFC 9110, so that it can be seen."""
    return value if before is None or before == value else b"%s, %s" % (before, value)


class RequestReader:
    """One connection's requests.

    requests: those that have arrived, in order, for whoever answers to `take`. is_arriving: a part of the next one has
    come. is_over: nothing more is read, whatever comes. kept: bytes that `go_on` has not yet parsed.
    """

    def __init__(self, arrivals: Arrivals) -> None:
        self.requests: deque[Request] = deque()
        self.is_arriving = False
        self.is_over = False
        self._arrivals = arrivals
        self._parser = httptools.HttpRequestParser(self)
        self._unheard = 0  # bytes since the parser last told us something: of a name or value that may have no end
        self._size = 0
        self.kept = bytearray()
        self._begin()

    def _begin(self) -> None:
        self._announced = 0  # bytes of the body, if its head has said so
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
        self._refused: Refused | None = None

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        if self.is_over:
            return
        is_first = not self.is_arriving and not self.kept and len(self.requests) < MOST_WAITING
        if is_first:
            request = self._arrivals.known(data)
            if request is not None:
                self._append(request)
                return
            if not data.strip(_LINE_ENDS):
                return  # old clients send a line end after a body
        self.kept += data
        self._arrivals.bytes += len(data)
        if self._arrivals.bytes > MAX_ARRIVING:
            self._refuse(503, f"more than {MAX_ARRIVING:,} bytes are arriving at the hub at once; send it again later")
            self._push(keeps_alive=False)
            return
        before = len(self.requests)
        self.go_on()
        if is_first and not (self.is_arriving or self.is_over or self.kept) and len(self.requests) == before + 1:
            self._arrivals.learn(data, self.requests[-1])

    def take(self) -> Request:
        """The next one that has arrived; there must be one."""
        request = self.requests.popleft()
        self._arrivals.bytes -= len(request.body)
        return request

    def go_on(self) -> None:
        """Parse what is kept, until enough requests wait."""
        while self.kept and not self.is_over and len(self.requests) < MOST_WAITING:
            piece = bytes(self.kept[: max(PIECE, self._announced - len(self._body))])
            del self.kept[: len(piece)]
            self._arrivals.bytes -= len(piece)
            if not self.is_arriving and not piece.strip(_LINE_ENDS):
                continue
            self.is_arriving = True
            self._unheard += len(piece)
            self._parse(piece)
            if self._unheard > MAX_HEAD:
                self._refuse(431, f"a header is longer than {MAX_HEAD:,} bytes")
        if self._refused is not None and self._refused.is_final:
            self._push(keeps_alive=False)

    def refuse_late(self, why: str) -> None:
        """What is arriving has taken too long."""
        self._refuse(408, why)
        self._push(keeps_alive=False)

    def waits_for_our_word(self) -> bool:
        """Does the caller hold its body back until it is told to go on? True once."""
        expects = self._has_head and self._expects
        self._expects = self._expects and not expects
        return expects

    def end(self) -> None:
        """Nothing more is wanted; what has come gives its room back."""
        self.is_over = True
        while self.requests:
            self.take()
        self._give_room_back()
        self._body.clear()
        self._drop_kept()

    def _append(self, request: Request) -> None:
        self._arrivals.bytes += len(request.body)
        self.requests.append(request)

    def _drop_kept(self) -> None:
        self._arrivals.bytes -= len(self.kept)
        self.kept.clear()

    def _parse(self, data: bytes) -> None:
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
        if not self.is_over:
            self._begin()
            self.is_arriving = True

    def on_url(self, url: bytes) -> None:
        self._unheard = 0
        if not self.is_over:
            self._path += url
            self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unheard = 0
        if self.is_over:
            return
        self._count(len(name) + len(value) + 4)
        if self._has_head:
            return  # a trailer: whoever checked the head has not seen it
        self._lines.append((name, value))
        name = name.lower()
        if name == b"content-length":
            self._has_length = True
            self._announced = int(value)
            if self._announced > MAX_BYTES:
                self._refuse(413, f"the body has {self._announced:,} bytes; at most {MAX_BYTES:,} are allowed")
        elif name == b"transfer-encoding":
            self._codings += 1
            if value.strip().lower() != b"chunked" or self._codings > 1:
                self._refuse(400, "the only transfer coding allowed is chunked")
        elif name == b"expect":
            self._expects = value.strip().lower() == b"100-continue"
        elif name in _PASSED_ON:
            if name in _OF_TIME:
                value = _both(self._headers.get(name), value.strip(b" \t"))
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        self._unheard = 0
        if self.is_over:
            return
        self._is_declining = self._parser.should_upgrade()
        if self._is_declining:
            return
        self._has_head = True
        path = self._path.partition(b"?")[0]
        method = self._parser.get_method()
        self._expects = self._expects and self._parser.get_http_version() != "1.0"
        if path not in ALLOWED:
            known = ", ".join(sorted(path.decode() for path in ALLOWED))
            self._refuse(404, f"there is no such path; there are {known}", is_final=False)
        elif method != ALLOWED[path]:
            self._refuse(405, f"the method must be {ALLOWED[path].decode()}", is_final=False)
        elif method == b"POST" and not self._has_length and not self._codings:
            self._refuse(411, "the body has no length; send Content-Length or Transfer-Encoding: chunked")

    def on_body(self, body: bytes) -> None:
        self._unheard = 0
        if self.is_over:
            return
        self._expects = False  # it has not waited for our word
        self._size += len(body)
        self._arrivals.bytes += len(body)  # no more than `go_on` has just taken off: `feed` has looked at the limit
        if self._size > MAX_BYTES:
            self._refuse(413, f"the body has more than {MAX_BYTES:,} bytes")
        else:
            self._body += body

    def on_message_complete(self) -> None:
        self._unheard = 0
        if not self.is_over and not self._is_declining:
            self._push(keeps_alive=self._parser.should_keep_alive())

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > MAX_HEAD:
            self._refuse(431, f"the head is longer than {MAX_HEAD:,} bytes")

    def _refuse(self, status: int, why: str, *, is_final: bool = True) -> None:
        """Note the first refusal, and a final one in place of one that is not."""
        if not self.is_over:
            self._refused = Refused(status, why, is_final)
            self.is_over = is_final
            if is_final:
                self._drop_kept()

    def _push(self, *, keeps_alive: bool) -> None:
        """The request has arrived, or nothing more of it is wanted."""
        self._give_room_back()
        head = Head(
            self._parser.get_method() if self._has_head else b"",
            self._path.partition(b"?")[0],
            self._headers,
            keeps_alive,
            self._has_head and self._parser.get_http_version() == "1.0",
        )
        body = bytes(self._body) if self._refused is None or not self._refused.is_final else b""
        request = Request(head, body, self._refused)
        self._begin()
        self.is_arriving = False
        self._append(request)

    def _give_room_back(self) -> None:
        self._arrivals.bytes -= self._size
        self._size = 0
