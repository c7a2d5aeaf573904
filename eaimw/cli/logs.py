"""The logs beside a relay: where they are, and that they are open for as long as the hub."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from eaimw.adapters.access_log import AccessLog
from eaimw.adapters.breaker_log import BreakerLog
from eaimw.adapters.system import SystemClock
from eaimw.app import say
from eaimw.hub_file import ANOTHER, HubFile, is_same_file


class LogPaths(NamedTuple):
    """Where they are written. access: None where none is wanted."""

    breaker: Path
    access: Path | None


class Logs(NamedTuple):
    """The open ones."""

    breaker: BreakerLog
    access: AccessLog | None

    def reopen(self) -> None:
        """They may have been moved away: make them anew. Never waits."""
        self.breaker.reopen()
        if self.access is not None:
            self.access.reopen()

    def access_lost(self) -> int:
        """Lines of the access log lost so far; 0 without one."""
        return 0 if self.access is None else self.access.lost


def log_paths(ctx: click.Context, breaker_log: Path, file: HubFile | None) -> LogPaths:
    """The breaker log as it is in force, with the file's access log. Raises UsageError if they are one."""
    access_log = None if file is None else file.access_log
    if is_same_file(breaker_log, access_log):
        raise click.UsageError(f"[hub] access_log is {access_log}, which is the breaker log; {ANOTHER}", ctx)
    return LogPaths(breaker_log, access_log)


@contextlib.contextmanager
def opened_logs(paths: LogPaths) -> Iterator[Logs]:
    """The logs for the time of the block; then what waits is written, within a bound. Raises Unusable."""
    with contextlib.ExitStack() as opened:
        breaker = BreakerLog(paths.breaker, clock=SystemClock(), say=say)
        opened.callback(breaker.close)
        access = None
        if paths.access is not None:
            access = AccessLog(paths.access, clock=SystemClock(), say=say)
            opened.callback(access.close)
        yield Logs(breaker, access)
