"""`eaimw check`: is this hub.toml good?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from eaimw.cli.files import faults_of_pem_files, read


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
def check(file: Path) -> None:
    """Check a hub.toml: every fault at once, with its place, what was found, what is allowed.

    Where it has none, the certificates and keys that it names are tried as well.

    Exit status: 0 it is good; 1 it cannot be read; 2 it has faults, and no hub would start with it.
    """
    found = read(file)
    faults = faults_of_pem_files(found)
    if faults:
        click.echo("\n".join(f"{file}: {fault}" for fault in faults), err=True)
        sys.exit(2)
    settings = found.settings
    routes = "1 route" if len(settings.routes) == 1 else f"{len(settings.routes)} routes"
    click.echo(f"{file}: good: {', '.join(settings.targets)}; {routes}")
