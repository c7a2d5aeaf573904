"""What must hold at the end of a run: replies, books of the targets, callers, log and figures tell one story."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from eaimw.adapters.metrics import HubCollector
from eaimw.hub import Hub
from eaimw.sim.callers import Sent
from eaimw.sim.circuit import CHANGES
from eaimw.sim.link import Conditions
from eaimw.sim.record import Record
from eaimw.sim.stage import Stage
from eaimw.sim.target import Known

__all__ = ["OURS", "Aftermath", "Seen", "is_sound"]

# What the hub says by itself: the outcome, and the HTTP status. Of all else the target has had the word: done, 200.
OURS = {
    "E400": ("not_sent", 400), "E500": ("unknown", 502), "E901": (None, 504), "E902": (None, 502),
    "E903": ("not_sent", 404), "E904": ("not_sent", 503), "E905": ("not_sent", 503), "E906": ("not_sent", 504),
    "E911": ("not_sent", 503),
}  # fmt: skip


@dataclass(slots=True)
class Seen:
    """What was seen while the run went on.

    calls: of each target, each attempt one. received: attempts that a target may have received, and cancelled:
    calls whose caller's task was cancelled, both by target and tx_id. by_tx_id: attempts.
    extras: attempts that were not first, and would_refuse: calls that a shadow has let through, by circuit.
    """

    calls: Counter[str] = field(default_factory=Counter)
    received: Counter[tuple[str, str]] = field(default_factory=Counter)
    cancelled: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_tx_id: Counter[str] = field(default_factory=Counter)
    extras: Counter[str] = field(default_factory=Counter)
    would_refuse: Counter[str] = field(default_factory=Counter)


class Aftermath:
    """Of one stage."""

    def __init__(self, stage: Stage, seen: Seen) -> None:
        self._stage = stage
        self._seen = seen

    def faults(self, record: Record) -> Iterator[str]:
        """What does not hold together, in sentences."""
        yield from (f"at rest, {what}" for what in record.left_over)
        yield from self._faults_of_books(record)
        yield from self._faults_of_callers(record)
        yield from self._faults_of_figures(record)

    def _faults_of_books(self, record: Record) -> Iterator[str]:
        """No reply may be contradicted by what the targets know."""
        outcomes = {key: Counter(cancelled=count) for key, count in self._seen.cancelled.items()}
        codes: dict[tuple[str, str], str] = {}
        for _, reply, call in record.heard:
            if call is not None:
                key = (str(reply.target), str(reply.tx_id))
                outcomes.setdefault(key, Counter())[reply.outcome] += 1
                codes[key] = reply.code
        for key, told in outcomes.items():
            known = record.books.get(key[0], {}).get(key[1], Known(0, 0, 0, 0, None))
            where = f"{key[1]} for {key[0]}: "
            if known.received > self._seen.received[key]:
                times = f"{known.received} times; by how its attempts ended it may be {self._seen.received[key]}"
                yield where + f"the target has received it {times}; the replies are {dict(told)}"
            if told["done"] > known.answered:
                yield where + f"{told['done']} replies say done; the target has answered {known.answered} times"
            is_one = told.total() == self._seen.by_tx_id[key[1]] == 1
            if is_one and told["done"] and codes[key] != known.code:
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
        return all(is_sound(conditions) for _, conditions in self._stage.callers.get(load, ()))

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
        states: dict[str, str] = {}
        changes: dict[str, Counter[str]] = {}
        for _, name, before, after in record.changes:
            was = states.get(name, "CLOSED")
            if str(before) != was or (str(before), str(after)) not in CHANGES:
                yield f"{name}: the log has {before}->{after}, and its circuit was {was}"
            states[name] = str(after)
            changes.setdefault(name, Counter())[f"{before}->{after}"] += 1
        targets = self._stage.world.hub.targets
        counted = {name: Counter(codes) for name, codes in record.codes.items()}
        made: dict[str, Counter[str]] = {name: Counter() for name in counted}
        for _, reply, _ in record.heard:
            made[reply.target if reply.target in targets and reply.code != "E400" else "-"][reply.code] += 1
        if made != counted:
            yield f"the counts of codes are {counted}; the replies were {made}"
        calls, extras = self._seen.calls, self._seen.extras
        for name, target in targets.items():
            snapshot = record.snapshots[name]
            logged = changes.get(name, Counter())
            if Counter(snapshot["changes"]) != logged:
                yield f"{name}: the figures count the changes {snapshot['changes']}; the log has {dict(logged)}"
            if not snapshot["attempts"] == calls[name] == sum(target.figures.counts):
                yield f"{name}: attempts {snapshot['attempts']}, calls made {calls[name]}"
        told = _metrics(self._stage.world.hub)
        tries = {(name, "first"): count - extras[name] for name, count in calls.items()}
        tries |= {(name, "retry"): count for name, count in extras.items()}
        for metric, right in (
            ("eaimw_transactions", {(name, code): n for name, codes in made.items() for code, n in codes.items()}),
            (
                "eaimw_breaker_transitions",
                {(name, *step.split("->")): n for name, c in changes.items() for step, n in c.items()},
            ),
            ("eaimw_attempts", tries),
            (
                "eaimw_breaker_would_refuse",
                {(name,): count for name, count in self._seen.would_refuse.items() if count},
            ),
        ):
            if told[metric] != right:
                yield f"the metric {metric} is {told[metric]}; it must be {right}"


def is_sound(conditions: Conditions) -> bool:
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
