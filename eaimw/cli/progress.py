"""The progress of a run over lines on the terminal of who started it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import click

PROGRESS_EVERY = 0.2  # seconds
PROGRESS_LIMIT = 1.0  # seconds for the last drawing


class Run(Protocol):
    """A run over lines. read, replied: transactions so far. consumed: bytes of the input."""

    @property
    def read(self) -> int: ...
    @property
    def replied(self) -> int: ...
    @property
    def consumed(self) -> int: ...


@contextlib.contextmanager
def progress(run: Run, size: int | None) -> Iterator[None]:
    """A bar on a terminal, unless the replies go there too; for an input without a size it only counts.

    A thread draws it: a terminal that somebody has stopped must not stop the run.
    """
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield
        return
    ended = threading.Event()

    def draw() -> None:
        with contextlib.suppress(OSError):  # the terminal has gone: the run goes on
            bar: Any = click.progressbar(length=size or 1, file=sys.stderr, show_percent=size is not None)
            with bar:
                is_last = False
                while not is_last:
                    is_last = ended.wait(PROGRESS_EVERY)
                    bar.label = f"{run.replied:,} replies"
                    bar.pos = run.consumed * run.replied // max(1, run.read) if size is not None else 0
                    bar.render_progress()

    thread = threading.Thread(target=draw, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PROGRESS_LIMIT)
