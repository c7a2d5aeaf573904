"""The transport of one target: HTTP/1.1 over a pool of kept-alive connections.

One connection carries one exchange at a time, so the pool never holds more than max-inflight. A connection that was
lost while idle is replaced before a byte is written; once a byte is handed over, nothing is ever sent again.
A call that has timed out may keep its connection for a while, in its place in the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ssl
from collections import Counter
from collections.abc import AsyncIterator

from eaimw.adapters.drive import Waiter
from eaimw.adapters.holding import Holding, Late
from eaimw.adapters.http_reply import Connection
from eaimw.config import TargetSettings
from eaimw.errors import CallFailed, LocalFault, NoConnection, SettingsError, TimedOut
from eaimw.model import Answer, Call, Hold
from eaimw.ports import Clock, Resolver, Transport

# Seconds. The usual keep-alive of servers is 5: dropping ours earlier makes the race for a closing one rare.
IDLE_LIMIT = 4.0
# What this machine or process lacks, not the target: descriptors, memory, ports of our own, threads.
_OURS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EAGAIN}
_CLOSED = "the hub was closed before the call could be sent"
# Seconds that a connection may take to end when the hub goes down.
CLOSE_LIMIT = 1.0


class HttpTransport:
    """`ports.Transport` for one target. Raises SettingsError for a CA file that cannot be used.

    connections: counts of `opened`, `reused`, `lost` (ended by the target while idle). holding: of calls that have
    timed out.
    """

    def __init__(self, name: str, settings: TargetSettings, *, clock: Clock, resolver: Resolver) -> None:
        self._clock = clock
        self._resolver = resolver
        self._settings = settings
        self._endpoint = settings.endpoint
        self._tls = tls_context(name, settings)
        self._head = (
            f"POST {self._endpoint.path} HTTP/1.1\r\nHost: {self._endpoint.authority}\r\nUser-Agent: eaimw\r\n"
            "Accept: application/json\r\nAccept-Encoding: identity\r\nContent-Type: application/json\r\n"
        ).encode()
        self._idle: list[Connection] = []  # the last one in is the first one out, so the oldest are in front
        self._busy: dict[Connection, Call] = {}  # in order: what is ended together ends alike in every run
        self._held: dict[Connection, Hold] = {}  # their calls have timed out
        self._connecting: dict[asyncio.Timeout, None] = {}
        self._sweep: asyncio.TimerHandle | None = None  # of idle connections
        self._alarm: asyncio.TimerHandle | None = None  # for the nearest deadline
        self._alarm_at = 0.0
        self._is_closed = False
        self._is_retired = False
        self.connections: Counter[str] = Counter(opened=0, reused=0, lost=0)
        self.holding = Holding(settings.max_inflight)

    async def send(self, call: Call) -> Answer:
        """One exchange, over by the call's deadline. Raises TimedOut, NoConnection, NoReply or LocalFault."""
        now = self._clock.monotonic()
        connection = self._take_idle(now)
        if connection is None:
            connection = await self._connected(call, now)
            now = self._clock.monotonic()
        loop = connection.loop
        waiter: Waiter[Answer] = Waiter(loop=loop)
        self._busy[connection] = call
        try:
            request = self._request(call, now)
            self._watch(call.deadline, loop)
            connection.exchange(request, call.deadline, waiter)
            return await waiter
        except CallFailed:
            raise
        except BaseException:
            waiter.cancel()
            if call.hold is None:
                connection.abort()  # the caller's task was cancelled: what comes now is nobody's
            raise
        finally:
            if call.hold is None:  # else it is no more ours
                del self._busy[connection]
                self._put_back(connection, loop)

    @property
    def is_busy(self) -> bool:
        """Is a call under way, or held?"""
        return bool(self._busy or self._held or self._connecting)

    def retire(self, heir: Transport | None) -> None:
        """No new call will come: keep no connection beyond the calls under way. heir: goes on with the counts.

        Of calls that are held, so many go on being held as leave a place of the heir's free.
        """
        self._is_retired = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        if isinstance(heir, HttpTransport):
            heir.connections = self.connections
            self.holding.most, heir.holding = heir.holding.most, self.holding
            for connection in [*self._held][: max(0, self.holding.held - self.holding.most)]:
                connection.fail(_too_late())

    async def close(self) -> None:
        """End every connection and wait, within a bound, until they are gone. Calls under way are LocalFaults."""
        self._is_closed = True
        for timer in (self._sweep, self._alarm):
            if timer is not None:
                timer.cancel()
        self._sweep = self._alarm = None
        for limit in [*self._connecting]:
            limit.reschedule(asyncio.get_running_loop().time())
        ending = [*self._idle, *self._busy, *self._held]
        self._idle.clear()
        for connection in ending:
            connection.fail(LocalFault("the hub was closed during the call", handed_over=True))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT):
                for connection in ending:
                    await connection.gone()

    def _request(self, call: Call, now: float) -> bytes:
        tx = call.tx
        if now >= call.deadline:
            raise TimedOut(f"the call's {_seconds(call)} s were over before it could be sent", handed_over=False)
        left = max(1, round((call.deadline - now) * 1000))
        more = b""
        if tx.idempotency_key is not None and _may_be_forwarded(tx.idempotency_key):
            more += b"Idempotency-Key: %s\r\n" % tx.idempotency_key.encode()
        if tx.traceparent is not None:
            more += b"traceparent: %s\r\n" % tx.traceparent.encode()
        return (
            b"%sContent-Length: %d\r\nX-Attempt: %d\r\nX-Timeout-Ms: %d\r\nX-Deadline: %d\r\nX-Priority: %s\r\n%s\r\n%s"
            % (
                self._head,
                len(tx.raw),
                call.attempts,
                left,
                round(self._clock.time() * 1000) + left,
                (tx.priority or "normal").encode(),
                more,
                tx.raw,
            )
        )

    # Connections.

    def _take_idle(self, now: float) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            rest = now - connection.idle_since
            if not connection.is_usable or connection.has_news():
                connection.abort()
                self.connections["lost"] += 1
            elif rest >= IDLE_LIMIT:
                connection.abort()
            else:
                self.connections["reused"] += 1
                return connection
        return None

    def _put_back(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        if not connection.is_usable:
            return
        if self._is_closed or self._is_retired:
            connection.abort()
            return
        connection.idle_since = self._clock.monotonic()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_LIMIT, self._drop_old, loop)

    def _drop_old(self, loop: asyncio.AbstractEventLoop) -> None:
        oldest_allowed = self._clock.monotonic() - IDLE_LIMIT
        keep = []
        for connection in self._idle:
            if not connection.is_usable:
                self.connections["lost"] += 1
            elif connection.idle_since <= oldest_allowed:
                connection.abort()
            else:
                keep.append(connection)
        self._idle = keep
        self._sweep = None
        if keep:
            self._sweep = loop.call_later(keep[0].idle_since - oldest_allowed, self._drop_old, loop)

    async def _connected(self, call: Call, now: float) -> Connection:
        """`_connect` as a task of its own, which its limits of time need; cancelled, it leaves nothing behind."""
        connecting = asyncio.get_running_loop().create_task(self._connect(call, now))
        try:
            return await connecting
        except asyncio.CancelledError:
            connecting.add_done_callback(_give_up)
            raise

    async def _connect(self, call: Call, now: float) -> Connection:
        """A new connection, TLS included. The addresses share the time: a silent one leaves the next its part."""
        end = min(call.deadline, now + self._settings.connect_timeout)
        host = self._endpoint.host
        try:
            async with self._within(end - now):
                addresses = await self._resolver.resolve(host)
        except TimeoutError:
            raise self._not_in_time(call, end, f"the look-up of {host}") from None
        except OSError as problem:
            raise _unreached(f"{host} cannot be resolved", problem) from None
        loop = asyncio.get_running_loop()
        failures: list[CallFailed] = []
        for turn, address in enumerate(addresses):
            place = f"{address} port {self._endpoint.port}"
            share = (end - self._clock.monotonic()) / (len(addresses) - turn)
            try:
                async with self._within(share):
                    _, connection = await loop.create_connection(
                        Connection,
                        address,
                        self._endpoint.port,
                        ssl=self._tls,
                        server_hostname=host if self._tls is not None else None,
                    )
            except TimeoutError:
                failures.append(self._not_in_time(call, end, place))
            except ssl.SSLError as problem:
                failures.append(NoConnection(f"TLS with {place} failed: {_reason(problem)}", handed_over=False))
            except OSError as problem:
                failures.append(_unreached(f"no connection to {place}", problem))
            else:
                self.connections["opened"] += 1
                return self._checked(connection)
        # An address that the call's own budget cut short might have answered. A lack of ours is the word only where
        # there is no other: ::1 may be no address of a machine whose 127.0.0.1 has refused us.
        raise min(failures, key=lambda failure: (TimedOut, NoConnection, LocalFault).index(type(failure)))

    @contextlib.asynccontextmanager
    async def _within(self, seconds: float) -> AsyncIterator[None]:
        """A part of connecting: takes no longer, and `close()` ends it at once. Raises TimeoutError, LocalFault."""
        try:
            async with asyncio.timeout(seconds) as limit:
                self._connecting[limit] = None
                try:
                    yield
                finally:
                    del self._connecting[limit]
        except TimeoutError:
            if self._is_closed:
                raise LocalFault(_CLOSED, handed_over=False) from None
            raise

    def _checked(self, connection: Connection) -> Connection:
        """A new connection, if it is still of use."""
        if self._is_closed:
            connection.abort()
            raise LocalFault(_CLOSED, handed_over=False)
        if not connection.is_usable:
            place = f"{self._endpoint.host} port {self._endpoint.port}"
            raise NoConnection(f"{place} closed the connection at once", handed_over=False)
        return connection

    def _not_in_time(self, call: Call, end: float, what: str) -> CallFailed:
        # Which bound was the nearer says what it is. Not the clock: a loop's timers may ring a millisecond early.
        if end == call.deadline:
            return TimedOut(f"{what}: no connection within the call's {_seconds(call)} s", handed_over=False)
        limit = self._settings.connect_timeout
        return NoConnection(f"{what}: no connection within {limit:g} s", handed_over=False)

    # Deadlines. One timer per target, set for the nearest: a timer per call would cost more than the call's parsing.

    def _watch(self, deadline: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._alarm is None or deadline < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._set_alarm(deadline, loop)

    def _set_alarm(self, deadline: float, loop: asyncio.AbstractEventLoop) -> None:
        self._alarm_at = deadline
        self._alarm = loop.call_later(max(0.0, deadline - self._clock.monotonic()), self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._alarm = None
        now = self._clock.monotonic()
        for connection in [c for c in self._held if c.deadline <= now]:  # first: it may make room for the next
            connection.fail(_too_late())
        for connection, call in [(c, call) for c, call in self._busy.items() if c.deadline <= now]:
            if self._settings.hold_after_timeout > 0.0 and self._may_hold(connection, call, now):
                self._hold(connection, call)
            else:
                connection.fail(_too_late())
        waiting = [*self._busy, *self._held]
        if waiting:  # what has failed may have begun another call meanwhile, with an alarm of its own
            self._watch(min(c.deadline for c in waiting), loop)

    # Calls that have timed out.

    def _may_hold(self, connection: Connection, call: Call, now: float) -> bool:
        """Not where the caller's own budget has ended the call, which would be the end of the hold too."""
        return (
            now < self._hold_end(call)
            and self.holding.held < self.holding.most
            and connection.is_under_way
            and not self._is_closed
        )

    def _hold_end(self, call: Call) -> float:
        return min(call.deadline + self._settings.hold_after_timeout, call.budget_end)

    def _hold(self, connection: Connection, call: Call) -> None:
        """Its caller has its answer; connection and place are kept."""
        del self._busy[connection]
        self._held[connection] = call.hold = Hold()
        self.holding.held += 1
        connection.outlast(_too_late(), self._hold_end(call), Late(connection, self._over))

    def _over(self, connection: Connection, is_answered: bool) -> None:
        """A hold is: the target has answered, or has been given up."""
        hold = self._held.pop(connection)
        self.holding.held -= 1
        self.holding.late += is_answered
        self._put_back(connection, connection.loop)
        hold.end()


def _too_late() -> TimedOut:
    return TimedOut("no whole reply within the timeout", handed_over=True)


def _give_up(connecting: asyncio.Task[Connection]) -> None:
    """Whoever waited for the connection has gone: it is nobody's."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().abort()


def tls_context(name: str, settings: TargetSettings) -> ssl.SSLContext | None:
    """What is trusted of an https target; None for http. Raises SettingsError for a CA file that cannot be used."""
    if not settings.endpoint.tls:
        return None
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ValueError, TypeError) as problem:
        allowed = f"a readable PEM file of certificates ({_reason(problem)})"
        raise SettingsError(f"ca_file of {name}", settings.ca_file, allowed) from None


def _may_be_forwarded(value: str) -> bool:
    """No value that a header could not carry as it is goes into one; the body has it in any case.

    That is one with a control character, or with outer blanks, which the receiver would strip.
    """
    return value == value.strip() and not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value)


def _unreached(what: str, problem: OSError) -> CallFailed:
    kind = LocalFault if problem.errno in _OURS else NoConnection
    return kind(f"{what}: {_reason(problem)}", handed_over=False)


def _reason(problem: Exception) -> str:
    return getattr(problem, "strerror", None) or str(problem) or type(problem).__name__


def _seconds(call: Call) -> str:
    return f"{min(call.timeout, call.budget_end - call.started):g}"
