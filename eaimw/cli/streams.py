"""The streams of every command that reads JSON lines and writes replies."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator

from eaimw.app import say
from eaimw.errors import Unusable


def output_fd() -> int:
    """The descriptor to write replies to. Raises Unusable. A stream that was closed at the start is None in `sys`."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it also keeps other files from coming to stand there
    if sys.stdout is None:
        raise Unusable("standard output is closed; the replies go there: send them to a file or a pipe")
    return 1


@contextlib.contextmanager
def input_fd(source: str, program: str) -> Iterator[int]:
    """The descriptor to read transactions from: a file's, or standard input's for `-`. Raises Unusable."""
    if source == "-":
        if sys.stdin is None:
            raise Unusable("standard input is closed; name a file, or pipe transactions into it")
        if os.isatty(0):
            say(f"{program}: reading transactions from the terminal, one JSON object per line; Ctrl-D ends")
        yield 0
        return
    try:
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as problem:
        raise Unusable(f"the input {source} cannot be read: {problem.strerror}; name a file of JSON lines") from None
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise Unusable(f"the input {source} is a folder; name a file of JSON lines")
        yield fd
    finally:
        os.close(fd)
