"""`eaimw relay`, which is also `python breaker/relay.py`: JSON lines in, one reply per line out."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import click
import uvloop
from click.core import ParameterSource

from eaimw.adapters.lines import LineRelay
from eaimw.app import open_hub, say, two_targets
from eaimw.cli.admin import admin_plane, admin_settings
from eaimw.cli.files import read
from eaimw.cli.lazy import HELP_NAMES
from eaimw.cli.logs import BREAKER_LOG, Logs, log_paths, opened_logs
from eaimw.cli.progress import progress
from eaimw.cli.reload import Source, reload_of
from eaimw.cli.running import heed_signals, raise_limit, signals, summary
from eaimw.cli.streams import input_fd, output_fd
from eaimw.config import (
    CLAIM_URL,
    CORE_URL,
    INFLIGHT,
    TIMEOUT,
    AdminSettings,
    parse_address,
)
from eaimw.errors import SettingsError, Unusable
from eaimw.hub_file import read_hub_file, with_options
from eaimw.policy import FAIL_THRESHOLD, RESET_TIMEOUT


@click.command(context_settings=HELP_NAMES)  # it is a program by itself too
@click.argument("input_name", metavar="[INPUT]", default="-")
@click.option(
    "--fail-threshold",
    type=int,
    metavar="N",
    default=FAIL_THRESHOLD,
    show_default=True,
    help="Consecutive failures that open a target's circuit; 1 or more.",
)
@click.option(
    "--reset-timeout",
    type=float,
    metavar="S",
    default=RESET_TIMEOUT,
    show_default=True,
    help="Seconds a circuit stays open before one probe may pass; 0 or more.",
)
@click.option(
    "--max-inflight",
    type=int,
    metavar="N",
    default=INFLIGHT,
    show_default=True,
    help="Calls in flight per target; one more is refused at once (E905); 1 to 100,000.",
)
@click.option(
    "--timeout",
    type=float,
    metavar="S",
    default=TIMEOUT,
    show_default=True,
    help="Wall-clock limit of one call, from name look-up to the last byte; above 0, at most 3,600.",
)
@click.option(
    "--breaker-log",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where each change of a circuit's state is written.  [default: breaker.log beside relay.py; "
    "with `eaimw relay` in the working directory]",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where a line for each transaction is written from which `eaimw sim replay` tells what other settings would "
    "have done.  [default: off]",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve POST /tx over HTTP instead of reading INPUT; port 0: any free one.  [default: off]",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A hub.toml with the targets; an option given here as well wins over it, for every target.",
)
@click.option(
    "--admin",
    metavar="HOST:PORT",
    help="Serve figures, health and targets over HTTP there; port 0: any free one.  An address that others can reach "
    "needs a token in EAIMW_ADMIN_TOKEN.  [default: off]",
)
@click.option(
    "--core-url", metavar="URL", default=CORE_URL, show_default=True, help="Where CORE is; without a path: /tx."
)
@click.option(
    "--claim-url", metavar="URL", default=CLAIM_URL, show_default=True, help="Where CLAIM is; without a path: /tx."
)
@click.option(
    "--backpressure/--no-backpressure",
    default=None,
    help="Take no more of a target's lines than it has room for, instead of E905 at reading speed.  "
    "[default: on where INPUT is a regular file]",
)
@click.pass_context
def relay(
    ctx: click.Context,
    /,
    input_name: str,
    breaker_log: Path | None,
    record: Path | None,
    config: Path | None,
    listen: str | None,
    admin: str | None,
    backpressure: bool | None,
    **options: Any,
) -> None:
    """Relay transactions to their targets.

    Reads one JSON object per line from INPUT (a file; standard input by default) and writes one reply per line to
    standard output as soon as it is known; with --listen it serves HTTP instead. A target that is slow or dead is
    refused at once, by itself: E905 when its calls in flight reach the limit, E904 while its circuit is open.

    Exit status: 0 every transaction got its reply; 1 input, output, log or address could not be used; 2 wrong usage.
    """
    file = None
    try:
        address = None if listen is None else parse_address(listen, "listen")
        if config is None:
            source = Source(two_targets(**options))
        else:
            given, path = _given(ctx, options), config
            file = with_options(read(path), given)
            source = Source(file.settings, file, lambda: with_options(read_hub_file(path), given))
            breaker_log = breaker_log or file.breaker_log
    except SettingsError as fault:
        option = fault.setting.replace("_", "-")
        raise click.UsageError(f"--{option}{str(fault).removeprefix(fault.setting)}", ctx) from None
    plane = admin_settings(ctx, admin, file)
    paths = log_paths(ctx, breaker_log or Path(ctx.obj or BREAKER_LOG), file, record)
    if address is not None:
        if ctx.get_parameter_source("input_name") == ParameterSource.COMMANDLINE:
            raise click.UsageError("INPUT does not go with --listen: transactions come over HTTP then", ctx)
        from eaimw.cli.serving import serve  # the server is loaded only where it is used

        ctx.exit(serve(source, paths, address, plane, file.tls if file is not None else None))
    with signals():
        try:
            raise_limit(source.settings)
            output = output_fd()
            with input_fd(input_name, "relay") as fd, opened_logs(paths) as logs:
                problem = uvloop.run(_run(source, logs, plane, fd, output, backpressure))
        except (Unusable, SettingsError) as fault:  # a setting that shows only in use, as a CA file
            problem = str(fault)
    if problem is not None:
        say(f"relay: {problem}")
        ctx.exit(1)


def _given(ctx: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """What was really given on the command line, by its key in a hub.toml. Raises UsageError."""
    given = {
        name: value for name, value in options.items() if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE
    }
    for option in ("core_url", "claim_url"):
        if option in given:
            raise click.UsageError(
                f"--{option.replace('_', '-')} does not go with --config: its targets have urls", ctx
            )
    keys = {"fail_threshold": "breaker.fail_threshold", "reset_timeout": "breaker.reset_timeout"}
    return {keys.get(name, name): value for name, value in given.items()}


async def _run(
    source: Source,
    logs: Logs,
    plane: AdminSettings | None,
    fd: int,
    output: int,
    backpressure: bool | None,
) -> str | None:
    is_file = stat.S_ISREG(os.fstat(fd).st_mode)
    started = time.monotonic()
    async with open_hub(source.settings, breaker_log=logs.breaker, access_log=logs.of_transactions) as hub:
        reload = reload_of(hub, source, raise_limit)
        async with admin_plane(hub, logs, plane, reload):
            run = LineRelay(hub, fd, output, backpressure=is_file if backpressure is None else backpressure)
            heed_signals(run.stop, logs, reload)
            with progress(run, os.fstat(fd).st_size if is_file else None):
                await run.run()
            summary(hub, run.read, run.replied, time.monotonic() - started)
    return run.problem
