"""`eaimw check`: is this hub.toml good?"""

from __future__ import annotations

from pathlib import Path

import click

from eaimw.cli.files import read


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
def check(file: Path) -> None:
    """Check a hub.toml: every fault at once, with its place, what was found, what is allowed.

    Exit status: 0 it is good; 1 it cannot be read; 2 it has faults, and no hub would start with it.
    """
    settings = read(file).settings
    routes = "1 route" if len(settings.routes) == 1 else f"{len(settings.routes)} routes"
    click.echo(f"{file}: good: {', '.join(settings.targets)}; {routes}")
