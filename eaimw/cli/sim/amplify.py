"""`eaimw sim amplify`: how retries at several layers multiply."""

from __future__ import annotations

import click

from eaimw.cli.sim.printing import json_option, seed_option, show


@click.command()
@click.option(
    "--layers",
    type=click.IntRange(1, 5),
    metavar="N",
    default=3,
    show_default=True,
    help="Hubs in a chain before the target.",
)
@click.option(
    "--attempts",
    type=click.IntRange(1, 5),
    metavar="N",
    default=3,
    show_default=True,
    help="How often each layer sends what fails, the first time included.",
)
@seed_option
@json_option
def amplify(layers: int, attempts: int, seed: int, as_json: bool) -> None:
    """See how retries at several layers multiply.

    The calls of a target that fails, by arithmetic and counted in a chain of real hubs: with every layer trying again,
    with one alone, and with every hub's circuit breaker as it is by default. Nothing in it is left to chance: every
    seed gives the same.
    """
    from eaimw.sim.studies.amplify import study

    show(study(seed, layers, attempts), as_json)
