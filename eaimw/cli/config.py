"""`eaimw config`: what a hub.toml puts in force, and where each value came from."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import click

from eaimw.cli.files import read
from eaimw.hub_file import KEYS, OP_KEYS, value_of
from eaimw.toml_file import spelled


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
def config(file: Path) -> None:
    """Show what is in force for each target and op of a hub.toml, and where each value came from.

    What it prints is itself a hub.toml. Exit status as `eaimw check`.
    """
    found = read(file)
    for key in ("listen", "breaker_log", "access_log"):
        value = getattr(found, key)
        if value is not None:
            click.echo(f"hub.{key} = {spelled(str(value))}")
    if found.tls is not None:
        for each in fields(found.tls):
            path = getattr(found.tls, each.name)
            if path is not None:
                click.echo(f"hub.tls_{each.name} = {spelled(str(path))}")
    if found.admin_listen is not None:
        click.echo(f"admin.listen = {spelled(found.admin_listen)}")
    if found.admin_token is not None:
        click.echo("# admin.token: there is one; it is not shown")
    click.echo()
    for name, target in found.settings.targets.items():
        click.echo(f"[targets.{_key(name)}]")
        for key in KEYS:
            value = value_of(target, key)
            if value is not None:
                click.echo(f"{key} = {spelled(value)}  # {found.origins[name][key]}")
        click.echo()
    if found.settings.routes:
        click.echo("[routes]")
        for op, name in found.settings.routes.items():
            click.echo(f"{_key(op)} = {spelled(name)}")
        click.echo()
    for op, settings in found.settings.ops.items():
        click.echo(f"[ops.{_key(op)}]")
        for key in OP_KEYS:
            click.echo(f"{key} = {spelled(getattr(settings, key))}  # {found.op_origins[op][key]}")
        click.echo()


def _key(name: str) -> str:
    """A name as TOML spells it where it is a key."""
    return spelled(name) if "." in name else name
