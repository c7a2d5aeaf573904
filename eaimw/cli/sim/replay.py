"""`eaimw sim replay`: what would other settings have done?"""

from __future__ import annotations

from pathlib import Path

import click

from eaimw.cli.files import faults_said, read
from eaimw.cli.sim.printing import json_option, seed_option, show, time_passing


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="A hub.toml with the settings to try: breaker, max_inflight and timeout of each target.",
)
@seed_option
@json_option
def replay(file: Path, config: Path, seed: int, as_json: bool) -> None:
    """Tell what other settings would have done with recorded transactions.

    FILE is what `eaimw relay --record` has written, or an access log. Its transactions go once more through the hub, in
    virtual time, each when it came; a call is answered as it was then, after as long. Where one was refused then, it is
    assumed that it would have been answered as the nearest call of its target in time; such ones are counted.

    Exit status: 0 replayed; 1 a file cannot be read; 2 a file has faults, or wrong usage.
    """
    from eaimw.sim.studies.recording import BadRecording
    from eaimw.sim.studies.replay import replay_study

    settings = read(config).settings
    with faults_said(BadRecording):
        findings = replay_study(file, settings, seed, time_passing)
    show(findings, as_json)
