"""`eaimw sim recover`: what a target feels when it comes back."""

from __future__ import annotations

import click

from eaimw.cli.sim.printing import json_option, seed_option, show


@click.command()
@seed_option
@json_option
def recover(seed: int, as_json: bool) -> None:
    """See what a target feels when it comes back.

    100 transactions a second come, and whoever is not served comes again; for 5 s nobody listens at the target. A row
    each for a hub without a breaker, with one, and with max-inflight as well.
    """
    from eaimw.sim.studies.recover import study

    show(study(seed), as_json)
