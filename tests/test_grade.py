"""`eaimw grade`: passes what is right, fails what is wrong at the step that teaches it, and is never stuck itself."""

import ast
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from served import ROOT, eventually

from eaimw.cli.grade import grade
from eaimw.grade.grade import grade_breaker, grade_relay, our_breaker, our_relay, relay_command
from eaimw.grade.steps import RELAY_STEPS, TITLES, Verdict
from eaimw.grade.targets import Targets

Addresses = Sequence[tuple[str, str]]

WRONG = ROOT / "tests" / "wrong"
BREAKERS = sorted((WRONG / "breakers").glob("*.py"))
RELAYS = sorted(set((WRONG / "relays").glob("*.py")) - {WRONG / "relays" / "learner.py"})
AT_ONCE = 3  # relays; grading them is mostly waiting
GROUPS = [RELAYS[at : at + AT_ONCE] for at in range(0, len(RELAYS), AT_ONCE)]
# These fail by a reply that does not come: how long that is waited for is most of what their tests take.
SILENT = ("replies_held_back", "silent_when_full", "silent_when_open")


@pytest.fixture(scope="module")
def targets() -> Iterator[Addresses]:
    """Simulated targets for as many relays as are graded at once, a pair for each step."""
    with closing(Targets(AT_ONCE * len(RELAY_STEPS))) as running:
        yield running.addresses


@pytest.fixture(autouse=True)
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The wrong ones find each other; and whatever happens in a test, the grader leaves no temporary file."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert list(temporary.iterdir()) == []


def run(*arguments: object) -> Result:
    return CliRunner().invoke(grade, [str(argument) for argument in arguments])


def failed(verdicts: list[Verdict]) -> tuple[int, ...]:
    return tuple(verdict.step for verdict in verdicts if not verdict.passed)


