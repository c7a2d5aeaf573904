"""A learner's relay without a mistake, made from the unprotected one as its exercise says: threads and requests.

The wrong relays beside this file change one thing each; `run` is their program. To grade one by hand:

    PYTHONPATH=tests eaimw grade --relay tests/wrong/relays/queues.py
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from breaker.breaker import CircuitBreaker
from fixtures.breaker import relay_base
from fixtures.breaker.relay_base import Tx, reply

TARGETS = ("CORE", "CLAIM")
T = TypeVar("T")
FAILURES = ("E500", "E901", "E902")


class Learner(relay_base.Relay):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__({"CORE": options.core_url, "CLAIM": options.claim_url}, options.timeout)
        self.options = options
        self.breakers = {name: self.make_breaker() for name in TARGETS}
        self.places = {name: threading.BoundedSemaphore(options.max_inflight) for name in TARGETS}
        self.log_lock = threading.Lock()
        self.log = open(options.breaker_log, "a", encoding="utf-8")  # noqa: SIM115 -- open as long as the relay runs

    def make_breaker(self) -> CircuitBreaker:
        return CircuitBreaker(self.options.fail_threshold, self.options.reset_timeout)

    def handle_tx(self, tx: Tx) -> Tx:
        target = tx["target"]
        if target not in self.urls:
            return reply(tx, "E903", message="no such target")
        if not self.take_place(target):
            return self.refuse_full(tx)
        try:
            if not self.ask(target):
                return self.refuse_open(tx)
            answer = self.call_target(tx)
            self.report(target, answer["code"])
            return answer
        finally:
            self.give_back(target)

    def take_place(self, target: str) -> bool:
        return self.places[target].acquire(blocking=False)

    def give_back(self, target: str) -> None:
        self.places[target].release()

    def refuse_full(self, tx: Tx) -> Tx:
        return reply(tx, "E905")

    def refuse_open(self, tx: Tx) -> Tx:
        return reply(tx, "E904")

    def is_failure(self, code: str) -> bool:
        return code in FAILURES

    def ask(self, target: str) -> bool:
        return self.logged(target, self.breakers[target].allow)

    def report(self, target: str, code: str) -> None:
        breaker = self.breakers[target]
        self.logged(target, breaker.record_failure if self.is_failure(code) else breaker.record_success)

    def logged(self, target: str, verb: Callable[[], T]) -> T:
        """Use a verb of the target's breaker, and log the change if it makes one."""
        breaker = self.breakers[target]
        with self.log_lock:
            before = breaker.state
            answer = verb()
            if breaker.state != before:
                self.log_change(target, str(before), str(breaker.state))
        return answer

    def log_change(self, target: str, before: str, after: str) -> None:
        self.write(f"{datetime.now(UTC).isoformat()}|{target}|{before}->{after}")

    def write(self, line: str) -> None:
        self.log.write(line + "\n")
        self.log.flush()


def run(make: Callable[[argparse.Namespace], relay_base.Relay]) -> None:
    """The program of a relay."""
    parser = argparse.ArgumentParser()
    for name in ("fail-threshold", "max-inflight"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("reset-timeout", "timeout"):
        parser.add_argument(f"--{name}", type=float)
    for name in ("breaker-log", "core-url", "claim-url"):
        parser.add_argument(f"--{name}")
    with open(0, "rb") as lines:
        make(parser.parse_args()).run(lines)
