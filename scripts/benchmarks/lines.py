"""JSON lines from a file through the relay, and through the unprotected one; nginx answers on the other core."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from servers import ROOT, RUNS, nginx, pin

INFLIGHT = 64
TRANSACTIONS = 10_000
RUN_LIMIT = 120.0  # seconds for one relay to do its work


def lines() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="eaimw-bench-") as name, nginx(Path(name)) as port:
        url = f"http://127.0.0.1:{port}/tx"
        source = Path(name, "transactions.jsonl")
        with source.open("w", encoding="utf-8") as file:
            for number in range(TRANSACTIONS):
                target = ("CORE", "CLAIM")[number % 2]
                tx = {"tx_id": f"T{number}", "target": target, "op": "BALANCE", "account": "110-234-567890"}
                file.write(json.dumps(tx) + "\n")
        common = ["--timeout", str(RUN_LIMIT), "--core-url", url, "--claim-url", url, str(source)]
        log = ["--breaker-log", str(Path(name, "breaker.log"))]
        programs = {
            "breaker/relay.py": ["breaker/relay.py", "--max-inflight", str(INFLIGHT), *log, *common],
            "relay_base.py": ["fixtures/breaker/relay_base.py", *common],
        }
        rates: dict[str, list[float]] = {program: [] for program in programs}
        for _ in range(RUNS):
            for program, arguments in programs.items():
                rates[program].append(TRANSACTIONS / seconds_of(arguments, Path(name, "out")))
    print(
        f"JSON lines from a file: {TRANSACTIONS:,} transactions, --max-inflight {INFLIGHT}, nginx as both targets;\n"
        f"whole process on one core, start-up included; transactions a second, median of {RUNS} alternating runs"
    )
    base = statistics.median(rates["relay_base.py"])
    for program, runs in rates.items():
        median = statistics.median(runs)
        print(f"  {program:<34} {median:>8,.0f} /s {median / base:>7.1f} x")


def seconds_of(arguments: list[str], output: Path) -> float:
    """Seconds that a relay takes for its input; it must answer every transaction with 0000."""
    with output.open("wb") as file:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=RUN_LIMIT,
            preexec_fn=lambda: pin(0),
        )
        seconds = time.perf_counter() - start
    replies = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    if sorted(reply["tx_id"] for reply in replies) != sorted(f"T{number}" for number in range(TRANSACTIONS)):
        raise SystemExit(f"bench: {arguments[0]} did not answer every transaction once")
    if {reply["code"] for reply in replies} != {"0000"}:
        raise SystemExit(f"bench: {arguments[0]} had other codes than 0000")
    return seconds
