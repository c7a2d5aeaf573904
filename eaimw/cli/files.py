"""What the commands that take a hub.toml have in common."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from eaimw.errors import Unusable
from eaimw.hub_file import BadHubFile, HubFile, read_hub_file


def read(path: Path) -> HubFile:
    """The file; or its faults on standard error and the end: 1 it cannot be read, 2 it has faults."""
    try:
        return read_hub_file(path)
    except Unusable as problem:
        click.echo(str(problem), err=True)
        sys.exit(1)
    except BadHubFile as problem:
        click.echo(str(problem), err=True)
        sys.exit(2)
