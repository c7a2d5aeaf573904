"""What a step from 3 on works with: a running relay between the grader and two simulated targets."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from eaimw.grade.driver import Driver, Reply
from eaimw.grade.steps import Failed
from eaimw.grade.targets import Target

PAUSE_S = 0.03  # between two looks at what must become true


@dataclass(frozen=True)
class Options:
    """What the relay is run with in a step."""

    fail_threshold: int
    reset_timeout: float
    max_inflight: int
    timeout: float

    def arguments(self) -> list[str]:
        """As they stand on the relay's command line."""
        return [
            *("--fail-threshold", str(self.fail_threshold)),
            *("--reset-timeout", str(self.reset_timeout)),
            *("--max-inflight", str(self.max_inflight)),
            *("--timeout", str(self.timeout)),
        ]


class Scene:
    """A running relay, its two targets and its log. `patience` is what a busy machine may add to any wait."""

    def __init__(
        self, relay: Driver, core: Target, claim: Target, log: Path, options: Options, patience: float
    ) -> None:
        self.relay, self.core, self.claim, self.log = relay, core, claim, log
        self.options, self.patience = options, patience
        self._numbers = count(1)

    def send(self, target: str, times: int = 1, **fields: object) -> list[str]:
        """Send so many transactions at once; their tx_ids."""
        tx_ids = [f"grade-{next(self._numbers)}" for _ in range(times)]
        self.relay.send([{"tx_id": tx_id, "target": target, **fields} for tx_id in tx_ids])
        return tx_ids

    def replies(self, tx_ids: list[str]) -> list[Reply]:
        deadline = time.monotonic() + self.options.timeout + self.patience
        return [self.relay.reply(tx_id, max(0.1, deadline - time.monotonic())) for tx_id in tx_ids]

    def together(self, target: str, times: int) -> list[Reply]:
        """So many transactions at once, and all their replies."""
        return self.replies(self.send(target, times))

    def one(self, target: str, **fields: object) -> str:
        """One transaction; its code."""
        return self.replies(self.send(target, 1, **fields))[0].code

    def one_by_one(self, target: str, times: int, **fields: object) -> list[str]:
        return [self.one(target, **fields) for _ in range(times)]

    def until(self, target: str, is_it: Callable[[str], bool]) -> str:
        """One transaction after another until a code is what is waited for; that code, or the last one there was."""
        deadline = time.monotonic() + self.options.reset_timeout + self.patience
        while not is_it(code := self.one(target)) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        return code

    def settle(self) -> None:
        """Let the relay finish what it does after a reply is out: a round trip to the other target takes longer."""
        self.one("CLAIM")

    def must_give_places_back(self, after: str) -> None:
        """CORE is healthy and idle, so all its places are free, if not now then soon; Failed if they are not."""
        self.core.become("normal")
        deadline = time.monotonic() + min(3.0, self.patience)
        while True:
            codes = [reply.code for reply in self.together("CORE", self.options.max_inflight)]
            if "E905" not in codes:
                return
            if time.monotonic() > deadline:
                raise Failed(
                    f"{after}, CORE was idle again, and {codes.count('E905')} of {len(codes)} transactions still got "
                    "E905",
                    "A place that was taken is given back whatever happens to the call: release() in a finally "
                    "block, or `with` around the semaphore, so that no exception and no return can pass it by.",
                )
            time.sleep(PAUSE_S)
