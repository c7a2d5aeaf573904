"""What every command that runs a hub has in common: descriptors, signals, the summary; and serving."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import uvloop

from eaimw.adapters.http_server import MAX_CONNECTIONS, HttpServer
from eaimw.adapters.server_tls import server_context
from eaimw.app import open_hub, say
from eaimw.cli.admin import admin_plane
from eaimw.cli.logs import LogPaths, Logs, opened_logs
from eaimw.codes import most_first
from eaimw.config import NO_TARGET, Address, AdminSettings, HubSettings, TlsSettings
from eaimw.errors import SettingsError, Unusable
from eaimw.hub import Hub
from eaimw.target import CodeCounts

SPARE_DESCRIPTORS = 64  # for all that is not a call: the three streams, the logs, the loop, libraries
_ENDING = (signal.SIGTERM, signal.SIGINT)


def serve(
    settings: HubSettings,
    paths: LogPaths,
    address: Address,
    plane: AdminSettings | None,
    tls: TlsSettings | None = None,
) -> int:
    """Serve HTTP until a signal ends it. The exit status: 0, or 1 if a log, the address or a PEM file is no good."""
    with signals():
        try:
            context = None if tls is None else server_context(tls)
            raise_limit(settings, callers=MAX_CONNECTIONS)
            # Callers get what the calls leave: they must not take the descriptors that the targets need.
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            free = MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else soft - _needed(settings)
            connections = max(10, min(MAX_CONNECTIONS, free))
            with opened_logs(paths) as logs:
                uvloop.run(_serve(settings, logs, address, plane, context, connections))
        except (Unusable, SettingsError) as fault:  # a setting that shows only in use, as a CA file
            say(f"relay: {fault}")
            return 1
    return 0


async def _serve(
    settings: HubSettings,
    logs: Logs,
    address: Address,
    plane: AdminSettings | None,
    tls: ssl.SSLContext | None,
    max_connections: int,
) -> None:
    started = time.monotonic()
    ended = asyncio.Event()
    async with open_hub(settings, breaker_log=logs.breaker, access_log=logs.of_transactions) as hub:
        server = HttpServer(hub, tls=tls, max_connections=max_connections)
        await server.start(address)
        try:
            heed_signals(ended.set, logs)
            gc.collect()
            gc.freeze()  # what was made to start lives for ever: to look through it again would hold everybody up
            say(f"listening on {server.url}")
            async with admin_plane(hub, logs, plane):
                await ended.wait()
                await server.drain()
        finally:
            await server.close()
        counted = sum(sum(codes.values()) for codes in _counts(hub).values())
        summary(hub, counted, counted, time.monotonic() - started)


def raise_limit(settings: HubSettings, callers: int = 0) -> None:
    """Let this process have a descriptor for each call in flight and each caller; say so where the system does not.

    Raises Unusable where there are too few to start at all.
    """
    need = callers + _needed(settings)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= need or soft == resource.RLIM_INFINITY:
        return
    allowed = need if hard == resource.RLIM_INFINITY else min(need, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < SPARE_DESCRIPTORS // 2:
        raise Unusable(f"the system allows {allowed} descriptors (ulimit -Hn); allow {need:,}, and start again")
    if allowed < need:
        who = "--max-inflight and its callers" if callers else "--max-inflight"
        say(
            f"relay: {who} may need {need:,} descriptors and the system allows {allowed:,} (ulimit -Hn); "
            "calls beyond it will end as E902, not sent"
        )


def _needed(settings: HubSettings) -> int:
    """Descriptors for the calls in flight and all that is no caller."""
    return SPARE_DESCRIPTORS + sum(target.max_inflight for target in settings.targets.values())


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """What signals do outside is theirs again afterwards. Until a transaction may be read, Ctrl-C just ends it."""
    if not _is_main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in (*_ENDING, signal.SIGHUP)}
    if before[signal.SIGINT] is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def heed_signals(stop: Callable[[], object], logs: Logs) -> None:
    """As `heed_ending`, and SIGHUP makes the logs anew."""
    heed_ending(stop, "relay")
    if _is_main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, logs.reopen)


def heed_ending(stop: Callable[[], object], program: str) -> None:
    """SIGTERM and SIGINT end the run in good order, the second one at once.

    They stay so while all is closed: `signals` takes them back.
    """
    if not _is_main_thread():  # signals are the main thread's, so are they the caller's
        return
    loop = asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        for each in _ENDING:  # the next one has its own effect again, which a shell sees as 128 + its number
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        stop()
        say(f"{program}: {number.name}: taking nothing new, waiting for what is in flight; once more ends it at once")

    for each in _ENDING:
        loop.add_signal_handler(each, end, each)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def summary(hub: Hub, read: int, replied: int, seconds: float) -> None:
    """Say how many there were, by target and code."""
    say_counts(_counts(hub))
    say(f"transactions {read:,}, replies {replied:,}, {seconds:.1f} s")


def say_counts(counts: Mapping[str, Mapping[str, int]]) -> None:
    """A line for each target that has any: how many replies by code, the most frequent first."""
    width = max(map(len, counts), default=0)
    for name, codes in counts.items():
        if codes:
            say(f"{name:{width}}  " + "  ".join(f"{code} {count:,}" for code, count in most_first(codes)))


def _counts(hub: Hub) -> dict[str, CodeCounts]:
    return {name: target.codes for name, target in hub.targets.items()} | {NO_TARGET: hub.untargeted}
