"""The breaker log: `time|target|FROM->TO`, one write per line, in the order in which the changes happened.

A thread of its own writes from a bounded queue, so that a slow or full disk delays no reply. What cannot be written
is counted as lost and said once a minute; relaying never stops for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import queue
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from eaimw.errors import Unusable
from eaimw.kernel.breaker import State
from eaimw.ports import Clock

MAX_WAITING = 10_000  # lines
SAY_EVERY = 60.0  # seconds
CLOSE_LIMIT = 5.0  # seconds for what still waits to be written at the end


class BreakerLog:
    """Open from its making until `close()`. Raises Unusable if the file cannot be opened, or another relay holds it.

    lost: lines that could not be written. say: gets a sentence for the people on duty, and may wait:
    `changed` does not call it.
    """

    def __init__(self, path: Path, *, clock: Clock, say: Callable[[str], None]) -> None:
        self.path = path
        self.lost = 0
        self._clock = clock
        self._say = say
        self._counting = threading.Lock()
        self._unsaid = 0
        self._is_writing = False
        self._said_at: float | None = None
        self._why = ""
        try:
            self._fd, self._is_file = _open(path)
        except OSError as problem:
            raise Unusable(f"the breaker log {path} cannot be used: {_remedy(problem)}") from None
        except ValueError as problem:  # a NUL in the name
            raise Unusable(f"the breaker log {str(path)!r} cannot be used: {problem}") from None
        # A line, True to look for a moved file at once, None to end.
        self._waiting: queue.Queue[bytes | bool | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._work, name=f"breaker log {path}", daemon=True)
        self._thread.start()

    def changed(self, target: str, before: State, after: State) -> None:
        """Note one change of state, at this moment. Never waits."""
        time = self._clock.now().isoformat(timespec="microseconds")
        try:
            self._waiting.put_nowait(f"{time}|{target}|{before}->{after}\n".encode())
        except queue.Full:
            self._count_loss(1, "they came faster than the disk took them")
            words = self._words_if_due()
            if words is not None:  # not from here, where nothing may wait, nor by the writer, which may hang
                threading.Thread(target=self._say, args=(words,), name="breaker log loss", daemon=True).start()

    def reopen(self) -> None:
        """The file may have been moved away: make it anew (as a SIGHUP asks for). Never waits."""
        with contextlib.suppress(queue.Full):  # then lines wait, and each of them looks for itself
            self._waiting.put_nowait(True)

    def close(self) -> None:
        """Write what waits, within a bound, and end."""
        end = self._clock.monotonic() + CLOSE_LIMIT
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSE_LIMIT)
        self._thread.join(max(0.0, end - self._clock.monotonic()))
        if self._thread.is_alive():
            self._give_up()
        words = self._words()
        if words is not None:
            self._say(words)

    def _give_up(self) -> None:
        """The disk hangs: what waits is lost, and should it come back, the thread finds its end."""
        left = int(self._is_writing)
        with contextlib.suppress(queue.Empty):
            while True:
                left += isinstance(self._waiting.get_nowait(), bytes)
        self._waiting.put_nowait(None)
        self._count_loss(left, "the disk did not take them in time")

    def _work(self) -> None:
        try:
            while (line := self._next()) is not None:
                self._is_writing = isinstance(line, bytes)
                try:
                    self._follow()
                    if isinstance(line, bytes):
                        self._write(line)
                except OSError as problem:
                    if isinstance(line, bytes):
                        self._count_loss(1, _remedy(problem))
                self._is_writing = False
        finally:
            os.close(self._fd)

    def _next(self) -> bytes | bool | None:
        """What there is to do next. While nothing is, losses are said when their time has come."""
        while True:
            words = self._words_if_due()
            if words is not None:
                self._say(words)
            with contextlib.suppress(queue.Empty):
                return self._waiting.get(timeout=SAY_EVERY if self._unsaid else None)

    def _follow(self) -> None:
        """If the path is no longer this file, make it anew there."""
        try:
            there, ours = os.stat(self.path), os.fstat(self._fd)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return
        except FileNotFoundError:
            pass
        fd, self._is_file = _open(self.path)
        os.close(self._fd)
        self._fd = fd

    def _write(self, line: bytes) -> None:
        before = os.fstat(self._fd).st_size
        written = os.write(self._fd, line)
        if written < len(line):
            if self._is_file:
                os.ftruncate(self._fd, before)
            raise OSError(f"only {written} of {len(line)} bytes of a line could be written")

    def _count_loss(self, lines: int, why: str) -> None:
        with self._counting:
            self.lost += lines
            self._unsaid += lines
            self._why = why

    def _words_if_due(self) -> str | None:
        """What to say of the lines lost since it was last said; None before SAY_EVERY is over."""
        now = self._clock.monotonic()
        with self._counting:
            if not self._unsaid or (self._said_at is not None and now < self._said_at + SAY_EVERY):
                return None
            self._said_at = now
        return self._words()

    def _words(self) -> str | None:
        with self._counting:
            unsaid, self._unsaid = self._unsaid, 0
            lines = "1 line" if unsaid == 1 else f"{unsaid:,} lines"
            return f"breaker log {self.path}: {lines} lost: {self._why}" if unsaid else None


def _open(path: Path) -> tuple[int, bool]:
    """The descriptor, and whether it is a regular file; such a file is locked for this relay alone. Raises OSError."""
    # O_NONBLOCK: a named pipe that nobody reads is an error at once, not a wait without end.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    fd = os.open(path, flags, 0o644)
    try:
        status = os.fstat(fd)
        is_file = stat.S_ISREG(status.st_mode)
        if is_file:
            _lock(fd)
            if status.st_size and not _ends_a_line(path, status.st_size):
                os.write(fd, b"\n")  # somebody's torn last line stays, as a line of its own
    except BaseException:
        os.close(fd)
        raise
    return fd, is_file


def _lock(fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EBUSY, "another relay writes to it; give this one a --breaker-log of its own") from None


def _ends_a_line(path: Path, size: int) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(size - 1)
            return file.read(1) == b"\n"
    except PermissionError:  # we may write it, but not read it
        return True


def _remedy(problem: OSError) -> str:
    if isinstance(problem, IsADirectoryError):
        return "it is a folder; name a file in it"
    if isinstance(problem, FileNotFoundError):
        return "its folder does not exist; make it first"
    if problem.errno == errno.ENXIO:
        return "it is a socket, or a pipe that nobody reads; start its reader first, or name a file"
    if isinstance(problem, PermissionError):
        return "permission denied; choose a file that this user may write"
    return problem.strerror or str(problem)
