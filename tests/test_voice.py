"""Sentences on standard error: nobody waits for it."""

from __future__ import annotations

import io
import os
import sys
import threading

import pytest
from served import eventually

from eaimw.adapters import voice
from eaimw.adapters.voice import Voice


def test_sentences_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """One per line, as they were said; when all is said no thread is left."""
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    speaker = Voice()
    for number in range(100):
        speaker.say(f"sentence {number}")
    speaker.flush(10)
    assert said.getvalue().splitlines() == [f"sentence {number}" for number in range(100)]
    eventually(lambda: all(thread.name != "voice" for thread in threading.enumerate()))


def test_a_stopped_terminal_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads standard error: say() returns, what exceeds the bound is dropped and counted."""
    monkeypatch.setattr(voice, "MAX_WAITING", 10)
    source, sink = os.pipe()
    with os.fdopen(sink, "w", buffering=1) as full, os.fdopen(source) as reader:
        monkeypatch.setattr(sys, "stderr", full)
        speaker = Voice()
        for _ in range(50):
            speaker.say("x" * 10_000)  # a pipe takes 64 KiB
        speaker.flush(0.01)
        first = [reader.readline() for _ in range(10)]
        assert all(line == "x" * 10_000 + "\n" for line in first)
        last = ""
        while "dropped" not in last:
            last = reader.readline()
        speaker.flush(10)
    assert 1 <= int(last.split()[0]) <= 40


@pytest.mark.parametrize("stream", [None, "closed"])
def test_saying_something_without_standard_error_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, stream: str | None
) -> None:
    """A process that was started with standard error closed has None there; or it was closed since."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", None if stream is None else closed)
    speaker = Voice()
    speaker.say("nobody hears it")
    speaker.flush(10)
