"""How a relay is run and spoken to.

`Driver` is all that the steps know of it. `JsonLines` runs the relay as a process: transactions are lines on its
standard input, which stays open as long as the step lasts, and replies are lines on its standard output.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import IO, Any, Protocol

from eaimw.grade.steps import Failed

FLUSH_S = 1.0  # after a reply is missed: for one that was only held back until the input ended
LONGEST_LINE = 2 * 1024 * 1024  # of a relay that writes without end
WORDS = 200  # of a relay's own output that a reason quotes


@dataclass(frozen=True)
class Reply:
    """What came back: `place` is its place among all the replies, 0 the first; `took` counts from the sending."""

    code: str
    place: int
    took: float


class Driver(Protocol):
    """A relay that is running."""

    def send(self, transactions: list[dict[str, object]]) -> None:
        """Hand them over, all at once, and wait for nothing."""

    def reply(self, tx_id: str, within: float) -> Reply:
        """The reply to one that was sent; Failed if there is none within so many seconds."""

    def is_waiting(self, tx_id: str) -> bool:
        """Has it no reply yet?"""

    def finish(self, within: float) -> None:
        """There is nothing more to come: Failed if it does not end by itself, or has said what no relay may say."""

    def close(self) -> None:
        """End it, however it is doing; from any thread, and more than once."""


class JsonLines:
    """A relay as a process that reads and writes JSON lines."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
            process_group=0,  # so that what it starts can be ended with it
        )
        self._input, output, errors = self._pipes = _pipes_of(self._process)
        self._sent: dict[str, float] = {}
        self._replies: dict[str, Reply] = {}
        self._problem: Failed | None = None
        self._has_ended = self._is_closed = False
        self._closing = threading.Lock()
        self._news = threading.Condition()
        self._last_words: deque[str] = deque(maxlen=20)
        self._readers = [
            threading.Thread(target=self._read_replies, args=(output,), daemon=True),
            threading.Thread(target=self._read_words, args=(errors,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def send(self, transactions: list[dict[str, object]]) -> None:
        now = time.monotonic()
        with self._news:
            self._sent.update((str(tx["tx_id"]), now) for tx in transactions)
        with contextlib.suppress(OSError):  # it has ended: whoever waits for the reply says so
            self._input.write(b"".join(json.dumps(tx).encode() + b"\n" for tx in transactions))
            self._input.flush()

    def reply(self, tx_id: str, within: float) -> Reply:
        if not self._comes(tx_id, within) and not self._problem:
            self._explain_silence(tx_id, within)
        if self._problem:
            raise self._problem
        return self._replies[tx_id]

    def is_waiting(self, tx_id: str) -> bool:
        with self._news:
            return tx_id not in self._replies

    def finish(self, within: float) -> None:
        self._close_input()
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise Failed(
                f"all its replies were out and its input had ended, and {within:g} s later it was still running"
                + self._quoted(),
                "When standard input ends and the last reply is written the relay ends by itself: a thread that "
                "waits for ever keeps Python alive, make it a daemon or tell it to stop.",
            ) from None
        self._readers[0].join(within)
        if self._problem:
            raise self._problem

    def close(self) -> None:
        with self._closing:
            if self._is_closed:
                return  # its number may be another process's by now
            self._is_closed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._close_input()
        for reader in self._readers:
            reader.join(FLUSH_S)  # a grandchild in a group of its own may hold the pipe: then it is left to it
        if not any(reader.is_alive() for reader in self._readers):
            for pipe in self._pipes[1:]:
                pipe.close()

    def _close_input(self) -> None:
        with contextlib.suppress(OSError):
            self._input.close()

    def _comes(self, tx_id: str, within: float) -> bool:
        with self._news:
            self._news.wait_for(lambda: tx_id in self._replies or self._problem or self._has_ended, within)
            return tx_id in self._replies

    def _explain_silence(self, tx_id: str, within: float) -> None:
        """Raise what there is to say about a reply that did not come."""
        if self._has_ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(FLUSH_S)
            self._readers[1].join(FLUSH_S)
            raise Failed(
                f"the relay ended (exit status {self._process.returncode}) and left transactions unanswered"
                + self._quoted(),
                "It is run as `python RELAY --fail-threshold N --reset-timeout S --max-inflight N --timeout S "
                "--breaker-log FILE --core-url URL --claim-url URL`, reads JSON lines from standard input until "
                "that ends, and must survive whatever a target does.",
            )
        self._close_input()
        if self._comes(tx_id, FLUSH_S):
            raise Failed(
                f"a reply did not come within {within:.0f} s, and then came when the input was closed",
                "Each reply goes out as soon as it is known: print(..., flush=True). And read line by line: "
                "`for line in sys.stdin`, never the whole input first.",
            )
        raise Failed(
            f"a transaction got no reply within {within:.0f} s{self._quoted()}",
            "Every transaction read gets exactly one reply, a line of JSON with its tx_id and a code, also when it is "
            "refused (E904, E905) or when the call raises.",
        )

    def _read_replies(self, output: IO[bytes]) -> None:
        for line in iter(lambda: output.readline(LONGEST_LINE), b""):
            if line.strip():
                with self._news:
                    self._take(line)
                    self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def _take(self, line: bytes) -> None:
        tx_id, code = _read(line)
        if tx_id is None:
            self._problem = self._problem or Failed(
                f"standard output carried a line that is no reply: {_cut(line.decode('utf-8', 'replace'))}",
                "A reply is one JSON object on one line with the strings tx_id and code. Standard output is for "
                "replies alone; everything else goes to standard error.",
            )
        elif tx_id not in self._sent:
            self._problem = self._problem or Failed(
                f"a reply came with tx_id {_cut(tx_id)}, which was never sent",
                "The reply carries the tx_id of the transaction that it answers, unchanged.",
            )
        elif tx_id in self._replies:
            self._problem = self._problem or Failed(
                f"two replies came with the same tx_id {tx_id}",
                "Exactly one reply for each transaction, with its own tx_id: a variable that threads share may be "
                "another transaction's by the time the reply is written.",
            )
        else:
            took = time.monotonic() - self._sent[tx_id]
            self._replies[tx_id] = Reply(code, len(self._replies), took)

    def _read_words(self, errors: IO[bytes]) -> None:
        for line in errors:
            if line.strip():
                self._last_words.append(line.decode("utf-8", "replace").strip())

    def _quoted(self) -> str:
        words = list(self._last_words)
        return f"; its last words: {_cut(words[-1])}" if words else "; it said nothing on standard error"


def _pipes_of(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise ValueError("the process was started without pipes")
    return process.stdin, process.stdout, process.stderr


def _read(line: bytes) -> tuple[str | None, str]:
    """The tx_id and code of a reply; None if it is none."""
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None, ""
    if not isinstance(found, dict):
        return None, ""
    tx_id, code = found.get("tx_id"), found.get("code")
    return (tx_id, code) if isinstance(tx_id, str) and isinstance(code, str) else (None, "")


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= WORDS else text[:WORDS] + "..."
