"""`eaimw sim run`: scenarios, what must hold of them, and every fault of a file at once."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from commands import COMMAND, screen
from hypothesis import given
from hypothesis import strategies as st

from eaimw.cli import main
from eaimw.sim.expectations import Expectation
from eaimw.sim.loop import NotSimulated
from eaimw.sim.modes import Refused
from eaimw.sim.scenario import read_scenario, scenario_of
from eaimw.toml_file import BadFile

EXAMPLES = sorted((Path(__file__).parent.parent / "examples" / "scenarios").glob("*.toml"))

SMALL = """
title = "A small one"
seconds = 5
expect = ["CORE.ok_share == 1", "CORE.p99_ms <= 60"]

[hub.targets.CORE]

[[loads]]
target = "CORE"
op = "BALANCE"
rate = 10
fields = { account = "A-1" }

[targets.CORE]
service = { p50 = 0.02, p99 = 0.05 }
"""


def eaimw(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["sim", "run", *map(str, arguments)], prog_name="eaimw")


def written(folder: Path, text: str, name: str = "scenario.toml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def small(folder: Path, *changes: tuple[str, str]) -> Path:
    """The small scenario with other words in it."""
    text = SMALL
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return written(folder, text)


def found(done: Result) -> dict[str, Any]:
    """What was printed as JSON: one object on one line."""
    assert done.stdout.count("\n") == 1
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_what_an_example_expects_holds(file: Path) -> None:
    """Each says what must hold, and it does; CLAIM has its row in all of them."""
    done = eaimw(file)
    assert done.exit_code == 0, done.output
    assert done.stdout.count(" holds\n") == len(read_scenario(file).expect) >= 4
    assert re.search(r"^CLAIM +[\d,]+ +[\d,]+ ", done.stdout, re.MULTILINE)
    assert "simulated: all figures" in done.stdout


def test_a_seed_is_one_run(tmp_path: Path) -> None:
    """The same seed prints the same, another one other figures."""
    file = small(tmp_path)
    assert eaimw(file).stdout == eaimw(file, "--seed", 1).stdout
    assert eaimw(file).stdout != eaimw(file, "--seed", 2).stdout


def test_json_is_one_object_with_the_figures_and_what_held(tmp_path: Path) -> None:
    """Rows by target, each figure's kind, and the expectations beside."""
    result = found(eaimw(small(tmp_path), "--json"))
    (row,) = result["rows"]
    assert (row["target"], row["sent"]) == ("CORE", row["ok"])
    assert row["calls"] == row["sent"] > 20
    assert 20 < row["p50_ms"] < row["p99_ms"]
    assert (result["study"], result["seed"], set(result["kind"].values())) == ("run", 1, {"simulated"})
    assert [each["verdict"] for each in result["beside"][0]["rows"]] == ["holds", "holds"]


def test_what_does_not_hold_is_said_with_the_command_that_shows_it_again(tmp_path: Path) -> None:
    """Exit 1, the seed, and a command that gives the same."""
    file = small(tmp_path, ("p99_ms <= 60", "p99_ms <= 6"), ("ok_share == 1", "sent > 1_000"))
    done = eaimw(file, "--seed", 7)
    assert done.exit_code == 1
    assert done.stdout.count("FAILED") == 2
    assert "seed 7 failed: CORE.sent > 1_000; CORE.p99_ms <= 6\n" in done.stderr
    (again,) = re.findall(r"again: eaimw sim run (.*)", done.stderr)
    assert eaimw(*shlex.split(again)).stdout == done.stdout


def test_an_expectation_of_a_figure_that_is_not_there_fails(tmp_path: Path) -> None:
    """Nobody called CLAIM: it has no share and no latency, and a code that never came stands at 0."""
    file = small(tmp_path, ("[[loads]]", "[hub.targets.CLAIM]\n[[loads]]"), ("CORE.p99_ms <= 60", "CLAIM.p99_ms <= 60"))
    assert "seed 1 failed: CLAIM.p99_ms <= 60\n" in eaimw(file).stderr
    file = small(tmp_path, ("CORE.p99_ms <= 60", "CORE.E904 == 0"))
    assert eaimw(file).exit_code == 0


