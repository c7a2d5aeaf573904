"""The admin plane: figures, health and targets over HTTP, in a thread and an event loop of its own.

It only reads what the hub counts, and takes no lock of the hub's, so nothing that is asked here holds up a transaction.
Each connection carries one request and is over within seconds, and there are few at a time: whoever can reach the port
cannot use up the process's descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from eaimw.adapters.admin_pages import application
from eaimw.adapters.loop_lag import LoopLag
from eaimw.adapters.metrics import registry_of
from eaimw.adapters.system import SystemClock
from eaimw.config import Address, AdminSettings
from eaimw.differences import Reloaded
from eaimw.errors import Unusable
from eaimw.hub import Hub
from eaimw.ports import Clock

CONNECTIONS = 16  # at a time; what exceeds it is closed unanswered
CONNECTION_LIMIT = 10.0  # seconds from the connection to the last byte of the answer
START_LIMIT = 10.0  # seconds; only the look-up of a host name can take long
ANSWERS_LIMIT = 0.5  # seconds for answers that are on their way when the plane is closed
CLOSE_LIMIT = 2.0  # seconds for all of the closing


class AdminPlane:
    """Serves one hub's figures from `start` to `close`.

    loop: the one that the hub lives in, whose lag is measured. log_errors, access_log_errors: lines of the breaker log
    and of the access log lost so far. reload: reads the hub.toml again, in the hub's loop; None: there is none.
    say: gets a sentence for the people on duty, the first fault of the plane's own; the hub is not touched by it.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        loop: asyncio.AbstractEventLoop,
        say: Callable[[str], None],
        log_errors: Callable[[], int] = lambda: 0,
        access_log_errors: Callable[[], int] = lambda: 0,
        clock: Clock | None = None,
        reload: Callable[[], Coroutine[Any, Any, Reloaded]] | None = None,
    ) -> None:
        self._hub = hub
        self._hub_loop = loop
        self._reload = reload
        self._say = say
        self._has_said = False
        self._lag = LoopLag(loop, clock or SystemClock())
        self._registry = registry_of(hub, log_errors, self._lag.worst, access_log_errors)
        self._thread: threading.Thread | None = None
        self._end: Callable[[], None] = lambda: None

    def start(self, host: str, port: int, token: str | None = None) -> Address:
        """Listen; where it really does (port 0 is any free one). Waits for that, within a bound.

        Raises SettingsError for an address that others can reach without a token, Unusable if it cannot be had.
        """
        settings = AdminSettings(Address(host, port), token)
        started: Future[Address] = Future()
        self._thread = threading.Thread(target=self._work, args=(settings, started), name="admin", daemon=True)
        try:
            self._thread.start()
            address = started.result(START_LIMIT)
        except BaseException as problem:
            started.cancel()
            self.close()
            if not isinstance(problem, (OSError, RuntimeError)):  # TimeoutError is the one; no thread, the other
                raise
            raise Unusable(f"the admin plane cannot listen on {settings.address}: {_remedy(problem)}") from None
        self._lag.start()
        return address

    def close(self) -> None:
        """Stop listening, let answers that are on their way out, end the thread; all of it within a bound."""
        self._lag.stop()
        self._end()
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            thread.join(CLOSE_LIMIT)

    async def _reloaded(self) -> Reloaded | None:
        """What came of it; None if there is no file to read."""
        if self._reload is None:
            return None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._reload(), self._hub_loop))

    def _work(self, settings: AdminSettings, started: Future[Address]) -> None:
        try:
            # Made before the loop, so that a look-up that hangs needs no thread of the loop's and keeps none.
            with _listening(settings.address) as listener, asyncio.Runner() as runner:
                runner.run(self._serve(listener, settings, started))
        except BaseException as problem:
            if not started.done():
                started.set_exception(problem)
            elif not started.cancelled():
                self._complain("its thread", problem)

    async def _serve(self, listener: socket.socket, settings: AdminSettings, started: Future[Address]) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda _, context: self._complain("its loop", _problem_in(context)))
        runner = web.AppRunner(
            application(self._hub, self._registry, settings.token, self._complain, self._reloaded),
            access_log=None,
            handle_signals=False,
            logger=_Logger(self._complain),
            shutdown_timeout=ANSWERS_LIMIT,
        )
        await runner.setup()
        try:
            serve = runner.server
            assert serve is not None, "it has been set up"
            open_ones: set[asyncio.Transport] = set()
            server = await loop.create_server(lambda: _Connection(serve(), open_ones), sock=listener)

            def end() -> None:
                with contextlib.suppress(RuntimeError):  # it has ended by itself
                    loop.call_soon_threadsafe(ended.set)

            self._end = end
            if started.set_running_or_notify_cancel():
                started.set_result(Address(*listener.getsockname()[:2]))
                await ended.wait()
            loop.remove_reader(listener)  # first, since asyncio loses a connection whose server closes as it is made
            await _turn()
            server.close()
            await runner.cleanup()
            await _turn()
            for transport in list(open_ones):  # of those who read too slowly
                transport.abort()
            await _turn()
        finally:
            await runner.cleanup()

    def _complain(self, where: str, problem: BaseException) -> None:
        if not self._has_said:
            self._has_said = True
            told = f"{type(problem).__name__}: {problem}"
            self._say(f"admin: a fault in {where}: {told}; relaying goes on, and further ones are not said")


