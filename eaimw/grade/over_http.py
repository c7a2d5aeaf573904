"""A relay that serves HTTP: each transaction is a POST of its own, with a thread and a connection of its own."""

from __future__ import annotations

import json
import re
import subprocess
import threading

import requests
import urllib3.exceptions

from eaimw.grade.driver import FLUSH_S, LONGEST_REPLY, Program, Replies, Reply, cut, read_reply
from eaimw.grade.steps import Failed

LISTENS = re.compile(r"listening on (http://\S+)")
CALLERS = 64  # at the same time; no step sends as many, so all of a step's transactions are under way at once
ANSWER_S = 60.0  # for whoever hangs on; a step has given up long before, and `close` ends what is left
ASKED = (
    "With --listen 127.0.0.1:0 it serves HTTP on any free port, and says `listening on http://HOST:PORT` in a line on "
    "standard error, flushed, as soon as it does."
)


class OverHttp:
    """`Driver`: transactions are sent to `POST /tx`, the reply is the body of the answer, whatever its status.

    start: seconds that it may take to say where it listens.
    """

    def __init__(self, command: list[str], start: float) -> None:
        self._start = start
        self._replies = Replies()
        self._callers = threading.BoundedSemaphore(CALLERS)
        self._url = ""
        self._has_said = threading.Event()
        self._program = Program(
            [*command, "--listen", "127.0.0.1:0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            heed=self._heed,
        )

    def send(self, transactions: list[dict[str, object]]) -> None:
        self._must_listen()
        self._replies.sent(transactions)
        for tx in transactions:
            # A daemon: a relay's child that holds a connection open must not keep the grader.
            threading.Thread(target=self._post, args=(tx,), daemon=True).start()

    def reply(self, tx_id: str, within: float) -> Reply:
        if not self._replies.come(tx_id, within) and self._replies.are_good():
            raise Failed(
                f"a POST of a transaction got no answer within {within:.0f} s{self._program.quoted}",
                "Every transaction gets exactly one reply, as the body of the answer to its own POST, also when it is "
                "refused (E904, E905) or when the call raises.",
            )
        return self._replies.of(tx_id)

    def is_waiting(self, tx_id: str) -> bool:
        return self._replies.is_waiting(tx_id)

    def finish(self, within: float) -> None:
        self._program.terminate()
        if not self._program.has_ended(within):
            raise Failed(
                f"all its replies were out and it had got SIGTERM, and {within:g} s later it was still running"
                + self._program.quoted,
                "On SIGTERM a relay that serves takes nothing new, answers what is in flight and ends: stop the "
                "server, and let no thread that waits for ever keep it alive.",
            )
        self._replies.must_be_good()

    def close(self) -> None:
        self._program.close()

    def _heed(self, words: str) -> None:
        found = LISTENS.search(words)
        if found and not self._url:
            self._url = found[1].rstrip("/") + "/tx"
            self._has_said.set()

    def _must_listen(self) -> None:
        """Wait until it has said where; Failed if it does not."""
        ended_within = 0.1
        for _ in range(max(1, round(self._start / ended_within))):
            if self._has_said.wait(ended_within) or self._program.status is not None:
                break
        if self._url:
            return
        if self._program.has_ended(0):
            raise self._ended("and never said where it listens")
        raise Failed(f"it did not say where it listens within {self._start:g} s{self._program.quoted}", ASKED)

    def _ended(self, how: str) -> Failed:
        hint = f"{ASKED} It serves until SIGTERM, and must survive whatever a target does."
        return Failed(f"the relay ended (exit status {self._program.status}) {how}{self._program.quoted}", hint)

    def _post(self, tx: dict[str, object]) -> None:
        try:
            with self._callers, requests.Session() as session:
                session.trust_env = False  # it is on this machine, whatever HTTP_PROXY says
                with session.post(self._url, json=tx, timeout=ANSWER_S, stream=True, allow_redirects=False) as answer:
                    # The second one raises where the body was cut short of its length.
                    body = answer.raw.read(LONGEST_REPLY, decode_content=True) + answer.raw.read(1, decode_content=True)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as problem:
            self._replies.fail(self._no_answer(problem))
            return
        tx_id, code = read_reply(body)
        if tx_id is None:
            said = cut(body.decode("utf-8", "replace")) or "an empty body"
            self._replies.fail(
                Failed(
                    f"POST /tx was answered with HTTP {answer.status_code} and what is no reply: {said}",
                    "The body of the answer is the reply: one JSON object with the strings tx_id and code, whatever "
                    "the HTTP status.",
                )
            )
        elif tx_id != tx["tx_id"]:
            self._replies.fail(
                Failed(
                    f"the POST of {tx['tx_id']} was answered with the reply to {cut(tx_id)}",
                    "Each POST gets the reply to its own transaction: a variable that threads share may be another "
                    "transaction's by the time the reply is written.",
                )
            )
        else:
            self._replies.take(tx_id, code)

    def _no_answer(self, problem: Exception) -> Failed:
        if self._program.has_ended(FLUSH_S):
            return self._ended("and left transactions unanswered")
        return Failed(
            f"a POST of a transaction got no whole answer: {cut(json.dumps(str(problem)))}{self._program.quoted}",
            "The answer has a status line, a Content-Length and the reply as its body, also when the call raises; many "
            "callers are connected at the same time.",
        )
