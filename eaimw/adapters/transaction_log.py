"""A log of transactions: one JSON object on a line for each, once it has its reply. What stands in it is its shape's.

The hub's loop notes the line and a thread of its own puts it into words and writes. A waking lets the thread have the
interpreter and costs as much as a transaction, so the thread is woken for the first line after a rest alone, and
then lets others gather. It works from a bounded queue: a slow or full disk delays no reply, and what cannot be
written is counted as lost and said once a minute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from eaimw.adapters.log_file import LogFile
from eaimw.model import Call, Reply
from eaimw.ports import AccessLog, Clock

MAX_LINE = 512  # bytes: every name in it is bounded
MAX_WAITING_BYTES = 16 * 1_048_576
MAX_WAITING = MAX_WAITING_BYTES // MAX_LINE  # lines: more than a second of a hub that does nothing but relay
BATCH = 256  # lines per write; the loop may wait while they are put into words, about 0.2 ms
GATHER = 0.05  # seconds from the first line after a rest to its writing
CLOSE_LIMIT = 5.0  # seconds for what still waits to be written at the end


class Line(msgspec.Struct, gc=False):
    """One transaction; each log has its own fields, in their order. time: seconds until it is put into words."""

    time: float | str


class Shape(Protocol):
    """What a log says of a transaction. kind: the log's name in a sentence. remedy: where another hub has the file."""

    kind: str
    remedy: str

    def line(self, reply: Reply, call: Call | None) -> Line:
        """Of one that is answered at this moment; it keeps nothing else of it alive. Never waits and never raises."""


class TransactionLog:
    """`ports.AccessLog` over a file, open from its making until `close()`.

    Raises Unusable if the file cannot be opened, or another hub holds it.
    say: gets a sentence for the people on duty, and may wait: `answered` does not call it.
    """

    def __init__(self, path: Path, shape: Shape, *, clock: Clock, say: Callable[[str], None]) -> None:
        self.path = path
        self._line = shape.line
        self._file = LogFile(path, shape.kind, shape.remedy, clock=clock, say=say)
        self._losses = self._file.losses
        # Only whole steps of the interpreter touch it (append, slice, delete), so it needs no lock.
        self._waiting: list[Line] = []
        self._writing = 0  # lines
        self._is_resting = False
        self._is_to_reopen = False
        self._woken = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"{shape.kind} {path}", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Lines that could not be written."""
        return self._losses.lines

    def answered(self, reply: Reply, call: Call | None) -> None:
        """Note one transaction, at this moment. Never waits and never raises."""
        if len(self._waiting) >= MAX_WAITING:
            self._losses.count(1, "they came faster than the disk took them")
            self._losses.say_aside()
            return
        self._waiting.append(self._line(reply, call))
        if self._is_resting:
            self._is_resting = False
            self._woken.set()

    def reopen(self) -> None:
        """The file may have been moved away: make it anew (as a SIGHUP asks for). Never waits."""
        self._is_to_reopen = True
        self._woken.set()

    def close(self) -> None:
        """Write what waits, within a bound, and end."""
        self._ended.set()
        self._woken.set()
        self._thread.join(CLOSE_LIMIT)
        if self._thread.is_alive():  # the disk hangs; should it come back, the thread finds its end
            left = self._writing + len(self._waiting)
            self._waiting.clear()
            self._losses.count(left, "the disk did not take them in time")
        self._losses.say_all()

    def _work(self) -> None:
        try:
            while True:
                is_ending = self._ended.is_set()  # before the look for lines: those from before the end are seen
                if self._is_to_reopen:
                    self._is_to_reopen = False
                    self._file.reopen()
                if self._waiting:
                    self._write()
                elif is_ending:
                    return
                else:
                    self._rest()
                self._losses.say_if_due()
        finally:
            self._file.close()

    def _rest(self) -> None:
        """Until there is something to do, or losses may be due to be said."""
        self._woken.clear()
        self._is_resting = True
        if not (self._waiting or self._is_to_reopen or self._ended.is_set()):  # what came before the rest began
            self._woken.wait(self._losses.say_within)
        self._is_resting = False
        self._ended.wait(GATHER)

    def _write(self) -> None:
        batch = self._waiting[:BATCH]
        self._writing = len(batch)
        del self._waiting[: len(batch)]
        self._file.append(_lines(batch))
        self._writing = 0


class Together:
    """`ports.AccessLog`: several logs, each of which hears of every transaction."""

    def __init__(self, logs: Sequence[AccessLog]) -> None:
        self._logs = logs

    def answered(self, reply: Reply, call: Call | None) -> None:
        """It has its reply."""
        for log in self._logs:
            log.answered(reply, call)


_encode_lines = msgspec.json.Encoder().encode_lines
# Three digits at a time: to format a number of six costs more than to encode the whole line.
_DIGITS = [f"{number:03d}" for number in range(1_000)]


def _lines(batch: Sequence[Line]) -> bytes:
    """The lines as they are written; neighbours mostly share their second."""
    second, start = -1, ""
    for line in batch:
        microseconds = round(float(line.time) * 1_000_000)
        rest = microseconds - second * 1_000_000
        if not 0 <= rest < 1_000_000:
            second, rest = divmod(microseconds, 1_000_000)
            start = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        line.time = f"{start}{_DIGITS[rest // 1_000]}{_DIGITS[rest % 1_000]}+00:00"
    return _encode_lines(batch)
