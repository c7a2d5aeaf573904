"""What a refusal costs a Python caller of the asyncio hub."""

from __future__ import annotations

import statistics
import time

import uvloop
from servers import RUNS, free_port

from eaimw import BreakerSettings, HubSettings, TargetSettings, open_hub

TURNS = 50_000


def callers() -> None:
    """Print the table."""
    times = [uvloop.run(refusals()) for _ in range(RUNS)]
    print(f"`await hub.handle_tx(tx)`, refused with E904; median of {RUNS} runs of {TURNS:,}")
    print(f"  {'a refusal':<34} {statistics.median(times) * 1e6:>8.1f} us")


async def refusals() -> float:
    """Seconds that one takes."""
    dead = TargetSettings(f"http://127.0.0.1:{free_port()}/tx", breaker=BreakerSettings(1, 3600.0))
    tx = {"tx_id": "T-1", "target": "CORE", "op": "BALANCE", "account": "110-234-567890"}
    async with open_hub(HubSettings({"CORE": dead})) as hub:
        await hub.handle_tx(tx)  # opens the circuit
        started = time.perf_counter()
        for _ in range(TURNS):
            reply = await hub.handle_tx(tx)
        seconds = time.perf_counter() - started
    if reply["code"] != "E904":
        raise SystemExit(f"bench: a refusal was {reply['code']}, not E904")
    return seconds / TURNS
