"""What the commands under `eaimw sim` have in common: `--seed`, `--json`, a bar, and the printing of what was found.

@click.command()
@seed_option
@json_option
def cascade(seed: int, as_json: bool) -> None:
    show(cascade_study(seed), as_json)
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from eaimw.sim.findings import Cell, Column, Findings, Table

OnStep = Callable[[float], None]
STEPS = 200  # of the bar of one run
GAP = "  "
WIDTH = 100  # columns of a sentence, where no terminal says otherwise

seed_option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    default=1,
    show_default=True,
    help="What all chance comes from; the same seed gives the same figures.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")


def show(findings: Findings, as_json: bool) -> None:
    """Print what was found: as tables with their sentences, or as one JSON object on one line."""
    if as_json:
        click.echo(json.dumps(findings.record(), allow_nan=False))
        return
    lines = tables(findings)
    if findings.notes:
        lines.append("")
        for note in findings.notes:
            lines += _wrapped(note)
    click.echo("\n".join(lines))


@contextlib.contextmanager
def time_passing(seconds: float) -> Iterator[OnStep | None]:
    """A bar of one run's virtual time on a terminal. It is drawn from within the run, where no clock may be read."""
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=STEPS, label=f"{seconds:g} s simulated", file=sys.stderr) as bar:

        def on_step(now: float) -> None:
            at = min(STEPS, int(STEPS * now / seconds) if seconds else STEPS)
            if at > bar.pos:
                bar.pos = at
                bar.render_progress()

        yield on_step


def tables(findings: Findings) -> list[str]:
    """The lines of its table, and of those beside it."""
    lines = table_lines(findings.table)
    for table in findings.beside:
        lines += ["", *_wrapped(table.title), *table_lines(table)]
    return lines


def table_lines(table: Table) -> list[str]:
    """The names of the columns, the rows, and where the figures come from. Names stand left, numbers right."""
    cells = [[_shown(cell, column) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows]
    names = [column.name for column in table.columns]
    widths = [max(map(len, each)) for each in zip(names, *cells, strict=True)]
    sides = ["<" if all(isinstance(cell, str) for cell in each) else ">" for each in zip(*table.rows, strict=True)]
    lines = [
        GAP.join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in (names, *cells)
    ]
    return [*lines, *_wrapped(origin(table))]


def origin(table: Table) -> str:
    """A line that says of each figure where it comes from: modelled, simulated or measured."""
    kinds = table.kinds()
    found = list(dict.fromkeys(kinds.values()))
    if len(found) == 1:
        return f"{found[0]}: all figures"
    return "; ".join(f"{kind}: {', '.join(name for name in kinds if kinds[name] == kind)}" for kind in found)


def _shown(cell: Cell, column: Column) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, (str, int)):
        return cell if isinstance(cell, str) else f"{cell:,}"
    return f"{cell:,.{column.decimals}f}"


def _wrapped(sentence: str) -> list[str]:
    columns = shutil.get_terminal_size((WIDTH, 24)).columns
    return textwrap.wrap(sentence, max(20, min(WIDTH, columns)), break_on_hyphens=False)
