"""For tests: `eaimw NAME` as a program of its own, and what it shows on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from relayed import Done, Running, program
from served import ROOT

COMMAND = [sys.executable, "-c", "from eaimw.cli import main; main(prog_name='eaimw')"]


def command(*arguments: str, **more: Any) -> AbstractContextManager[Running]:
    """`eaimw ARGUMENTS`, ended and reaped whatever happens. more: as `program` takes it."""
    return program([*COMMAND, *arguments], Path(os.devnull), **more)


def eaimw(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A whole run of `eaimw ARGUMENTS`, without input."""
    return subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False, input=""
    )


def send(given: bytes, *options: str, **popen: Any) -> Done:
    """A whole run of `eaimw send` over some input."""
    with command("send", *options, **popen) as running:
        with contextlib.suppress(BrokenPipeError):  # it did not want it all; the status says why
            running.feed(given)
        status = running.end()
        return Done(status, running.all_replies(), running.errors, "")


class Screen:
    """A terminal. `file` and `environment` are for the program. `shown`: all that it wrote so far, as it came."""

    # Whoever runs the tests may say how large a terminal is; this one says so itself.
    environment: ClassVar = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")} | {
        "TERM": "xterm"
    }

    def __init__(self, columns: int, lines: int) -> None:
        self._ours, self.file = pty.openpty()
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._bytes = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def shown(self) -> str:
        return self._bytes.decode("utf-8", "replace")

    def close(self) -> None:
        os.close(self.file)
        self._reader.join()
        os.close(self._ours)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the last program that had it has closed it
            while data := os.read(self._ours, 65_536):
                self._bytes += data


@contextmanager
def screen(columns: int = 80, lines: int = 24) -> Iterator[Screen]:
    """A terminal of that size."""
    made = Screen(columns, lines)
    try:
        yield made
    finally:
        made.close()
