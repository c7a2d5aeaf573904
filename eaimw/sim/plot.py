"""A run as a picture: throughput, latency, state and calls in flight of each target over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eaimw.kernel.breaker import State
from eaimw.sim.findings import percentile
from eaimw.sim.play import Record
from eaimw.sim.scenario import Scenario

__all__ = ["FORMATS", "draw"]

FORMATS = (".svg", ".png", ".pdf")
BINS = 120
_STATES = (State.CLOSED, State.HALF_OPEN, State.OPEN)
_OK = b'"code":"0000"'


def draw(scenario: Scenario, record: Record, path: Path) -> None:
    """Write the picture; its format is that of the name's end. Raises ImportError without matplotlib, OSError."""
    import matplotlib
    from matplotlib.figure import Figure

    names = [*scenario.settings.targets]
    width = scenario.seconds / BINS
    with matplotlib.rc_context({"svg.hashsalt": "eaimw", "axes.grid": True, "grid.alpha": 0.3}):
        figure = Figure(figsize=(5.5 * len(names), 9), layout="constrained")
        axes = figure.subplots(4, len(names), sharex=True, sharey="row", squeeze=False)
        figure.suptitle(f"{scenario.title} (simulated, seed {record.seed})")
        for name, column in zip(names, axes.T, strict=True):
            column[0].set_title(name)
            _throughput(column[0], record, name, width)
            _latency(column[1], record, name, width)
            _state(column[2], record, name, scenario.seconds)
            _inflight(column[3], record, name, scenario.settings.targets[name].max_inflight)
            column[3].set_xlabel("seconds")
            column[3].set_xlim(0, scenario.seconds)
            for axis in column:
                _shade(axis, scenario, name)
        for axis, label in zip(axes[:, 0], ("replies a second", "milliseconds", "circuit", "in flight"), strict=True):
            axis.set_ylabel(label)
        # The same run is the same file: no date in it.
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _throughput(axis: Any, record: Record, name: str, width: float) -> None:
    counts = {"0000": [0] * BINS, "others": [0] * BINS}
    for sent in record.sent:
        if sent.target == name and sent.reply is not None and sent.answered_at is not None:
            at = min(BINS - 1, int(sent.answered_at / width))
            counts["0000" if _OK in sent.reply[:200] else "others"][at] += 1
    times = [number * width for number in range(BINS)]
    for (label, count), colour in zip(counts.items(), ("tab:green", "tab:red"), strict=True):
        axis.step(times, [each / width for each in count], where="post", label=label, color=colour, linewidth=1)
    axis.legend(loc="upper right", fontsize="small")


def _latency(axis: Any, record: Record, name: str, width: float) -> None:
    waits: list[list[float]] = [[] for _ in range(BINS)]
    for sent in record.sent:
        if sent.target == name and sent.answered_at is not None:
            waits[min(BINS - 1, int(sent.due / width))].append((sent.answered_at - sent.due) * 1000)
    times = [number * width for number, each in enumerate(waits) if each]
    for share, label in ((0.5, "p50"), (0.99, "p99")):
        axis.plot(times, [percentile(each, share) for each in waits if each], label=label, linewidth=1)
    axis.set_yscale("log")
    axis.legend(loc="upper right", fontsize="small")


def _state(axis: Any, record: Record, name: str, seconds: float) -> None:
    changes = [(0.0, State.CLOSED)] + [(c.at, c.after) for c in record.changes if c.target == name]
    changes.append((max(seconds, changes[-1][0]), changes[-1][1]))
    axis.step([at for at, _ in changes], [_STATES.index(state) for _, state in changes], where="post", color="black")
    axis.set_yticks(range(len(_STATES)), [str(state) for state in _STATES])
    axis.set_ylim(-0.3, 2.3)


def _inflight(axis: Any, record: Record, name: str, most: int) -> None:
    samples = [sample for sample in record.samples if sample.target == name]
    times = [sample.at for sample in samples]
    axis.step(times, [sample.inflight for sample in samples], where="post", label="at the hub", linewidth=1)
    axis.step(times, [sample.at_target for sample in samples], where="post", label="at the target", linewidth=1)
    axis.axhline(most, color="grey", linestyle=":", label="max-inflight")
    axis.legend(loc="upper right", fontsize="small")


def _shade(axis: Any, scenario: Scenario, name: str) -> None:
    """Where the target is ill."""
    backend = scenario.backends.get(name)
    if backend is None:
        return
    changes = [*backend.timeline.changes]
    ends = [at for at, _ in changes[1:]] + [scenario.seconds]
    ill = [(at, end) for (at, settings), end in zip(changes, ends, strict=True) if settings.mode != "normal"]
    for begin, end in [*ill, *backend.down]:
        axis.axvspan(begin, min(end, scenario.seconds), color="tab:orange", alpha=0.12, linewidth=0)
