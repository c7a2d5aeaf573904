"""The back-ends that a relay under grading calls: simulated targets on free ports, and what they have seen."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from typing import IO, Any, cast

import requests

START_S = 20.0  # for a process to come up on a busy machine
CTL_S = 10.0  # for a figure or a setting


class Target:
    """One simulated target: how it behaves, and what it has seen. Not to be shared by threads."""

    def __init__(self, address: str) -> None:
        self.url = f"{address}/tx"
        self._address = address
        self._session = requests.Session()
        self._session.trust_env = False  # it is on this machine, whatever HTTP_PROXY says

    def become(self, mode: str, **parameters: object) -> None:
        """Behave so from now on."""
        self._post("/_ctl", {"mode": mode, **parameters})

    def start_anew(self) -> None:
        """Healthy, with all figures at zero, and no call of an earlier relay still in flight."""
        self.become("normal")
        deadline = time.monotonic() + CTL_S
        while self.stats()["inflight"] and time.monotonic() < deadline:
            time.sleep(0.02)
        self._post("/_reset", None)

    def stats(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._session.get(f"{self._address}/_stats", timeout=CTL_S).json()
        return answer

    @property
    def calls(self) -> int:
        """Transactions received since the start."""
        return int(self.stats()["calls"])

    def has_in_flight(self, wanted: int, within: float) -> bool:
        """Have so many calls been in flight at the same time, before `within` seconds are over?"""
        deadline = time.monotonic() + within
        while self.stats()["inflight"] < wanted:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def close(self) -> None:
        self._session.close()

    def _post(self, path: str, body: object) -> None:
        self._session.post(f"{self._address}{path}", json=body, timeout=CTL_S).raise_for_status()


class Targets:
    """So many pairs of targets, in one process, until `close`; `addresses` are [(CORE, CLAIM), ...]."""

    def __init__(self, pairs: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "eaimw.grade.targets_child", str(pairs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C is ours to handle; the targets end when their input does
        )
        self._output = cast(IO[str], self._process.stdout)
        try:
            self.addresses: list[tuple[str, str]] = json.loads(self._first_line())
        except BaseException:
            self._process.kill()
            self.close()
            raise

    def close(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(CTL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def _first_line(self) -> str:
        ready, _, _ = select.select([self._output], [], [], START_S)
        line = self._output.readline() if ready else ""
        if not line:
            raise RuntimeError("the simulated targets did not start; what they said is above")
        return line