def fails_at(file: Path) -> tuple[int, ...]:
    """The steps at which the file says it must fail: its line `FAILS_AT = (...)`."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "FAILS_AT":
            steps: tuple[int, ...] = ast.literal_eval(node.value)
            return steps
    raise AssertionError(f"{file} has no line FAILS_AT = (...)")


def name_of(file: Path) -> str:
    return file.stem


def breaker_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "breaker.py"
    file.write_text(text)
    return file


def relay_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "relay.py"
    file.write_text(text)
    return file


# What is right, and what is wrong


def test_ours_pass_all_seven_within_a_minute() -> None:
    """Without a file it grades our breaker and our relay, and they pass."""
    started = time.monotonic()
    result = run()
    assert result.output.splitlines() == [f"step {step}: passed: {title}" for step, title in TITLES.items()]
    assert result.exit_code == 0
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("breaker", BREAKERS, ids=name_of)
def test_a_breaker_fails_at_its_step_alone(breaker: Path) -> None:
    """Each wrong breaker fails exactly where its file says, with a hint; the right one nowhere."""
    verdicts = list(grade_breaker(breaker))
    assert failed(verdicts) == fails_at(breaker), "\n".join(map(str, verdicts))
    assert all(verdict.hint for verdict in verdicts if not verdict.passed)


@pytest.fixture
def _unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage would measure every wrong relay too, which doubles their time and tells nothing."""
    for name in [name for name in os.environ if name.startswith("COVERAGE")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_unmeasured")
@pytest.mark.parametrize("relays", GROUPS, ids=lambda group: "+".join(relay.stem for relay in group))
def test_a_relay_fails_at_its_step_alone(relays: list[Path], targets: Addresses) -> None:
    """Each wrong relay fails exactly where its file says, with a hint; the right one nowhere."""

    def verdicts_on(place: int, relay: Path) -> list[Verdict]:
        patience = 3.0 if relay.stem in SILENT else 10.0
        its_targets = targets[place * len(RELAY_STEPS) :]
        return list(grade_relay(relay_command(relay), addresses=its_targets, patience=patience))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for relay, verdicts in zip(relays, pool.map(verdicts_on, range(AT_ONCE), relays), strict=True):
            assert failed(verdicts) == fails_at(relay), "\n".join([relay.name, *map(str, verdicts)])
            assert all(verdict.hint for verdict in verdicts if not verdict.passed)


def test_the_unprotected_relay_passes_nothing(targets: Addresses) -> None:
    """What the exercise starts from fails every step of a relay."""
    relay = ROOT / "fixtures" / "breaker" / "relay_base.py"
    assert failed(list(grade_relay(relay_command(relay), addresses=targets))) == RELAY_STEPS


# The command


def test_only_a_breaker_is_graded_at_its_two_steps() -> None:
    """With --breaker alone there are two lines, and exit status 0."""
    result = run("--breaker", WRONG / "breakers" / "right.py")
    assert [line.split(":")[0] for line in result.output.splitlines()] == ["step 1", "step 2"]
    assert result.exit_code == 0


def test_one_step_alone() -> None:
    """--step N grades that step and no other."""
    result = run("--breaker", WRONG / "breakers" / "never_probes.py", "--step", 1)
    assert result.output == f"step 1: passed: {TITLES[1]}\n"
    assert result.exit_code == 0


def test_both_are_graded_together() -> None:
    """With both files the steps of each are there, in order; --step chooses from all seven."""
    files = ("--breaker", WRONG / "breakers" / "right.py", "--relay", WRONG / "relays" / "right.py")
    assert run(*files, "--step", 2).output == f"step 2: passed: {TITLES[2]}\n"
    assert run(*files, "--step", 3).output == f"step 3: passed: {TITLES[3]}\n"


def test_a_failed_step_has_a_reason_and_a_hint() -> None:
    """One line says what was seen, an indented one what to look at; exit status 1."""
    result = run("--breaker", WRONG / "breakers" / "difference_form.py")
    assert result.exit_code == 1
    first, second, hint = result.stdout.splitlines()
    assert first == f"step 1: passed: {TITLES[1]}"
    assert second == "step 2: failed: opened at 0.7 with reset_timeout=0.1, it refused at clock() == 0.7999999999999999"
    assert hint.startswith("    hint: Write clock() >= opened_at + reset_timeout.")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--breaker", WRONG / "breakers" / "right.py", "--step", 3),
            "step 3 (open means no call, E904) needs --relay FILE",
        ),
        (("--relay", WRONG / "relays" / "right.py", "--step", 1), "needs --breaker FILE"),
        (("--breaker", "nowhere.py"), "'nowhere.py' does not exist"),
        (("--relay", WRONG), "is a directory"),
        (("--step", 8), "8 is not in the range 1<=x<=7"),
    ],
)
def test_wrong_usage_is_exit_status_2(arguments: tuple[object, ...], says: str) -> None:
    """What cannot be graded is said in a sentence, and nothing is run."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""


def test_help_says_what_is_asked_of_a_stranger() -> None:
    """Whoever brings a file finds in --help how it will be called."""
    text = run("--help").output
    for word in (
        "--fail-threshold N",
        "--claim-url URL",
        "tx_id and code",
        "CircuitBreaker(failure_threshold",
        "clock",
    ):
        assert word in text
    assert all(title in text for title in TITLES.values())


def test_without_a_checkout_the_installed_ones_are_ours(monkeypatch: pytest.MonkeyPatch, targets: Addresses) -> None:
    """An installed wheel grades the breaker and the relay that it brings."""
    monkeypatch.setattr("eaimw.grade.grade.OUR_BREAKER", Path("nowhere"))
    assert our_breaker() == ROOT / "eaimw" / "kernel" / "breaker.py"
    assert failed(list(grade_breaker(our_breaker()))) == ()
    assert our_relay()[-1] == "relay"
    assert failed(list(grade_relay(our_relay(), (3,), addresses=targets))) == ()


def test_the_grader_does_not_know_what_it_grades() -> None:
    """Of eaimw it imports the simulated targets and where the checkout is: a fault of the hub cannot hide in it."""
    for file in (ROOT / "eaimw" / "grade").glob("*.py"):
        for line in file.read_text().splitlines():
            if line.startswith(("from eaimw", "import eaimw")):
                assert line.split()[1].startswith(("eaimw.grade.", "eaimw.sim.", "eaimw.checkout")), f"{file}: {line}"


# Breakers that are no breakers


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class CircuitBreaker\n    pass\n", "SyntaxError"),
        ("class Breaker: ...\n", "breaker.py has no class CircuitBreaker"),
        ("class CircuitBreaker:\n    pass\n", "raised TypeError: CircuitBreaker() takes no arguments"),
        (
            "class CircuitBreaker:\n    def __init__(self, **options):\n        self.state = 'CLOSED'\n",
            "raised AttributeError: 'CircuitBreaker' object has no attribute",
        ),
        (
            "class CircuitBreaker:\n    def __init__(self, **options):\n        raise RuntimeError('no\\nway')\n",
            "clock=a fake clock) raised RuntimeError: no way (line 3)",
        ),
        ("import sys\nsys.exit(7)\n", "loading the file raised SystemExit: 7 (line 2)"),
        ("import os, sys\nprint('dying', file=sys.stderr)\nos._exit(7)\n", "(exit status 7); its last words: dying"),
    ],
    ids=["syntax", "no class", "no arguments", "no verbs", "raises", "exits", "dies"],
)
def test_a_file_that_is_no_breaker_fails_in_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    """Whatever a file does when it is loaded or called becomes a reason, on one line."""
    verdicts = list(grade_breaker(breaker_file(tmp_path, text)))
    assert failed(verdicts) == (1, 2)
    for verdict in verdicts:
        assert says in verdict.reason
        assert "\n" not in verdict.reason
        assert verdict.hint


def test_a_deadlock_is_found_and_its_line_named(tmp_path: Path) -> None:
    """A verb that waits for a lock which its own thread holds is a failed step, soon."""
    text = (WRONG / "breakers" / "right.py").read_text()
    asks = "    def allow(self) -> bool:\n        with self.lock:\n"
    assert asks in text
    breaker = breaker_file(tmp_path, text.replace(asks, f"{asks}          with self.lock:\n"))
    line = breaker.read_text().splitlines().index("          with self.lock:") + 1
    for verdict in grade_breaker(breaker, hang=1.0):
        assert verdict.reason == f"allow() did not come back within 1 s: it is in line {line}"
        assert "cannot be taken twice" in verdict.hint


def test_threads_that_wait_for_each_other_are_found(tmp_path: Path) -> None:
    """A breaker that hangs only under threads fails step 2 alone."""
    text = (WRONG / "breakers" / "right.py").read_text()
    moves = '                self._state = "HALF_OPEN"\n'
    waits = "                if threading.active_count() > 8:\n                    threading.Event().wait()\n"
    assert moves in text
    verdicts = list(grade_breaker(breaker_file(tmp_path, text.replace(moves, waits + moves))))
    assert failed(verdicts) == (2,)
    assert "allow() in 8 threads at once" in verdicts[1].reason


def test_what_a_breaker_prints_or_leaves_running_is_no_verdict(tmp_path: Path) -> None:
    """Output of the file, and a thread of its own that never ends, do not disturb the grading."""
    text = (WRONG / "breakers" / "right.py").read_text()
    text += '\nprint(\'["forged", "verdict"]\')\nthreading.Thread(target=threading.Event().wait).start()\n'
    assert failed(list(grade_breaker(breaker_file(tmp_path, text)))) == ()


# Relays that are no relays

ANSWERS = """
import json, sys
for line in sys.stdin:
    tx = json.loads(line)
    print(json.dumps({{"tx_id": tx["tx_id"], "code": {code}}}), flush=True)
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "raise RuntimeError('no configuration')\n",
            "exit status 1) and left transactions unanswered; its last words: RuntimeError: no configuration",
        ),
        ("import argparse\nargparse.ArgumentParser().parse_args()\n", "(exit status 2)"),
        ("print('ready', flush=True)\nimport time\ntime.sleep(600)\n", "a line that is no reply: ready"),
        ("print('[1]', flush=True)\nimport time\ntime.sleep(600)\n", "a line that is no reply: [1]"),
        ("import sys, time\nprint('busy', file=sys.stderr, flush=True)\ntime.sleep(600)\n", "its last words: busy"),
        (ANSWERS.format(code="0"), "a line that is no reply"),
        (ANSWERS.format(code='"E903"'), "CORE was healthy, and the first transaction for it got E903"),
        (ANSWERS.replace('tx["tx_id"]', '"T-1"').format(code='"0000"'), "tx_id T-1, which was never sent"),
    ],
    ids=["crashes", "other options", "chats", "no object", "mute", "number as code", "wrong code", "wrong tx_id"],
)
def test_a_program_that_is_no_relay_fails_in_a_sentence(
    tmp_path: Path, targets: Addresses, text: str, says: str
) -> None:
    """Whatever a program does becomes a reason with its own last words, in bounded time."""
    started = time.monotonic()
    relay = relay_command(relay_file(tmp_path, text))
    (verdict,) = grade_relay(relay, (7,), addresses=targets, patience=3.0)
    assert says in verdict.reason
    assert "\n" not in verdict.reason
    assert verdict.hint
    assert time.monotonic() - started < 15


