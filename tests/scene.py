"""A hub over fake transports and a fake clock: what stories about its layers are told with."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from eaimw.config import HubSettings, OpSettings, TargetSettings
from eaimw.errors import TimedOut
from eaimw.hub import Hub
from eaimw.kernel.breaker import State
from eaimw.model import Answer, Call
from eaimw.policy import BreakerSettings
from eaimw.ports import AccessLog, Clock
from eaimw.sim.loop import VirtualClock, VirtualLoop


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    def time(self) -> float:
        return 1_700_000_000.0 + self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.time(), UTC)


class FakeTransport:
    """Answers what `script` says: a code, an Answer, an exception, or whatever an async function makes of the call."""

    def __init__(self) -> None:
        self.script: Any = "0000"
        self.calls: list[Call] = []
        self.is_closed = self.is_retired = False

    async def send(self, call: Call) -> Answer:
        self.calls.append(call)
        script = self.script
        if callable(script):
            script = await script(call)
        if isinstance(script, BaseException):
            raise script
        if isinstance(script, Answer):
            return script
        return Answer(200, b'{"code":"%s"}' % str(script).encode())

    @property
    def is_busy(self) -> bool:
        return False

    def retire(self, heir: object) -> None:
        self.is_retired = True

    async def close(self) -> None:
        self.is_closed = True


class Heard:
    """A telemetry that keeps what it is told."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.faults: list[str] = []

    def changed(self, target: str, before: State, after: State) -> None:
        self.changes.append(f"{target} {before}->{after}")

    def unforeseen(self, where: str, problem: BaseException) -> None:
        self.faults.append(f"{where}: {problem!r}")


class Scene:
    """A hub with CORE and CLAIM over fake transports."""

    def __init__(
        self,
        threshold: int = 3,
        wait: float = 10.0,
        inflight: int = 2,
        access_log: AccessLog | None = None,
        *,
        breaker: Mapping[str, Any] | None = None,
        ops: Mapping[str, OpSettings] | None = None,
        clock: Clock | None = None,
        **more: Any,
    ) -> None:
        self.clock = FakeClock()
        self.heard = Heard()
        self.transports: dict[str, FakeTransport] = {}
        of_breaker = BreakerSettings(threshold, wait, **(breaker or {}))
        given: dict[str, Any] = {"timeout": 3.0, "max_inflight": inflight, "breaker": of_breaker}
        self.settings = TargetSettings("http://127.0.0.1:1/tx", **{**given, **more})
        self.hub = Hub(
            HubSettings({"CORE": self.settings, "CLAIM": self.settings}, {"PAY": "CORE"}, ops or {}),
            clock=self.clock if clock is None else clock,
            telemetry=self.heard,
            make_transport=self._transport,
            make_random=lambda name: random.Random(name),
            access_log=access_log,
        )
        self.core = self.transports["CORE"]
        self.ops = ops or {}
        self.count = 0

    def reload(
        self,
        *names: str,
        breaker: Mapping[str, Any] | None = None,
        ops: Mapping[str, OpSettings] | None = None,
        **changed: Any,
    ) -> None:
        """Other settings of all targets from now on; names: those that there are then, else CORE and CLAIM."""
        of_breaker = replace(self.settings.breaker, **(breaker or {}))
        self.settings = replace(self.settings, breaker=of_breaker, **changed)
        self.ops = self.ops if ops is None else ops
        targets = dict.fromkeys(names or ("CORE", "CLAIM"), self.settings)
        self.hub.reconfigure(HubSettings(targets, {"PAY": "CORE"} if "CORE" in targets else {}, self.ops))

    def _transport(self, name: str, settings: TargetSettings) -> FakeTransport:
        self.transports[name] = FakeTransport()
        return self.transports[name]

    async def send(self, target: str = "CORE", **fields: Any) -> dict[str, Any]:
        self.count += 1
        return await self.hub.handle_tx({"tx_id": f"T{self.count}", "target": target, **fields})

    async def codes(self, times: int, target: str = "CORE") -> list[str]:
        return [(await self.send(target))["code"] for _ in range(times)]

    @property
    def state(self) -> str:
        return str(self.hub.targets["CORE"].breaker.state)

    @property
    def at_rest(self) -> bool:
        return all(target.bulkhead.inflight == 0 for target in self.hub.targets.values())


Story = Callable[[], Coroutine[Any, Any, None]]


def run(story: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await story

    asyncio.run(bounded())


def run_virtually(story: Awaitable[None]) -> None:
    """In virtual time: no wait takes any, and where nothing can ever run again there is a Deadlock."""

    async def told() -> None:
        await story

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(told())


def virtual_scene(*given: Any, **settings: Any) -> Scene:
    """A Scene whose clock is the running loop's."""
    return Scene(*given, clock=VirtualClock(asyncio.get_running_loop()), **settings)


def takes(seconds: float, answer: Any = "0000") -> Callable[[Call], Awaitable[Any]]:
    """What a target that takes so long makes of a call, with a transport that keeps the call's deadline."""

    async def answering(call: Call) -> Any:
        left = max(0.0, call.deadline - asyncio.get_running_loop().time())
        await asyncio.sleep(min(seconds, left))
        return TimedOut("late", handed_over=True) if seconds > left else answer

    return answering


def in_turn(answers: Iterable[Any]) -> Callable[[Call], Awaitable[Any]]:
    """One answer after the other; each as FakeTransport's script."""
    rest = iter(answers)

    async def answering(call: Call) -> Any:
        answer = next(rest)
        return await answer(call) if callable(answer) else answer

    return answering


class Gate:
    """Calls that enter wait until it opens."""

    def __init__(self, answer: Any = "0000") -> None:
        self.answer = answer
        self.open = asyncio.Event()
        self.entered = 0

    async def __call__(self, call: Call) -> Any:
        self.entered += 1
        await self.open.wait()
        return self.answer

    async def has(self, count: int) -> None:
        while self.entered < count:
            await asyncio.sleep(0)
