"""What must hold at every step of every run, whatever goes wrong around the hub; and what must hold at its end.

    record = play(..., watch=lambda stage: Checker(stage).step)

What is promised is written here once more, apart from the hub's own tables, so that a fault there cannot hide itself.
Two things look like faults and are none: in a network without sockets the hub cannot look, just before it uses a
connection again, whether it has ended a moment ago, so such a request may be E902 with an unknown outcome though
nobody received it; and what follows a whole reply may spoil the next one on the same connection (E500).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

from eaimw.errors import CallFailed
from eaimw.kernel.breaker import State
from eaimw.model import Answer, Call
from eaimw.sim.aftermath import OURS, Aftermath, Seen, is_sound
from eaimw.sim.attempts import Attempts, Tried
from eaimw.sim.bounds import Bounds
from eaimw.sim.circuit import Circuit
from eaimw.sim.forms import FORMS, hub_must_say
from eaimw.sim.record import Heard, Record
from eaimw.sim.stage import Stage
from eaimw.sim.target import ANSWER, CLOSE
from eaimw.sim.target_protocol import Exchange

__all__ = ["Broken", "Checker"]

SAYS_WHEN = ("E904", "E905", "E911")
NEVER_AGAIN = ("E400", "E903", "E906")
MOMENT = 1e-6  # seconds that rounding may make of the same time
STORY = 40  # things that are told before what was broken


class Broken(Exception):
    """An invariant does not hold. The message says which, in a sentence. story: what happened before it."""

    def __init__(self, why: str, story: list[str]) -> None:
        super().__init__(why)
        self.story = story

    def __reduce__(self) -> tuple[Any, ...]:
        return Broken, (str(self), self.story)


class Checker:
    """Watches one stage. slack: seconds by which a bound on time may be missed, where each step costs time."""

    def __init__(self, stage: Stage, slack: float = MOMENT) -> None:
        self._stage = stage
        self._slack = slack
        self._broken: str | None = None
        self._story: deque[tuple[float, Any]] = deque(maxlen=STORY)
        settings = stage.settings.targets
        self._targets = settings
        self._circuits: dict[str, Circuit] = {}  # by name, as the log has it
        self._touched: dict[str, str] = {}  # circuits that something has happened to in this step, with their targets
        hub = stage.world.hub
        self._watched = [
            (name, hub.targets[name].bulkhead, stage.services[name].target, settings[name].max_inflight)
            for name in settings
        ]
        self._bounds = Bounds(stage, self._complain)
        self._is_sound = {
            name: not backend.down and all(is_sound(conditions) for _, conditions in backend.conditions)
            for name, backend in stage.backends.items()
        }
        self._tried: dict[Call, Tried] = {}  # calls that have had no reply yet
        self._attempts = Attempts(stage.settings, slack, stage.world.clock.time)
        self._seen = Seen(extras=self._attempts.extras)
        self._ended: set[Call] = set()
        self._exchanges: dict[str, list[Exchange]] = {}  # at all targets, by tx_id
        for service in stage.services.values():
            service.received = self._noting(service.received)  # type: ignore[method-assign]
        stage.tap = self

    def step(self) -> None:
        """After each step of the loop. Raises Broken."""
        for name, bulkhead, target, limit in self._watched:
            if bulkhead.inflight > limit:
                self._complain(f"{name}: {bulkhead.inflight} places are taken at the hub, and there are {limit}")
            if target.inflight > limit:
                self._look_at_target(name, limit)
        if self._touched:
            self._compare_circuits()
        self._bounds.step()
        if self._broken is not None:
            raise Broken(self._broken, self.story)

    @property
    def story(self) -> list[str]:
        """The last things that happened, with their times."""
        return [f"{at:12.6f}  {_told(what)}" for at, what in self._story]

    def _complain(self, why: str) -> None:
        """The first one counts; it is raised by the next step, outside of the hub."""
        if self._broken is None:
            self._broken = f"at {self._stage.loop.time():.6f} s: {why}"

    def _look_at_target(self, name: str, limit: int) -> None:
        """More calls there than places here: the hub's ends of all that are too many must be closed already."""
        held = 0
        for connection in self._stage.services[name].connections:
            exchange: Exchange | None = connection._exchange
            if exchange is None or exchange.call is None or not exchange.call.is_open:
                continue
            far: Any = connection._transport
            held += not far._connection.near.is_closing()
        if held > limit:
            self._complain(f"{name}: {held} calls are in flight at the target, and the hub may have {limit}")

    def _compare_circuits(self) -> None:
        """What happened to a circuit has brought it to the state to which it must."""
        for name, of_target in self._touched.items():
            target, circuit = self._stage.world.hub.targets[of_target], self._circuits[name]
            theirs = target.circuit_of(name[len(of_target) + 1 :] or None)
            state = theirs.breaker.state if self._targets[of_target].breaker.mode != "open" else theirs.standing.state
            if str(state) != circuit.state:
                self._complain(f"{name}: its circuit is {state}; it must be {circuit.state}")
        self._touched.clear()

    def _circuit(self, target: str, call: Call) -> Circuit:
        """The circuit of a call, which something happens to."""
        settings = self._targets[target]
        is_own = settings.breaker.per == "op" and call.tx.op is not None
        name = f"{target}/{call.tx.op}" if is_own else target
        self._touched[name] = target
        if name not in self._circuits:
            self._circuits[name] = Circuit(settings.breaker, settings.max_inflight)
        return self._circuits[name]

    # Told in the midst of things, by the stage.

    def called(self, target: str, call: Call) -> None:
        """See `Tap`."""
        now = self._stage.loop.time()
        self._story.append((now, ("called", target, call.tx.tx_id)))
        circuit = self._circuit(target, call)
        tried = self._tried.setdefault(call, Tried(target, circuit))
        for why in (circuit.call(call, now, str(call.state)), *self._attempts.begin(tried, call, now)):
            if why is not None:
                self._complain(f"{target}: {why} ({call.tx.tx_id})")
        self._seen.calls[target] += 1
        self._seen.by_tx_id[call.tx.tx_id] += 1

    def ended(self, target: str, call: Call, what: Answer | CallFailed) -> None:
        """See `Tap`."""
        now, tried = self._stage.loop.time(), self._tried[call]
        for why in self._attempts.end(tried, call, what, now):
            self._complain(f"{call.tx.tx_id} for {target}: {why}")
        attempt = tried.attempts[-1]
        self._seen.received[target, call.tx.tx_id] += attempt.outcome != "not_sent"
        self._circuit(target, call).end(call, attempt.sample, now, now - attempt.began, attempt.wish)

    def heard(self, heard: Heard) -> None:
        """See `Tap`."""
        self._story.append((heard.at, heard))
        for why in self._faults_of(heard):
            self._complain(f"{heard.reply.tx_id} for {heard.reply.target}: {why}")
        self._bounds.look()

    def cancelled(self, target: str, call: Call) -> None:
        """See `Tap`."""
        self._story.append((self._stage.loop.time(), ("cancelled", target, call.tx.tx_id)))
        self._circuit(target, call).end(call, "none", self._stage.loop.time())
        del self._tried[call]
        self._seen.received[target, call.tx.tx_id] += 1
        self._seen.cancelled[target, call.tx.tx_id] += 1

    def _noting(self, received: Any) -> Any:
        def note(exchange: Exchange, body: bytes) -> None:
            received(exchange, body)
            if exchange.call is not None and exchange.call._tx:
                tx_id = str(exchange.call._tx["tx_id"])
                self._story.append((self._stage.loop.time(), ("received", tx_id, exchange)))
                self._exchanges.setdefault(tx_id, []).append(exchange)

        return note

    # One reply.

    def _faults_of(self, heard: Heard) -> Iterator[str]:
        reply, call = heard.reply, heard.call
        outcome, _ = OURS.get(reply.code, ("done", 200))
        if outcome is None:
            outcome = reply.outcome if reply.outcome in ("not_sent", "unknown") else "not_sent or unknown"
        if reply.outcome != outcome:
            yield f"{reply.code} has the outcome {reply.outcome}; it must be {outcome}"
        if reply.retryable != (reply.outcome == "not_sent" and reply.code not in NEVER_AGAIN):
            yield f"{reply.code}, {reply.outcome}, says retryable: {reply.retryable}"
        if (reply.retry_after_ms is not None) != (reply.code in SAYS_WHEN):
            yield f"{reply.code} has retry_after_ms {reply.retry_after_ms}"
        if call is None:
            if reply.code != "E400":
                yield f"what is no transaction was answered with {reply.code}"
            return
        if call in self._ended:
            yield "a second reply to the same call"
        self._ended.add(call)
        if call in self._tried:
            yield from self._faults_of_call(heard, call)
        else:
            yield from self._faults_of_refusal(heard, call)

    def _faults_of_refusal(self, heard: Heard, call: Call) -> Iterator[str]:
        """What was not called: the hub must have had a reason."""
        reply, hub = heard.reply, self._stage.world.hub
        target = hub.targets.get(reply.target or "")
        if heard.at - call.started > self._slack:
            yield f"it was refused only after {heard.at - call.started:.6f} s"
        if reply.code == "E911":
            if not hub.is_going_down:
                yield "E911, and the hub is not going down"
        elif reply.code == "E903":
            if target is not None:
                yield "E903, and there is such a target"
        elif target is None:
            yield f"{reply.code} without a call, and there is no such target"
        elif reply.code == "E906":
            if not self._attempts.is_too_late(target.name, call, call.started):
                yield f"E906 with {call.tx.timeout_ms} ms left"
        elif self._attempts.is_too_late(target.name, call, call.started):
            yield f"{reply.code} with {call.tx.timeout_ms} ms left; it must be E906"
        elif reply.code in ("E904", "E905"):
            circuit = self._circuit(target.name, call)
            circuit.ask(heard.at)
            if reply.code == "E905":
                why = circuit.had_no_place(heard.at, target.bulkhead.inflight)
            else:
                why = circuit.refused(heard.at) or self._fault_of_wait(reply.retry_after_ms, *circuit.wait(heard.at))
            if why is not None:
                yield why
        else:
            yield f"{reply.code} without a call"

    def _fault_of_wait(self, told: int | None, *waits: float) -> str | None:
        """waits: seconds, from and to. No slack: the hub has asked its breaker in this very step."""
        rounding = 1000 * MOMENT
        least, most = (1000 if math.isinf(wait) else 1000 * wait for wait in waits)
        if least - rounding <= (told or 0) <= 1.5 * most + 1 + rounding:
            return None
        return f"retry_after_ms is {told}; the wait is {least:g} to {most:g} ms"

    def _faults_of_call(self, heard: Heard, call: Call) -> Iterator[str]:
        reply, tried = heard.reply, self._tried.pop(call)
        if reply.attempts != len(tried.attempts):
            yield f"it says attempts: {reply.attempts}, of {len(tried.attempts)}"
        yield from self._attempts.replied(tried, call, reply.code, reply.outcome, heard.at)
        # One more attempt may have asked in vain, of which nothing is told but what its asking has brought to light.
        target, settings = self._stage.world.hub.targets[tried.target], self._targets[tried.target]
        theirs = target.circuit_of(call.tx.op if settings.breaker.per == "op" else None)
        if settings.retry.attempts > 1 and theirs.breaker.state is State.OPEN:
            self._circuit(tried.target, call).ask(heard.at)
        yield from self._faults_of_word(heard, target.name)

    def _faults_of_word(self, heard: Heard, name: str) -> Iterator[str]:
        """What the target has said, in the form in which it went out, against what the hub has made of it."""
        reply = heard.reply
        exchanges = self._exchanges.get(str(reply.tx_id), [])
        if not exchanges or self._seen.by_tx_id[str(reply.tx_id)] > 1:  # whose word it was is not known then
            return
        if reply.outcome == "not_sent":
            yield f"{reply.code}, not_sent, and the target has received it"
        exchange = exchanges[0]
        call, code = exchange.call, reply.code
        if not self._is_sound[name] or code == "E901" or call is None:
            return
        if call.plan.ending == ANSWER:
            must = hub_must_say(call.plan, exchange.form)
            may_be_spoilt = any(FORMS[form].spoils_next for form in self._stage.backends[name].forms)
            if code != must and not (code == "E500" and may_be_spoilt):
                yield f"{code}; by what the target has said ({exchange.form.name}) it must be {must}"
        elif code != ("E902" if call.plan.ending == CLOSE else "E901"):
            yield f"{code}, and the target has said nothing ({call.plan.ending})"

    # At the end.

    def finish(self, record: Record) -> None:
        """Whether the record of the whole run holds together. Raises Broken."""
        for call, tried in self._tried.items():
            # A caller whose task was cancelled between two attempts is told of by nobody.
            load = call.tx.tx_id.rpartition("-")[0]
            if tried.attempts[-1].ended is None or not self._stage.manners[load].hangs_up or self._stage.server:
                self._complain(f"{call.tx.tx_id} for {tried.target}: the call has had no reply")
            self._seen.cancelled[tried.target, call.tx.tx_id] += 1
        self._seen.would_refuse.update({name: circuit.would_refuse for name, circuit in self._circuits.items()})
        for why in Aftermath(self._stage, self._seen).faults(record):
            self._complain(why)
        self.step()


def _told(what: Any) -> str:
    """One thing of the story."""
    if isinstance(what, Heard):
        reply = what.reply
        return f"the hub says {reply.code} {reply.outcome} to {reply.tx_id} for {reply.target} ({reply.message})"
    if what[0] == "called":
        return f"the hub calls {what[1]} with {what[2]}"
    if what[0] == "cancelled":
        return f"its caller cancels the call of {what[1]} with {what[2]}"
    exchange = what[2]
    return f"the target has received {what[1]}; form {exchange.form.name}, {exchange.call.plan.ending}"
