"""Recorded transactions once more through the real hub in virtual time, with other settings.

Every transaction comes when it came. A call is answered as it was, after as long; nothing is known of what was refused,
so it is answered as the nearest call of its target. Two things that happen at one instant: a call ends before another
begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from eaimw import codes
from eaimw.circuit import target_of
from eaimw.config import HubSettings, TargetSettings
from eaimw.errors import LocalFault, NoConnection, TimedOut
from eaimw.kernel.breaker import State
from eaimw.model import Answer, Call, Reply, Transaction
from eaimw.policy import RetrySettings
from eaimw.sim.findings import Cell, Column, Findings, Kind, Table
from eaimw.sim.loop import MAX_EVENTS, VirtualLoop
from eaimw.sim.studies.hindsight import Figures, Opening, answers_of, budget, figures, openings_met
from eaimw.sim.studies.recording import BadRecording, Past, Recording, read_recording
from eaimw.sim.world import World

EVENTS_EACH = 50  # of the loop for one transaction, at most; in truth about 8
GRAIN = 0.005  # seconds by which a timer may have rung too early or too late when it cut a call


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of each transaction, in their order; openings: of each target."""

    transactions: list[Past]
    openings: dict[str, list[Opening]]


def replay_study(path: Path, settings: HubSettings, seed: int) -> Findings:
    """The recorded file under these settings, and as it was. Raises Unusable and BadRecording."""
    recording = read_recording(path)
    known, left_out = _known(recording, settings)
    if not known:
        raise BadRecording(f"{path}: no call in it is of a target of the configuration ({', '.join(settings.targets)})")
    recorded, answers = [past for past, _ in known], [answer for _, answer in known]
    replayed = replay(recorded, answers, settings, seed)
    comparisons = _compared(recorded, answers, replayed, settings)
    return Findings(
        "replay",
        seed,
        _table([each.would_be for each in comparisons], "simulated"),
        (*_notes(recording, comparisons), *left_out),
        (_table([each.was for each in comparisons], "measured", f"As it was, by {path.name}:"),),
    )


def _known(recording: Recording, settings: HubSettings) -> tuple[list[tuple[Past, Past]], list[str]]:
    """What can be replayed, in order of time, each with what says how it is answered; and a sentence on the rest."""
    by_target: dict[str, list[Past]] = {}
    for past in recording.transactions:
        by_target.setdefault(past.target, []).append(past)
    left_out = []
    if recording.refused_anyhow:
        left_out.append(
            f"{recording.refused_anyhow:,} that no settings would have served (E400, E903, E911 and the like)"
        )
    unknown = sum(len(pasts) for name, pasts in by_target.items() if name not in settings.targets)
    if unknown:
        left_out.append(f"{unknown:,} of targets that the configuration does not have")
    known: list[tuple[Past, Past]] = []
    untold = []
    for name in settings.targets:
        pasts = by_target.get(name, [])
        answers = answers_of(pasts)
        if answers is not None:
            known += zip(pasts, answers, strict=True)
        elif pasts:
            untold.append(f"{name} ({len(pasts):,})")
    if untold:
        left_out.append(f"those of {', '.join(untold)}, none of which was called")
    known.sort(key=lambda pair: pair[0].at)
    return known, [f"Left out: {'; '.join(left_out)}."] if left_out else []


def replay(recorded: Sequence[Past], answers: Sequence[Past], settings: HubSettings, seed: int = 0) -> Replayed:
    """Transactions in order of time, through the hub. answers: how the target answers each, should it be called."""
    loop = VirtualLoop(max_events=MAX_EVENTS + EVENTS_EACH * len(recorded))
    noted = _Noted(recorded)
    world = World(
        _apart(settings),
        seed=seed,
        loop=loop,
        access_log=noted,
        make_transport=lambda name, target, **_: _Answering(answers, loop, target),
    )

    async def story() -> None:
        tasks: set[asyncio.Task[Reply]] = set()
        for number, past in enumerate(recorded):
            if past.at > loop.time():
                await _moment(loop, past.at)
                await asyncio.sleep(0)  # the calls that end at this instant do so
            tx = Transaction(str(number), b"", past.target, past.op, timeout_ms=past.timeout_ms)
            answer = world.hub.begin(tx)
            if isinstance(answer, Coroutine):
                task = loop.create_task(answer)
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        while tasks:
            await asyncio.wait(tasks)

    world.run(story)
    return Replayed(noted.transactions, _openings(world.telemetry.changes, settings, recorded[-1].at))


def _apart(settings: HubSettings) -> HubSettings:
    """The same with targets at addresses of their own: two may be one server's, and nothing is sent there.

    Nothing is tried again: what a further attempt would have met, no record tells.
    """
    targets = {
        name: replace(target, url=f"http://target-{number}/tx", retry=RetrySettings())
        for number, (name, target) in enumerate(settings.targets.items())
    }
    return HubSettings(targets, ops=settings.ops)


class _Noted:
    """`ports.AccessLog` that keeps what became of each."""

    def __init__(self, recorded: Sequence[Past]) -> None:
        self.transactions = list(recorded)

    def answered(self, reply: Reply, call: Call | None) -> None:
        """It has its reply."""
        assert call is not None
        number = int(call.tx.tx_id)
        self.transactions[number] = msgspec.structs.replace(
            self.transactions[number],
            code=reply.code,
            outcome=reply.outcome,
            took=call.took,
            sample=call.sample,
            state=call.state,
        )


