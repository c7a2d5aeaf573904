"""Hears of what a record has not: of every call of a target, when it begins and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from eaimw.adapters.http_client import HttpTransport
from eaimw.config import TargetSettings
from eaimw.errors import CallFailed
from eaimw.model import Answer, Call
from eaimw.sim.record import Heard

__all__ = ["Tap", "Tapped"]


class Tap(Protocol):
    """Hears of what a record has not: for who judges a run. Must not raise, as it is told in the midst of the hub."""

    def called(self, target: str, call: Call) -> None:
        """The hub is about to call a target."""

    def ended(self, target: str, call: Call, what: Answer | CallFailed) -> None:
        """A call of a target has ended so; nobody in the hub has judged it yet."""

    def heard(self, heard: Heard) -> None:
        """The hub has made a reply; whatever a breaker learned of it, it has learned."""

    def cancelled(self, target: str, call: Call) -> None:
        """The task of a caller was cancelled during its call; there will be no reply to it."""


class Tapped(HttpTransport):
    """The hub's own transport, with somebody who hears of each call. tap: who that is at the time; None: nobody."""

    def __init__(self, name: str, settings: TargetSettings, *, tap: Callable[[], Tap | None], **ports: Any) -> None:
        super().__init__(name, settings, **ports)
        self._name = name
        self._tap = tap

    async def send(self, call: Call) -> Answer:
        """As the transport does it."""
        tap = self._tap()
        if tap is None:
            return await super().send(call)
        tap.called(self._name, call)
        try:
            answer = await super().send(call)
        except CallFailed as problem:
            tap.ended(self._name, call, problem)
            raise
        except asyncio.CancelledError:
            tap.cancelled(self._name, call)
            raise
        tap.ended(self._name, call, answer)
        return answer
