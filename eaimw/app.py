"""The one place that wires real adapters into a hub: the asyncio hub, and the blocking Relay over it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, NamedTuple, Self

import uvloop

from eaimw.adapters.breaker_log import BreakerLog
from eaimw.adapters.http_client import HttpTransport
from eaimw.adapters.resolver import ThreadResolver
from eaimw.adapters.system import SystemClock
from eaimw.adapters.voice import Voice
from eaimw.config import (
    CLAIM_URL,
    CORE_URL,
    INFLIGHT,
    TIMEOUT,
    Endpoint,
    HubSettings,
    TargetSettings,
)
from eaimw.errors import SettingsError
from eaimw.hub import Hub
from eaimw.kernel.breaker import State
from eaimw.policy import FAIL_THRESHOLD, RESET_TIMEOUT, BreakerSettings
from eaimw.ports import AccessLog

_voice = Voice()
say = _voice.say
# At the end of the process what is still to be said gets so many seconds.
atexit.register(_voice.flush, 2.0)


class Events:
    """`ports.Telemetry`: changes of state go to the breaker log, faults of the hub to standard error."""

    def __init__(self, breaker_log: BreakerLog | None) -> None:
        self._breaker_log = breaker_log

    def changed(self, target: str, before: State, after: State) -> None:
        """A breaker changed its state."""
        if self._breaker_log is not None:
            self._breaker_log.changed(target, before, after)

    def unforeseen(self, where: str, problem: BaseException) -> None:
        """A fault of the hub itself; please report it."""
        say(f"eaimw: a fault of the hub in {where}: {type(problem).__name__}: {problem}")


def two_targets(
    core_url: str = CORE_URL,
    claim_url: str = CLAIM_URL,
    *,
    fail_threshold: int = FAIL_THRESHOLD,
    reset_timeout: float = RESET_TIMEOUT,
    max_inflight: int = INFLIGHT,
    timeout: float = TIMEOUT,
) -> HubSettings:
    """CORE and CLAIM with the same settings, as the command line has them. Raises SettingsError."""
    Endpoint.parse(core_url, "core_url")
    Endpoint.parse(claim_url, "claim_url")
    breaker = BreakerSettings(fail_threshold, reset_timeout)
    urls = {"CORE": core_url, "CLAIM": claim_url}
    return HubSettings({name: TargetSettings(url, timeout, max_inflight, breaker) for name, url in urls.items()})


@contextlib.asynccontextmanager
async def open_hub(
    settings: HubSettings, *, breaker_log: BreakerLog | None = None, access_log: AccessLog | None = None
) -> AsyncIterator[Hub]:
    """The hub in this event loop, until the block ends; then its connections are closed.

        async with open_hub(two_targets()) as hub:
            reply = await hub.handle_tx({"tx_id": "T1", "target": "CORE", "op": "BALANCE", "account": "A-1"})

    The logs are the caller's, to be closed after the block.
    Raises SettingsError for what shows only when it is wired, as a CA file that cannot be read.
    """
    clock = SystemClock()
    resolver = ThreadResolver(clock)
    hub = Hub(
        settings,
        clock=clock,
        telemetry=Events(breaker_log),
        make_transport=lambda name, target: HttpTransport(name, target, clock=clock, resolver=resolver),
        make_random=lambda name: random.Random(),
        access_log=access_log,
    )
    try:
        yield hub
    finally:
        await hub.close()


class Relay:
    """The hub for code that blocks: a context manager whose `handle_tx` any number of threads may call at once.

        with Relay({"CORE": "http://127.0.0.1:9201/tx"}, max_inflight=4) as relay:
            reply = relay.handle_tx({"tx_id": "T1", "target": "CORE", "op": "BALANCE", "account": "A-1"})

    targets: URL or TargetSettings by name; None: CORE and CLAIM where the simulated targets stand. The settings
    after it are for those given as a URL; their units and bounds are in `eaimw.config`. routes: op -> target.
    breaker_log: a file for the changes of state; None: no log.
    Raises SettingsError here, and Unusable on entry if the log cannot be used.
    """

    def __init__(
        self,
        targets: Mapping[str, str | TargetSettings] | None = None,
        *,
        fail_threshold: int = FAIL_THRESHOLD,
        reset_timeout: float = RESET_TIMEOUT,
        max_inflight: int = INFLIGHT,
        timeout: float = TIMEOUT,
        routes: Mapping[str, str] | None = None,
        breaker_log: str | Path | None = None,
    ) -> None:
        breaker = BreakerSettings(fail_threshold, reset_timeout)
        given = {"CORE": CORE_URL, "CLAIM": CLAIM_URL} if targets is None else targets
        if not isinstance(given, Mapping):
            raise SettingsError("targets", given, "a mapping from name to URL or TargetSettings")
        for name, target in given.items():
            if isinstance(target, str):
                Endpoint.parse(target, f"the URL of {name}")
        if not isinstance(breaker_log, (str, Path, NoneType)):
            raise SettingsError("breaker_log", breaker_log, "the path of a file, or None")
        self._settings = HubSettings(
            {
                name: TargetSettings(target, timeout, max_inflight, breaker) if isinstance(target, str) else target
                for name, target in given.items()
            },
            routes or {},
        )
        self._log_path = None if breaker_log is None else Path(breaker_log)
        self._lock = threading.Lock()
        self._pending: set[Future[dict[str, Any]]] = set()
        self._running: _Running | None = None
        self._hub: Hub | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("the relay is open already: one `with` block at a time")
        started: Future[_Running] = Future()
        thread = threading.Thread(target=self._work, args=(started,), name="eaimw relay", daemon=True)
        thread.start()
        self._thread = thread
        try:
            self._running = started.result()
        except BaseException:  # it could not start; or Ctrl-C while it was starting
            started.add_done_callback(_end_if_started)
            self._join()
            raise
        self._hub = self._running.hub
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            running, self._running = self._running, None
            pending = set(self._pending)
        if running is None:
            return
        try:
            wait(pending)  # each is bounded by its target's timeout
        finally:
            running.end()
            self._join()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def handle_tx(self, tx: dict[str, Any]) -> dict[str, Any]:
        """One transaction; blocks until its reply, which the target's timeout bounds. A bad one gets its E400.

        Raises RuntimeError outside the `with` block.
        """
        with self._lock:
            if self._running is None:
                raise RuntimeError("the relay is not open: call handle_tx inside `with Relay(...) as relay:`")
            future = asyncio.run_coroutine_threadsafe(self._running.hub.handle_tx(tx), self._running.loop)
            self._pending.add(future)
        try:
            return future.result()
        finally:
            with self._lock:
                self._pending.discard(future)

    def snapshot(self) -> dict[str, Any]:
        """Every target's figures at this moment, by name. Raises RuntimeError before the first `with`."""
        if self._hub is None:
            raise RuntimeError("the relay has not been open yet: there are figures inside `with Relay(...) as relay:`")
        return self._hub.snapshot()

    def _work(self, started: Future[_Running]) -> None:
        try:
            log = None if self._log_path is None else BreakerLog(self._log_path, clock=SystemClock(), say=say)
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.get_loop()  # if it cannot be made, `_serve` is not begun
                    runner.run(self._serve(log, started))
            finally:
                if log is not None:
                    log.close()
        except BaseException as problem:
            if started.done():
                raise
            started.set_exception(problem)

    async def _serve(self, log: BreakerLog | None, started: Future[_Running]) -> None:
        async with open_hub(self._settings, breaker_log=log) as hub:
            ended = asyncio.Event()
            started.set_result(_Running(hub, asyncio.get_running_loop(), ended))
            await ended.wait()


class _Running(NamedTuple):
    """What an open Relay has in its own thread."""

    hub: Hub
    loop: asyncio.AbstractEventLoop
    ended: asyncio.Event

    def end(self) -> None:
        """Close the hub and end the thread; from any other thread."""
        self.loop.call_soon_threadsafe(self.ended.set)


def _end_if_started(started: Future[_Running]) -> None:
    if started.exception() is None:
        started.result().end()
