"""The command line: parse, call, print. One file per command."""

from __future__ import annotations

import click

from eaimw.cli.relay import relay


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="eaimw")
def main() -> None:
    """An integration hub (EAI) in which no back-end drags another."""


main.add_command(relay)
