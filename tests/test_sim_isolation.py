"""CLAIM beside an ailing CORE: both runs are checked, also where each step of the loop costs time."""

from __future__ import annotations

import importlib.util
import re
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eaimw import layers, replies
from eaimw.model import Reply
from eaimw.sim import isolation as isolation_module
from eaimw.sim.invariants import Broken
from eaimw.sim.isolation import COST, Isolation, isolation
from eaimw.sim.prove import Failure
from eaimw.target import CodeCounts

SCRIPT = Path(__file__).parent.parent / "scripts" / "prove.py"


@pytest.fixture(autouse=True)
def no_run_is_kept() -> None:
    """What another test has played beside a broken hub, or a sound one, is not this one's."""
    isolation_module._beside_a_healthy_one.cache_clear()


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
    failure = isolation(fault, charge=charge)
    assert isinstance(failure, Failure)
    assert re.search("retry_after_ms is .*; the wait is", failure.why)
    assert failure.story


@pytest.mark.parametrize("charge", [0.0, COST])
def test_nothing_of_the_real_world_gets_into_its_runs(charge: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As into those of a seed."""
    begin = layers.Deadline.__call__

    def looking(self: layers.Deadline, call: Any) -> Any:
        time.monotonic()
        return begin(self, call)

    monkeypatch.setattr(layers.Deadline, "__call__", looking)
    failure = isolation("dead", charge=charge)
    assert isinstance(failure, Failure)
    assert "Forbidden: time.monotonic()" in failure.why


def test_its_healthy_run_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one beside which the others are held."""
    add = CodeCounts.add
    monkeypatch.setattr(CodeCounts, "add", lambda self, code: (add(self, code), add(self, code)))
    with pytest.raises(Broken, match="the counts of codes are"):
        isolation_module._beside_a_healthy_one(1, COST)


class OneProcess:
    """Stands for a pool of processes, which would know nothing of a hub that is broken here."""

    def __init__(self, *_: object, **__: object) -> None:
        self.map = map

    def __enter__(self) -> OneProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left."""

    def shutdown(self, **_: object) -> None:
        """There is none."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/prove, with two faults, in this process."""
    spec = importlib.util.spec_from_file_location("prove_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ProcessPoolExecutor", OneProcess)
    monkeypatch.setattr(module, "FAULTS", ["dead", "mode hang"])
    return module


def test_the_table_stands_alone(script: Any) -> None:
    """With `--isolation`, and without seeds."""
    done = CliRunner().invoke(script.main, ["--isolation"])
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.output.splitlines()[-2:]] == ["dead", "mode"]
    assert "FAILED" not in done.output
    refused = CliRunner().invoke(script.main, ["--isolation", "--seed", "3"])
    assert refused.exit_code == 2
    assert "--isolation stands alone" in refused.output


@pytest.mark.parametrize("arguments", [["--isolation"], ["--seeds", "2"]])
def test_a_row_that_fails_is_marked(script: Any, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a run breaks something, and where CLAIM is dragged beyond the bound; nothing is then said to hold."""
    found = {
        ("dead", 0.0): Failure(1, "a place is lost", ["before"]),
        ("dead", COST): Isolation("dead", 200, 100, 3, 0.0001, 0.0002),
        ("mode hang", 0.0): Isolation("mode hang", 200, 100, 0, 0.0, 0.0),
        ("mode hang", COST): Isolation("mode hang", 200, 100, 3, 0.0003, 0.0002),
    }
    monkeypatch.setattr(script, "isolation", lambda fault, charge=0.0: found[fault, charge])
    done = CliRunner().invoke(script.main, arguments)
    assert done.exit_code == 1
    assert re.findall(r"^  (dead|mode hang) .* FAILED$", done.output, re.MULTILINE) == ["dead", "mode hang"]
    assert "\n  before\ndead: a place is lost\n" in done.output
    assert done.output.endswith("failed: dead, mode hang\nagain: scripts/prove --isolation\n")
    assert "seeds hold" not in done.output


def test_a_row_must_be_the_same_where_a_step_costs_nothing() -> None:
    """Any reply that differs is one too many; with a cost it may come earlier or later, below the bound."""
    assert Isolation("dead", 200, 100, 0, 0.0, 0.0).holds
    assert not Isolation("dead", 200, 100, 1, 0.0, 0.0).holds
    assert Isolation("dead", 200, 100, 1, 0.0001, 0.0002).holds
    assert not Isolation("dead", 200, 100, 1, 0.0002, 0.0002).holds
