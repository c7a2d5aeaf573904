"""An asyncio event loop in virtual time: what is ready runs, and when nothing is, time jumps to the next timer.

Nothing outside this process can wake it: no selector, no self-pipe, no threads. So the same program takes the same
steps in the same order each time it runs, and hours pass in a moment. What would need the world raises NotSimulated.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, Protocol, TypeVarTuple, Unpack

MAX_EVENTS = 10_000_000
MAX_TIME = 10 * 365 * 86_400.0  # seconds of virtual time
# After a failure so many events and seconds more, so that tasks can be cancelled and connections ended.
GRACE_EVENTS = 100_000
GRACE_SECONDS = 3_600.0
# Cancelled timers are thrown out of the heap when they are more than these, and more than half of it.
MANY_CANCELLED = 64
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


Arguments = TypeVarTuple("Arguments")


class SimulationError(Exception):
    """The simulation cannot go on; the message says why."""


class Deadlock(SimulationError):
    """Nothing can ever run again, though somebody waits: names who waits, and where."""


class Runaway(SimulationError):
    """The bound on events or on virtual time was reached."""


class NotSimulated(BaseException):
    """The code under test wants something of the world that is not simulated.

    No Exception, so that no `except Exception` on its way takes it for a fault of a target.
    """


class Connector(Protocol):
    """What gives the loop its connections: see `network.Network`."""

    async def connect(self, factory: Any, host: Any, port: Any, **others: Any) -> tuple[Any, Any]:
        """As `loop.create_connection`."""

    def listen(self, factory: Any, host: Any, port: Any, **others: Any) -> asyncio.AbstractServer:
        """As `loop.create_server`."""


class _Timer(asyncio.TimerHandle):
    """_scheduled: it is in the heap."""

    __slots__ = ()
    _scheduled: bool


def _call(handle: Any) -> None:
    """Run its callback. What is no Exception ends the run, where asyncio would tell the exception handler and go on."""
    try:
        handle._context.run(handle._callback, *handle._args)
    except (Exception, asyncio.CancelledError) as problem:
        context = {"message": f"Exception in callback {handle!r}", "exception": problem, "handle": handle}
        handle._loop.call_exception_handler(context)


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. For one thread; for `asyncio.Runner(loop_factory=lambda: loop)` or `run_until_complete`.

    start: the first `time()`. charge: seconds of virtual time that each event (one callback run) takes.
    max_events, max_time: where either is reached, Runaway is raised.
    on_step: called after each event, to look whether all is well; what it raises ends the run. None: costs nothing.
    events: how many there have been so far. network: gives the connections; None: there are none.
    Timers that are due at the same instant run in the order in which they were made, which plain asyncio leaves open.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool
    _closed: bool

    def __init__(
        self,
        *,
        start: float = 0.0,
        charge: float = 0.0,
        max_events: int = MAX_EVENTS,
        max_time: float = MAX_TIME,
        on_step: Callable[[], object] | None = None,
    ) -> None:
        super().__init__()
        self._now = start
        self._charge = charge
        self._max_events = max_events
        self._max_time = start + max_time
        self._timers: list[tuple[float, int, _Timer]] = []
        self._made = 0  # timers so far: what stands second in the heap keeps the order of equals
        self._cancelled = 0  # of those in the heap
        self._owner = threading.get_ident()
        self.on_step = on_step
        self.events = 0
        self.network: Connector | None = None

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._now

    def call_soon(
        self, callback: Callable[[Unpack[Arguments]], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        """After all that is ready now."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """After so many seconds. A delay above 0 always moves time, as with any real clock, be it by its last digit.

        Else who waits for an instant in steps of what is left of it, which rounding may have made too short, would
        never come there.
        """
        when = self._now + delay
        if when == self._now and delay > 0:
            when = math.nextafter(when, math.inf)
        return self.call_at(when, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """At that virtual time; at once if it is past."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if when != when:
            raise ValueError("a timer's time must be a number, not NaN")
        timer = _Timer(when, callback, args, self, context)
        timer._scheduled = True
        self._made += 1
        heapq.heappush(self._timers, (when, self._made, timer))
        return timer

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Arguments]], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        """As `call_soon`, for signal handlers and finalizers; no other thread can come in."""
        if threading.get_ident() != self._owner:
            raise NotSimulated("call_soon_threadsafe from another thread: a virtual loop has but one")
        return self.call_soon(callback, *args, context=context)

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **others: Any
    ) -> tuple[Any, Any]:
        """Over the simulated network."""
        if self.network is None:
            raise NotSimulated("create_connection: this loop has no network")
        return await self.network.connect(protocol_factory, host, port, **others)

    async def create_server(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **others: Any
    ) -> Any:
        """On the simulated network."""
        if self.network is None:
            raise NotSimulated("create_server: this loop has no network")
        return self.network.listen(protocol_factory, host, port, **others)

    def close(self) -> None:
        """Nothing runs any more."""
        super().close()
        self._timers.clear()

    # asyncio calls these.

    def _timer_handle_cancelled(self, handle: _Timer) -> None:
        if not handle._scheduled:
            return
        self._cancelled += 1
        if self._cancelled > MANY_CANCELLED and 2 * self._cancelled > len(self._timers):
            # Handle.cancel marks the timer after it has told us: this one stays till the next time.
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 1

    def _run_once(self) -> None:
        """Run until `stop()`: the ready ones, then the timers that are due meanwhile, and so on."""
        ready = self._ready
        while True:
            if not ready and not self._stopping:
                self._jump()
            elif self._timers and self._timers[0][0] <= self._now:
                self._take_due()
            batch = len(ready)
            if self.events + batch > self._max_events:
                self._give_up(
                    Runaway(f"more than {self._max_events:,} events, at {self._now:.6f} s: {self._waiting()}")
                )
            if self.on_step is None and not self._charge:
                self.events += batch
                for _ in range(batch):
                    handle = ready.popleft()
                    if not handle._cancelled:
                        _call(handle)
            else:
                self._run_watched(batch)
            if self._stopping:
                return

    def _run_watched(self, batch: int) -> None:
        for _ in range(batch):
            self.events += 1
            handle = self._ready.popleft()
            if handle._cancelled:
                continue
            _call(handle)
            self._now += self._charge
            if self._now > self._max_time:
                self._give_up(self._too_late(self._now))
            if self.on_step is not None:
                try:
                    self.on_step()
                except BaseException as problem:
                    self._give_up(problem)

    def _jump(self) -> None:
        """Nothing is ready: go to the next timer."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)[2]._scheduled = False
            self._cancelled -= 1
        if not timers or timers[0][0] == math.inf:
            self._give_up(Deadlock(f"nothing can ever run again, at {self._now:.6f} s: {self._waiting()}"))
        when = timers[0][0]
        if when > self._max_time:
            self._give_up(self._too_late(when))
        if when > self._now:
            self._now = when
        self._take_due()

    def _take_due(self) -> None:
        timers, now, ready = self._timers, self._now, self._ready
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            if timer._cancelled:
                self._cancelled -= 1
            else:
                ready.append(timer)

    def _too_late(self, when: float) -> Runaway:
        return Runaway(f"the next event is at {when:.6f} s, beyond {self._max_time:,.6f} s: {self._waiting()}")

    def _give_up(self, problem: BaseException) -> NoReturn:
        """Raise it, leaving room for what must still be cleared away."""
        self.on_step = None
        self._max_events = self.events + GRACE_EVENTS
        self._max_time = max(self._now, self._max_time) + GRACE_SECONDS
        raise problem

    def _waiting(self) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: (len(task.get_name()), task.get_name()))
        if not tasks:
            return "no task waits"
        return "tasks that wait:" + "".join(f"\n  {task.get_name()} {_place(task.get_coro())}" for task in tasks)


class VirtualClock:
    """`ports.Clock` over a loop. epoch: the wall clock's time, aware, at the loop's time 0."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch: datetime = EPOCH) -> None:
        if epoch.tzinfo is None:
            raise ValueError(f"epoch must have a time zone, as datetime(2026, 1, 1, tzinfo=UTC) has; not {epoch!r}")
        self.monotonic = loop.time
        self._epoch = epoch.astimezone(UTC)
        self._seconds = epoch.timestamp()

    def time(self) -> float:
        """Seconds since 1970."""
        return self._seconds + self.monotonic()

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""
        return self._epoch + timedelta(seconds=self.monotonic())


