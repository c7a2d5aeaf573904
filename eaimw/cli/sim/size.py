"""`eaimw sim size`: max-inflight, threshold and reset timeout for a target."""

from __future__ import annotations

import click

from eaimw.cli.sim.printing import json_option, seed_option, show


@click.command()
@click.option(
    "--rate", type=float, metavar="R", required=True, help="Calls a second of the target; above 0, at most 10,000."
)
@click.option(
    "--latency",
    type=float,
    metavar="L",
    required=True,
    help="Seconds that a call takes on average; above 0, at most 60, and R times L at most 500.",
)
@click.option(
    "--refusals",
    type=float,
    metavar="P",
    default=0.01,
    show_default=True,
    help="The share of calls that may be refused because all places are taken; 0.001 to 0.5.",
)
@seed_option
@json_option
@click.pass_context
def size(ctx: click.Context, /, rate: float, latency: float, refusals: float, seed: int, as_json: bool) -> None:
    """Find max-inflight and a breaker's settings.

    Calls in flight on average (Little's law); the smallest max-inflight with which fewer than P of the calls are
    refused, by Erlang's formula B and by simulation; and a threshold and a reset timeout that the rate makes sensible,
    each with its rule.
    """
    from eaimw.sim.modes import Refused
    from eaimw.sim.studies.size import study

    try:
        findings = study(seed, rate, latency, refusals)
    except Refused as problem:
        raise click.UsageError(f"--{problem}", ctx) from None
    show(findings, as_json)
