"""`eaimw sim cascade`: one slow target, with each layer of protection and without."""

from __future__ import annotations

import click

from eaimw.cli.sim.printing import json_option, seed_option, show


@click.command()
@seed_option
@json_option
def cascade(seed: int, as_json: bool) -> None:
    """See what one slow target stops, and what helps.

    100 transactions a second come for 12 s to 32 callers; the target takes 40 ms, and from second 3 on 4 s. A row each
    for no protection, a timeout of 0.3 s, a breaker as well, and a bulkhead of 8 as well; beside it a published table
    of the same experiment. Nothing in it is left to chance: every seed gives the same.
    """
    from eaimw.sim.studies.cascade import study

    show(study(seed), as_json)
