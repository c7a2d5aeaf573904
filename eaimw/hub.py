"""The hub: a dictionary of targets; each transaction goes down its target's stack and gets exactly one reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from eaimw import codes
from eaimw.config import NO_TARGET, HubSettings, OpSettings, TargetSettings, is_reached_alike
from eaimw.errors import Malformed, NoReply
from eaimw.model import Call, Caller, Reply, Transaction
from eaimw.ports import AccessLog, Clock, Random, Telemetry, Transport
from eaimw.replies import failed, refused
from eaimw.stack import build
from eaimw.target import CodeCounts, Handler, Target
from eaimw.wire import from_python, to_python

CLOSE_LIMIT = 1.0  # seconds; calls whose connection has ended need a few turns of the loop

MakeTransport = Callable[[str, TargetSettings], Transport]
MakeRandom = Callable[[str], Random]


class Hub:
    """Relays transactions. Lives in one event loop; not for other threads (`Relay` is).

    targets: each target by its name. removed: those that there were before a change of settings. untargeted: replies
    to transactions that had no known target, by code.
    """

    def __init__(
        self,
        settings: HubSettings,
        *,
        clock: Clock,
        telemetry: Telemetry,
        make_transport: MakeTransport,
        make_random: MakeRandom,
        access_log: AccessLog | None = None,
    ) -> None:
        self._clock = clock
        self._telemetry = telemetry
        self._access_log = access_log
        self._make_transport = make_transport
        self._make_random = make_random
        self._random = make_random(NO_TARGET)
        self._is_going_down = False
        self.untargeted = CodeCounts()
        self.routes: dict[str, str] = {}
        self.targets: dict[str, Target] = {}
        self.removed: dict[str, Target] = {}
        self._stacks: dict[str, Handler] = {}
        self._retired: list[Transport] = []
        self.reconfigure(settings)

    def reconfigure(self, settings: HubSettings) -> None:
        """Other settings from now on; states, calls in flight, tokens and counts stay. Of a removed target the calls
        in flight go on to their answers, and where it comes back its counts go on.

        Raises SettingsError for what shows only when it is wired, as a CA file that cannot be read; then nothing has
        changed.
        """
        known = self.removed | self.targets
        transports = {
            name: known[name].transport
            if name in known and name in self.targets and is_reached_alike(known[name].settings, new)
            else self._make_transport(name, new)
            for name, new in settings.targets.items()
        }
        self._retired = [transport for transport in self._retired if transport.is_busy]
        ops = dict(settings.ops)
        ops |= {op: OpSettings() for op in settings.routes if op not in ops}
        targets, stacks = {}, {}
        for name, new in settings.targets.items():
            target = known.get(name)
            if target is None:
                target = self._made(name, new, transports[name], ops)
            else:
                if target.transport is not transports[name]:
                    self._retire(target, transports[name])
                target.reconfigure(new, ops, transports[name])
            targets[name] = target
            stacks[name] = build(target)
        for name in self.targets.keys() - targets.keys():
            self._retire(self.targets[name], None)
        self.removed = {name: target for name, target in known.items() if name not in targets}
        self.routes = dict(settings.routes)
        self.targets, self._stacks = targets, stacks  # at once: any thread may be looking

    def _made(self, name: str, settings: TargetSettings, transport: Transport, ops: dict[str, OpSettings]) -> Target:
        return Target(
            name,
            settings,
            transport,
            clock=self._clock,
            random=self._make_random(name),
            telemetry=self._telemetry,
            ops=ops,
        )

    def _retire(self, target: Target, heir: Transport | None) -> None:
        target.transport.retire(heir)
        self._retired.append(target.transport)

    async def handle_tx(self, tx: dict[str, Any]) -> dict[str, Any]:
        """One transaction as a dict; the reply as a dict, `data` parsed. A bad one gets its E400, nothing is raised."""
        started = self._clock.monotonic()
        try:
            transaction = from_python(tx)
        except Malformed as problem:
            return to_python(self.refuse_malformed(problem, started))
        return to_python(await self.handle(transaction, started))

    async def handle(self, tx: Transaction, started: float | None = None) -> Reply:
        """One transaction down its target's stack. Raises only what ends the caller's own task, as CancelledError."""
        answer = self.begin(tx, started)
        return answer if isinstance(answer, Reply) else await answer

    def begin(
        self, tx: Transaction, started: float | None = None, caller: Caller | None = None
    ) -> Reply | Coroutine[Any, Any, Reply]:
        """As `handle`; a refusal is there at once. What is to be awaited must be, at once: it holds a place."""
        call = Call(tx, self._clock.monotonic() if started is None else started, caller)
        target = self.target_of(tx)
        if self._is_going_down:
            reply = self._refuse(codes.GOING_DOWN, "the hub is going down: not called", call, target)
        elif target is None:
            reply = self._refuse(codes.NO_TARGET, self._why_no_target(tx), call, None)
        else:
            try:
                answer = self._stacks[target.name](call)
            except Exception as problem:
                reply = self._failed(problem, call, target)
            else:
                if not isinstance(answer, Reply):
                    return self._called(answer, call, target)
                reply = answer
        return self._finish(reply, call.started, target, call)

    async def _called(self, answer: Coroutine[Any, Any, Reply], call: Call, target: Target) -> Reply:
        try:
            reply = await answer
        except Exception as problem:
            reply = self._failed(problem, call, target)
        return self._finish(reply, call.started, target, call)

    def _failed(self, problem: Exception, call: Call, target: Target) -> Reply:
        """What a fault of the hub's own becomes."""
        self.note_fault(f"{call.tx.tx_id} for {target.name}", problem)
        call.has_left = call.attempts > 0  # once a call was tried, it may have
        return failed(NoReply(f"the hub failed: {type(problem).__name__}"), call, target.name)

    def refuse_malformed(self, problem: Malformed, started: float | None = None, where: str = "") -> Reply:
        """The E400 for a transaction that could not be read. where: stands before the message, as `line 7: `."""
        reply = refused(codes.MALFORMED, f"{where}{problem}", self._random, tx_id=problem.tx_id, target=problem.target)
        return self._finish(reply, self._clock.monotonic() if started is None else started, None, None)

    def refusal(self, code: str, message: str) -> Reply:
        """A refusal of what was not even read as a transaction; not counted."""
        reply = refused(code, message, self._random, tx_id=None, target=None)
        reply.elapsed_ms = 0.0
        return reply

    @property
    def clock(self) -> Clock:
        """What it goes by."""
        return self._clock

    @property
    def is_going_down(self) -> bool:
        """Is every new transaction refused?"""
        return self._is_going_down

    def target_of(self, tx: Transaction) -> Target | None:
        """The target that serves it: the one it names, else the one its op is routed to; None if there is none."""
        name = tx.target if tx.target is not None else self.routes.get(tx.op or "")
        return self.targets.get(name) if name is not None else None

    def note_fault(self, where: str, problem: BaseException) -> None:
        """Tell the people on duty of a fault of the hub itself."""
        self._telemetry.unforeseen(where, problem)

    def go_down(self) -> None:
        """From now on every new transaction is refused (E911); those in flight go on to their answers."""
        self._is_going_down = True

    async def close(self) -> None:
        """Refuse what comes, end all connections, and let the calls that this cuts give their replies (E902)."""
        self.go_down()
        targets = [*self.targets.values(), *self.removed.values()]
        transports = dict.fromkeys([*(target.transport for target in targets), *self._retired])
        await asyncio.gather(*(transport.close() for transport in transports))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT):
                while any(target.bulkhead.inflight for target in targets):  # noqa: ASYNC110 - once
                    await asyncio.sleep(0.001)

    def snapshot(self) -> dict[str, Any]:
        """Every target's figures at this moment, by name."""
        return {name: target.snapshot() for name, target in self.targets.items()}

    def _why_no_target(self, tx: Transaction) -> str:
        known = ", ".join(self.targets) or "none"
        if tx.target is not None:
            return f"there is no target {tx.target}; there are: {known}"
        return f"no route for op {tx.op}; name a target: {known}"

    def _refuse(self, code: str, message: str, call: Call, target: Target | None) -> Reply:
        name = target.name if target is not None else call.tx.target
        random = target.random if target is not None else self._random
        return refused(code, message, random, tx_id=call.tx.tx_id, target=name)

    def _finish(self, reply: Reply, started: float, target: Target | None, call: Call | None) -> Reply:
        reply.elapsed_ms = round((self._clock.monotonic() - started) * 1000, 1)
        (target.codes if target is not None else self.untargeted).add(reply.code)
        if self._access_log is not None:
            self._access_log.answered(reply, call)
        return reply
