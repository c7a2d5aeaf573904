"""The command line: parse, call, print. One file per command, imported when it is asked for."""

from __future__ import annotations

import click

from eaimw.cli.lazy import Lazy

COMMANDS = ("relay", "serve", "send", "targets", "check", "config", "sim", "grade")

main = click.version_option(package_name="eaimw")(
    Lazy("eaimw", package=__name__, names=COMMANDS, help="An integration hub (EAI) in which no back-end drags another.")
)