def test_many_seeds_say_the_worst(tmp_path: Path) -> None:
    """Of each expectation in how many runs it held, and the worst, which its own seed gives again."""
    file = small(tmp_path, ("p99_ms <= 60", "p99_ms <= 50"))
    done = eaimw(file, "--seeds", 5, "--json")
    assert done.exit_code == 1
    first, second = found(done)["rows"]
    assert (first["seeds"], first["held"], first["worst"]) == (5, 5, 1)
    assert 0 < second["held"] < 5
    alone = found(eaimw(file, "--seed", second["worst_seed"], "--json"))["rows"][0]["p99_ms"]
    assert alone == pytest.approx(second["worst"], abs=0.1)
    assert alone == max(found(eaimw(file, "--seed", n, "--json"))["rows"][0]["p99_ms"] for n in range(1, 6))
    assert done.stderr.count("again: eaimw sim run ") == 5 - second["held"]


def test_a_hub_may_be_named(tmp_path: Path) -> None:
    """A hub.toml beside the scenario, with its URLs; its faults are told with its name."""
    written(tmp_path, '[targets.CORE]\nurl = "http://core.example/tx"\ntimeout = 0.01\n', "hub.toml")
    file = small(tmp_path, ("[hub.targets.CORE]\n", ""), ("seconds = 5", 'seconds = 5\nhub = "hub.toml"'))
    assert found(eaimw(file, "--json"))["rows"][0]["E901"] >= 5
    written(tmp_path, '[targets.CORE]\nurl = "http://core.example/tx"\ntimeout = 0\n', "hub.toml")
    done = eaimw(file)
    assert done.exit_code == 2
    assert f"hub: {tmp_path / 'hub.toml'}: targets.CORE.timeout: it is 0; it must be seconds above 0" in done.stderr


MANY = """
title = 5
second = 60
seconds = -1
expect = ["CORE.ok_shar >= 1", "COR.ok >= 1", "CORE.ok about 1", "CORE.ok >= many", 7]

[hub.targets.CORE]
timout = 1
max_inflight = 0
[hub.listen]

[[loads]]
target = "CROE"
rate = 10
[[loads]]
target = "CORE"
arrivals = "poison"
[[loads]]
target = "CORE"
rate = "fast"
op = "a b"
[[loads]]
target = "CORE"
arrivals = "bursts"
pieces = [[0, 1], [1, -1]]
[[loads]]
target = "CORE"
arrivals = "closed"
[[loads]]
rate = 1

[targets.CLAIM]
[targets.CORE]
service = { p50 = 2, p99 = 1 }
servers = 0
queue = -1
down = [[5, 4]]
[[targets.CORE.faults]]
at = -1
mode = "slow"
delay_ms = "long"
rate = 0.5
[[targets.CORE.faults]]
mode = "sloww"
[[targets.CORE.network]]
latency = -1
conect = "refuse"
[[targets.CORE.network]]
connect = "perhaps"
"""


