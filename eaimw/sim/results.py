"""What a run of a scenario came to: figures by target, and which expectations hold of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from eaimw.circuit import target_of
from eaimw.kernel.breaker import State
from eaimw.sim.expectations import FIGURES, Expectation
from eaimw.sim.findings import Cell, Column, Findings, Table, percentile
from eaimw.sim.play import Record, play
from eaimw.sim.scenario import Scenario

__all__ = ["Result", "run_scenario", "runs_together"]

SAMPLES = 600  # of each target over the run
_OK = "0000"
_is_denial = re.compile(r"B2\d\d").fullmatch
_DECIMALS = {"ok_share": 4, "p50_ms": 1, "p99_ms": 1, "open_s": 1}
_OF_REPLIES = ("sent", "ok", "denied")
_AFTER = ("lost", "p50_ms", "p99_ms", "calls", "peak_inflight", "openings", "open_s")


class _Said(msgspec.Struct, gc=False):
    code: str


_decode = msgspec.json.Decoder(_Said).decode


@dataclass(frozen=True, slots=True)
class Result:
    """One run, in short. figures: by target and name, codes among them. left_over: what was not given back at rest."""

    scenario: Scenario
    seed: int
    figures: dict[str, dict[str, float | None]]
    left_over: list[str]

    def found(self, expectation: Expectation) -> float | None:
        """The figure that is asked for; of a code that never came: 0."""
        return self.figures[expectation.target].get(expectation.figure, 0)

    @property
    def failed(self) -> list[str]:
        """The expectations that do not hold, and what was left over."""
        return [each.text for each in self.scenario.expect if not each.holds(self.found(each))] + self.left_over

    def findings(self) -> Findings:
        """As a table by target, and one of the expectations."""
        expected = [
            (each.text, self.found(each), "holds" if each.holds(self.found(each)) else "FAILED")
            for each in self.scenario.expect
        ]
        title = "What must hold:" if expected else "Nothing is said of what must hold."
        columns = (Column("expectation"), Column("found", "simulated", 4), Column("verdict"))
        notes = (f"{self.scenario.title}: {self.scenario.seconds:g} s of load, seed {self.seed}.", _NOTE)
        left = tuple(f"Not given back at rest: {each}." for each in self.left_over)
        return Findings("run", self.seed, self._table(), (*notes, *left), (Table(columns, tuple(expected), title),))

    def _table(self) -> Table:
        codes = sorted({name for figures in self.figures.values() for name in figures if name not in FIGURES})
        codes = [code for code in codes if code != _OK and not _is_denial(code)]
        lost = any(figures["lost"] for figures in self.figures.values())
        names = [*_OF_REPLIES, *codes, *(name for name in _AFTER if name != "lost" or lost)]
        columns = [Column(name, "simulated", _DECIMALS.get(name, 0)) for name in names]
        rows = [(target, *(figures.get(name, 0) for name in names)) for target, figures in self.figures.items()]
        return Table((Column("target"), *columns), tuple(rows))


_NOTE = (
    "p50_ms, p99_ms: until the caller has its reply, refusals included. calls, peak_inflight: as the target counted. "
    "openings, open_s: of its circuit."
)


def run_scenario(
    scenario: Scenario, seed: int, on_step: Callable[[float], object] | None = None
) -> tuple[Result, Record]:
    """Play it once. on_step: called with the virtual time after each step. Raises what `play` raises."""
    record = play(
        scenario.settings,
        scenario.backends,
        scenario.loads,
        seed=seed,
        until=scenario.seconds,
        sample_every=scenario.seconds / SAMPLES,
        watch=None if on_step is None else lambda stage: lambda: on_step(stage.loop.time()),
    )
    figures = {name: _figures(record, name) for name in scenario.settings.targets}
    return Result(scenario, seed, figures, record.left_over), record


def _figures(record: Record, target: str) -> dict[str, float | None]:
    sent = [each for each in record.sent if each.target == target]
    codes = Counter(_decode(each.reply).code for each in sent if each.reply is not None)
    waits = [(each.answered_at - each.due) * 1000 for each in sent if each.answered_at is not None]
    stats = record.stats[target]
    openings = _openings(record, target)
    return {
        **codes,
        "sent": len(sent),
        "ok": codes[_OK],
        "ok_share": codes[_OK] / len(sent) if sent else None,
        "denied": sum(count for code, count in codes.items() if _is_denial(code)),
        "lost": len(sent) - codes.total(),
        "p50_ms": percentile(waits, 0.5),
        "p99_ms": percentile(waits, 0.99),
        "calls": _count(stats["calls"]),
        "peak_inflight": _count(stats["max_inflight"]),
        "openings": len(openings),
        "open_s": sum((end - begin for begin, end in openings), 0.0),
    }


def _openings(record: Record, target: str) -> list[tuple[float, float]]:
    """From when to when a circuit of the target was OPEN: its own, or that of one of its operations."""
    found: list[tuple[float, float]] = []
    began: dict[str, float] = {}
    for change in record.changes:
        if target_of(change.target) != target:
            continue
        if change.after is State.OPEN:
            began[change.target] = change.at
        elif change.before is State.OPEN:
            found.append((began.pop(change.target), change.at))
    return found + [(at, record.ended_at) for at in began.values()]


def _count(value: object) -> int:
    assert isinstance(value, int)
    return value


def runs_together(results: Sequence[Result]) -> Findings:
    """Several seeds: of each expectation in how many runs it held, and the worst that was found, with its seed."""
    scenario = results[0].scenario
    rows: list[tuple[Cell, ...]] = []
    for each in scenario.expect:
        worst = min(results, key=lambda result: each.margin(result.found(each)))
        held = sum(each.holds(result.found(each)) for result in results)
        rows.append((each.text, len(results), held, worst.found(each), worst.seed))
    columns = (
        Column("expectation"),
        Column("seeds"),
        Column("held", "simulated"),
        Column("worst", "simulated", 4),
        Column("worst_seed"),
    )
    first, last = results[0].seed, results[-1].seed
    notes = [f"{scenario.title}: {scenario.seconds:g} s of load, seeds {first} to {last}."]
    notes += [f"Not given back at rest with seed {r.seed}: {', '.join(r.left_over)}." for r in results if r.left_over]
    return Findings("run", first, Table(columns, tuple(rows)), tuple(notes))
