"""Calls that have timed out while their target may still be at work: each keeps its connection, and its place.

The caller has its E901 by then. What comes on the connection is counted, and nobody's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from eaimw.model import Answer

C = TypeVar("C")


class Holding:
    """The count of one target's, over all transports that it has one after another.

    held: at this moment, never more than room for one call less than the target has: that is the probe's.
    late: whole answers that came after the timeout, so far.
    """

    def __init__(self, max_inflight: int) -> None:
        self.most = max_inflight - 1
        self.held = 0
        self.late = 0


class Late(Generic[C]):
    """Stands on a connection where its call's waiter stood. on_over: is told whether a whole answer came."""

    __slots__ = ("_connection", "_on_over")

    def __init__(self, connection: C, on_over: Callable[[C, bool], None]) -> None:
        self._connection = connection
        self._on_over = on_over

    def settle(self, value: Answer) -> None:
        """A whole answer has come."""
        self._on_over(self._connection, True)

    def fail(self, problem: Exception) -> None:
        """What came is none, or the connection has ended."""
        self._on_over(self._connection, False)
