"""The process in which the simulated targets live: `python -m eaimw.grade.targets_child PAIRS`.

One process for all: a step has a CORE and a CLAIM of its own, so that steps can run at the same time, and ten
processes would cost more than the steps. The first line of standard output is their addresses as JSON, a list of
[CORE, CLAIM]. It ends when its standard input does, so it cannot outlive whoever started it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from random import Random

import uvloop
from aiohttp import web

from eaimw.sim.bank import TRADES
from eaimw.sim.target import Target
from eaimw.sim.target_server import runner


async def serve(pairs: int) -> None:
    """Serve so many pairs of targets on free ports, until standard input ends."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    runners: list[web.AppRunner] = []

    async def start(name: str) -> str:
        served = runner(Target(TRADES[name], Random()))
        runners.append(served)
        await served.setup()
        await web.TCPSite(served, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{served.addresses[0][1]}"

    def wait_for_the_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(stopped.set)

    try:
        addresses = [[await start(name) for name in ("CORE", "CLAIM")] for _ in range(pairs)]
        sys.stdout.write(json.dumps(addresses) + "\n")
        sys.stdout.flush()
        threading.Thread(target=wait_for_the_end, daemon=True).start()
        await stopped.wait()
    finally:
        for served in runners:
            await served.cleanup()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
