"""A group whose commands are imported when they are asked for: the relay does not start slower for the grader."""

from __future__ import annotations

from importlib import import_module

import click

from eaimw.errors import nearest

HELP_NAMES = {"help_option_names": ["-h", "--help"]}  # of the settings of a command's context


class Lazy(click.Group):
    """`NAME` is the command NAME of the file NAME.py in the package. names: in the order of the help."""

    def __init__(self, name: str, *, package: str, names: tuple[str, ...], help: str) -> None:  # noqa: A002 - click's
        super().__init__(name, help=help, context_settings=HELP_NAMES)
        self._package = package
        self._names = names

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._names)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._names:
            return None
        command: click.Command = getattr(import_module(f"{self._package}.{name}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._names and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}{nearest(name, self._names)}")
        return super().resolve_command(ctx, args)
