"""What is proved by simulation: no invariant is ever broken, and what ails CORE changes nothing for CLAIM."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eaimw.sim.isolation import BOUND, BOUND_BY_BYTES, COST, FAULTS, isolation
from eaimw.sim.prove import Failure, Proved, prove
from eaimw.sim.rough import rough

SEEDS = 200
PARTS = 8  # tests, so that they can be shared out


@pytest.mark.parametrize("part", range(PARTS))
def test_random_faults_break_nothing(part: int) -> None:
    """Two runs per seed, every invariant at every step; `scripts/prove` goes on where this ends."""
    failures = [proved for seed in range(part, SEEDS, PARTS) if isinstance(proved := prove(seed), Failure)]
    assert [f"scripts/prove --seed {failure.seed}: {failure.why}" for failure in failures] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_what_ails_core_changes_nothing_for_claim(fault: str) -> None:
    """Not a byte of its replies and not their times; and CORE's own callers do feel it."""
    told = isolation(fault)
    assert not isinstance(told, Failure), told
    assert told.harmed > 100
    assert told.replies > 100
    assert (told.unlike, told.latest) == (0, 0.0)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_processor_is_shared_within_a_bound(fault: str) -> None:
    """Each step of the loop costs 10 us: CLAIM's answers move by 0.2 ms at most from those beside a healthy CORE.

    Where each byte of CORE is a step of its own, nearly all that the processor can do, by a quarter of a second.
    """
    told = isolation(fault, charge=COST)
    assert not isinstance(told, Failure), told
    assert told.latest < (BOUND_BY_BYTES if fault == "link byte by byte" else BOUND)


def test_a_seed_is_a_run() -> None:
    """The same each time, and seeds differ."""
    first, again, other = (rough(seed).play() for seed in (3, 3, 4))
    assert [sent.reply for sent in first.sent] == [sent.reply for sent in again.sent]
    assert [sent.reply for sent in first.sent] != [sent.reply for sent in other.sent]
    assert first.events == again.events


SCRIPT = Path(__file__).parent.parent / "scripts" / "prove.py"


def test_a_seed_is_proved_on_the_command_line() -> None:
    """With what it was: so many transactions and steps."""
    command = [sys.executable, str(SCRIPT), "--seed", "3", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert re.fullmatch(
        r"1 seeds? holds?: [\d,]+ transactions in [\d,]+ steps \(simulated\), \d+ s on 1\n", done.stdout
    )


def test_what_fails_is_told_with_the_command_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    """First what came before it; then the first failure ends it, or all are listed."""
    spec = importlib.util.spec_from_file_location("prove_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    results = [Proved(1, 100, 1000), Failure(2, "a place is lost", ["before", "then"]), Failure(3, "two", [])]
    assert script.judged(results, goes_on=False) == (results[1:2], 100, 1000)
    told = capsys.readouterr().out
    assert told == "\n  before\n  then\nseed 2: a place is lost\nagain: scripts/prove --seed 2\n"
    assert script.judged(results, goes_on=True) == (results[1:], 100, 1000)
