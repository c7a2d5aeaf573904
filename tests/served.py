"""For tests: a simulated target as a program of its own, on a free port, ended and reaped whatever happens.

with target("core") as core:
    core.ctl(mode="slow", delay_ms=200)
    requests.post(core.url, json={"tx_id": "T-1"})
    eventually(lambda: core.stats()["inflight"] == 0)
"""

import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import requests

ROOT = Path(__file__).resolve().parent.parent
STARTS_WITHIN = 20.0  # seconds; a loaded machine imports slowly
ENDS_WITHIN = 10.0

T = TypeVar("T")


class Served:
    """A target that serves. `base` is http://host:port, `url` where transactions go."""

    def __init__(self, process: "subprocess.Popen[str]", base: str, session: requests.Session) -> None:
        self.process = process
        self.base = base
        self.url = base + "/tx"
        self._session = session

    def ctl(self, **settings: object) -> dict[str, Any]:
        """Set mode and parameters; the settings in force."""
        return self._answer("POST", "/_ctl", settings)

    def stats(self) -> dict[str, Any]:
        return self._answer("GET", "/_stats")

    def tx(self, tx_id: str) -> dict[str, Any]:
        """What the target knows of one transaction: received, executed, code."""
        return self._answer("GET", f"/_stats/tx/{tx_id}")

    def reset(self) -> None:
        """Figures, accounts and memory as at the start; the mode stays."""
        self._answer("POST", "/_reset")

    def renew(self) -> None:
        """As at its start: mode normal, nothing in flight, all figures zero. Fails if callers do not hang up."""
        self.ctl(mode="normal")
        eventually(lambda: self.stats()["inflight"] == 0)
        self.reset()

    def stop(self) -> int:
        """End it with SIGTERM; its exit status. For tests of a target that is gone."""
        self.process.terminate()
        return self.process.wait(ENDS_WITHIN)

    def _answer(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        response = self._session.request(method, self.base + path, json=body, timeout=5)
        assert response.status_code == 200, f"{method} {path}: {response.text}"
        answer: dict[str, Any] = response.json()
        return answer


@contextmanager
def target(name: str, *options: str) -> Iterator[Served]:
    """`core` or `claim` from fixtures/, on any free port; `options` go to its command line after that."""
    command = [sys.executable, str(ROOT / "fixtures" / f"{name}.py"), "--port", "0", *options]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        direct() as session,
    ):
        try:
            yield Served(process, _first_line(process).rpartition(" ")[2], session)
        finally:
            process.terminate()
            try:
                process.wait(ENDS_WITHIN)
            finally:
                process.kill()  # nothing if it has ended


def direct() -> requests.Session:
    """Requests without any proxy of the environment between; a context manager."""
    session = requests.Session()
    session.trust_env = False
    return session


def get(url: str, token: str | None = None, method: str = "GET", **headers: str) -> requests.Response:
    """One request, without any proxy between."""
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    with direct() as session:
        return session.request(method, url, headers=headers, timeout=10)


def eventually(condition: Callable[[], T], within: float = 5.0) -> T:
    """The first true value of `condition`; fails if there is none within so many seconds."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not true within {within} s; it is {value!r}"
        time.sleep(0.005)
    return value


def _first_line(process: "subprocess.Popen[str]") -> str:
    """The line that says where it listens."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], STARTS_WITHIN)
    line = process.stdout.readline().strip() if readable else ""
    assert " listening on http://" in line, f"it did not start; its first line is {line!r}"
    return line
