"""Serves a simulated target on any asyncio loop, a virtual one too, as plain Protocols without tasks or threads.

    service = Service(target)                           # in the running loop
    server = await loop.create_server(service.connection, host, port)
    ...
    service.abort()                                     # ends every connection, as the death of the process would

`POST /tx` alone is served, on kept-alive connections, one request at a time: who sends more before the answer is cut
off. The target decides what is said, its timeline how it is, the station when it is worked on, a Form how the answer
looks on the wire. What is known of time is the loop's.

With a capacity, a request keeps its server for its service time and then for the delay of its mode; in mode `hang`
until its caller is gone, which is what a stuck worker waits for. A drip begins when the work is over. What is no
transaction, and a denial of what was not read, is answered at once by no server.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from typing import Any

import httptools

from eaimw.sim.capacity import REFUSED, WAITS, Station, Work
from eaimw.sim.forms import PLAIN, Form
from eaimw.sim.target import ANSWER, CLOSE, HANG, LARGEST_BODY, Call, Target
from eaimw.sim.timeline import Timeline

__all__ = ["Connection", "Service"]

_find_tx_id = re.compile(rb'"tx_id"\s*:\s*"([A-Za-z0-9._:-]{1,128})"').search


class Service:
    """One target, as its connections share it. To be made in the loop that runs; the timeline begins then.

    station: None for a target without limits. choose: the form of each answer, asked for once per request.
    """

    def __init__(
        self,
        target: Target,
        *,
        timeline: Timeline | None = None,
        station: Station[Exchange] | None = None,
        choose: Callable[[], Form] = lambda: PLAIN,
    ) -> None:
        self.target = target
        self.connections: dict[Connection, None] = {}  # in order: a set's would differ from run to run
        self.station = station
        self.choose = choose
        self.loop = asyncio.get_running_loop()
        self._timeline = timeline
        self._began = self.loop.time()
        self._next_change = -math.inf  # after the beginning

    def connection(self) -> Connection:
        """For `loop.create_server`."""
        return Connection(self)

    def abort(self) -> None:
        """End every connection at once. What is worked on goes on to its end; nobody hears of it."""
        for connection in list(self.connections):
            connection.abort()

    def received(self, exchange: Exchange, body: bytes) -> None:
        """A whole request is here."""
        now = self._be_on_time()
        target = self.target
        call = exchange.call = target.arrive(body)
        if call.plan.ending == ANSWER:
            exchange.carry_out()
        elif self.station is None:
            target.work(call)
            if call.plan.delay > 0:
                exchange.timer = self.loop.call_later(call.plan.delay, exchange.carry_out)
            else:
                exchange.carry_out()
        else:
            begun = self.station.arrive(exchange, now)
            if begun == REFUSED:
                target.overload(call)
                exchange.carry_out()
            elif begun != WAITS:
                self._work(begun, now)

    def left(self, exchange: Exchange) -> None:
        """The connection is gone before the answer was."""
        if exchange.timer is not None:
            exchange.timer.cancel()
        call = exchange.call
        if call is None:
            return
        self.target.left(call)
        if self.station is not None and not self.station.leave(exchange) and exchange.is_stuck:
            exchange.is_stuck = False
            self._next(self.station)

    def _work(self, work: Work[Exchange], now: float) -> None:
        exchange = work.who
        assert exchange.call is not None
        self.target.work(exchange.call)
        plan = exchange.call.plan
        exchange.is_stuck = plan.ending == HANG
        if not exchange.is_stuck:
            self.loop.call_later(work.ends - now + plan.delay, self._worked, exchange)

    def _worked(self, exchange: Exchange) -> None:
        exchange.carry_out()
        assert self.station is not None
        self._next(self.station)

    def _next(self, station: Station[Exchange]) -> None:
        now = self._be_on_time()
        following = station.ended(now)
        if following is not None:
            self._work(following, now)

    def _be_on_time(self) -> float:
        """The loop's time; the target's settings are those of this moment."""
        now = self.loop.time()
        moment = now - self._began
        if self._timeline is not None and moment >= self._next_change:
            self.target.put(self._timeline.at(moment))
            self._next_change = self._timeline.next_change(moment)
        return now


class Exchange:
    """One request on its connection, from its first byte until its answer is out."""

    __slots__ = ("_at", "_connection", "_rest", "_service", "call", "form", "is_stuck", "timer")

    def __init__(self, connection: Connection, service: Service) -> None:
        self.call: Call | None = None
        self.form = service.choose()
        self.is_stuck = False  # holds a server until its caller is gone
        self.timer: asyncio.TimerHandle | None = None
        self._connection = connection
        self._service = service
        self._rest = b""  # of the answer, where it drips
        self._at = 0

    def deny_unread(self, tx_id: str) -> None:
        """Answer before the request is read."""
        self.call = self._service.target.deny_unread(tx_id)
        self.carry_out()

    def carry_out(self) -> None:
        """The moment of the plan has come."""
        call, connection = self.call, self._connection
        self.timer = None
        assert call is not None
        if not call.is_open or connection.is_closing:  # nobody is there to see it
            return
        plan = call.plan
        if plan.ending == CLOSE:
            connection.close()
        elif plan.ending == ANSWER:
            raw = self.form.write(plan)
            if not self.form.is_whole:
                self._service.target.lied(call)
            if plan.drip:
                size = raw.find(b"\r\n\r\n") + 4
                connection.write(raw[:size])
                self._rest = raw[size:]
                self.timer = self._service.loop.call_later(plan.drip, self._drip)
            else:
                self._finish(raw)

    def _drip(self) -> None:
        self.timer = None
        assert self.call is not None
        at = self._at = self._at + 1
        if self._connection.is_closing:
            return
        if at < len(self._rest):
            self._connection.write(self._rest[at - 1 : at])
            self.timer = self._service.loop.call_later(self.call.plan.drip, self._drip)
        else:
            self._finish(self._rest[at - 1 :])

    def _finish(self, raw: bytes) -> None:
        """The last of it goes out; counted just before, so that who has read it finds it counted."""
        call, form, target = self.call, self.form, self._service.target
        assert call is not None
        if form.is_whole:
            target.answered(call)
        else:
            target.left(call)
        self._connection.answered(raw if form.then is None else raw + form.then(call.plan), form)


class Connection(asyncio.Protocol):
    """One connection of a caller."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._exchange: Exchange | None = None
        self._body: bytes | bytearray = b""
        self._url = b""
        self._is_read = False  # the request of the exchange under way
        self._is_answered = False
        self._is_last = False
        self._idle: asyncio.TimerHandle | None = None

    @property
    def is_closing(self) -> bool:
        closing: bool = self._transport.is_closing()
        return closing

    def write(self, raw: bytes) -> None:
        self._transport.write(raw)

    def close(self) -> None:
        """Orderly, after what was written."""
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def answered(self, raw: bytes, form: Form) -> None:
        """The last bytes of an answer."""
        self._transport.write(raw)
        self._is_answered = True
        if form.rest == 0.0:
            self._transport.close()
        elif form.rest is not None:
            self._idle = self._service.loop.call_later(form.rest, self.close)
        if self._is_read:
            self._be_idle()

    def _be_idle(self) -> None:
        self._exchange = None
        self._is_read = self._is_answered = False
        if self._is_last:
            self._transport.close()

    def _refuse(self, status: bytes) -> None:
        self._transport.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        self._transport.close()

    # asyncio calls these.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._service.connections[self] = None

    def data_received(self, data: bytes) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # a fault of ours, which must not pass for one of the caller
        except httptools.HttpParserError:
            if not self.is_closing:
                self._refuse(b"400 Bad Request")

    def connection_lost(self, exc: Exception | None) -> None:
        self._service.connections.pop(self, None)
        if self._idle is not None:
            self._idle.cancel()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._service.left(exchange)

    # httptools calls these.

    def on_message_begin(self) -> None:
        if self._is_read:  # one request at a time
            self.abort()
            return
        self._url = self._body = b""
        self._exchange = Exchange(self, self._service)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        if self._is_answered or self.is_closing:
            return
        if not self._body:
            self._body = body
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body
        if len(self._body) > LARGEST_BODY:
            self._refuse(b"413 Content Too Large")
            return
        exchange = self._exchange
        if exchange is not None and exchange.form.is_early and self._is_for_us():
            found = _find_tx_id(self._body)
            if found is not None:
                exchange.deny_unread(found[1].decode())

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None or self.is_closing:
            return
        self._is_read = True
        self._is_last = not self._parser.should_keep_alive()
        if self._is_answered:
            self._be_idle()
        elif self._is_for_us():
            body, self._body = bytes(self._body), b""
            self._service.received(exchange, body)
        else:
            self._refuse(b"404 Not Found")

    def _is_for_us(self) -> bool:
        return self._url == b"/tx" and bool(self._parser.get_method() == b"POST")
