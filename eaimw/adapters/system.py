"""The machine's own clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """The clocks of this machine, as `ports.Clock`."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    @staticmethod
    def now() -> datetime:
        """The wall clock, aware, in UTC."""
        return datetime.now(UTC)
