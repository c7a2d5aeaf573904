"""What must hold at every step of every run, whatever goes wrong around the hub; and what must hold at its end.

    record = play(..., watch=lambda stage: Checker(stage).step)

What is promised is written here once more, apart from the hub's own tables, so that a fault there cannot hide itself.
Two things look like faults and are none: in a network without sockets the hub cannot look, just before it uses a
connection again, whether it has ended a moment ago, so such a request may be E902 with an unknown outcome though
nobody received it; and what follows a whole reply may spoil the next one on the same connection (E500).
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from eaimw.adapters.metrics import HubCollector
from eaimw.hub import Hub
from eaimw.model import Call
from eaimw.sim.callers import Sent
from eaimw.sim.circuit import CHANGES, Circuit
from eaimw.sim.forms import FORMS, hub_must_say
from eaimw.sim.link import Conditions
from eaimw.sim.record import Heard, Record
from eaimw.sim.stage import Stage
from eaimw.sim.target import ANSWER, CLOSE, Known
from eaimw.sim.target_protocol import Exchange

__all__ = ["Broken", "Checker"]

# What the hub says by itself: the outcome, and the HTTP status. Of all else the target has had the word: done, 200.
OURS = {
    "E400": ("not_sent", 400), "E500": ("unknown", 502), "E901": (None, 504), "E902": (None, 502),
    "E903": ("not_sent", 404), "E904": ("not_sent", 503), "E905": ("not_sent", 503), "E911": ("not_sent", 503),
}  # fmt: skip
SAYS_WHEN = ("E904", "E905", "E911")
NEVER_AGAIN = ("E400", "E903")
FAILURES = ("E500", "E901", "E902")
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
        self._circuits = {
            name: Circuit(target.breaker.fail_threshold, target.breaker.reset_timeout)
            for name, target in settings.items()
        }
        hub = stage.world.hub
        self._watched = [
            (name, hub.targets[name].bulkhead, stage.services[name].target, settings[name].max_inflight)
            for name in settings
        ]
        self._pools: list[tuple[str, Any, int]] = [
            (name, hub.targets[name].transport, settings[name].max_inflight) for name in settings
        ]
        self._is_sound = {
            name: not backend.down and all(_is_sound(conditions) for _, conditions in backend.conditions)
            for name, backend in stage.backends.items()
        }
        self._epochs: dict[Call, int] = {}  # of the calls under way
        self._calls: Counter[str] = Counter()  # by target
        self._by_tx_id: Counter[str] = Counter()  # calls
        self._ended: set[Call] = set()
        self._cancelled: Counter[tuple[str, str]] = Counter()
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

    # Told in the midst of things, by the stage.

    def called(self, target: str, call: Call) -> None:
        """See `Tap`."""
        now = self._stage.loop.time()
        self._story.append((now, ("called", target, call.tx.tx_id)))
        why = self._circuits[target].call(now)
        if why is not None:
            self._complain(f"{target}: {why} ({call.tx.tx_id})")
        self._calls[target] += 1
        self._by_tx_id[call.tx.tx_id] += 1
        self._epochs[call] = self._circuits[target].epoch

    def heard(self, heard: Heard) -> None:
        """See `Tap`."""
        self._story.append((heard.at, heard))
        for why in self._faults_of(heard):
            self._complain(f"{heard.reply.tx_id} for {heard.reply.target}: {why}")
        for name, transport, limit in self._pools:
            size = len(transport._idle) + len(transport._busy) + len(transport._connecting)
            if size > limit:
                self._complain(f"{name}: the hub has {size} connections, and may have {limit}")

    def cancelled(self, target: str, call: Call) -> None:
        """See `Tap`."""
        self._story.append((self._stage.loop.time(), ("cancelled", target, call.tx.tx_id)))
        self._circuits[target].end(self._epochs.pop(call), "none", self._stage.loop.time())
        self._cancelled[target, call.tx.tx_id] += 1

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
        if call in self._epochs:
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
        elif reply.code == "E905":
            if target.bulkhead.inflight < self._stage.settings.targets[target.name].max_inflight:
                yield f"E905 with {target.bulkhead.inflight} places taken"
        elif reply.code == "E904":
            wait = self._circuits[target.name].wait(heard.at)
            if wait <= 0:
                yield f"E904, and its circuit is {self._circuits[target.name].state} and lets a call through"
            least = 1000 if math.isinf(wait) else 1000 * wait
            rounding = 1000 * MOMENT  # and no slack: the hub has asked its breaker in this very step
            if not least - rounding <= (reply.retry_after_ms or 0) <= 1.5 * least + 1 + rounding:
                yield f"retry_after_ms is {reply.retry_after_ms}; the wait is {least:g} ms"
        else:
            yield f"{reply.code} without a call"

    def _faults_of_call(self, heard: Heard, call: Call) -> Iterator[str]:
        reply, name = heard.reply, str(heard.reply.target)
        if reply.attempts != 1:
            yield f"it says attempts: {reply.attempts}"
        settings = self._stage.settings.targets[name]
        budget = settings.timeout
        is_impatient = call.tx.timeout_ms is not None and call.tx.timeout_ms < budget * 1000
        if is_impatient:
            budget = (call.tx.timeout_ms or 0) / 1000
        took = heard.at - call.started
        if took > budget + self._slack:
            yield f"it took {took:.6f} s, and its budget is {budget:g} s"
        if reply.code == "E901" and took < budget - self._slack:
            yield f"E901 after {took:.6f} s, and its budget is {budget:g} s"
        sample = "failure" if reply.code in FAILURES else "success"
        if reply.code == "E901" and is_impatient:
            sample = "none"
        circuit, breaker = self._circuits[name], self._stage.world.hub.targets[name].breaker
        circuit.end(self._epochs.pop(call), sample, heard.at)
        if str(breaker.state) != circuit.state:
            yield f"after {reply.code} its circuit is {breaker.state}; it must be {circuit.state}"
        yield from self._faults_of_word(heard, name)

    def _faults_of_word(self, heard: Heard, name: str) -> Iterator[str]:
        """What the target has said, in the form in which it went out, against what the hub has made of it."""
        reply = heard.reply
        exchanges = self._exchanges.get(str(reply.tx_id), [])
        if not exchanges or self._by_tx_id[str(reply.tx_id)] > 1:  # whose word it was is not known then
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
        for why in self._faults_of_record(record):
            self._complain(why)
        self.step()

    def _faults_of_record(self, record: Record) -> Iterator[str]:
        yield from (f"at rest, {what}" for what in record.left_over)
        if self._epochs:
            yield f"{len(self._epochs)} calls have had no reply"
        yield from self._faults_of_books(record)
        yield from self._faults_of_callers(record)
        yield from self._faults_of_figures(record)

    def _faults_of_books(self, record: Record) -> Iterator[str]:
        """No reply may be contradicted by what the targets know."""
        outcomes = {key: Counter(cancelled=count) for key, count in self._cancelled.items()}
        codes: dict[tuple[str, str], str] = {}
        for _, reply, call in record.heard:
            if call is not None:
                key = (str(reply.target), str(reply.tx_id))
                outcomes.setdefault(key, Counter())[reply.outcome] += 1
                codes[key] = reply.code
        for key, told in outcomes.items():
            known = record.books.get(key[0], {}).get(key[1], Known(0, 0, 0, 0, None))
            where = f"{key[1]} for {key[0]}: "
            if known.received > told.total() - told["not_sent"]:
                yield where + f"the target has received it {known.received} times; the replies are {dict(told)}"
            if told["done"] > known.answered:
                yield where + f"{told['done']} replies say done; the target has answered {known.answered} times"
            if told.total() == 1 and told["done"] and codes[key] != known.code:
                yield where + f"the reply is {codes[key]}; the target has said {known.code}"
            if known.executed > 1:
                yield where + f"the target has executed it {known.executed} times"
        for name, books in record.books.items():
            for tx_id in books.keys() - {tx_id for target, tx_id in outcomes if target == name}:
                yield f"{tx_id} for {name}: the target has received it, and the hub has answered nobody"

    def _faults_of_callers(self, record: Record) -> Iterator[str]:
        """Each transaction one reply: that which the hub made."""
        made = Counter((reply.tx_id, reply.code, reply.outcome, reply.elapsed_ms) for _, reply, _ in record.heard)
        for sent in record.sent:
            if sent.extra:
                yield f"{sent.tx_id}: its caller has had {1 + sent.extra} answers"
            if sent.reply is None:
                if not self._may_be_lost(sent, record):
                    yield f"{sent.tx_id}: its caller has had no reply: {sent.lost}"
                continue
            yield from self._faults_of_answer(sent, made)
        if len(record.heard) > len(record.sent):
            yield f"the hub has made {len(record.heard)} replies to {len(record.sent)} transactions"

    def _may_be_lost(self, sent: Sent, record: Record) -> bool:
        """Has its caller, or the way to the hub, or the hub's end a part in it?"""
        manners, name = self._stage.manners[sent.load.name], sent.load.name
        if manners.hangs_up or not self._has_good_callers(name):
            return True
        down_at = self._stage.down_at
        if down_at is None or down_at >= record.ended_at or self._stage.server is None:
            return False
        # What was on its way, or stood behind another on its connection, is not read any more.
        longest_way = 5.0 if name in self._stage.callers else 1.0
        return manners.pipelines > 0 or sent.due > down_at - longest_way - manners.patience

    def _has_good_callers(self, load: str) -> bool:
        return all(_is_sound(conditions) for _, conditions in self._stage.callers.get(load, ()))

    def _faults_of_answer(self, sent: Sent, made: Counter[Any]) -> Iterator[str]:
        if sent.status == 408 and not self._has_good_callers(sent.load.name):  # it has never arrived whole
            return
        said = json.loads(sent.reply or b"")
        where = f"{sent.tx_id}: "
        if not sent.is_garbled and said["tx_id"] != sent.tx_id:
            yield where + f"its caller has had the reply to {said['tx_id']}"
        if sent.is_garbled and said["code"] != "E400":
            yield where + f"it was no transaction, and the reply is {said['code']}"
        status = OURS.get(said["code"], (None, 200))[1]
        if sent.status is not None and sent.status != status:
            yield where + f"the reply with {said['code']} has the status {sent.status}; it must be {status}"
        key = said["tx_id"], said["code"], said["outcome"], said["elapsed_ms"]
        made[key] -= 1
        if made[key] < 0:
            yield where + f"its caller has had a reply that the hub has not made: {key}"

    def _faults_of_figures(self, record: Record) -> Iterator[str]:
        """The log a path of the table, and every figure what it counts."""
        states = dict.fromkeys(self._circuits, "CLOSED")
        changes: dict[str, Counter[str]] = {name: Counter() for name in self._circuits}
        for _, name, before, after in record.changes:
            if str(before) != states[name] or (str(before), str(after)) not in CHANGES:
                yield f"{name}: the log has {before}->{after}, and its circuit was {states[name]}"
            states[name] = str(after)
            changes[name][f"{before}->{after}"] += 1
        counted = {name: Counter(codes) for name, codes in record.codes.items()}
        made: dict[str, Counter[str]] = {name: Counter() for name in counted}
        for _, reply, _ in record.heard:
            made[reply.target if reply.target in self._circuits and reply.code != "E400" else "-"][reply.code] += 1
        if made != counted:
            yield f"the counts of codes are {counted}; the replies were {made}"
        for name, target in self._stage.world.hub.targets.items():
            snapshot = record.snapshots[name]
            if Counter(snapshot["changes"]) != changes[name]:
                yield f"{name}: the figures count the changes {snapshot['changes']}; the log has {dict(changes[name])}"
            if not snapshot["attempts"] == self._calls[name] == sum(target.figures.counts):
                yield f"{name}: attempts {snapshot['attempts']}, calls made {self._calls[name]}"
        told = _metrics(self._stage.world.hub)
        counts = {(name, code): count for name, codes in made.items() for code, count in codes.items()}
        steps = {(name, *change.split("->")): count for name, some in changes.items() for change, count in some.items()}
        for metric, right in (("eaimw_transactions", counts), ("eaimw_breaker_transitions", steps)):
            if told[metric] != right:
                yield f"the metric {metric} is {told[metric]}; it must be {right}"


def _is_sound(conditions: Conditions) -> bool:
    """Does every byte arrive, and every end only where somebody has ended it?"""
    if conditions.reset_within is not None or conditions.idle_limit is not None:
        return False
    return all(way.reset_after is way.close_after is None for way in (conditions.there, conditions.back))


def _metrics(hub: Hub) -> dict[str, dict[tuple[str, ...], float]]:
    """What a scrape tells, by metric and labels; without what is 0."""
    collector = HubCollector(hub, lambda: 0, lambda: 0.0, lambda: 0)
    return {
        metric.name: {tuple(sample.labels.values()): sample.value for sample in metric.samples if sample.value}
        for metric in collector.collect()
    }


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
