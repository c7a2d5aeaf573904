"""The benchmarks: ratios of medians from alternating runs, so that a machine's noise falls on both sides."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RUNS = 5
BREAKER_TURNS = 100_000
INFLIGHT = 64
TRANSACTIONS = 10_000
START_LIMIT = 10.0  # seconds for nginx to listen
RUN_LIMIT = 120.0  # seconds for one relay to do its work

NGINX = """
worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 60s;
  client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
  uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ default_type application/json; return 200 '{{"code":"0000","message":"done","balance":1000000}}'; }}
  }}
}}
"""


def breakers() -> None:
    """What a call costs when the circuit is closed: ours by its verbs, the others in the cheapest way they offer."""
    import circuitbreaker
    import interlock
    import purgatory
    import pybreaker

    from eaimw.kernel.breaker import CircuitBreaker

    ours = CircuitBreaker(5, 10)
    purgatory_breaker = purgatory.SyncCircuitBreakerFactory().get_breaker("bench")

    def nothing() -> None:
        pass

    def by_verbs() -> None:
        ours.allow()
        nothing()
        ours.record_success()

    def by_permit() -> None:
        permit = ours.acquire()
        if permit is not None:
            nothing()
            permit.success()

    def by_purgatory() -> None:
        with purgatory_breaker:
            nothing()

    contestants: dict[str, Callable[[], Any]] = {
        "ours: allow, record_success": by_verbs,
        "ours: acquire, success": by_permit,
        f"circuitbreaker {version('circuitbreaker')}": circuitbreaker.circuit(failure_threshold=5)(nothing),
        f"pybreaker {version('pybreaker')}": pybreaker.CircuitBreaker(fail_max=5)(nothing),
        f"purgatory-circuitbreaker {version('purgatory-circuitbreaker')}": by_purgatory,
        f"interlock-cb {version('interlock-cb')}": interlock.CircuitBreaker(name="bench")(nothing),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(RUNS):
        for name, call in contestants.items():
            times[name].append(nanoseconds(call) - nanoseconds(nothing))
    print(f"A call through a closed circuit, above a bare call; median of {RUNS} alternating runs")
    ours_median = statistics.median(times["ours: allow, record_success"])
    for name, runs in times.items():
        median = statistics.median(runs)
        print(f"  {name:<34} {median:>8,.0f} ns {median / ours_median:>7.1f} x")


def nanoseconds(call: Callable[[], Any]) -> float:
    return min(timeit.repeat(call, number=BREAKER_TURNS, repeat=3)) / BREAKER_TURNS * 1e9


def relays() -> None:
    """JSON lines from a file through the relay, and through the unprotected one; nginx answers on the other core."""
    with tempfile.TemporaryDirectory(prefix="eaimw-bench-") as name, nginx(Path(name)) as url:
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
        f"\nJSON lines from a file: {TRANSACTIONS:,} transactions, --max-inflight {INFLIGHT}, nginx as both targets;\n"
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


@contextlib.contextmanager
def nginx(folder: Path) -> Iterator[str]:
    """nginx on a free port and the last core; gives its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    configuration = folder / "nginx.conf"
    configuration.write_text(NGINX.format(folder=folder, port=port), encoding="utf-8")
    process = subprocess.Popen(
        ["nginx", "-e", str(folder / "error.log"), "-c", str(configuration)], preexec_fn=lambda: pin(-1)
    )
    try:
        deadline = time.monotonic() + START_LIMIT
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"bench: nginx did not start; see {folder / 'error.log'}")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/tx"
    finally:
        process.terminate()
        process.wait(10)


def pin(index: int) -> None:
    """Keep this process on one of the cores it may use."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[index]})


if __name__ == "__main__":
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}\n")
    breakers()
    relays()
