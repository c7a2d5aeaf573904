"""`eaimw grade`: seven steps for anyone's breaker and relay."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from eaimw.grade.grade import grade_breaker, grade_relay, our_breaker, our_relay, relay_command
from eaimw.grade.steps import BREAKER_STEPS, RELAY_STEPS, TITLES, Verdict

FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
ASKED = """
\b
Asked of a breaker: CircuitBreaker(failure_threshold, reset_timeout, clock) with
allow(), record_success(), record_failure() and state (equal to CLOSED, OPEN or
HALF_OPEN); time is read through the given clock only.
\b
Asked of a relay: it is run as
  python FILE --fail-threshold N --reset-timeout S --max-inflight N --timeout S
    --breaker-log FILE --core-url URL --claim-url URL
reads transactions from standard input, a JSON object a line with tx_id and target
(CORE or CLAIM) and perhaps op, and writes one reply for each to standard output, as
soon as it is known: a JSON object on one line with tx_id and code. Everything else
goes to standard error. It ends when its input has ended and the last reply is out.
\b
Asked of a relay with --listen: it is run with --listen 127.0.0.1:0 as well, says in a
line on standard error `listening on http://HOST:PORT`, and answers each POST /tx with
the reply as the body, whatever the HTTP status. It ends on SIGTERM.
"""
STEPS = "\b\n" + "\n".join(f"{step}  {title}" for step, title in TITLES.items())


@click.command(
    help="Grade a breaker.py (steps 1 and 2), a relay.py (steps 3 to 7), or both; without either, ours.\n\n"
    f"{STEPS}\n\nEach step is passed, or failed with a reason and a hint. Exit status 1 if one is failed.",
    epilog=ASKED,
)
@click.option("--breaker", type=FILE, metavar="FILE", help="The breaker to grade.")
@click.option("--relay", type=FILE, metavar="FILE", help="The relay to grade.")
@click.option("--step", type=click.IntRange(1, 7), metavar="N", help="Grade only this step.")
@click.option("--listen", is_flag=True, help="Speak HTTP to the relay (steps 3 to 7) instead of JSON lines.")
@click.pass_context
def grade(context: click.Context, breaker: Path | None, relay: Path | None, step: int | None, listen: bool) -> None:
    is_ours = breaker is None and relay is None
    breaker_steps = _wanted(BREAKER_STEPS, step) if breaker or is_ours else ()
    relay_steps = _wanted(RELAY_STEPS, step) if relay or is_ours else ()
    if step is not None and not breaker_steps and not relay_steps:
        needed = "--breaker FILE" if step in BREAKER_STEPS else "--relay FILE"
        raise click.UsageError(f"step {step} ({TITLES[step]}) needs {needed}")
    if listen and not relay_steps:
        raise click.UsageError("--listen is for a relay: it needs --relay FILE, or a step from 3 on")
    verdicts: list[Iterable[Verdict]] = []
    if breaker_steps:
        verdicts.append(grade_breaker(breaker or our_breaker(), breaker_steps))
    if relay_steps:
        verdicts.append(grade_relay(relay_command(relay) if relay else our_relay(), relay_steps, listens=listen))
    failed = False
    with _ended_in_order():
        for verdict in chain.from_iterable(verdicts):
            click.echo(verdict)
            failed |= not verdict.passed
    if failed:
        click.echo("what is asked of a breaker and a relay: eaimw grade --help", err=True)
    context.exit(1 if failed else 0)


def _wanted(steps: tuple[int, ...], only: int | None) -> tuple[int, ...]:
    return steps if only is None else tuple(step for step in steps if step == only)


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM, or a terminal that goes, ends what was started too: a relay that serves would not notice by itself."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {each: signal.signal(each, end) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
