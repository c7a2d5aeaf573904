"""What the stories told to a breaker are made of: a fake clock, the breaker under it, and a race of threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from eaimw.grade.steps import Failed

STUCK_S = 5.0  # a thread that has not come back by then never will: it had microseconds of work


class FakeClock:
    """Seconds that pass only when told."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Story:
    """A breaker, its clock, and the words in which the steps are told. `doing` says what was asked of it last."""

    doing = "loading the file"

    def __init__(self, breaker_class: Callable[..., Any], threshold: int, wait: float, now: float = 1000.0) -> None:
        self.threshold, self.wait = threshold, wait
        self.clock = FakeClock(now)
        Story.doing = f"CircuitBreaker(failure_threshold={threshold}, reset_timeout={wait}, clock=a fake clock)"
        self.breaker = breaker_class(failure_threshold=threshold, reset_timeout=wait, clock=self.clock)

    def ask(self) -> bool:
        Story.doing = "allow()"
        return bool(self.breaker.allow())

    def fail(self, times: int = 1) -> None:
        Story.doing = "record_failure()"
        for _ in range(times):
            self.breaker.record_failure()

    def succeed(self) -> None:
        Story.doing = "record_success()"
        self.breaker.record_success()

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds

    def is_in(self, state: str) -> bool:
        Story.doing = "state"
        return bool(self.breaker.state == state)

    @property
    def shown(self) -> str:
        """The state as it would be printed."""
        return repr(self.breaker.state)

    def trip(self, apart: float = 1.0) -> int:
        """Fail until it is open; the number of failures that this took, be it the right one or not."""
        for count in range(1, 3 * self.threshold + 2):
            self.advance(apart)
            self.fail()
            if self.is_in("OPEN") or not self.ask():
                return count
        raise Failed(
            f"{3 * self.threshold + 1} failures in a row did not open it (failure_threshold={self.threshold})",
            "Pass step 1 first: record_failure() counts, and at failure_threshold the state becomes OPEN.",
        )


def race(verb: Callable[[], object], threads: int) -> list[bool]:
    """What each of so many threads gets from `verb`, with a change of threads offered at every bytecode of it.

    Without this a missing lock shows once in thousands of tries: the gap is a few bytecodes wide.
    """
    code = getattr(verb, "__code__", None)
    file = code.co_filename if code else ""
    answers: list[object] = []
    problems: list[BaseException] = []
    start = threading.Barrier(threads)

    def give_way(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != file:
            return None
        frame.f_trace_opcodes = True
        time.sleep(0)
        return give_way

    def run() -> None:
        try:
            start.wait(STUCK_S)
            sys.settrace(give_way)
            try:
                answers.append(verb())
            finally:
                sys.settrace(None)
        except BaseException as problem:
            problems.append(problem)

    runners = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join(STUCK_S)
        if runner.is_alive():
            raise Failed(
                f"{Story.doing}: a thread did not come back within {STUCK_S:g} s",
                "Two threads wait for each other, or one lock is taken twice: release every lock on every way out "
                "(`with lock:`).",
            )
    if problems:
        raise problems[0]
    return [bool(answer) for answer in answers]
