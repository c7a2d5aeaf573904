"""The command line: parse, call, print. One file per command, imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

import click

COMMANDS = ("relay", "serve", "send", "targets", "check", "config", "grade")


class _Commands(click.Group):
    """`eaimw NAME` is the command NAME of the file NAME.py here; the relay does not start slower for the grader."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"eaimw.cli.{name}"), name)
        return command


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="eaimw")
def main() -> None:
    """An integration hub (EAI) in which no back-end drags another."""
