"""The doors to the world, as Protocols. The hub knows these alone, so that a simulator can stand behind them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from eaimw.kernel.breaker import State
from eaimw.model import Answer, Call, Reply


class Clock(Protocol):
    """Two clocks: decisions use the monotonic one, logs and headers the wall's."""

    def monotonic(self) -> float:
        """Seconds, never going back."""

    def time(self) -> float:
        """Seconds since the epoch."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""


class Random(Protocol):
    """One stream of chance; each target has its own."""

    def random(self) -> float:
        """Uniform in 0 <= x < 1."""


class Resolver(Protocol):
    """Names to addresses, without holding up the event loop."""

    async def resolve(self, host: str) -> Sequence[str]:
        """The host's addresses, best first, never empty. Raises OSError."""


class Transport(Protocol):
    """Carries one attempt of a call to one target."""

    async def send(self, call: Call) -> Answer:
        """The target's whole answer. Raises CallFailed; by `call.deadline` at the latest."""

    @property
    def is_busy(self) -> bool:
        """Is a call under way?"""

    def retire(self, heir: Transport | None) -> None:
        """No new call will come: keep no connection beyond the calls under way. heir: goes on with the counts."""

    async def close(self) -> None:
        """End every connection; returns when they are gone."""


class Telemetry(Protocol):
    """Where events go, on the side. None of these waits or raises."""

    def changed(self, target: str, before: State, after: State) -> None:
        """A breaker changed its state."""

    def unforeseen(self, where: str, problem: BaseException) -> None:
        """A fault of the hub itself, which the caller got as E500."""


class AccessLog(Protocol):
    """Hears of every transaction. Does not wait or raise."""

    def answered(self, reply: Reply, call: Call | None) -> None:
        """It has its reply. call: None if it could not be read as a transaction."""
