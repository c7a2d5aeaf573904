"""The one place that wires real adapters into a hub: the asyncio hub, and the blocking Relay over it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvloop

from eaimw.adapters.breaker_log import BreakerLog
from eaimw.adapters.http_client import HttpTransport
from eaimw.adapters.resolver import ThreadResolver
from eaimw.adapters.system import SystemClock
from eaimw.config import CLAIM_URL, CORE_URL, BreakerSettings, Endpoint, HubSettings, TargetSettings
from eaimw.hub import Hub
from eaimw.kernel.breaker import State


def say(text: str) -> None:
    """A sentence for the people on duty, on standard error."""
    if sys.stderr is None:  # it was closed before the start
        return
    with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it was closed since: relaying goes on
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


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
    fail_threshold: int = 5,
    reset_timeout: float = 10.0,
    max_inflight: int = 10,
    timeout: float = 3.0,
) -> HubSettings:
    """CORE and CLAIM with the same settings, as the command line has them. Raises SettingsError."""
    Endpoint.parse(core_url, "core_url")
    Endpoint.parse(claim_url, "claim_url")
    breaker = BreakerSettings(fail_threshold, reset_timeout)
    return HubSettings(
        {
            name: TargetSettings(url, timeout=timeout, max_inflight=max_inflight, breaker=breaker)
            for name, url in (("CORE", core_url), ("CLAIM", claim_url))
        }
    )


@contextlib.asynccontextmanager
async def open_hub(settings: HubSettings, *, breaker_log: BreakerLog | None = None) -> AsyncIterator[Hub]:
    """The hub in this event loop, until the block ends; then its connections are closed.

        async with open_hub(two_targets()) as hub:
            reply = await hub.handle_tx({"tx_id": "T1", "target": "CORE", "op": "BALANCE", "account": "A-1"})

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
        fail_threshold: int = 5,
        reset_timeout: float = 10.0,
        max_inflight: int = 10,
        timeout: float = 3.0,
        routes: Mapping[str, str] | None = None,
        breaker_log: str | Path | None = None,
    ) -> None:
        breaker = BreakerSettings(fail_threshold, reset_timeout)
        given = {"CORE": CORE_URL, "CLAIM": CLAIM_URL} if targets is None else targets
        self._settings = HubSettings(
            {
                name: TargetSettings(target, timeout=timeout, max_inflight=max_inflight, breaker=breaker)
                if isinstance(target, str)
                else target
                for name, target in given.items()
            },
            routes or {},
        )
        self._log_path = None if breaker_log is None else Path(breaker_log)
        self._lock = threading.Lock()
        self._pending: set[Future[dict[str, Any]]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hub: Hub | None = None
        self._thread: threading.Thread

    def __enter__(self) -> Self:
        log = None
        if self._log_path is not None:
            log = BreakerLog(self._log_path, clock=SystemClock(), say=say)
        ready: Future[tuple[asyncio.AbstractEventLoop, Hub]] = Future()
        self._ended: Future[asyncio.Event] = Future()
        self._thread = threading.Thread(target=self._work, args=(log, ready), name="eaimw relay", daemon=True)
        self._thread.start()
        try:
            self._loop, self._hub = ready.result()
        except BaseException:
            self._thread.join()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        wait(self._pending)  # each is bounded by its target's timeout
        end = self._ended.result()
        loop.call_soon_threadsafe(end.set)
        self._thread.join()

    def handle_tx(self, tx: dict[str, Any]) -> dict[str, Any]:
        """One transaction; blocks until its reply, which the target's timeout bounds. A bad one gets its E400.

        Raises RuntimeError outside the `with` block.
        """
        with self._lock:
            if self._loop is None or self._hub is None:
                raise RuntimeError("the relay is not open: call handle_tx inside `with Relay(...) as relay:`")
            future = asyncio.run_coroutine_threadsafe(self._hub.handle_tx(tx), self._loop)
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

    def _work(self, log: BreakerLog | None, ready: Future[tuple[asyncio.AbstractEventLoop, Hub]]) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.get_loop()  # if it cannot be made, `_serve` is not begun
                runner.run(self._serve(log, ready))
        except BaseException as problem:
            if ready.done():
                raise
            ready.set_exception(problem)
        finally:
            if log is not None:
                log.close()

    async def _serve(self, log: BreakerLog | None, ready: Future[tuple[asyncio.AbstractEventLoop, Hub]]) -> None:
        async with open_hub(self._settings, breaker_log=log) as hub:
            end = asyncio.Event()
            self._ended.set_result(end)
            ready.set_result((asyncio.get_running_loop(), hub))
            await end.wait()
