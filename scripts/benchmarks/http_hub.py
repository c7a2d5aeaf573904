"""The hub as a server beside HAProxy and beside no hub, all of them before the same nginx and under the same load.

The hub, ours or HAProxy, has a core to itself; nginx and the load share the other. One run of each in turn, so that
what the machine does meanwhile falls on all of them.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import requests
from load import TARGETS, Figures, open_loop, percentile, wrk
from servers import (
    OTHER_CORE,
    RUNS,
    Running,
    free_port,
    haproxy,
    hub,
    nginx,
    pinned,
    processor_seconds,
    resident_mib,
    silent,
)

CONNECTIONS = 32
SECONDS = 4.0
OPEN_SECONDS = 10.0
INFLIGHT = 64
LONG = 5_000_000  # transactions
LONG_STEP = 20.0  # seconds between two looks at the memory

# Every policy at once, with the transactions' operation as one that may be tried again.
POLICIES = """
hold_after_timeout = 1.0
[defaults.breaker]
rules = ["consecutive", "ratio"]
slow_call = 1.0
stuck_calls = 32
probes = 3
probe_timeout = 1.0
reopen_factor = 2.0
jitter = 0.1
ramp = 5.0
per = "op"
[defaults.retry]
attempts = 3
[ops.BALANCE]
read = true
timeout = 2.0
"""

Measured = dict[str, list[float]]


def http() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory(prefix="eaimw-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        target = stack.enter_context(nginx(folder))
        theirs = stack.enter_context(haproxy(folder, target))
        ours = stack.enter_context(relaying(folder / "relay", target))
        governed = stack.enter_context(relaying(folder / "governed", target, POLICIES))
        open_circuit = stack.enter_context(refusing(folder / "open", "E904"))
        full = stack.enter_context(refusing(folder / "full", "E905"))
        expect(theirs.port, "CORE", 200, "0000")
        expect(ours.port, "CLAIM", 200, "0000")
        expect(governed.port, "CORE", 200, "0000")
        saturation = throughput(target, theirs, ours, governed, open_circuit, full)
        latency(target, theirs, ours)
        slow_ones(theirs, ours, saturation / 2)


def long_run() -> None:
    """Print what five million transactions leave behind."""
    with tempfile.TemporaryDirectory(prefix="eaimw-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        target = stack.enter_context(nginx(folder))
        ours = stack.enter_context(relaying(folder / "relay", target))
        first = statistics.median(wrk(ours.port, CONNECTIONS, SECONDS).rate for _ in range(RUNS))
        print(f"{LONG:,} transactions through one hub: {CONNECTIONS} connections")
        print(f"  {'at the start':<24} {first:>8,.0f} /s {resident_mib(ours.pid):>7.1f} MiB resident")
        done = 0.0
        while done < LONG:
            done += wrk(ours.port, CONNECTIONS, LONG_STEP).rate * LONG_STEP
            print(f"  {f'after {done:,.0f}':<24} {'':>8}    {resident_mib(ours.pid):>7.1f} MiB resident", flush=True)
        last = statistics.median(wrk(ours.port, CONNECTIONS, SECONDS).rate for _ in range(RUNS))
        print(f"  {'at the end':<24} {last:>8,.0f} /s {last / first:>7.2f} of the start")


@contextmanager
def relaying(folder: Path, target: int, more: str = "") -> Iterator[Running]:
    """Our hub before that target, under both names. more: for every target."""
    folder.mkdir()
    url = f"http://127.0.0.1:{target}/tx"
    text = f"[defaults]\nmax_inflight = {INFLIGHT}\n{more}" + "".join(
        f'[targets.{name}]\nurl = "{url}"\n' for name in TARGETS
    )
    with hub(folder, text) as it:
        yield it


@contextmanager
def refusing(folder: Path, code: str) -> Iterator[Running]:
    """Our hub as it refuses everything: E904, its targets are dead; E905, they never answer and hold all places."""
    folder.mkdir()
    with ExitStack() as stack:
        port = free_port() if code == "E904" else stack.enter_context(silent())
        text = "[defaults]\ntimeout = 3600\nmax_inflight = 1\n"
        text += "[defaults.breaker]\nfail_threshold = 1\nreset_timeout = 3600\n"
        text += "".join(f'[targets.{name}]\nurl = "http://127.0.0.1:{port}/tx"\n' for name in TARGETS)
        it = stack.enter_context(hub(folder, text))
        for name in TARGETS:
            threading.Thread(target=ask, args=(it.port, name), daemon=True).start()
        for name in TARGETS:
            deadline = time.monotonic() + 5
            while ask(it.port, name)[1] != code and time.monotonic() < deadline:
                time.sleep(0.01)
            expect(it.port, name, 503, code)
        yield it


def ask(port: int, target: str) -> tuple[int, str]:
    """Status and code of one transaction; no code if the hub has been ended meanwhile."""
    tx = {"tx_id": "T-0", "target": target, "op": "BALANCE", "account": "A-1"}
    try:
        answer = requests.post(f"http://127.0.0.1:{port}/tx", json=tx, timeout=3600)
    except requests.RequestException:
        return 0, ""
    return answer.status_code, str(answer.json().get("code"))


def expect(port: int, target: str, status: int, code: str) -> None:
    """End the benchmark unless this is what comes."""
    found = ask(port, target)
    if found != (status, code):
        raise SystemExit(f"bench: {target} on port {port} gave {found}, not {(status, code)}")


def throughput(
    target: int, theirs: Running, ours: Running, governed: Running, open_circuit: Running, full: Running
) -> float:
    """Transactions a second at 32 connections; gives our median."""
    runs: dict[str, tuple[Callable[[], Figures], int | None, float]] = {
        "no hub": (lambda: wrk(target, CONNECTIONS, SECONDS), None, 0.0),
        "HAProxy": (lambda: wrk(theirs.port, CONNECTIONS, SECONDS), theirs.pid, 0.0),
        "eaimw": (lambda: wrk(ours.port, CONNECTIONS, SECONDS), ours.pid, 0.0),
        "eaimw, every policy": (lambda: wrk(governed.port, CONNECTIONS, SECONDS), governed.pid, 0.0),
        "HAProxy refuses (503)": (lambda: wrk(theirs.port, CONNECTIONS, SECONDS, ["DOWN"]), theirs.pid, 1.0),
        "eaimw refuses (E904)": (lambda: wrk(open_circuit.port, CONNECTIONS, SECONDS), open_circuit.pid, 1.0),
        "eaimw refuses (E905)": (lambda: wrk(full.port, CONNECTIONS, SECONDS), full.pid, 1.0),
    }
    rates: Measured = {name: [] for name in runs}
    shares: Measured = {name: [] for name in runs}
    for _ in range(RUNS):
        for name, (run, pid, refused) in runs.items():
            before, began = processor_seconds(pid) if pid else 0.0, time.monotonic()
            figures = run()
            if figures.refused != refused:
                raise SystemExit(f"bench: {name}: {figures.refused:.0%} were refused, not {refused:.0%}")
            rates[name].append(figures.rate)
            if pid:
                shares[name].append((processor_seconds(pid) - before) / (time.monotonic() - began))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(
        f"Over HTTP, {CONNECTIONS} connections, nginx as both targets; transactions a second, "
        f"median of {RUNS} alternating runs"
    )
    for name, median in medians.items():
        busy = f"{statistics.median(shares[name]):>7.0%} of its core" if shares[name] else ""
        print(f"  {name:<24} {median:>8,.0f} /s {median / medians['HAProxy']:>7.2f} of HAProxy {busy}")
    share = medians["eaimw, every policy"] / medians["eaimw"]
    print(f"  {'eaimw, every policy':<24} {'':>8}    {share:>7.2f} of plain eaimw")
    for name in ("eaimw refuses (E904)", "eaimw refuses (E905)"):
        print(f"  {name:<24} {'':>8}    {medians[name] / medians['HAProxy refuses (503)']:>7.2f} of its own 503s")
    return medians["eaimw"]


def latency(target: int, theirs: Running, ours: Running) -> None:
    """What one caller alone waits longer."""
    ports = {"no hub": target, "HAProxy": theirs.port, "eaimw": ours.port}
    p50s: Measured = {name: [] for name in ports}
    for _ in range(RUNS):
        for name, port in ports.items():
            p50s[name].append(wrk(port, 1, SECONDS / 2).p50_us)
    medians = {name: statistics.median(values) for name, values in p50s.items()}
    print(f"\nOne connection: p50 in microseconds, median of {RUNS} alternating runs")
    added = {name: median - medians["no hub"] for name, median in medians.items()}
    for name, median in medians.items():
        more = "" if name == "no hub" else f"  added {added[name]:>5.0f} {added[name] / added['HAProxy']:>7.2f} x"
        print(f"  {name:<24} {median:>8,.0f} us{more}")


def slow_ones(theirs: Running, ours: Running, rate: float) -> None:
    """The slowest of a thousand, at half of our saturation."""
    tails: Measured = {"HAProxy": [], "eaimw": []}
    for _ in range(RUNS):
        for name, port in (("HAProxy", theirs.port), ("eaimw", ours.port)):
            with pinned(OTHER_CORE):
                tails[name].append(percentile(open_loop(port, rate, OPEN_SECONDS), 0.999) * 1e6)
    medians = {name: statistics.median(values) for name, values in tails.items()}
    print(
        f"\nOpen loop (Poisson) at {rate:,.0f} transactions a second, half of what eaimw can do; p99.9 in us\n"
        f"from when each was due, median of {RUNS} alternating runs"
    )
    for name, median in medians.items():
        print(f"  {name:<24} {median:>8,.0f} us {median / medians['HAProxy']:>7.2f} x")
