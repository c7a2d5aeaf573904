"""The breaker log: `time|target|FROM->TO`, one write per line, in the order in which the changes happened.

A thread of its own writes from a bounded queue, so that a slow or full disk delays no reply. What cannot be written
is counted as lost and said once a minute; relaying never stops for it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from eaimw.adapters.log_file import LogFile
from eaimw.kernel.breaker import State
from eaimw.ports import Clock

MAX_WAITING = 10_000  # lines
CLOSE_LIMIT = 5.0  # seconds for what still waits to be written at the end


class BreakerLog:
    """Open from its making until `close()`. Raises Unusable if the file cannot be opened, or another relay holds it.

    say: gets a sentence for the people on duty, and may wait: `changed` does not call it.
    """

    def __init__(self, path: Path, *, clock: Clock, say: Callable[[str], None]) -> None:
        self.path = path
        self._clock = clock
        self._is_writing = False
        self._file = LogFile(path, "breaker log", "give this one a --breaker-log of its own", clock=clock, say=say)
        self._losses = self._file.losses
        # A line, True to look for a moved file at once, None to end.
        self._waiting: queue.Queue[bytes | bool | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._work, name=f"breaker log {path}", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Lines that could not be written."""
        return self._losses.lines

    def changed(self, target: str, before: State, after: State) -> None:
        """Note one change of state, at this moment. Never waits."""
        time = self._clock.now().isoformat(timespec="microseconds")
        try:
            self._waiting.put_nowait(f"{time}|{target}|{before}->{after}\n".encode())
        except queue.Full:
            self._losses.count(1, "they came faster than the disk took them")
            self._losses.say_aside()  # not from here, where nothing may wait, nor by the writer, which may hang

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
        self._losses.say_all()

    def _give_up(self) -> None:
        """The disk hangs: what waits is lost, and should it come back, the thread finds its end."""
        left = int(self._is_writing)
        with contextlib.suppress(queue.Empty):
            while True:
                left += isinstance(self._waiting.get_nowait(), bytes)
        self._waiting.put_nowait(None)
        self._losses.count(left, "the disk did not take them in time")

    def _work(self) -> None:
        try:
            while (line := self._next()) is not None:
                if isinstance(line, bytes):
                    self._is_writing = True
                    self._file.append(line)
                    self._is_writing = False
                else:
                    self._file.reopen()
        finally:
            self._file.close()

    def _next(self) -> bytes | bool | None:
        """What there is to do next. While nothing is, losses are said when their time has come."""
        while True:
            self._losses.say_if_due()
            with contextlib.suppress(queue.Empty):
                return self._waiting.get(timeout=self._losses.say_within)
