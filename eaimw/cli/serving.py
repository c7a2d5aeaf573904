"""Serving HTTP, for `eaimw serve` and `relay --listen`. Apart from `running`: a run over lines needs none of it."""

from __future__ import annotations

import asyncio
import gc
import ssl
import time

import uvloop

from eaimw.adapters.http_server import MAX_CONNECTIONS, HttpServer
from eaimw.adapters.server_tls import server_context
from eaimw.app import open_hub, say
from eaimw.cli.admin import admin_plane
from eaimw.cli.logs import LogPaths, Logs, opened_logs
from eaimw.cli.reload import Source, reload_of
from eaimw.cli.running import counts_of, heed_signals, raise_limit, signals, summary
from eaimw.config import Address, AdminSettings, TlsSettings
from eaimw.errors import SettingsError, Unusable


def serve(
    source: Source,
    paths: LogPaths,
    address: Address,
    plane: AdminSettings | None,
    tls: TlsSettings | None = None,
) -> int:
    """Serve HTTP until a signal ends it. The exit status: 0, or 1 if a log, the address or a PEM file is no good."""
    with signals():
        try:
            context = None if tls is None else server_context(tls)
            connections = raise_limit(source.settings, callers=MAX_CONNECTIONS)
            with opened_logs(paths) as logs:
                uvloop.run(_serve(source, logs, address, plane, context, connections))
        except (Unusable, SettingsError) as fault:  # a setting that shows only in use, as a CA file
            say(f"relay: {fault}")
            return 1
    return 0


async def _serve(
    source: Source,
    logs: Logs,
    address: Address,
    plane: AdminSettings | None,
    tls: ssl.SSLContext | None,
    max_connections: int,
) -> None:
    started = time.monotonic()
    ended = asyncio.Event()
    async with open_hub(source.settings, breaker_log=logs.breaker, access_log=logs.of_transactions) as hub:
        server = HttpServer(hub, tls=tls, max_connections=max_connections)
        reload = reload_of(hub, source, lambda settings: raise_limit(settings, callers=max_connections))
        await server.start(address)
        try:
            heed_signals(ended.set, logs, reload)
            gc.collect()
            gc.freeze()  # what was made to start lives for ever: to look through it again would hold everybody up
            say(f"listening on {server.url}")
            async with admin_plane(hub, logs, plane, reload):
                await ended.wait()
                await server.drain()
        finally:
            await server.close()
        counted = sum(codes.total() for codes in counts_of(hub).values())
        summary(hub, counted, counted, time.monotonic() - started)