class _Connection(asyncio.Protocol):
    """One connection of aiohttp's server, unless there are too many; over when its time is, whatever it is doing.

    open_ones: all there are.
    """

    def __init__(self, served: web.RequestHandler, open_ones: set[asyncio.Transport]) -> None:
        self._served = served
        self._open_ones = open_ones
        self._transport: asyncio.Transport | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if len(self._open_ones) >= CONNECTIONS:  # asked here: of those only accepted there may be many more
            transport.abort()
            return
        self._transport = transport
        self._open_ones.add(transport)
        self._alarm = asyncio.get_running_loop().call_later(CONNECTION_LIMIT, transport.abort)
        self._served.connection_made(transport)

    def connection_lost(self, problem: BaseException | None) -> None:
        if self._transport is not None and self._alarm is not None:
            self._alarm.cancel()
            self._open_ones.discard(self._transport)
            self._served.connection_lost(problem)

    def data_received(self, data: bytes) -> None:
        self._served.data_received(data)

    def eof_received(self) -> None:
        self._served.eof_received()

    def pause_writing(self) -> None:
        self._served.pause_writing()

    def resume_writing(self) -> None:
        self._served.resume_writing()


async def _turn() -> None:
    """Let the loop do what making or ending a connection takes: each is done in three steps of it, or fewer."""
    for _ in range(5):
        await asyncio.sleep(0)


class _Logger(logging.Logger):
    """aiohttp's words: faults of its own are passed on, those of a caller's HTTP are the caller's."""

    def __init__(self, complain: Callable[[str, BaseException], None]) -> None:
        super().__init__("eaimw admin", logging.ERROR)
        self._complain = complain

    def handle(self, record: logging.LogRecord) -> None:
        problem = record.exc_info[1] if record.exc_info else None
        if not isinstance(problem, HttpProcessingError):
            self._complain("its server", problem or RuntimeError(record.getMessage()))


def _problem_in(context: dict[str, object]) -> BaseException:
    problem = context.get("exception")
    return problem if isinstance(problem, BaseException) else RuntimeError(str(context.get("message")))


def _listening(address: Address) -> socket.socket:
    """A socket that listens there; `localhost` is 127.0.0.1, whatever a hosts file says. Raises OSError."""
    host = "127.0.0.1" if address.host.lower() == "localhost" else address.host
    try:
        family, *_, where = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(where, family=family, backlog=CONNECTIONS)
    except UnicodeError as problem:  # getaddrinfo's word for a name with an empty or long part
        raise OSError(str(problem)) from None
    listener.setblocking(False)
    return listener


def _remedy(problem: Exception) -> str:
    """What is wrong, and what to do."""
    number = problem.errno if isinstance(problem, OSError) else None
    if number == errno.EADDRINUSE:
        return "the port is taken; end the program that has it, or choose another (0: any free one)"
    if number == errno.EACCES:
        return "the port needs rights that this user does not have; choose one from 1024 (0: any free one)"
    if number == errno.EADDRNOTAVAIL or isinstance(problem, socket.gaierror):
        return "it is no address of this machine; choose one that is, for instance 127.0.0.1"
    if isinstance(problem, TimeoutError):
        return f"there was no answer within {START_LIMIT:g} s; give an address instead of a name"
    return f"{problem}; mend that, or leave the admin plane out"
