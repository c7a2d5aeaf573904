"""A simulated target: what a back-end does with a request, and the books it keeps. Nothing here waits.

A request comes in as bytes and is decided at once; what shall happen on the wire is handed back as a `Plan`, and
whoever serves the target (sockets, or a simulator with virtual time) carries the plan out and reports its end:

    call = target.receive(body)     # counted, perhaps executed; call.plan says what the caller shall see
    ...                             # wait plan.delay seconds, then answer, or hang, or close
    target.answered(call)           # just before the last byte of the answer leaves
    target.left(call)               # the connection is gone; nothing if it was answered

Where requests wait for their turn (`capacity.py`) the first step is two: `arrive` counts the request, and `work`,
when its turn has come, decides and executes by the mode of that moment; what never gets its turn gets `overload`, or
its caller leaves, and it is not executed.

Nothing of the hub is imported, so that a fault of the hub cannot be hidden by the same fault here. What the target
knows of its trade comes in from outside (`bank.py`), and so does chance. The modes are in `modes.py`.

A transaction that was executed is remembered by its `tx_id`: it is not executed again, and wherever the trade
answers it gives the first answer again, also if the mode has changed since. A denial is no execution: the same
transaction may succeed later. A request that is no transaction gets E400 at once in every mode.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, NoReturn, Protocol

from eaimw.sim.modes import Refused, Settings, settings_from, shown

__all__ = ["ANSWER", "CLOSE", "HANG", "LARGEST_BODY", "Call", "Known", "Plan", "Refused", "Target", "Trade"]

ANSWER, HANG, CLOSE = "answer", "hang", "close"
NO_CODE = "-"  # an answer without a code is counted under it
_TX_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# A transaction has at most 1 MiB; a target that refused a byte more could not show that the hub let it through.
LARGEST_BODY = 16 * 1024 * 1024
_PAGE = b"<html><head><title>502</title></head><body><h1>We will be back soon</h1></body></html>\n"

Json = dict[str, object]


class Trade(Protocol):
    """What a back-end knows of its business."""

    def decide(self, tx: Json) -> tuple[Json, Callable[[], None] | None]:
        """The answer (`code`, `message`, results) and the effect that makes it true; None: it was denied."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the caller shall see.

    ending: ANSWER; HANG (never a byte, until the caller goes away); CLOSE (the connection, without a byte).
    code: what the answer is counted under; `-` if it carries none.
    delay, drip: seconds before the answer, and before each byte of its body (0: all of it at once).
    """

    ending: str
    status: int = 200
    body: bytes = b""
    code: str = NO_CODE
    content_type: str = "application/json"
    delay: float = 0.0
    drip: float = 0.0


# Until its turn a call sees just what one sees that hangs.
_NOTHING_YET = Plan(HANG)
_OVERLOADED = Plan(ANSWER, 503, b"overloaded\n", content_type="text/plain")


class Known(NamedTuple):
    """What the books say of one tx_id: so many times received, executed, answered, and sent what is no reply.

    answered: whole answers handed to the network, a page and a 503 too. code: the last that was answered, or None.
    """

    received: int
    executed: int
    answered: int
    lied: int
    code: str | None


class _Entry:
    """What is known of one tx_id."""

    __slots__ = ("answered", "code", "executed", "first_answer", "inquiries", "lied", "received")

    def __init__(self) -> None:
        self.received = 0
        self.inquiries = 0  # those of `received` that only asked
        self.executed = 0
        self.answered = 0
        self.lied = 0
        self.first_answer: tuple[bytes, str] | None = None  # body and code, once executed
        self.code: str | None = None


class _Books:
    """The figures since the last reset. A call that came before it still writes into the old ones."""

    def __init__(self) -> None:
        self.calls = 0
        self.executed = 0
        self.by_code: Counter[str] = Counter()
        self.entries: dict[str, _Entry] = {}


class Call:
    """One request that was received; `is_open` until it is answered or its connection is gone."""

    __slots__ = ("_books", "_entry", "_tx", "is_open", "plan")

    def __init__(self, plan: Plan, books: _Books, tx: Json, entry: _Entry | None) -> None:
        self.plan = plan
        self.is_open = True
        self._books = books
        self._tx = tx
        self._entry = entry

    def _count(self) -> None:
        self._books.by_code[self.plan.code] += 1
        if self._entry is not None:
            self._entry.answered += 1
            if self.plan.code != NO_CODE:
                self._entry.code = self.plan.code


class Target:
    """The machine. One loop serves it: it is not safe for threads.

    make_trade: makes the trade anew, at the start and at each reset.
    chance: what `flaky` draws from while no seed is set.
    """

    def __init__(self, make_trade: Callable[[], Trade], chance: Random) -> None:
        self.settings = Settings()
        self.inflight = 0
        self.max_inflight = 0
        self._make_trade = make_trade
        self._trade = make_trade()
        self._books = _Books()
        self._unseeded = self._chance = chance

    def control(self, wanted: object) -> None:
        """Put settings in force, given as the object of `POST /_ctl`. Raises Refused, and then changes nothing."""
        self.put(settings_from(wanted, self.settings.mode))

    def put(self, settings: Settings) -> None:
        """Put settings in force."""
        self.settings = settings
        self._seed()

    def reset(self) -> None:
        """Figures, accounts, memory and a seed's chance as at the start; the mode stays.

        What is in flight still is, so `inflight` stays and `max_inflight` starts from it.
        """
        self._trade = self._make_trade()
        self._books = _Books()
        self.max_inflight = self.inflight
        self._seed()

    @property
    def calls(self) -> int:
        """Requests received since the last reset."""
        return self._books.calls

    def stats(self) -> Json:
        """The figures, as `GET /_stats` answers them."""
        return {
            "mode": self.settings.mode,
            "calls": self.calls,
            "inflight": self.inflight,
            "max_inflight": self.max_inflight,
            "executed": self._books.executed,
            "by_code": dict(self._books.by_code),
        }

    def stats_of(self, tx_id: str) -> Json:
        """What is known of one tx_id, as `GET /_stats/tx/<tx_id>` answers it."""
        entry = self._books.entries.get(tx_id) or _Entry()
        return {"received": entry.received, "executed": entry.executed, "code": entry.code}

    def known(self, tx_id: str) -> Known:
        """The same, with what only who carries the plans out can tell; zeros for one never seen."""
        entry = self._books.entries.get(tx_id) or _Entry()
        return Known(entry.received, entry.executed, entry.answered, entry.lied, entry.code)

    def tx_ids(self) -> Collection[str]:
        """All that were seen since the last reset."""
        return self._books.entries.keys()

    def receive(self, body: bytes) -> Call:
        """Take one request: count it, execute it or not, and say what shall happen to its caller."""
        call = self.arrive(body)
        self.work(call)
        return call

    def arrive(self, body: bytes) -> Call:
        """Count one request that is not yet worked on. One that is no transaction has its plan at once."""
        books = self._arrived()
        tx_id = None
        try:
            tx = _parsed(body)
            tx_id = _tx_id_of(tx)
            _check_op(tx)
        except Refused as problem:
            reply = _reply(tx_id, {"code": "E400", "message": str(problem)})
            return Call(Plan(ANSWER, 400, reply, "E400"), books, {}, None)
        entry = self._entry(books, tx_id)
        if tx.get("op") == "INQUIRE":
            entry.inquiries += 1
        return Call(_NOTHING_YET, books, tx, entry)

    def deny_unread(self, tx_id: str) -> Call:
        """Count one request of which no more than the tx_id was read; B298, and not executed."""
        books = self._arrived()
        body = _reply(tx_id, {"code": "B298", "message": "denied before the request was read"})
        return Call(Plan(ANSWER, 413, body, "B298"), books, {}, self._entry(books, tx_id))

    def work(self, call: Call) -> None:
        """Its turn has come: execute it or not, and put into `plan` what shall happen. Nothing if that is decided."""
        if call.plan is _NOTHING_YET and call._entry is not None:
            call.plan = self._plan(call._tx, call._entry, call._books)

    def overload(self, call: Call) -> None:
        """There is no room for it: HTTP 503 without a code at once, and not executed."""
        call.plan = _OVERLOADED

    def answered(self, call: Call) -> None:
        """The answer goes out. Told before its last byte leaves, so that who has read it finds it counted."""
        if call.is_open:
            self.left(call)
            call._count()

    def lied(self, call: Call) -> None:
        """What begins to go out in place of the answer is no reply. Told before its first byte; then comes `left`."""
        if call.is_open and call._entry is not None:
            call._entry.lied += 1

    def left(self, call: Call) -> None:
        """The connection is gone, by whichever side. Nothing if the call was answered."""
        if call.is_open:
            call.is_open = False
            self.inflight -= 1

    def _arrived(self) -> _Books:
        self._books.calls += 1
        self.inflight += 1
        self.max_inflight = max(self.max_inflight, self.inflight)
        return self._books

    def _entry(self, books: _Books, tx_id: str) -> _Entry:
        entry = books.entries.get(tx_id)
        if entry is None:
            entry = books.entries[tx_id] = _Entry()
        entry.received += 1
        return entry

    def _plan(self, tx: Json, entry: _Entry, books: _Books) -> Plan:
        mode = self.settings.mode
        executes = self.settings.execute == "before"
        seconds = self.settings.delay_ms / 1000
        if mode == "flaky":  # each call is one of `fail` or one of `normal`, and `execute` speaks of the good ones
            is_bad = self._chance.random() < self.settings.rate
            mode, executes = ("fail", False) if is_bad else ("normal", executes)
        body, code = self._ask_trade(tx, entry, books, executes)
        if mode == "fail":
            body = _reply(tx["tx_id"], {"code": "E500", "message": "system error"})
            return Plan(ANSWER, 500, body, "E500", delay=seconds)
        if mode == "hang":
            return Plan(HANG)
        if mode == "drop":
            return Plan(CLOSE)
        if mode == "garbage":
            return Plan(ANSWER, 200, _PAGE, content_type="text/html")
        if mode == "drip":
            return Plan(ANSWER, 200, body, code, drip=seconds)
        if mode == "deny" and not entry.executed:
            body, code = _reply(tx["tx_id"], {"code": "B299", "message": "denied"}), "B299"
        return Plan(ANSWER, 200, body, code, delay=seconds)

    def _ask_trade(self, tx: Json, entry: _Entry, books: _Books, executes: bool) -> tuple[bytes, str]:
        """Body and code of the trade's answer; its effect is applied if it shall be, and then it is remembered."""
        if tx.get("op") == "INQUIRE":
            answer = self._inquiry(tx)
            return _reply(tx["tx_id"], answer), str(answer["code"])
        if entry.first_answer is not None:
            return entry.first_answer
        answer, effect = self._trade.decide(tx)
        said = _reply(tx["tx_id"], answer), str(answer["code"])
        if executes and effect is not None:
            effect()
            entry.executed += 1
            books.executed += 1
            entry.first_answer = said
        return said

    def _inquiry(self, tx: Json) -> Json:
        """What became of another transaction; `result` is its first answer, or null if it was not executed."""
        asked = self._books.entries.get(str(tx["inquire_tx_id"])) or _Entry()
        return {
            "code": "0000",
            "message": "done",
            # A hub may inquire under the tx_id that it asks about: that alone does not make it received.
            "received": asked.received > asked.inquiries,
            "executed": asked.executed > 0,
            "result": json.loads(asked.first_answer[0]) if asked.first_answer else None,
        }

    def _seed(self) -> None:
        seed = self.settings.seed
        self._chance = self._unseeded if seed is None else Random(seed)