class _Answering:
    """`ports.Transport` that answers each transaction as another one was answered."""

    def __init__(self, answers: Sequence[Past], loop: VirtualLoop, settings: TargetSettings) -> None:
        self._answers = answers
        self._loop = loop
        self._path = settings.code_field.split(".")

    async def send(self, call: Call) -> Answer:
        """The target's whole answer, or what the call met."""
        answer = self._answers[int(call.tx.tx_id)]
        assert answer.took is not None
        ends = round(self._loop.time() + answer.took, 6)
        is_cut = answer.code == codes.TIMEOUT
        was_sent = answer.outcome != "not_sent"
        if is_cut or ends > call.deadline:
            await _moment(self._loop, call.deadline)
            raise TimedOut("no whole reply within the timeout", handed_over=was_sent or not is_cut)
        await _moment(self._loop, ends)
        if answer.sample == "none":
            raise LocalFault("as recorded", handed_over=was_sent)
        if answer.code == codes.NO_CONNECTION:
            raise NoConnection("as recorded", handed_over=was_sent)
        body: dict[str, Any] | str = answer.code
        for name in reversed(self._path):
            body = {name: body}
        assert isinstance(body, dict)
        return Answer(200, msgspec.json.encode({"outcome": answer.outcome} | body | {"tx_id": call.tx.tx_id}))

    @property
    def is_busy(self) -> bool:
        """As in the port; the settings of a replay do not change."""
        return False

    def retire(self, heir: object) -> None:
        """As in the port; the settings of a replay do not change."""

    async def close(self) -> None:
        """There is no connection."""


async def _moment(loop: VirtualLoop, when: float) -> None:
    """Until then."""
    came = loop.create_future()
    loop.call_at(when, came.set_result, None)
    await came


def _openings(
    changes: Sequence[tuple[float, str, State, State]], settings: HubSettings, end: float
) -> dict[str, list[Opening]]:
    """By target, from the changes of state of all its circuits; end: of those that are still open."""
    openings: dict[str, list[Opening]] = {name: [] for name in settings.targets}
    began: dict[str, float] = {}
    for at, circuit, before, after in changes:
        if before is State.CLOSED:
            began[circuit] = at
        elif after is State.CLOSED:
            openings[target_of(circuit)].append(Opening(began.pop(circuit), at))
    for circuit, at in began.items():
        openings[target_of(circuit)].append(Opening(at, max(at, end)))
    return openings


# What is printed

COLUMNS = (
    "openings, open_s: how often the circuit opened, and seconds that it was not closed. good_refused: refused, though "
    "the target would have answered well and in time. bad_through: calls that failed. notice_s: seconds from the first "
    "of the failures in a row to the opening that came of them, the longest. E904, E905: refused by the circuit, by "
    "the limit. assumed: it is not known how the target would have answered."
)
_DECIMALS = {"open_s": 1, "notice_s": 3}


class _Comparison(NamedTuple):
    """One target's two rows. refused: those that were not called. longer: cut calls that have longer now."""

    was: tuple[Cell, ...]
    would_be: tuple[Cell, ...]
    refused: int
    longer: int


def _compared(
    recorded: Sequence[Past], answers: Sequence[Past], replayed: Replayed, settings: HubSettings
) -> list[_Comparison]:
    by_target: dict[str, list[tuple[Past, Past, Past]]] = {name: [] for name in settings.targets}
    for each in zip(recorded, replayed.transactions, answers, strict=True):
        by_target[each[0].target].append(each)
    compared = []
    for name, own in by_target.items():
        if not own:
            continue
        before, after, known = ([each[place] for each in own] for place in range(3))
        timeout = settings.targets[name].timeout
        refused = sum(past.took is None for past in before)
        longer = sum(_is_given_longer(past, then, timeout) for past, then, _ in own)
        was = figures(before, known, openings_met(before, recorded[-1].at))
        would_be = figures(after, known, replayed.openings[name], timeout)
        compared.append(_Comparison((name, *was, refused), (name, *would_be, refused + longer), refused, longer))
    return compared


def _is_given_longer(before: Past, after: Past, timeout: float) -> bool:
    """Was its call cut by a timeout that is now longer? What it would have come to is not known."""
    if before.took is None or after.took is None or before.code != codes.TIMEOUT:
        return False
    return budget(before, timeout) > before.took + GRAIN


def _table(rows: Sequence[tuple[Cell, ...]], kind: Kind, title: str = "") -> Table:
    """Whether a refused one would have been good is never measured."""
    columns = [
        Column(name, "modelled" if kind == "measured" and name == "good_refused" else kind, _DECIMALS.get(name, 0))
        for name in (*Figures._fields, "assumed")
    ]
    return Table((Column("target"), *columns), tuple(rows), title)


def _notes(recording: Recording, comparisons: Sequence[_Comparison]) -> list[str]:
    refused = sum(each.refused for each in comparisons)
    longer = sum(each.longer for each in comparisons)
    assumed = []
    if refused:
        assumed.append(
            f"{refused:,} that were refused then are answered as the nearest call of the same target in time"
        )
    if longer:
        assumed.append(f"{longer:,} calls that were cut then and have longer now are never answered")
    exact = "Exact: when each transaction came, and how and after how long each call was answered that was made then."
    as_it_was = (
        "An opening as it was is dated to the last failure before the first transaction that met it; one that none met "
        "is not seen."
    )
    notes = [
        COLUMNS,
        f"{exact} Assumed: {'; '.join(assumed) or 'nothing'}.",
        "Callers come as they came, whatever they are told, and a target answers as it did, however many it is sent.",
        as_it_was,
    ]
    if recording.kind == "access log":
        notes.append(
            "From an access log: durations are those in the hub, to 0.1 ms; a call that its caller's timeout_ms cut is "
            "taken for a failure of the target, as is every E902."
        )
    return notes
