"""`eaimw sim backlog`: what waits when more comes in than gets done."""

from __future__ import annotations

import click

from eaimw.cli.sim.printing import json_option, seed_option, show


@click.command()
@seed_option
@json_option
def backlog(seed: int, as_json: bool) -> None:
    """See what waits when more comes than gets done.

    80 a second come in; the target does 60 a second for 120 s and 100 a second after. By the fluid model and in
    discrete events, without and with 40 further attempts a second; and our hub before that target, which refuses
    instead of keeping anybody waiting. Nothing in it is left to chance: every seed gives the same.
    """
    from eaimw.sim.studies.backlog import study

    show(study(seed), as_json)