def test_a_relay_that_never_ends_fails(tmp_path: Path, targets: Addresses) -> None:
    """A relay ends by itself when its input has; one that lives on is ended, and has not passed."""
    text = f"import runpy, threading\nrunpy.run_path({str(WRONG / 'relays' / 'right.py')!r}, run_name='__main__')\n"
    relay = relay_file(tmp_path, text + "threading.Event().wait()\n")
    (verdict,) = grade_relay(relay_command(relay), (3,), addresses=targets, patience=2.0)
    assert verdict.reason.startswith("all its replies were out and its input had ended, and 5 s later it was still")


def test_a_relay_and_what_it_started_are_ended_with_the_step(tmp_path: Path, targets: Addresses) -> None:
    """No process outlives the grading, not even a relay's own child."""
    text = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "print('no reply', flush=True)\n"
        "time.sleep(600)\n"
    )
    assert failed(list(grade_relay(relay_command(relay_file(tmp_path, text)), (3,), addresses=targets))) == (3,)
    eventually(lambda: not any(is_running(int(pid)) for pid in (tmp_path / "pids").read_text().split()))


def test_a_grading_that_is_broken_off_ends_its_relays(tmp_path: Path, targets: Addresses) -> None:
    """Who takes the first verdict and no more (or presses Ctrl-C) does not wait for the other steps."""
    verdicts = grade_relay(our_relay(), (3, 7), addresses=targets)
    assert next(verdicts).passed
    started = time.monotonic()
    verdicts.close()
    assert time.monotonic() - started < 2


def is_running(pid: int) -> bool:
    """Not gone, and not a zombie that waits for init."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
