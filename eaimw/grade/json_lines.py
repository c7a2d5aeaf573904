"""A relay that reads and writes JSON lines: its standard input stays open as long as the step lasts."""

from __future__ import annotations

import contextlib
import json
import subprocess
from typing import IO

from eaimw.grade.driver import FLUSH_S, LONGEST_REPLY, Program, Replies, Reply, cut, read_reply
from eaimw.grade.steps import Failed


class JsonLines:
    """`Driver`: transactions are lines on its standard input, replies are lines on its standard output."""

    def __init__(self, command: list[str]) -> None:
        self._replies = Replies()
        self._program = Program(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._program.read(self._program.output, self._read_replies)

    def send(self, transactions: list[dict[str, object]]) -> None:
        self._replies.sent(transactions)
        with contextlib.suppress(OSError):  # it has ended: whoever waits for the reply says so
            self._program.input.write(b"".join(json.dumps(tx).encode() + b"\n" for tx in transactions))
            self._program.input.flush()

    def reply(self, tx_id: str, within: float) -> Reply:
        if not self._replies.come(tx_id, within) and self._replies.are_good():
            self._explain_silence(tx_id, within)
        return self._replies.of(tx_id)

    def is_waiting(self, tx_id: str) -> bool:
        return self._replies.is_waiting(tx_id)

    def finish(self, within: float) -> None:
        self._program.close_input()
        if not self._program.has_ended(within):
            raise Failed(
                f"all its replies were out and its input had ended, and {within:g} s later it was still running"
                + self._program.quoted,
                "When standard input ends and the last reply is written the relay ends by itself: a thread that "
                "waits for ever keeps Python alive, make it a daemon or tell it to stop.",
            )
        self._replies.must_be_good()

    def close(self) -> None:
        self._program.close()

    def _explain_silence(self, tx_id: str, within: float) -> None:
        """Raise what there is to say about a reply that did not come."""
        if self._replies.has_ended:
            self._program.has_ended(FLUSH_S)
            raise Failed(
                f"the relay ended (exit status {self._program.status}) and left transactions unanswered"
                + self._program.quoted,
                "It is run as `python RELAY --fail-threshold N --reset-timeout S --max-inflight N --timeout S "
                "--breaker-log FILE --core-url URL --claim-url URL`, reads JSON lines from standard input until "
                "that ends, and must survive whatever a target does.",
            )
        self._program.close_input()
        if self._replies.come(tx_id, FLUSH_S):
            raise Failed(
                f"a reply did not come within {within:.0f} s, and then came when the input was closed",
                "Each reply goes out as soon as it is known: print(..., flush=True). And read line by line: "
                "`for line in sys.stdin`, never the whole input first.",
            )
        raise Failed(
            f"a transaction got no reply within {within:.0f} s{self._program.quoted}",
            "Every transaction read gets exactly one reply, a line of JSON with its tx_id and a code, also when it is "
            "refused (E904, E905) or when the call raises.",
        )

    def _read_replies(self, output: IO[bytes]) -> None:
        for line in iter(lambda: output.readline(LONGEST_REPLY), b""):
            if line.strip():
                self._take(line)
        self._replies.end()

    def _take(self, line: bytes) -> None:
        tx_id, code = read_reply(line)
        if tx_id is not None:
            self._replies.take(tx_id, code)
            return
        self._replies.fail(
            Failed(
                f"standard output carried a line that is no reply: {cut(line.decode('utf-8', 'replace'))}",
                "A reply is one JSON object on one line with the strings tx_id and code. Standard output is for "
                "replies alone; everything else goes to standard error.",
            )
        )
