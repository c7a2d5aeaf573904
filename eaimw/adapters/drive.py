"""Runs a coroutine as a Task would, for the price of a few calls: it begins at once, and goes on at once.

A Task waits for a turn of the loop to begin, and for another one to go on when what it waits for is there; with its
books that is a tenth of what a relayed transaction costs. A `Drive` runs its coroutine in the turn that it is in, and
where the coroutine waits for a `Waiter`, in the turn in which that is settled. Whatever else it waits for, as for a
new connection, it waits for as a Task does. Inside it there is no current task, so no `asyncio.timeout`; a part that
needs one is a Task of its own. It cannot be cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Waiter(asyncio.Future[T]):
    """A future that tells a Drive at once, and anybody else as futures do. on_settled: the Drive's."""

    on_settled: Callable[[], None] | None = None

    def settle(self, value: T) -> None:
        """Set the result, if nobody has given up on it."""
        if not self.done():
            self.set_result(value)
            if self.on_settled is not None:
                self.on_settled()

    def fail(self, problem: Exception) -> None:
        """Set the exception, if nobody has given up on it."""
        if not self.done():
            self.set_exception(problem)
            if self.on_settled is not None:
                self.on_settled()


class Drive(Generic[T]):
    """One coroutine under way, from its making on. on_end: gets its result, or the exception that ended it."""

    __slots__ = ("_coroutine", "_on_end")

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], on_end: Callable[[T | None, BaseException | None], None]
    ) -> None:
        self._coroutine = coroutine
        self._on_end = on_end
        self._go_on()

    def _go_on(self, _: object = None) -> None:
        """What it waited for is there, or it begins. What came of the future it takes from there by itself."""
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as end:
            self._on_end(end.value, None)
        except (Exception, asyncio.CancelledError) as problem:  # cancelled: what it waits for was, at the loop's end
            self._on_end(None, problem)
        else:
            if awaited is None:  # a bare yield, as `asyncio.sleep(0)` is: the next turn will do
                asyncio.get_running_loop().call_soon(self._go_on)
                return
            # The word of asyncio's protocol between a future and whoever runs the coroutine that awaits it.
            awaited._asyncio_future_blocking = False
            if isinstance(awaited, Waiter):
                awaited.on_settled = self._go_on
            else:
                awaited.add_done_callback(self._go_on)
