"""The load: wrk, which asks again as soon as it is answered, and an open loop, which asks when it is time."""

from __future__ import annotations

import ctypes
import json
import os
import random
import select
import socket
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from servers import HERE, OTHER_CORE, pin

from eaimw.sim.load import Poisson

TARGETS = ("CORE", "CLAIM")
OPEN_CONNECTIONS = 64


class Figures(NamedTuple):
    """Of one run: requests answered per second, the share of them with a status of 400 or more, microseconds."""

    rate: float
    refused: float
    p50_us: float


def wrk(port: int, connections: int, seconds: float, targets: Sequence[str] = TARGETS) -> Figures:
    """A run of wrk. Ends the benchmark if a connection or an answer was lost."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(HERE / "load.lua")]
    command += [f"http://127.0.0.1:{port}", "--", *targets]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + 30, preexec_fn=lambda: pin(OTHER_CORE)
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("FIGURES ")), None)
    if line is None:
        raise SystemExit(f"bench: wrk gave no figures: {done.stdout[-300:]}{done.stderr[-300:]}")
    found = json.loads(line.removeprefix("FIGURES "))
    if found["broken"] or not found["requests"]:
        raise SystemExit(f"bench: {found['broken']} of {found['requests']} requests of wrk were lost")
    return Figures(found["requests"] / found["seconds"], found["refused"] / found["requests"], found["p50_us"])


def open_loop(port: int, rate: float, seconds: float) -> list[float]:
    """Seconds from when each request was due to its whole answer, at so many a second (Poisson), in order.

    The wait for a free connection counts, so that a hub that stands still cannot hide it.
    """
    requests = [_request(port, target) for target in TARGETS]
    epoll = select.epoll()
    timer = _Timer()
    epoll.register(timer.fd, select.EPOLLIN)
    callers: dict[int, socket.socket] = {}
    for _ in range(OPEN_CONNECTIONS):
        caller = socket.create_connection(("127.0.0.1", port))
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        callers[caller.fileno()] = caller
        epoll.register(caller.fileno(), select.EPOLLIN)
    free = [*callers]
    asked: dict[int, float] = {}
    late: deque[float] = deque()  # due, and no connection was free
    took: list[float] = []
    start = time.monotonic()
    due = Poisson(rate).times(random.Random(1), seconds)
    following = next(due, None)
    number = 0
    try:
        while following is not None or late or asked:
            now = time.monotonic()
            while following is not None and start + following <= now:
                late.append(start + following)
                following = next(due, None)
            while late and free:
                fd = free.pop()
                asked[fd] = late.popleft()
                number += 1
                callers[fd].send(requests[number % len(requests)])
            if following is not None:
                timer.ring_at(start + following)
            events = epoll.poll(5.0)
            if not events:
                raise SystemExit("bench: an answer did not come")
            for fd, _ in events:
                if fd == timer.fd:
                    timer.clear()
                    continue
                answer = callers[fd].recv(65_536)
                if not answer.endswith(b"}") or b" 200 OK\r\n" not in answer[:20]:
                    raise SystemExit(f"bench: a bad answer in the open loop: {answer[:200]!r}")
                took.append(time.monotonic() - asked.pop(fd))
                free.append(fd)
    finally:
        for caller in callers.values():
            caller.close()
        epoll.close()
        timer.close()
    return took


def percentile(values: list[float], share: float) -> float:
    """The value that so great a share of them does not exceed."""
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


def _request(port: int, target: str) -> bytes:
    body = json.dumps({"tx_id": "T-1", "target": target, "op": "BALANCE", "account": "110-234-567890"}).encode()
    head = f"POST /tx HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Timer:
    """timerfd(2): epoll's own timeout has a grain of a millisecond, which is longer than an answer takes."""

    _ABSOLUTE = 1

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")

    def ring_at(self, moment: float) -> None:
        """Ring at this time of `time.monotonic`; at once if it has passed."""
        seconds = int(moment)
        setting = (ctypes.c_long * 4)(0, 0, seconds, max(1, int((moment - seconds) * 1e9)))
        self._libc.timerfd_settime(self.fd, self._ABSOLUTE, setting, None)

    def clear(self) -> None:
        """It has rung and been heard."""
        os.read(self.fd, 8)

    def close(self) -> None:
        """Give it back."""
        os.close(self.fd)
