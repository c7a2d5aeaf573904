"""The demo: CORE falls ill and recovers, CLAIM does not notice. Runs the real programs on free ports."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests

ROOT = Path(__file__).resolve().parent.parent
RATE = 25  # transactions a second to each target
START_LIMIT = 20.0  # seconds for a program to say that it listens

RELAY = {"--max-inflight": "8", "--fail-threshold": "3", "--reset-timeout": "2", "--timeout": "1.5"}

# What happens to CORE, for how many seconds, and what to see.
PHASES: tuple[tuple[str, dict[str, Any], float, str], ...] = (
    ("healthy", {"mode": "normal", "delay_ms": 5}, 3, "both answer"),
    ("CORE slow", {"mode": "slow", "delay_ms": 1000}, 4, "8 calls wait for CORE, the rest is refused at once (E905)"),
    (
        "CORE fails",
        {"mode": "fail"},
        4,
        "3 failures open the circuit: E904, CORE is left in peace but for a probe each 2 s",
    ),
    ("CORE well", {"mode": "normal", "delay_ms": 5}, 5, "one probe closes the circuit; its work goes on"),
)


@contextlib.contextmanager
def program(*arguments: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """A program of the checkout; ended, and waited for, with the block."""
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, text=True, **streams)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def target(name: str) -> Iterator[str]:
    """A simulated target on a free port; gives its address."""
    with program(f"fixtures/{name}.py", "--port", "0", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        if " listening on " not in first:
            raise SystemExit(f"demo: fixtures/{name}.py did not start")
        yield first.rsplit(" ", 1)[1].strip()


class Replies:
    """Reads the relay's replies as they come; knows how many are still out."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._changed = threading.Condition()
        self.got: dict[str, dict[str, Any]] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = json.loads(line)
            with self._changed:
                self.got[reply["tx_id"]] = reply
                self._changed.notify_all()

    def wait_for(self, sent: list[str]) -> None:
        """Until each has its reply; at most as long as a call may take, and a little more."""
        with self._changed:
            if not self._changed.wait_for(lambda: all(tx_id in self.got for tx_id in sent), START_LIMIT):
                raise SystemExit("demo: the relay left transactions without a reply")


def play(phase: str, seconds: float, relay: subprocess.Popen[str], replies: Replies) -> list[str]:
    """Send to both targets at RATE, then wait for the replies; gives the transactions' names."""
    assert relay.stdin is not None
    sent = []
    start = time.monotonic()
    for turn in range(int(seconds * RATE)):
        for name, more in (
            ("CORE", {"op": "BALANCE", "account": "A-1"}),
            ("CLAIM", {"op": "STATUS", "policy": "P-1", "claim": "C-1"}),
        ):
            tx_id = f"{phase}-{name}-{turn}"
            relay.stdin.write(json.dumps({"tx_id": tx_id, "target": name, **more}) + "\n")
            sent.append(tx_id)
        relay.stdin.flush()
        time.sleep(max(0.0, start + (turn + 1) / RATE - time.monotonic()))
    replies.wait_for(sent)
    return sent


def row(title: str, name: str, replies: list[dict[str, Any]], calls: int) -> str:
    """A line of the table: counts by code, and how long the replies took in the hub."""
    times = sorted(reply["elapsed_ms"] for reply in replies)
    counts = Counter(reply["code"] for reply in replies)
    codes = "  ".join(f"{code} {count}" for code, count in sorted(counts.items()))
    p50, p99 = (times[min(len(times) - 1, int(len(times) * share))] for share in (0.50, 0.99))
    return f"{title:<11} {name:<6} {calls:>6}   {p50:>8.1f} {p99:>8.1f}   {codes}"


def main() -> None:
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eaimw-demo-")))
        log = folder / "breaker.log"
        addresses = {name: stack.enter_context(target(name.lower())) for name in ("CORE", "CLAIM")}
        http = stack.enter_context(requests.Session())
        http.trust_env = False
        options = [f"{key} {value}" for key, value in RELAY.items()]
        print(f"relay.py {' '.join(options)}, {RATE} transactions a second to each target\n")
        relay = stack.enter_context(
            program(
                "breaker/relay.py",
                *(part for option in RELAY.items() for part in option),
                *("--breaker-log", str(log), "--core-url", addresses["CORE"], "--claim-url", addresses["CLAIM"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        )
        replies = Replies(relay)
        play("start", 1 / RATE, relay, replies)  # until it is up, what is sent would arrive in one burst
        table = [f"{'phase':<11} {'target':<6} {'called':>6}   {'p50 ms':>8} {'p99 ms':>8}   replies by code"]
        for number, (title, mode, seconds, what) in enumerate(PHASES):
            print(f"{title}: {what} ...", flush=True)
            http.post(f"{addresses['CORE']}/_ctl", json=mode, timeout=5).raise_for_status()
            before = {name: calls(http, address) for name, address in addresses.items()}
            sent = play(str(number), seconds, relay, replies)
            for name, address in addresses.items():
                of_target = [replies.got[tx_id] for tx_id in sent if f"-{name}-" in tx_id]
                table.append(row(title, name, of_target, calls(http, address) - before[name]))
        assert relay.stdin is not None
        relay.stdin.close()
        relay.wait(10)
        print("\n" + "\n".join(table))
        print("\nbreaker.log\n" + log.read_text(encoding="utf-8"), end="")
    print(f"\n{time.monotonic() - started:.0f} s; nothing is left running")


def calls(http: requests.Session, address: str) -> int:
    """How many transactions the target has received, by its own count."""
    return int(http.get(f"{address}/_stats", timeout=5).json()["calls"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit("usage: scripts/demo (it takes no options; it plays for about 20 seconds)")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # as Ctrl-C: nothing is left running
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit("demo: the relay ended too early; run it by hand, as in the README, to see why")
