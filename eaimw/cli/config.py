"""`eaimw config`: what a hub.toml puts in force, and where each value came from."""

from __future__ import annotations

import json
from pathlib import Path

import click

from eaimw.cli.files import read
from eaimw.hub_file import KEYS, value_of


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
def config(file: Path) -> None:
    """Show what is in force for each target of a hub.toml, and where each value came from.

    What it prints is itself a hub.toml. Exit status as `eaimw check`.
    """
    found = read(file)
    for key in ("listen", "breaker_log", "access_log"):
        value = getattr(found, key)
        if value is not None:
            click.echo(f"hub.{key} = {_toml(str(value))}")
    if found.admin_listen is not None:
        click.echo(f"admin.listen = {_toml(found.admin_listen)}")
    if found.admin_token is not None:
        click.echo("# admin.token: there is one; it is not shown")
    click.echo()
    for name, target in found.settings.targets.items():
        click.echo(f"[targets.{_toml(name)}]" if "." in name else f"[targets.{name}]")
        for key in KEYS:
            value = value_of(target, key)
            if value is not None:
                click.echo(f"{key} = {_toml(value)}  # {found.origins[name][key]}")
        click.echo()
    if found.settings.routes:
        click.echo("[routes]")
        for op, name in found.settings.routes.items():
            click.echo(f"{_toml(op) if '.' in op else op} = {_toml(name)}")


def _toml(value: object) -> str:
    """A value as TOML spells it; for numbers and for the strings that a hub.toml has that is as JSON does."""
    return json.dumps(value, ensure_ascii=False)
