"""`eaimw sim run`: a scenario, played with one seed or with many."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eaimw.cli.files import faults_said
from eaimw.cli.sim.printing import OnStep, json_option, show, time_passing

if TYPE_CHECKING:
    from eaimw.sim.record import Record
    from eaimw.sim.results import Result
    from eaimw.sim.scenario import Scenario

MOST_SEEDS = 100_000
NO_MATPLOTLIB = "--plot needs matplotlib, which is not there; install it with scripts/setup plot"


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="What all chance comes from; the same seed gives the same figures.  [default: 1]",
)
@click.option("--seeds", type=click.IntRange(1, MOST_SEEDS), metavar="N", help="Play it with each seed from 1 to N.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OUT.svg",
    help="Draw throughput, latency, state and calls in flight over time; .svg, .png or .pdf.",
)
@json_option
@click.pass_context
def run(
    ctx: click.Context, /, file: Path, seed: int | None, seeds: int | None, plot: Path | None, as_json: bool
) -> None:
    """Play a scenario, and see whether what must hold does.

    FILE says in TOML who calls, how the targets are over time, how the hub is set, and what must hold at the end;
    examples/scenarios has some. Figures are simulated: the real hub in virtual time.

    Exit status: 0 all that must hold does; 1 something does not, or the file cannot be read; 2 the file has faults, or
    wrong usage.
    """
    from eaimw.sim.results import runs_together

    if seeds is not None and (seed is not None or plot is not None):
        raise click.UsageError("--seeds stands alone: --seed and --plot are for one run", ctx)
    if plot is not None:
        _check_plot(plot, ctx)
    scenario = _read(file)
    if seeds is None:
        with time_passing(scenario.seconds) as on_step:
            result, record = _played(scenario, 1 if seed is None else seed, file, on_step)
        show(result.findings(), as_json)
        if plot is not None:
            _draw(scenario, record, plot)
        results = [result]
    else:
        with _progress(range(1, seeds + 1)) as each:
            results = [_played(scenario, number, file)[0] for number in each]
        show(runs_together(results), as_json)
    _end(results, file)


def _end(results: list[Result], file: Path) -> None:
    """Exit 1 where something does not hold, with the commands that show it again."""
    failed = [result for result in results if result.failed]
    for result in failed[:5]:
        click.echo(f"seed {result.seed} failed: {'; '.join(result.failed)}", err=True)
        click.echo(f"  again: {_again(file, result.seed)}", err=True)
    if len(failed) > 5:
        click.echo(f"and {len(failed) - 5} more seeds failed", err=True)
    if failed:
        sys.exit(1)


def _again(file: Path, seed: int) -> str:
    return f"eaimw sim run {shlex.quote(str(file))} --seed {seed}"


def _read(file: Path) -> Scenario:
    from eaimw.sim.scenario import read_scenario

    with faults_said():
        return read_scenario(file)


def _played(scenario: Scenario, seed: int, file: Path, on_step: OnStep | None = None) -> tuple[Result, Record]:
    """One run; a fault of ours that it meets is said with the command that meets it again."""
    from eaimw.sim.loop import NotSimulated
    from eaimw.sim.results import run_scenario

    try:
        return run_scenario(scenario, seed, on_step)
    except (Exception, NotSimulated) as problem:
        click.echo(f"seed {seed} met a fault: {type(problem).__name__}: {problem}", err=True)
        click.echo(f"  again: {_again(file, seed)}", err=True)
        sys.exit(1)


@contextlib.contextmanager
def _progress(seeds: range) -> Iterator[Iterable[int]]:
    """A bar on a terminal."""
    if not sys.stderr.isatty():
        yield seeds
        return
    with click.progressbar(seeds, label=f"{len(seeds):,} seeds", file=sys.stderr) as bar:
        yield bar


def _check_plot(plot: Path, ctx: click.Context) -> None:
    from importlib.util import find_spec

    from eaimw.sim.plot import FORMATS

    if plot.suffix not in FORMATS:
        raise click.UsageError(f"--plot must end in {', '.join(FORMATS)}; not {plot.name!r}", ctx)
    if find_spec("matplotlib") is None:
        raise click.UsageError(NO_MATPLOTLIB, ctx)


def _draw(scenario: Scenario, record: Record, plot: Path) -> None:
    from eaimw.sim.plot import draw

    try:
        draw(scenario, record, plot)
    except OSError as problem:
        click.echo(f"{plot} cannot be written: {problem.strerror}", err=True)
        sys.exit(1)
