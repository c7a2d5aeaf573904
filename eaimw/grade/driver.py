"""How the steps speak to a relay, and what every way of speaking to one has in common.

`Driver` is all that the steps know of a relay. `Program` is its process, `Replies` what was sent to it and came back.
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
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Protocol

from eaimw.grade.steps import Failed

FLUSH_S = 1.0  # after a reply is missed, or a relay has ended: for what is still on its way
LONGEST_REPLY = 2 * 1024 * 1024  # of a relay that writes without end
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
        """Hand them over, all at once, and wait for no reply; Failed if the relay has not come up."""

    def reply(self, tx_id: str, within: float) -> Reply:
        """The reply to one that was sent; Failed if there is none within so many seconds."""

    def is_waiting(self, tx_id: str) -> bool:
        """Has it no reply yet?"""

    def finish(self, within: float) -> None:
        """There is nothing more to come: Failed if it does not end then, or has said what no relay may say."""

    def close(self) -> None:
        """End it, however it is doing; from any thread, and more than once."""


class Program:
    """A relay's process. The last lines of its standard error are kept; `heed` gets each, in a thread."""

    def __init__(
        self, command: list[str], *, stdin: int, stdout: int, heed: Callable[[str], None] = lambda line: None
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
            process_group=0,  # so that what it starts can be ended with it
        )
        self._pipes = [self._process.stdin, self._process.stdout, self._process.stderr]
        self._heed = heed
        self._last_words: deque[str] = deque(maxlen=20)
        self._closing = threading.Lock()
        self._is_closed = False
        self._readers: list[threading.Thread] = []
        self.read(self._process.stderr, self._read_words)

    @property
    def input(self) -> IO[bytes]:
        return _there(self._process.stdin)

    @property
    def output(self) -> IO[bytes]:
        return _there(self._process.stdout)

    def read(self, pipe: IO[bytes] | None, work: Callable[[IO[bytes]], None]) -> None:
        """Read one of its pipes in a thread, which `close` joins."""
        reader = threading.Thread(target=work, args=(_there(pipe),), daemon=True)
        self._readers.append(reader)
        reader.start()

    def terminate(self) -> None:
        self._process.terminate()

    def has_ended(self, within: float) -> bool:
        """Has it, or does it within so many seconds? Then what it has written is read, too."""
        deadline = time.monotonic() + within
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            return False
        for reader in self._readers:
            reader.join(max(FLUSH_S, deadline - time.monotonic()))
        return True

    @property
    def status(self) -> int | None:
        """Its exit status, once it has ended."""
        return self._process.poll()

    @property
    def quoted(self) -> str:
        """Its last words, as the end of a sentence."""
        words = list(self._last_words)
        return f"; its last words: {cut(words[-1])}" if words else "; it said nothing on standard error"

    def close_input(self) -> None:
        with contextlib.suppress(OSError):
            self.input.close()

    def close(self) -> None:
        """End it and what it has started; from any thread, and more than once."""
        with self._closing:
            if self._is_closed:
                return  # its number may be another process's by now
            self._is_closed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdin is not None:
            self.close_input()
        for reader in self._readers:
            reader.join(FLUSH_S)  # a grandchild in a group of its own may hold the pipe: then it is left to it
        if not any(reader.is_alive() for reader in self._readers):
            for pipe in self._pipes[1:]:
                if pipe is not None:
                    pipe.close()

    def _read_words(self, errors: IO[bytes]) -> None:
        for line in errors:
            if line.strip():
                words = line.decode("utf-8", "replace").strip()
                self._last_words.append(words)
                self._heed(words)


class Replies:
    """What was sent and what came back. Any thread may ask and tell; the first problem told is the one that counts."""

    def __init__(self) -> None:
        self._sent: dict[str, float] = {}
        self._replies: dict[str, Reply] = {}
        self._problem: Failed | None = None
        self._news = threading.Condition()
        self.has_ended = False

    def sent(self, transactions: list[dict[str, object]]) -> None:
        """These are on their way from now on."""
        now = time.monotonic()
        with self._news:
            self._sent.update((str(tx["tx_id"]), now) for tx in transactions)

    def take(self, tx_id: str, code: str) -> None:
        """A reply has come; a problem if it answers nothing that waits for one."""
        with self._news:
            if tx_id not in self._sent:
                self._problem = self._problem or Failed(
                    f"a reply came with tx_id {cut(tx_id)}, which was never sent",
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
            self._news.notify_all()

    def fail(self, problem: Failed) -> None:
        """Something came that no relay may say, or nothing where a reply had to come."""
        with self._news:
            self._problem = self._problem or problem
            self._news.notify_all()

    def end(self) -> None:
        """Nothing more can come."""
        with self._news:
            self.has_ended = True
            self._news.notify_all()

    def come(self, tx_id: str, within: float) -> bool:
        """Is the reply there before `within` seconds are over, nothing more can come, or there is a problem?"""
        with self._news:
            self._news.wait_for(lambda: tx_id in self._replies or self._problem or self.has_ended, within)
            return tx_id in self._replies

    def are_good(self) -> bool:
        """Has there been no problem?"""
        with self._news:
            return self._problem is None

    def must_be_good(self) -> None:
        """Raises the problem, if there is one."""
        with self._news:
            if self._problem is not None:
                raise self._problem

    def of(self, tx_id: str) -> Reply:
        """The reply, which has come; Failed if there is a problem with any."""
        self.must_be_good()
        return self._replies[tx_id]

    def is_waiting(self, tx_id: str) -> bool:
        with self._news:
            return tx_id not in self._replies


def read_reply(line: bytes) -> tuple[str | None, str]:
    """The tx_id and code of a reply; None if it is none."""
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None, ""
    if not isinstance(found, dict):
        return None, ""
    tx_id, code = found.get("tx_id"), found.get("code")
    return (tx_id, code) if isinstance(tx_id, str) and isinstance(code, str) else (None, "")


def cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= WORDS else text[:WORDS] + "..."


def _there(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("the process was started without this pipe")
    return pipe