def _parsed(body: bytes) -> Json:
    try:
        tx = _decode(body.decode("utf-8"))
    except (ValueError, RecursionError) as problem:  # ValueError: no JSON, no UTF-8, an int of over 4,300 digits
        raise Refused(f"the body must be one JSON object: {problem}") from None
    if not isinstance(tx, dict):
        raise Refused(f"the body must be one JSON object, not {shown(tx)}")
    return tx


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode  # json.loads would make one for every body


def _tx_id_of(tx: Json) -> str:
    tx_id = tx.get("tx_id")
    if not isinstance(tx_id, str) or not _TX_ID.fullmatch(tx_id):
        found = shown(tx_id) if "tx_id" in tx else "missing"
        raise Refused(f"tx_id must be a string of 1 to 128 of A-Z a-z 0-9 . _ : - ; it is {found}")
    return tx_id


def _check_op(tx: Json) -> None:
    if "op" in tx and not isinstance(tx["op"], str):
        raise Refused(f"op must be a string; it is {shown(tx['op'])}")
    if tx.get("op") == "INQUIRE" and not isinstance(tx.get("inquire_tx_id"), str):
        raise Refused(f"INQUIRE needs inquire_tx_id, a string; it is {shown(tx.get('inquire_tx_id'))}")


def _reply(tx_id: object, answer: Json) -> bytes:
    return json.dumps({"tx_id": tx_id, **answer}).encode()
