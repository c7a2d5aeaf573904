"""`eaimw check`: is this hub.toml good?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from eaimw.cli.admin import TOKEN_VARIABLE
from eaimw.cli.files import faults_of_pem_files, read
from eaimw.config import parse_address
from eaimw.hub_file import HubFile


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
    if _needs_a_token(found):
        click.echo(f"{file}: others can reach [admin] listen: it needs {TOKEN_VARIABLE} where the hub is started")


def _needs_a_token(file: HubFile) -> bool:
    """Must the environment bring the token that the admin plane cannot be without?"""
    if file.admin_listen is None or file.admin_token is not None:
        return False
    return not parse_address(file.admin_listen, "listen").is_loopback