def _place(coroutine: Any) -> str:
    """What a task runs, and the line at which it waits, in the innermost coroutine."""
    name = getattr(coroutine, "__qualname__", repr(coroutine))
    frame = getattr(coroutine, "cr_frame", None)
    while isinstance(inner := getattr(coroutine, "cr_await", None), Coroutine):
        coroutine = inner
        frame = getattr(coroutine, "cr_frame", None) or frame
    return name if frame is None else f"{name}, at {frame.f_code.co_filename}:{frame.f_lineno}"


def _not_simulated(name: str) -> Callable[..., NoReturn]:
    def refuse(self: VirtualLoop, *_: object, **__: object) -> NoReturn:
        raise NotSimulated(f"{name}: a virtual loop has no descriptors, threads, processes or signals")

    return refuse


for _name in (
    "run_in_executor", "getaddrinfo", "getnameinfo",
    "add_reader", "remove_reader", "add_writer", "remove_writer", "add_signal_handler", "remove_signal_handler",
    "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto",
    "sock_connect", "sock_accept", "sock_sendfile", "sendfile", "start_tls", "connect_accepted_socket",
    "create_datagram_endpoint", "create_unix_connection", "create_unix_server",
    "connect_read_pipe", "connect_write_pipe", "subprocess_shell", "subprocess_exec",
):  # fmt: skip
    setattr(VirtualLoop, _name, _not_simulated(_name))
