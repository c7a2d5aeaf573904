"""`eaimw send`: JSON lines to a hub that runs, one reply per line."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click
import uvloop

from eaimw.adapters.line_sender import LineSender
from eaimw.app import say
from eaimw.cli.progress import progress
from eaimw.cli.running import heed_ending, say_counts, signals
from eaimw.cli.streams import input_fd, output_fd
from eaimw.config import Endpoint, TargetSettings
from eaimw.errors import NoHub, SettingsError, Unusable

if TYPE_CHECKING:
    from eaimw.adapters.hub_calls import HubCalls

AT_ONCE = 8
# Each is a thread, and more than a few dozen are no faster; it also stays below the usual 1,024 descriptors.
MOST_AT_ONCE = 500
TIMEOUT = 60.0  # seconds; the hub's own targets may take long


@click.command()
@click.argument("source", metavar="[FILE]", default="-")
@click.option(
    "--to",
    metavar="URL",
    required=True,
    help="Where the hub listens, such as http://127.0.0.1:8080; without a path: /tx.",
)
@click.option(
    "--at-once",
    type=click.IntRange(1, MOST_AT_ONCE),
    metavar="N",
    default=AT_ONCE,
    show_default=True,
    help="Transactions under way at the same time; above a target's max_inflight, the smallest of them where there are "
    "several, the rest gets E905.",
)
@click.option(
    "--timeout",
    type=float,
    metavar="S",
    default=TIMEOUT,
    show_default=True,
    help="Seconds to wait for the first byte of a reply, and for each further piece; above 0, at most 3,600.",
)
@click.option(
    "--cert",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Your own certificate, in PEM, for a hub with tls_client_ca; its key may stand in the same file.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The key of --cert, in PEM, not encrypted.",
)
@click.pass_context
def send(
    ctx: click.Context, /, source: str, to: str, at_once: int, timeout: float, cert: Path | None, key: Path | None
) -> None:
    """Send transactions to a hub that runs.

    Reads one JSON object per line from FILE (`-` or nothing: standard input), sends each as it is in a POST of its own,
    and writes one reply per line to standard output as soon as it is known, in no certain order. What got no reply is
    told on standard error, with what may have become of it; it is never sent a second time. Where the first answers
    show that no hub listens there, or that it wants to be called otherwise, that is said once and nothing more is sent.

    Ctrl-C or SIGTERM: nothing new is sent, what is in flight is waited for; a second one ends it at once.

    Exit status: 0 every transaction got a reply, whatever its code; 1 some did not, because there was no hub, no reply,
    or a signal before the end of the input, or input, output or certificate could not be used; 2 wrong usage.
    """
    try:
        hub = Endpoint.parse(to, "to")
        TargetSettings(to, timeout=timeout)  # to us the hub is a target, with the same bounds
    except SettingsError as fault:
        raise click.UsageError(f"--{fault}", ctx) from None
    if key is not None and cert is None:
        raise click.UsageError("--key needs --cert beside it", ctx)
    if cert is not None and not hub.tls:
        raise click.UsageError("--cert is for a hub that speaks https: give --to https://...", ctx)
    from eaimw.adapters.hub_calls import HubCalls, url_of  # requests is loaded only where it is used

    with signals():
        try:
            output = output_fd()
            with input_fd(source, "send") as fd, closing(HubCalls(timeout, at_once, cert, key)) as calls:
                is_complete = uvloop.run(_run(calls, url_of(hub), fd, output, at_once))
        except Unusable as fault:
            say(f"send: {fault}")
            is_complete = False
    ctx.exit(0 if is_complete else 1)


async def _run(calls: HubCalls, url: str, fd: int, output: int, at_once: int) -> bool:
    """Did every transaction of the input get its reply?"""
    status, started = os.fstat(fd), time.monotonic()
    run = LineSender(lambda raw: calls.post(url, raw), _tell, fd, output, at_once)
    heed_ending(run.stop, "send")
    with progress(run, status.st_size if stat.S_ISREG(status.st_mode) else None):
        await run.run()
    seconds = time.monotonic() - started
    if isinstance(run.no_hub, NoHub):
        say(f"send: {url}: {run.no_hub}; nothing more is sent")
    elif run.no_hub is not None:
        say(f"send: no connection to {url}: {run.no_hub}; start the hub there (eaimw relay --listen), or correct --to")
    if run.problem is not None:
        say(f"send: {run.problem}")
    if run.cut_after is not None:
        say(f"send: ended before the input did: what stands after line {run.cut_after:,} was not sent")
    say_counts(run.codes)
    lost = f", not sent {run.unsent:,}, outcome unknown {run.unknown:,}" if run.unsent or run.unknown else ""
    say(
        f"transactions {run.read:,}, replies {run.replied:,}{lost}, {seconds:.1f} s, "
        f"{run.replied / max(seconds, 0.001):,.0f} replies/s"
    )
    return run.problem is None and run.cut_after is None and run.read == run.replied


def _tell(sentence: str) -> None:
    """Say it, and wait until it is written: none of these is dropped, however slow standard error is."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # a progress bar may stand there
    with contextlib.suppress(OSError):  # nobody reads it any more; the exit status tells that there was one
        click.echo(f"{clear}send: {sentence}", err=True)
