"""`eaimw targets`: how a running hub's targets are, as a table."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import ssl
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from eaimw.cli.admin import TOKEN_VARIABLE
from eaimw.cli.target_table import table
from eaimw.config import TOKEN_ALLOWED, Endpoint, is_token
from eaimw.errors import CallFailed, SettingsError, Unusable

if TYPE_CHECKING:
    from eaimw.adapters.hub_calls import HubCalls

EVERY = 1.0  # seconds
LIMIT = 5.0  # seconds for one look
MAX_ANSWER = 64 * 1_048_576  # bytes; a target takes less than two thousand, so this is no limit for a real hub
# Of a terminal: to the first column of the first line; what is right of here; what is below.
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class _NobodyThere(Unusable):
    """No connection could be made."""


@click.command()
@click.option(
    "--admin",
    "where",
    metavar="URL",
    required=True,
    help="The admin plane, as the relay says it: http://127.0.0.1:9300, or 127.0.0.1:9300.",
)
@click.option("--watch", is_flag=True, help="Look again every second, until Ctrl-C; wait where nothing listens yet.")
@click.pass_context
def targets(ctx: click.Context, /, where: str, watch: bool) -> None:
    """Show the targets of a hub that runs: states, probes, calls in flight, times, replies by code.

    The hub must have been started with --admin (or [admin] listen). The token, if it asks for one, comes from
    EAIMW_ADMIN_TOKEN. On a terminal --watch draws in place; elsewhere it prints one table after another.

    Exit status: 0 shown, or --watch ended by Ctrl-C; 1 there was nothing to show (with --watch: what answered first was
    no admin plane, or asked for another token); 2 wrong usage.
    """
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is not None and not is_token(token):
        raise click.UsageError(f"{TOKEN_VARIABLE} must be {TOKEN_ALLOWED}", ctx)
    base = (where if "://" in where else f"http://{where}").rstrip("/").removesuffix("/targets")
    try:
        Endpoint.parse(base, "admin")
    except SettingsError as fault:
        raise click.UsageError(f"--{fault}", ctx) from None

    from eaimw.adapters.hub_calls import HubCalls  # requests is loaded only where it is used

    with closing(HubCalls(LIMIT)) as calls:
        try:
            if watch:
                _watch(lambda: _look(calls, base, token))
            else:
                click.echo("\n".join(_look(calls, base, token)))
        except Unusable as problem:
            click.echo(f"targets: {problem}", err=True)
            ctx.exit(1)


def _look(calls: HubCalls, base: str, token: str | None) -> list[str]:
    """The table as it is now. Raises Unusable, with what to do."""
    says = "the address that the relay says at its start (admin on http://HOST:PORT)"
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        answer = calls.request("GET", f"{base}/targets", MAX_ANSWER, headers=headers)
    except CallFailed as problem:
        raise _unanswered(base, problem, says) from None
    if answer.status == 401 and token is None:
        raise Unusable(f"{base} asks for a token: put it into {TOKEN_VARIABLE}")
    if answer.status == 401:
        raise Unusable(f"the token in {TOKEN_VARIABLE} is not the one that {base} asks for")
    try:
        found = json.loads(answer.body) if answer.status == 200 else {}
        if found:
            return table(found, datetime.now(UTC), _columns())
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError):
        pass  # it is JSON perhaps, but not of targets
    raise Unusable(f"what answers at {base} is no admin plane (HTTP {answer.status}); give {says}")


def _unanswered(base: str, problem: CallFailed, says: str) -> Unusable:
    """What to do about it."""
    from eaimw.adapters.hub_door import speaks_tls

    endpoint = Endpoint.parse(base)
    no_answer = f"no answer from an admin plane at {base}: {problem}"
    if endpoint.tls and (problem.handed_over or isinstance(problem.__cause__, ssl.SSLError)):
        return Unusable(f"{no_answer}; the admin plane speaks http, without TLS: give http://{endpoint.authority}")
    if problem.handed_over and not endpoint.tls and speaks_tls(endpoint):
        return Unusable(f"what listens at {base} speaks TLS; the admin plane speaks http, without TLS: give {says}")
    remedy = f"start the relay with --admin, or give {says}"
    return (Unusable if problem.handed_over else _NobodyThere)(f"{no_answer}; {remedy}")


def _watch(look: Callable[[], list[str]]) -> None:
    """Until Ctrl-C. What keeps a look from its table stands in place of it.

    Raises Unusable as long as there has been no table, except where nobody listens: a hub may still start there.
    """
    has_table = False
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                shown = look()
                has_table = True
            except Unusable as problem:
                if not (has_table or isinstance(problem, _NobodyThere)):
                    raise
                shown = textwrap.wrap(str(problem), _columns() or 10_000)
            lines = [f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", *shown]
            if _is_screen():
                _draw(lines)
            else:
                click.echo("\n".join(lines) + "\n")
            time.sleep(EVERY)


def _draw(lines: list[str]) -> None:
    """On the terminal's screen, over what stood there; what it has no lines for is left out, and said to be."""
    room = max(2, shutil.get_terminal_size().lines - 1)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"... {len(lines) - room + 1} lines more: make the window higher"]
    click.echo(HOME + "".join(f"{REST_OF_LINE}{line}\n" for line in lines) + REST_OF_SCREEN, nl=False)


def _is_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _columns() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
