"""CLAIM beside an ailing CORE: both runs are checked, also where each step of the loop costs time."""

from __future__ import annotations

from typing import Any

import pytest

from eaimw import replies
from eaimw.model import Reply
from eaimw.sim import isolation as isolation_module
from eaimw.sim.invariants import Broken
from eaimw.sim.isolation import COST, isolation
from eaimw.target import CodeCounts


@pytest.fixture(autouse=True)
def no_run_is_kept() -> None:
    """What another test has played beside a broken hub, or a sound one, is not this one's."""
    isolation_module._beside_a_healthy_one.cache_clear()


@pytest.mark.parametrize("charge", [0.0, COST])
def test_a_target_is_not_dragged(charge: float) -> None:
    """CLAIM's replies are the same to the byte where steps cost nothing; else they move by less than the bound."""
    found = isolation("mode hang", charge=charge)
    assert found.harmed > 100 < found.replies
    assert (found.unlike, found.latest) == (0, 0.0) if not charge else found.latest < isolation_module.BOUND


@pytest.mark.parametrize("charge", [0.0, COST])
@pytest.mark.parametrize("fault", ["mode fail", "link byte by byte"])
def test_its_runs_are_checked(fault: str, charge: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal that calls its caller back 20 ms too soon is caught, whatever a step costs."""
    refused = replies.refused

    def hasty(*args: Any, **options: Any) -> Reply:
        reply = refused(*args, **options)
        reply.retry_after_ms = int(1000 * min(1.0, options["wait"])) - 20  # its reset timeout is 1 s
        return reply

    monkeypatch.setattr("eaimw.layers.refused", hasty)
    with pytest.raises(Broken, match=r"retry_after_ms is .*; the wait is"):
        isolation(fault, charge=charge)


def test_its_healthy_run_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one beside which the others are held."""
    add = CodeCounts.add
    monkeypatch.setattr(CodeCounts, "add", lambda self, code: (add(self, code), add(self, code)))
    with pytest.raises(Broken, match="the counts of codes are"):
        isolation_module._beside_a_healthy_one(1, COST)
