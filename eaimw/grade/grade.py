"""Which steps are graded, each in a thread of its own, and the verdicts in order."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

from eaimw.checkout import ROOT
from eaimw.grade.driver import Driver
from eaimw.grade.json_lines import JsonLines
from eaimw.grade.over_http import OverHttp
from eaimw.grade.relay_steps import OPTIONS, play
from eaimw.grade.scene import Scene
from eaimw.grade.steps import BREAKER_STEPS, RELAY_STEPS, Failed, Verdict
from eaimw.grade.targets import Target, Targets

PATIENCE_S = 10.0
HANG_S = 20.0  # a breaker's step is over within one second, or never
KILL_S = 5.0  # beyond HANG_S, for a process that does not even say that it hangs

OUR_BREAKER = ROOT / "breaker" / "breaker.py"
OUR_RELAY = ROOT / "breaker" / "relay.py"
INSTALLED_BREAKER = Path(__file__).resolve().parent.parent / "kernel" / "breaker.py"
INSTALLED_RELAY = [sys.executable, "-c", "from eaimw.cli import main; main()", "relay"]


def is_checkout() -> bool:
    """Is this a checkout? If not, a folder `breaker` beside eaimw is somebody else's package."""
    return (ROOT / "pyproject.toml").exists() and OUR_BREAKER.exists()


def our_breaker() -> Path:
    return OUR_BREAKER if is_checkout() else INSTALLED_BREAKER


def our_relay() -> list[str]:
    return relay_command(OUR_RELAY) if is_checkout() else INSTALLED_RELAY


def relay_command(relay: Path) -> list[str]:
    return [sys.executable, str(relay)]


def grade_breaker(breaker: Path, steps: Sequence[int] = BREAKER_STEPS, hang: float = HANG_S) -> Generator[Verdict]:
    """The verdicts on a breaker, in the order of `steps`. A verb that takes `hang` seconds has failed."""
    with ThreadPoolExecutor(len(steps)) as pool:
        yield from pool.map(lambda step: _breaker_step(breaker.resolve(), step, hang), steps)


def grade_relay(
    command: list[str],
    steps: Sequence[int] = RELAY_STEPS,
    addresses: Sequence[tuple[str, str]] = (),
    patience: float = PATIENCE_S,
    *,
    listens: bool = False,
) -> Generator[Verdict]:
    """The verdicts on a relay, in the order of `steps`.

    listens: it is run with --listen and graded through HTTP, else through JSON lines.
    addresses: those of running targets, a pair for each step; none: it starts some of its own.
    patience: seconds that a busy machine may add to any wait.
    """
    with ExitStack() as stack:
        pairs = addresses or stack.enter_context(closing(Targets(len(steps)))).addresses
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eaimw-grade-")))
        running: list[Driver] = []

        def start(arguments: list[str]) -> Driver:
            line = [*command, *arguments]
            relay = OverHttp(line, 2 * patience) if listens else JsonLines(line)
            running.append(relay)
            return relay

        def verdict(pair: tuple[str, str], step: int) -> Verdict:
            return _relay_step(start, step, pair, folder / f"breaker-{step}.log", patience)

        with ThreadPoolExecutor(len(steps)) as pool:
            try:
                yield from pool.map(verdict, pairs, steps)
            except BaseException:  # Ctrl-C, or nobody wants the rest: no step waits any longer
                for relay in running:
                    relay.close()
                raise


def _breaker_step(breaker: Path, step: int, hang: float) -> Verdict:
    child = [sys.executable, "-P", "-m", "eaimw.grade.breaker_child", str(breaker), str(step), str(hang)]
    try:
        done = subprocess.run(child, capture_output=True, stdin=subprocess.DEVNULL, timeout=hang + KILL_S, check=False)
    except subprocess.TimeoutExpired:
        return Verdict(
            step,
            f"the breaker did not come back within {hang:g} s, and no other thread could run",
            "A breaker decides and never waits: look for a loop without end.",
        )
    if not done.stdout:
        words = done.stderr.decode("utf-8", "replace").split("\n")
        said = next((line.strip() for line in reversed(words) if line.strip()), "nothing")
        return Verdict(
            step,
            f"the breaker ended the process it was loaded in (exit status {done.returncode}); its last words: {said}",
            "Importing a breaker does nothing but define CircuitBreaker.",
        )
    failed = json.loads(done.stdout)
    return Verdict(step, *failed)


def _relay_step(
    start: Callable[[list[str]], Driver], step: int, pair: tuple[str, str], log: Path, patience: float
) -> Verdict:
    options = OPTIONS[step]
    with closing(Target(pair[0])) as core, closing(Target(pair[1])) as claim:
        where = ["--breaker-log", str(log), "--core-url", core.url, "--claim-url", claim.url]
        with closing(start([*options.arguments(), *where])) as relay:
            try:
                play(step, Scene(relay, core, claim, log, options, patience))
            except Failed as failed:
                return Verdict(step, failed.reason, failed.hint)
    return Verdict(step)