def test_every_fault_of_a_file_is_said_at_once(tmp_path: Path) -> None:
    """Each with its place, what was found, what is allowed, and the nearest name."""
    file = written(tmp_path, MANY)
    with pytest.raises(BadFile) as caught:
        read_scenario(file)
    faults = caught.value.faults
    begins = [
        "second: unknown; known are title, seconds, expect, hub, loads, targets; did you mean seconds?",
        "title: it is 5; it must be a string",
        "seconds: it must be a finite number above 0 up to 86400; not -1",
        "hub.listen: unknown; known are defaults, targets, routes, ops",
        "hub.targets.CORE.timout: unknown; known are url, timeout, ",
        "hub.targets.CORE.max_inflight: it is 0; it must be an integer from 1 to 100,000",
        "loads 1.target: there is no target 'CROE'; there are CORE; did you mean CORE?",
        "loads 2.arrivals: it is 'poison'; it must be one of poisson, constant, bursts, closed; did you mean poisson?",
        "loads 3.op: it is 'a b'; it must be a string of 1 to 64 of ",
        "loads 3: rate must be a finite number above 0 up to 1e+06; not 'fast'",
        "loads 4.pieces 1: seconds must be a finite number of at least 0.001; not 0",
        "loads 4.pieces 2: rate must be a finite number of at least 0 up to 1e+06; not -1",
        "loads 5.callers: it is missing; arrivals are closed",
        "loads 6.target: it is null; it must be the name of a target",
        "targets.CLAIM: there is no target 'CLAIM'; there are CORE",
        "targets.CORE.service: p99 must be a finite number of at least 2; not 1",
        "targets.CORE: servers must be an integer of at least 1, or None; not 0",
        "targets.CORE: queue must be an integer of at least 0, or None; not -1",
        "targets.CORE.faults 1: at must be a finite number of at least 0; not -1",
        "targets.CORE.faults 1: delay_ms must be a number from 0 to 3600000; not 'long'",
        "targets.CORE.faults 1: mode slow takes delay_ms, execute, seed; not 'rate'",
        "targets.CORE.faults 2.at: it is missing; it must be seconds from the start",
        "targets.CORE.faults 2: mode must be one of normal, fail, ",
        "targets.CORE.network 1.conect: unknown; known are at, latency, pieces, connect, ",
        "targets.CORE.network 1: latency must be a finite number of at least 0; not -1",
        "targets.CORE.network 2: connect must be one of ('accept', 'refuse', 'swallow'), not 'perhaps'",
        "targets.CORE.down: down, until must be a finite number above 5; not 4",
        "expect 1: there is no figure ok_shar; there are sent, ok, ok_share, ",
        "expect 2: there is no target COR; there are CORE; did you mean CORE?",
        "expect 3: it is 'CORE.ok about 1'; it must be TARGET.FIGURE, one of <= >= == < >, and a number",
        "expect 4: it compares with 'many'; it must be a finite number",
        "expect 5: it is 7; it must be TARGET.FIGURE",
    ]
    assert [fault[: len(begin)] for fault, begin in zip(faults, begins, strict=False)] == begins
    assert len(faults) == len(begins)
    done = eaimw(file)
    assert (done.exit_code, done.stderr.count(f"{file}: ")) == (2, len(begins))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("seconds = 5", ""), "seconds: it is missing"),
        (("[hub.targets.CORE]\n", ""), "hub: it is missing; it must be the path of a hub.toml, or tables"),
        (("[hub.targets.CORE]", "[hub.targets.CORE]\nurl = 'https://core/tx'"), "it must be http here"),
        (
            ("[hub.targets.CORE]", "[hub.targets]\nA.url = 'http://b/x'\nB.url = 'http://b/y'\nCORE.timeout = 1"),
            "hub.targets.B.url: it is http://b/y; it must have another host or port than A's",
        ),
        (("seconds = 5", 'seconds = 5\nhub = "none.toml"\n'), "it is not TOML"),
        (("rate = 10", "rate = 1_000_000"), "loads: they would send 5,000,000 transactions; at most 1,000,000"),
        (("[[loads]]", "[loads]"), "loads: it is {"),
        (
            ("service", "down = [[1, 3], [2, 4]]\nservice"),
            "targets.CORE.down: down, after the one before must be a finite number above 3; not 2",
        ),
        (("fields", "fields = 5 #"), "loads 1.fields: it is 5; it must be a table"),
        (("fields = { account", 'fields = { tx_id = "T", account'), "fields must not have tx_id"),
        (("{ p50 = 0.02, p99 = 0.05 }", "{ p5 = 1 }"), "service: it is {'p5': 1}; it must be a number of seconds"),
        (("[targets", "[[loads]]\ntarget = 'CORE'\nop = 'BALANCE'\nrate = 1\n[targets"), "loads: two have the name"),
    ],
)  # fmt: skip
def test_a_fault_is_said(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    """Alone, each of these."""
    done = eaimw(small(tmp_path, change))
    assert done.exit_code == 2
    assert says in done.stderr


ODD = st.one_of(
    st.sampled_from([True, -1, 0, 0.5, 10**400, 1e308, "", "CORE", "poisson", "slow", [], [[]], {}, {"mean": 1}]),
    st.floats(),
    st.lists(st.integers() | st.just({}) | st.lists(st.floats(), max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(["at", "mode", "p50", "p99", "CORE", "url"]), st.floats() | st.just("x")),
)


@given(st.data())
def test_any_values_are_a_scenario_or_have_faults(data: st.DataObject) -> None:
    """Whatever stands at any place of a good file: it is taken, or refused with a sentence for each fault."""
    tables: Any = tomllib.loads(EXAMPLES[3].read_text(encoding="utf-8"))
    here: Any = tables
    while True:
        key = data.draw(st.sampled_from([*here] if isinstance(here, dict) else range(len(here))))
        if not isinstance(here[key], (dict, list)) or not here[key] or data.draw(st.booleans()):
            break
        here = here[key]
    here[key] = data.draw(ODD)
    with contextlib.suppress(BadFile):
        assert scenario_of(tables, EXAMPLES[3]).loads


@pytest.mark.parametrize(("more", "label"), [((), "5 s simulated"), (("--seeds", "3"), "3 seeds")])
def test_a_bar_shows_the_progress_on_a_terminal(tmp_path: Path, more: tuple[str, ...], label: str) -> None:
    """From nothing to all; what stands on standard output is the same as without it."""
    file = small(tmp_path)
    run = [*COMMAND, "sim", "run", str(file), *more]
    with screen() as terminal:
        done = subprocess.run(
            run, stdout=subprocess.PIPE, stderr=terminal.file, env=terminal.environment, timeout=60, check=True
        )
    assert done.stdout.decode().split() == eaimw(file, *more).stdout.split()
    assert all(word in terminal.shown for word in (label, " 0%", "100%"))


def test_wrong_usage_is_said(tmp_path: Path) -> None:
    """A file that is not there; options that do not go together; a picture of no known form."""
    assert "cannot be read" in eaimw(tmp_path / "none.toml").stderr
    assert eaimw(tmp_path / "none.toml").exit_code == 1
    for more, says in (
        (("--seeds", "3", "--seed", "1"), "--seeds stands alone"),
        (("--seeds", "3", "--plot", "a.svg"), "--seeds stands alone"),
        (("--plot", "a.gif"), "--plot must end in .svg, .png, .pdf; not 'a.gif'"),
    ):
        done = eaimw(small(tmp_path), *more)
        assert (done.exit_code, says in done.stderr) == (2, True), done.stderr


def test_a_picture_is_written_and_the_same_for_a_seed(tmp_path: Path) -> None:
    """Four panels for each target, labelled as simulated."""
    file = small(tmp_path, ("[targets.CORE]", "[targets.CORE]\ndown = [[2, 3]]"), ('"CORE.ok_share == 1", ', ""))
    one, two = tmp_path / "one.svg", tmp_path / "two.svg"
    assert eaimw(file, "--plot", one).exit_code == 0
    assert eaimw(file, "--plot", two).exit_code == 0
    assert one.read_bytes() == two.read_bytes()
    text = one.read_text(encoding="utf-8")
    for label in ("simulated, seed 1", "replies a second", "milliseconds", "HALF_OPEN", "max-inflight"):
        assert f"<!-- {label}" in text or f"{label}) -->" in text, label
    assert eaimw(file, "--plot", tmp_path / "nowhere" / "one.svg").exit_code == 1


def test_without_matplotlib_a_picture_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, before anything is played."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = eaimw(small(tmp_path), "--plot", tmp_path / "one.svg")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "install it with scripts/setup plot" in done.stderr


@pytest.mark.parametrize("kind", [RuntimeError, NotSimulated])
def test_a_fault_of_ours_is_said_with_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """What nobody foresaw ends the command with the one that repeats it, not with a traceback."""

    def fail(*_: object) -> None:
        raise kind("what is this?")

    monkeypatch.setattr("eaimw.sim.results.run_scenario", fail)
    done = eaimw(small(tmp_path), "--seed", 9)
    assert done.exit_code == 1
    assert f"seed 9 met a fault: {kind.__name__}: what is this?" in done.stderr
    assert "--seed 9" in done.stderr


@pytest.mark.parametrize(
    ("comparison", "holds"), [("<= 2", True), ("< 2", False), (">= 2", True), ("> 2", False), ("== 2", True)]
)
def test_a_figure_is_compared(comparison: str, holds: bool) -> None:
    """With what is equal to it, each in its way; with none never."""
    expectation = Expectation.of(f" CORE.calls  {comparison}", ["CORE"])
    assert expectation.text == f"CORE.calls {comparison}"
    assert expectation.holds(2) is holds
    assert not expectation.holds(None)


def test_a_target_may_have_dots_in_its_name() -> None:
    """The figure is what stands after the last one."""
    assert Expectation.of("a.b.E905 < 3", ["a.b"]).target == "a.b"
    with pytest.raises(Refused, match="there is no target a"):
        Expectation.of("a.ok < 3", ["a.b"])
