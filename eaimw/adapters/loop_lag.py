"""How late a timer of an event loop rings: what a call in it waits for when somebody holds the loop up."""

from __future__ import annotations

import asyncio
import contextlib

from eaimw.ports import Clock

EVERY = 0.1  # seconds from one ring to the next; ten rings a second cost less than a hundredth of a percent of a core
KEPT = 50  # rings, so what is told is the worst of the last five seconds or, where the loop was held up, more


class LoopLag:
    """A timer on somebody's loop. Started and stopped from any thread; `worst` may be asked from any."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._now = clock.monotonic
        self._late = [0.0] * KEPT
        self._rings = 0
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Measure from now on."""
        self._is_stopped = False
        self._loop.call_soon_threadsafe(self._set)

    def stop(self) -> None:
        """Measure no more."""
        self._is_stopped = True
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its timers with it
            self._loop.call_soon_threadsafe(self._cancel)

    def worst(self) -> float:
        """Seconds by which the worst of the last rings was late; about a millisecond is the timer's own grain.

        A ring that is overdue counts already: a loop that stands still shows before it moves again.
        """
        due = self._due
        overdue = 0.0 if due is None else self._now() - due
        return max(0.0, overdue, *self._late)

    def _set(self) -> None:
        if not self._is_stopped:
            self._due = self._now() + EVERY
            self._timer = self._loop.call_later(EVERY, self._ring)

    def _ring(self) -> None:
        if self._due is not None:
            self._late[self._rings % KEPT] = self._now() - self._due
        self._rings += 1
        self._set()

    def _cancel(self) -> None:
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
