"""The logs beside a relay: where they are, and that they are open for as long as the hub."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from eaimw.adapters.access_log import AccessShape
from eaimw.adapters.breaker_log import BreakerLog
from eaimw.adapters.record import RecordShape
from eaimw.adapters.system import SystemClock
from eaimw.adapters.transaction_log import Together, TransactionLog
from eaimw.app import say
from eaimw.hub_file import ANOTHER, HubFile, is_same_file
from eaimw.ports import AccessLog

BREAKER_LOG = "breaker.log"  # the name of the file where nobody has given one


class LogPaths(NamedTuple):
    """Where they are written. access, record: None where none is wanted."""

    breaker: Path
    access: Path | None
    record: Path | None = None


class Logs(NamedTuple):
    """The open ones."""

    breaker: BreakerLog
    access: TransactionLog | None
    record: TransactionLog | None = None

    @property
    def of_transactions(self) -> AccessLog | None:
        """What is to hear of every transaction; None if nobody is."""
        there = [log for log in (self.access, self.record) if log is not None]
        return Together(there) if len(there) > 1 else there[0] if there else None

    def reopen(self) -> None:
        """They may have been moved away: make them anew. Never waits."""
        for log in self:
            if log is not None:
                log.reopen()

    def access_lost(self) -> int:
        """Lines of the access log lost so far; 0 without one."""
        return 0 if self.access is None else self.access.lost


def log_paths(ctx: click.Context, breaker_log: Path, file: HubFile | None, record: Path | None = None) -> LogPaths:
    """The breaker log as it is in force, the file's access log, the record. Raises UsageError if two are one."""
    access_log = None if file is None else file.access_log
    if is_same_file(breaker_log, access_log):
        raise click.UsageError(f"[hub] access_log is {access_log}, which is the breaker log; {ANOTHER}", ctx)
    for other, name in ((breaker_log, "breaker log"), (access_log, "access log")):
        if is_same_file(record, other):
            raise click.UsageError(f"--record is {record}, which is the {name}; {ANOTHER}", ctx)
    return LogPaths(breaker_log, access_log, record)


@contextlib.contextmanager
def opened_logs(paths: LogPaths) -> Iterator[Logs]:
    """The logs for the time of the block; then what waits is written, within a bound. Raises Unusable."""
    clock = SystemClock()
    with contextlib.ExitStack() as opened:

        def transactions(path: Path | None, shape: type[AccessShape] | type[RecordShape]) -> TransactionLog | None:
            if path is None:
                return None
            log = TransactionLog(path, shape(clock), clock=clock, say=say)
            opened.callback(log.close)
            return log

        breaker = BreakerLog(paths.breaker, clock=clock, say=say)
        opened.callback(breaker.close)
        yield Logs(breaker, transactions(paths.access, AccessShape), transactions(paths.record, RecordShape))
