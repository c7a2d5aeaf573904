"""`eaimw serve`: the hub as a server, all of it from a file."""

from __future__ import annotations

from pathlib import Path

import click

from eaimw.cli.admin import admin_settings
from eaimw.cli.files import read
from eaimw.cli.logs import BREAKER_LOG, log_paths
from eaimw.cli.reload import Source
from eaimw.cli.serving import serve as run
from eaimw.hub_file import read_hub_file


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.pass_context
def serve(ctx: click.Context, /, file: Path) -> None:
    """Serve the hub of a hub.toml over HTTP, or HTTPS where it has a certificate, at its [hub] listen.

    The breaker log is the file's, or breaker.log in the working directory; there is an access log if the file names
    one. SIGHUP, or POST /reload on its admin plane, reads FILE again: if it is good it applies at once, and no call,
    state or count is lost; if not, nothing changes. Exit status: 0 ended by a signal; 1 file, log or address could not
    be used; 2 the file has faults.
    """
    found = read(file)
    if found.listen is None:
        raise click.UsageError(f'{file} has no [hub] listen; add it, such as listen = "127.0.0.1:8080"')
    plane = admin_settings(ctx, None, found)
    paths = log_paths(ctx, found.breaker_log or Path(BREAKER_LOG), found)
    source = Source(found.settings, found, lambda: read_hub_file(file))
    ctx.exit(run(source, paths, found.listen, plane, found.tls))
