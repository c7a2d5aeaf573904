"""`eaimw sim synchrony`: a thousand callers who have failed together, and how they come again."""

from __future__ import annotations

import click

from eaimw.cli.sim.printing import json_option, seed_option, show


@click.command()
@seed_option
@json_option
def synchrony(seed: int, as_json: bool) -> None:
    """See callers who fail together come again.

    1,000 of them, after a fixed wait, exponential backoff or full jitter, before a target that serves 250 a second; and
    before our hub, waiting as its refusals say.
    """
    from eaimw.sim.studies.synchrony import study

    show(study(seed), as_json)
