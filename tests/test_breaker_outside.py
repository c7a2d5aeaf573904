"""breaker/breaker.py from outside: bad arguments, its path alone, other Pythons."""

from __future__ import annotations

import ast
import importlib.util
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from breaker_story import FakeClock, Watch

from eaimw.kernel.breaker import OPEN, CircuitBreaker, State

FILE = Path(__file__).parent.parent / "breaker" / "breaker.py"


@pytest.mark.parametrize(
    "threshold", [True, False, "3", 1.5, 2.0, 0, -1, None, math.nan, math.inf, 10.0, [], int], ids=repr
)
def test_a_bad_threshold_is_named(threshold: Any) -> None:
    """failure_threshold: anything but an int >= 1 is a ValueError with argument and value."""
    with pytest.raises(ValueError, match="failure_threshold") as caught:
        CircuitBreaker(threshold, 1)
    assert repr(threshold) in str(caught.value)


@pytest.mark.parametrize(
    "wait",
    [True, "1", -1, -0.001, None, math.nan, math.inf, -math.inf, 10**400, 10**5000, [], 1j],
    ids=lambda v: str(type(v)),
)
def test_a_bad_wait_is_named(wait: Any) -> None:
    """reset_timeout: anything but a finite number >= 0 is a ValueError with argument and value."""
    with pytest.raises(ValueError, match=r"reset_timeout must be .*, not .+"):
        CircuitBreaker(1, wait)


@pytest.mark.parametrize("lease", [0, -1, True, "1", math.inf, math.nan], ids=repr)
def test_a_bad_lease_is_named(lease: Any) -> None:
    """probe_lease: None or finite seconds above 0."""
    with pytest.raises(ValueError, match="probe_lease"):
        CircuitBreaker(1, 1, probe_lease=lease)


@pytest.mark.parametrize("probes", [0, -1, True, 1.0, "1", None, math.inf], ids=repr)
def test_a_bad_number_of_probes_is_named(probes: Any) -> None:
    """probes: an int of at least 1."""
    with pytest.raises(ValueError, match=rf"probes must be an int of at least 1, not {probes!r}"):
        CircuitBreaker(1, 1, probes=probes)


def test_a_bad_function_is_named() -> None:
    """clock and rest: functions."""
    with pytest.raises(ValueError, match=r"clock must be a function that returns seconds, not 5.0"):
        CircuitBreaker(1, 1, 5.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"rest must be None or a function that returns seconds, not 5.0"):
        CircuitBreaker(1, 1, rest=5.0)  # type: ignore[arg-type]


def test_what_is_given_is_public() -> None:
    """All settings are attributes, as given."""
    given: dict[str, Any] = {"failure_threshold": 4, "reset_timeout": 2.5, "clock": FakeClock(), "probes": 2}
    given |= {"probe_lease": 3.0, "rules": (Watch(),), "rest": float, "on_change": print}
    breaker = CircuitBreaker(**given)
    assert {name: getattr(breaker, name) for name in given} == given


@pytest.mark.parametrize("state", list(State))
def test_a_state_is_its_name(state: State) -> None:
    """Equal to, printed as and formatted as its name."""
    assert state == state.name
    assert str(state) == f"{state}" == "%s" % state == state.name  # noqa: UP031
    assert f"{state:>10}" == f"{state.name:>10}"


def by_path() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lifted_out", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_importable_by_its_path_alone() -> None:
    """No package around it, not even its entry in sys.modules, and nothing but the standard library."""
    module = by_path()
    breaker = module.CircuitBreaker(1, 10)
    breaker.record_failure()
    assert breaker.state == "OPEN" == OPEN
    assert not (FILE.parent / "__init__.py").exists()
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(FILE.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported <= sys.stdlib_module_names


STORY = """
import sys
sys.path.insert(0, sys.argv[1])
from breaker import CircuitBreaker
now = [0.0]
told = []
class Slow:
    why = "slow"
    def ended(self, now, failed, seconds):
        return seconds > 2
    def clear(self):
        pass
breaker = CircuitBreaker(2, 10, lambda: now[0], probe_lease=5, on_change=lambda c: told.append("%s->%s" % c[:2]))
breaker.record_failure(); breaker.record_failure()
assert breaker.state == "OPEN" and not breaker.allow() and breaker.acquire() is None
now[0] = 10
permit = breaker.acquire()
assert permit is not None and not breaker.allow()
permit.success()
assert f"{breaker.state}" == "CLOSED", breaker.state
assert told == ["CLOSED->OPEN", "OPEN->HALF_OPEN", "HALF_OPEN->CLOSED"], told
breaker.on_change, breaker.rules, breaker.probes, breaker.rest = told.append, [Slow()], 2, lambda again: 3.0
breaker.acquire().success(2.5)
assert told[-1].why == "slow" and breaker.wait() == 3.0, told
now[0] = 13
probes = [breaker.acquire(), breaker.acquire()]
assert probes[0].is_probe and breaker.acquire() is None
for probe in probes:
    assert breaker.state == "HALF_OPEN"
    probe.success()
assert breaker.state == "CLOSED", breaker.state
"""


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13", "3.14"])
def test_it_runs_on_other_pythons(version: str) -> None:
    """A story of all three states, with each other Python that stands on the path."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no python{version} here")
    subprocess.run([python, "-c", STORY, str(FILE.parent)], check=True, timeout=60)


def test_it_parses_on_python_3_9() -> None:
    """The grammar of 3.9 is enough (that it runs there is tried above, where there is a 3.9)."""
    ast.parse(FILE.read_text(encoding="utf-8"), feature_version=(3, 9))
