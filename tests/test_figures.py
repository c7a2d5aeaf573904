"""The figures of a target: how it tells how it is, how its percentiles are computed, how late the hub's loop is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from scene import FakeClock, Gate, Scene, run

from eaimw.adapters import loop_lag
from eaimw.adapters.loop_lag import KEPT, LoopLag
from eaimw.errors import TimedOut
from eaimw.figures import BOUNDS, Figures, quantile

STATUS = {
    "name", "url", "state", "since", "why", "next_probe_in", "inflight", "max_inflight", "codes", "latency",
    "since_success", "since_failure",
}  # fmt: skip


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


# How late the hub's loop is.


def test_a_loop_that_is_held_up_shows_at_once_and_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An overdue ring counts before it rings and for the next rings after it, then no more; stopped, nothing rings."""
    monkeypatch.setattr(loop_lag, "EVERY", 0.001)

    async def story() -> None:
        clock = FakeClock()
        lag = LoopLag(asyncio.get_running_loop(), clock)
        assert lag.worst() == 0.0
        lag.start()
        await until(lambda: lag._due is not None)
        clock.seconds += 3.0
        assert lag.worst() == pytest.approx(2.999)
        await until(lambda: lag._rings > 0)
        assert lag.worst() == pytest.approx(2.999)
        await until(lambda: lag._rings > KEPT)
        assert lag.worst() == 0.0
        lag.stop()
        await until(lambda: lag._due is None)
        assert lag._timer is not None
        assert lag._timer.cancelled()

    run(story())


# Percentiles.


def test_percentiles_lie_evenly_in_their_bucket() -> None:
    """100 calls from 0.25 to 0.5 s: the half of them is taken to lie below the bucket's middle."""
    counts = [0] * (len(BOUNDS) + 1)
    assert quantile(counts, 0.5) is None
    counts[BOUNDS.index(0.5)] = 100
    assert quantile(counts, 0.5) == pytest.approx(0.375)
    assert quantile(counts, 1.0) == pytest.approx(0.5)
    counts[BOUNDS.index(0.1)] = 100
    assert quantile(counts, 0.5) == pytest.approx(0.1)
    assert quantile(counts, 0.25) == pytest.approx(0.075)
    assert quantile(counts, 0.99) == pytest.approx(0.495)


def test_what_is_longer_than_the_last_bucket_is_told_as_its_end() -> None:
    """As Prometheus does: nothing is made up beyond what was measured."""
    counts = [0] * len(BOUNDS) + [5]
    assert quantile(counts, 0.5) == BOUNDS[-1]


# How a target is.


def test_no_percentile_is_above_the_slowest_call() -> None:
    """A bucket ends at 2.5 s; a target whose calls end at 1.2 s is not told to have been slower."""
    now = 0.0
    figures = Figures(lambda: now)
    for took in (1.1, 1.2, 1.05):
        now += took
        figures.ended(now - took)
    assert figures.percentiles()["p99"] == pytest.approx(1.2)


def test_a_targets_status_tells_the_story_of_its_circuit() -> None:
    """State, since when, why, and when the next probe may go: from change to change."""

    async def story() -> None:
        scene = Scene(threshold=3)
        core = scene.hub.targets["CORE"]
        start = "2023-11-14T22:15:00.000000+00:00"

        def told() -> tuple[str, str, float | None]:
            status = core.status()
            assert set(status) == STATUS
            return status["state"], status["why"], status["next_probe_in"]

        assert told() == ("CLOSED", "closed since the start", None)
        assert core.status()["since"] == start
        scene.clock.seconds += 5
        scene.core.script = "E500"
        await scene.codes(2)
        assert core.status()["since"] == start
        scene.core.script = TimedOut("late", handed_over=True)
        await scene.codes(1)
        assert told() == ("OPEN", "3 consecutive failures, the last E901: late", 10.0)
        assert core.status()["since"] == "2023-11-14T22:15:05.000000+00:00"
        scene.clock.seconds += 4
        assert told()[2] == 6.0
        scene.clock.seconds += 60
        assert told()[2] == 0.0
        scene.core.script = gate = Gate("E500")
        probe = asyncio.create_task(scene.send())
        await gate.has(1)
        assert told() == ("HALF_OPEN", "the wait is over: one probe decides", None)
        gate.open.set()
        await probe
        assert told() == ("OPEN", "the probe failed with E500", 10.0)
        scene.clock.seconds += 10
        scene.core.script = "B201"
        await scene.codes(1)
        assert told() == ("CLOSED", "the probe answered B201", None)
        assert scene.hub.targets["CLAIM"].status()["why"] == "closed since the start"

    run(story())


def test_a_status_tells_the_last_success_and_failure() -> None:
    """Seconds since the last call that spoke for or against the target, null before it; a refusal is neither."""

    async def story() -> None:
        scene = Scene(threshold=1)
        core = scene.hub.targets["CORE"]
        assert (core.status()["since_success"], core.status()["since_failure"]) == (None, None)
        assert core.status()["latency"] == {"p50": None, "p95": None, "p99": None}
        await scene.codes(1)
        scene.clock.seconds += 2
        scene.core.script = TimedOut("late", handed_over=True)
        await scene.send(timeout_ms=50)  # cut by an impatient caller: no sample
        await scene.send(timeout_ms=5)  # too little to be called at all
        assert (core.status()["since_success"], core.status()["since_failure"]) == (2.0, None)
        await scene.codes(2)
        scene.clock.seconds += 1
        status = core.status()
        assert (status["since_success"], status["since_failure"]) == (3.0, 1.0)
        assert status["codes"] == {"0000": 1, "E901": 2, "E906": 1, "E904": 1}
        assert status["why"] == "1 failure, the last E901: late"

    run(story())


def test_a_status_is_json_even_where_a_wait_is_beyond_all_numbers() -> None:
    """reset_timeout may be any finite number; Infinity is no JSON."""

    async def story() -> None:
        scene = Scene(threshold=1, wait=1.7976931348623157e308)
        scene.core.script = "E500"
        await scene.codes(1)
        assert json.dumps(scene.hub.snapshot(), allow_nan=False)

    run(story())
