"""The process in which a breaker is graded: `python -m eaimw.grade.breaker_child FILE STEP LIMIT`.

A process of its own, because a stranger's file may do anything: end the interpreter, hang in a lock, print. The
last line of standard output is the verdict as JSON; what the file itself prints goes to standard error.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from eaimw.grade.breaker_steps import opens_and_refuses, probes_after_the_wait
from eaimw.grade.steps import Failed
from eaimw.grade.story import Story

STORIES = {1: opens_and_refuses, 2: probes_after_the_wait}
FACE = (
    "The steps use CircuitBreaker(failure_threshold, reset_timeout, clock) with allow(), record_success(), "
    "record_failure() and state."
)


def grade_breaker(path: Path, step: int, limit: float) -> Failed | None:
    """Tell the step's stories to the breaker in `path`; None if all went well. Returns after `limit` seconds."""
    outcome: list[Failed | None] = []
    teller = threading.Thread(target=lambda: outcome.append(_tell(path, step)), daemon=True)
    teller.start()
    teller.join(limit)
    if outcome:
        return outcome[0]
    where = _line_in(path, sys._current_frames().get(teller.ident or 0))
    return Failed(
        f"{Story.doing} did not come back within {limit:g} s{where}",
        "A breaker decides and never waits. If it hangs in a lock: threading.Lock cannot be taken twice by the same "
        "thread, so no method may call another one that takes it.",
    )


def _tell(path: Path, step: int) -> Failed | None:
    try:
        STORIES[step](_load(path))
    except Failed as failed:
        return failed
    except BaseException as problem:  # SystemExit too: it is the file's doing, and the file's verdict
        frames = traceback.extract_tb(problem.__traceback__)
        line = next((f" (line {frame.lineno})" for frame in reversed(frames) if frame.filename == str(path)), "")
        return Failed(f"{Story.doing} raised {type(problem).__name__}: {problem}{line}", FACE)
    return None


def _load(path: Path) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location("graded_breaker", path)
    if spec is None or spec.loader is None:
        raise Failed(f"{path.name} is not a Python file", "Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and enums look their module up there
    spec.loader.exec_module(module)
    found = getattr(module, "CircuitBreaker", None)
    if not callable(found):
        raise Failed(f"{path.name} has no class CircuitBreaker", FACE)
    made: Callable[..., Any] = found
    return made


def _line_in(path: Path, frame: FrameType | None) -> str:
    while frame is not None:
        if frame.f_code.co_filename == str(path):
            return f": it is in line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def main() -> None:
    path, step, limit = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    verdict = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    failed = grade_breaker(path, step, limit)
    verdict.write(json.dumps([failed.reason, failed.hint] if failed else []) + "\n")
    verdict.flush()
    if threading.active_count() > 1:
        os._exit(0)  # a thread of the breaker's would keep the interpreter from ending


if __name__ == "__main__":
    main()
