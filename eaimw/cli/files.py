"""What the commands that take a hub.toml have in common."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from eaimw.errors import SettingsError, Unusable, shown
from eaimw.hub_file import HubFile, read_hub_file
from eaimw.toml_file import BadFile


def read(path: Path) -> HubFile:
    """The file; or its faults on standard error and the end: 1 it cannot be read, 2 it has faults."""
    with faults_said():
        return read_hub_file(path)


@contextlib.contextmanager
def faults_said(bad: type[Exception] = BadFile) -> Iterator[None]:
    """A file that is read in the block: its faults on standard error and the end: 1 it cannot be read, 2 it is bad."""
    try:
        yield
    except (Unusable, bad) as problem:
        click.echo(str(problem), err=True)
        sys.exit(1 if isinstance(problem, Unusable) else 2)


def faults_of_pem_files(file: HubFile) -> list[str]:
    """What is wrong with the certificates, keys and authorities that a file names, each with its place."""
    from eaimw.adapters.http_client import tls_context
    from eaimw.adapters.server_tls import server_context

    faults: list[str] = []
    if file.tls is not None:
        try:
            server_context(file.tls)
        except Unusable as problem:
            faults += str(problem).splitlines()
    for name, target in file.settings.targets.items():
        try:
            tls_context(name, target)
        except SettingsError as problem:
            faults.append(f"targets.{name}.ca_file: it is {shown(target.ca_file)}; it must be {problem.allowed}")
    return faults
