"""`eaimw check`: is this hub.toml good?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from eaimw.cli.admin import TOKEN_VARIABLE
from eaimw.cli.files import faults_of_pem_files, read
from eaimw.config import parse_address
from eaimw.hub_file import HubFile
from eaimw.sense import Finding, findings
from eaimw.toml_file import spelled


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--strict", is_flag=True, help="Exit status 1 for warnings too.")
def check(file: Path, strict: bool) -> None:
    """Check a hub.toml: every fault at once, with its place, what was found, what is allowed.

    Where it has none, the certificates and keys that it names are tried as well. Then settings that can be used and
    make no sense are told, each with its value, the reason and what to set: an error is what can never do what it is
    there for, a warning what is worth a second look.

    Exit status: 0 it is good, but for warnings; 1 it has errors (with --strict: or warnings), or it cannot be read; 2
    it has faults, and no hub would start with it.
    """
    found = read(file)
    faults = faults_of_pem_files(found)
    if faults:
        click.echo("\n".join(f"{file}: {fault}" for fault in faults), err=True)
        sys.exit(2)
    told = sorted(findings(found.settings, found.origins), key=lambda finding: finding.level != "error")
    for finding in told:
        click.echo(_in_words(file, finding), err=True)
    settings = found.settings
    errors = sum(finding.level == "error" for finding in told)
    counts = [_counted(number, what) for number, what in ((errors, "error"), (len(told) - errors, "warning")) if number]
    if errors or (strict and told):
        click.echo(f"{file}: {', '.join(counts)}", err=True)
        sys.exit(1)
    summary = [", ".join(settings.targets), _counted(len(settings.routes), "route"), *counts]
    click.echo(f"{file}: good: {'; '.join(summary)}")
    if _needs_a_token(found):
        click.echo(f"{file}: others can reach [admin] listen: it needs {TOKEN_VARIABLE} where the hub is started")


def _in_words(file: Path, finding: Finding) -> str:
    """Two lines: what was found where, and why that is senseless; what to do."""
    is_elsewhere = not finding.key.startswith(f"{finding.origin}.")
    value = f"{spelled(finding.value)} ({finding.origin})" if is_elsewhere else spelled(finding.value)
    return f"{file}: {finding.level}: {finding.key} = {value}: {finding.reason}\n    {finding.remedy}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _needs_a_token(file: HubFile) -> bool:
    """Must the environment bring the token that the admin plane cannot be without?"""
    if file.admin_listen is None or file.admin_token is not None:
        return False
    return not parse_address(file.admin_listen, "listen").is_loopback
