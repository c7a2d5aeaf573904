"""The admin plane beside a relay: what was asked for, and that it is there for as long as the hub."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import click

from eaimw.app import say
from eaimw.cli.logs import Logs
from eaimw.cli.reload import Reload
from eaimw.config import AdminSettings, parse_address
from eaimw.errors import SettingsError
from eaimw.hub import Hub
from eaimw.hub_file import HubFile

TOKEN_VARIABLE = "EAIMW_ADMIN_TOKEN"


def admin_settings(ctx: click.Context, option: str | None, file: HubFile | None) -> AdminSettings | None:
    """From --admin or else the file, and the environment's token or else the file's; None: no plane is wanted.

    An empty variable is as none. Raises UsageError.
    """
    setting = "--admin" if option is not None else "[admin] listen"
    listen = option if option is not None else file.admin_listen if file is not None else None
    if listen is None:
        return None
    token = os.environ.get(TOKEN_VARIABLE) or (file.admin_token if file is not None else None)
    try:
        return AdminSettings(parse_address(listen, setting), token)
    except SettingsError as fault:
        words = str(fault)
        if fault.setting == "admin":
            words = f"{setting}{words.removeprefix(fault.setting)} (token: {TOKEN_VARIABLE}, or [admin] in hub.toml)"
        raise click.UsageError(words, ctx) from None


@contextlib.asynccontextmanager
async def admin_plane(
    hub: Hub, logs: Logs, settings: AdminSettings | None, reload: Reload | None = None
) -> AsyncIterator[None]:
    """The plane for the time of the block, if one is wanted; says where it is. Raises Unusable if it cannot be."""
    if settings is None:
        yield
        return
    from eaimw.adapters.admin import AdminPlane  # aiohttp and prometheus_client are loaded only where they are used

    plane = AdminPlane(
        hub,
        loop=asyncio.get_running_loop(),
        say=say,
        log_errors=lambda: logs.breaker.lost,
        access_log_errors=logs.access_lost,
        reload=reload,
    )
    say(f"admin on http://{plane.start(*settings.address, settings.token)}")
    try:
        yield
    finally:
        plane.close()
