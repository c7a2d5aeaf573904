"""What is proved by simulation: no invariant is ever broken, and what ails CORE changes nothing for CLAIM."""

from __future__ import annotations

import pytest

from eaimw.sim.forbidden import forbidden
from eaimw.sim.isolation import BOUND, BOUND_BY_BYTES, COST, FAULTS, isolation
from eaimw.sim.prove import Failure, prove
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
    with forbidden():
        told = isolation(fault)
    assert told.harmed > 100
    assert told.replies > 100
    assert (told.unlike, told.latest) == (0, 0.0)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_processor_is_shared_within_a_bound(fault: str) -> None:
    """Each step of the loop costs 10 us: CLAIM's answers move by 0.2 ms at most from those beside a healthy CORE.

    Where each byte of CORE is a step of its own, nearly all that the processor can do, by a quarter of a second.
    """
    with forbidden():
        told = isolation(fault, charge=COST)
    assert told.latest < (BOUND_BY_BYTES if fault == "link byte by byte" else BOUND)


def test_a_seed_is_a_run() -> None:
    """The same each time, and seeds differ."""
    first, again, other = (rough(seed).play() for seed in (3, 3, 4))
    assert [sent.reply for sent in first.sent] == [sent.reply for sent in again.sent]
    assert [sent.reply for sent in first.sent] != [sent.reply for sent in other.sent]
    assert first.events == again.events
