"""Sentences for the people on duty, on standard error, which may be a terminal that somebody has stopped.

Whoever speaks never waits: a thread writes, for as long as there is something to write. What exceeds the bound is
dropped, and said to be.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque

MAX_WAITING = 1_000  # sentences


class Voice:
    """Says sentences on standard error, one per line, in order."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self._is_speaking = False

    def say(self, text: str) -> None:
        """Say it soon. Never waits and never raises; may be called from any thread."""
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                self._dropped += 1
                return
            self._waiting.append(text)
            if self._is_speaking:
                return
            self._is_speaking = True
        try:
            threading.Thread(target=self._speak, name="voice", daemon=True).start()
        except RuntimeError:  # no thread can be had: better late than never
            self._speak()

    def flush(self, limit: float) -> None:
        """Wait until all is said, for at most `limit` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_speaking, limit)

    def _speak(self) -> None:
        while True:
            with self._changed:
                if self._dropped and not self._waiting:
                    self._waiting.append(f"{self._dropped} messages were dropped: standard error is too slow")
                    self._dropped = 0
                if not self._waiting:
                    self._is_speaking = False
                    self._changed.notify_all()
                    return
                text = self._waiting.popleft()
            stream = sys.stderr
            if stream is not None:  # None: it was closed before the start
                with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                    stream.write(text + "\n")
                    stream.flush()
