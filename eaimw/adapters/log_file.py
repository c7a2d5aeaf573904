"""A file of lines that grows while a hub runs: followed when it is moved away, never left with half a line.

What cannot be written is counted as lost and said once a minute; nothing stops for it. One thread writes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from eaimw.errors import Unusable
from eaimw.ports import Clock

SAY_EVERY = 60.0  # seconds
READER_LIMIT = 1.0  # seconds that the reader of a full pipe gets to make room


class Losses:
    """Lines that a log has lost; any thread may count. what: the log's name in a sentence.

    say: gets a sentence for the people on duty, and may wait: `count` and `say_aside` do not.
    """

    def __init__(self, what: str, clock: Clock, say: Callable[[str], None]) -> None:
        self.lines = 0
        self._what = what
        self._clock = clock
        self._say = say
        self._counting = threading.Lock()
        self._unsaid = 0
        self._said_at: float | None = None
        self._why = ""

    def count(self, lines: int, why: str) -> None:
        """So many more are lost. Never waits."""
        with self._counting:
            self.lines += lines
            self._unsaid += lines
            self._why = why

    def say_if_due(self) -> None:
        """Say what was lost since it was last said, unless that was within the last SAY_EVERY."""
        if self._take_turn():
            self.say_all()

    def say_aside(self) -> None:
        """As `say_if_due`, for those who may not wait: in a thread of its own. Never raises."""
        if self._take_turn():
            with contextlib.suppress(RuntimeError):  # no thread can be had: it is said with the next ones
                threading.Thread(target=self.say_all, name=f"{self._what} loss", daemon=True).start()

    def say_all(self) -> None:
        """Say what has not been said, at once."""
        with self._counting:
            unsaid, self._unsaid = self._unsaid, 0
            why = self._why
        if unsaid:
            lines = "1 line" if unsaid == 1 else f"{unsaid:,} lines"
            self._say(f"{self._what}: {lines} lost: {why}")

    @property
    def say_within(self) -> float | None:
        """Seconds after which to ask again, though nothing more is lost; None: there is nothing to say."""
        return SAY_EVERY if self._unsaid else None

    def _take_turn(self) -> bool:
        now = self._clock.monotonic()
        with self._counting:
            if not self._unsaid or (self._said_at is not None and now < self._said_at + SAY_EVERY):
                return False
            self._said_at = now
            return True


class LogFile:
    """Open, and locked for this hub alone, from its making until `close()`; it keeps its own `losses`.

    kind: as `breaker log`. remedy: what one does where another hub holds the file.
    Raises Unusable if the file cannot be opened, or another hub holds it.
    """

    def __init__(self, path: Path, kind: str, remedy: str, *, clock: Clock, say: Callable[[str], None]) -> None:
        self._path = path
        self.losses = Losses(f"{kind} {path}", clock, say)
        self._remedy = remedy
        try:
            self._fd, self._is_file = _open(path, remedy)
        except OSError as problem:
            raise Unusable(f"the {kind} {path} cannot be used: {_words(problem)}") from None
        except ValueError as problem:  # a NUL in the name
            raise Unusable(f"the {kind} {str(path)!r} cannot be used: {problem}") from None

    def append(self, lines: bytes) -> None:
        """Append whole lines; those that cannot be written are counted as lost. Waits for the disk."""
        rest = lines
        try:
            self._follow()
            while rest:
                # A pipe takes so much whole or not at all: there is no cutting back what its reader has.
                piece = rest if self._is_file else _first_lines(rest, select.PIPE_BUF)
                before = os.fstat(self._fd).st_size
                written = self._write(piece)
                whole = piece.rfind(b"\n", 0, written) + 1
                if self._is_file and whole < written:
                    os.ftruncate(self._fd, before + whole)
                rest = rest[whole:]
                if written < len(piece):
                    raise OSError(f"only {written:,} of {len(piece):,} bytes could be written")
        except OSError as problem:
            self.losses.count(rest.count(b"\n"), _words(problem))

    def reopen(self) -> None:
        """If it has been moved away, make it anew; where that fails, the next lines will say so."""
        with contextlib.suppress(OSError):
            self._follow()

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)

    def _follow(self) -> None:
        """If the path is no longer this file, make it anew there."""
        try:
            there, ours = os.stat(self._path), os.fstat(self._fd)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return
        except FileNotFoundError:
            pass
        fd, self._is_file = _open(self._path, self._remedy)
        os.close(self._fd)
        self._fd = fd

    def _write(self, piece: bytes) -> int:
        try:
            return os.write(self._fd, piece)
        except BlockingIOError:  # a full pipe; it was opened so that one without a reader is no wait without end
            room = select.poll()
            room.register(self._fd, select.POLLOUT)
            room.poll(READER_LIMIT * 1000)
            return os.write(self._fd, piece)


def _first_lines(lines: bytes, limit: int) -> bytes:
    """As many as fit into so many bytes; one at least."""
    return lines[: lines.rfind(b"\n", 0, limit) + 1 or lines.find(b"\n") + 1]


def _open(path: Path, remedy: str) -> tuple[int, bool]:
    """The descriptor, and whether it is a regular file; such a file is locked for this hub alone. Raises OSError."""
    # O_NONBLOCK: a named pipe that nobody reads is an error at once, not a wait without end.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    fd = os.open(path, flags, 0o644)
    try:
        status = os.fstat(fd)
        is_file = stat.S_ISREG(status.st_mode)
        if is_file:
            _lock(fd, remedy)
            if status.st_size and not _ends_a_line(path, status.st_size):
                os.write(fd, b"\n")  # somebody's torn last line stays, as a line of its own
    except BaseException:
        os.close(fd)
        raise
    return fd, is_file


def _lock(fd: int, remedy: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EBUSY, f"another relay writes to it; {remedy}") from None


def _ends_a_line(path: Path, size: int) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(size - 1)
            return file.read(1) == b"\n"
    except PermissionError:  # we may write it, but not read it
        return True


def _words(problem: OSError) -> str:
    """What is wrong, and what to do."""
    if isinstance(problem, IsADirectoryError):
        return "it is a folder; name a file in it"
    if isinstance(problem, FileNotFoundError):
        return "its folder does not exist; make it first"
    if isinstance(problem, BlockingIOError):
        return "it is a pipe whose reader is too slow"
    if problem.errno == errno.ENXIO:
        return "it is a socket, or a pipe that nobody reads; start its reader first, or name a file"
    if isinstance(problem, PermissionError):
        return "permission denied; choose a file that this user may write"
    return problem.strerror or str(problem)
