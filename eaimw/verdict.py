"""The answers of targets: the code that one carries, wherever it stands in the target's object, or why it is no reply.

As with transactions in `wire`, msgspec reads what is plain and a strict reading all that is suspect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from eaimw import codes
from eaimw.config import CODE_FIELD
from eaimw.errors import Malformed, NoReply, shown
from eaimw.model import Answer
from eaimw.wire import MAX_TIMEOUT_MS, is_suspect, json_object, on_one_line


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What a target's whole answer says: its code with its rule, its object as bytes, and a hub's own words."""

    code: str
    rule: codes.Rule
    data: msgspec.Raw
    outcome: codes.Outcome | None = None
    retry_after_ms: int | None = None


Judge = Callable[[Answer, str], Verdict]


def judge_by(code_field: str = CODE_FIELD) -> Judge:
    """What judges the answers of a target whose code stands in that field of its object; made once per target.

    A hub behind this one has its own words (`tx_id`, `outcome`, `retry_after_ms`) at the top, wherever its code is.
    """
    read = _reader_of(code_field.split("."))

    def judge(answer: Answer, tx_id: str) -> Verdict:
        """The code that a target's answer carries. Raises NoReply if it is not one whole object with a valid code."""
        status, body = answer.status, answer.body
        said = "" if status == 200 else _said(status)
        try:
            reported = read(body)
        except Malformed as problem:
            raise NoReply(f"{said}{problem}") from None
        if reported.tx_id is not msgspec.UNSET and reported.tx_id != tx_id:
            # The object is the answer to somebody else's transaction: this caller must see nothing of it.
            raise NoReply(f"{said}the reply has the tx_id of another transaction")
        data = msgspec.Raw(on_one_line(body))
        code = reported.code
        if not codes.is_code(code):
            found = f"the {code_field} {shown(code)}, not {codes.CODE_ALLOWED}"
            raise NoReply(f"{said}the reply has {f'no {code_field}' if code is msgspec.UNSET else found}", data)
        rule = codes.of_target(code)
        if (
            status != 200
            and not _is_judged_by_body(status)
            and not (rule.is_of_a_hub and (status == 429 or 500 <= status < 600))
        ):
            raise NoReply(f"{said}the reply has the code {code}", data)
        if not rule.is_of_a_hub:
            return Verdict(code, rule, data)
        wait = reported.retry_after_ms
        return Verdict(
            code,
            rule,
            data,
            reported.outcome if reported.outcome in codes.OUTCOMES else None,
            wait if type(wait) is int and 0 <= wait <= MAX_TIMEOUT_MS else None,
        )

    return judge


def _said(status: int) -> str:
    return f"HTTP {status}{' (a redirect, not followed)' if 300 <= status < 400 else ''}: "


def _is_judged_by_body(status: int) -> bool:
    """2xx, and the caller's faults but 429: there the target has looked at the request, so its code counts."""
    return 200 <= status < 300 or (400 <= status < 500 and status != 429)


class _Reported(msgspec.Struct, gc=False):
    """The members of a target's object that the hub looks at."""

    code: Any = msgspec.UNSET
    tx_id: Any = msgspec.UNSET
    outcome: Any = None
    retry_after_ms: Any = None


def _reader_of(path: list[str]) -> Callable[[bytes], _Reported]:
    """What reads them of a target whose code stands at the end of that path; it raises Malformed."""
    names = [f'"{name}"'.encode() for name in (*path, "tx_id")]
    decode = _decoder_of(path)

    def read(body: bytes) -> _Reported:
        if not is_suspect(body):
            for name in names:
                if body.count(name) > 1:
                    break
            else:
                try:
                    return decode(body)
                except (msgspec.DecodeError, RecursionError):
                    pass  # the strict reading says what it is
        return _read_reported_strictly(body, path)

    return read


def _decoder_of(path: list[str]) -> Callable[[bytes], _Reported]:
    """msgspec's reading. Where a step to the code is no object it raises DecodeError; a step left out is no code."""
    first, *deeper = path
    code: Any = Any
    for name in reversed(deeper):
        code = msgspec.defstruct("_Step", [("code", code, msgspec.UNSET)], rename={"code": name})
    # A code may stand where a hub has a word of its own; then there is no such word.
    words = ("outcome", "retry_after_ms")
    fields: list[tuple[str, Any, Any]] = [("code", code, msgspec.UNSET), ("tx_id", Any, msgspec.UNSET)]
    fields += [(name, Any, None) for name in words if name != first]
    shape = msgspec.defstruct("_Reported", fields, rename={"code": first}, namespace=dict.fromkeys(words), gc=False)
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(shape).decode
    if not deeper:
        return decode

    def dig(body: bytes) -> _Reported:
        reported: _Reported = decode(body)
        for _ in deeper:
            if reported.code is not msgspec.UNSET:
                reported.code = reported.code.code
        return reported

    return dig


_TWICE = ...  # stands for the values of a name that stands twice, and is no value of JSON


def _read_reported_strictly(body: bytes, path: list[str]) -> _Reported:
    names = {*path, "tx_id"}

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):  # which of two values was meant cannot be known
            counts = Counter(name for name, _ in pairs)
            members |= {name: _TWICE for name in names if counts[name] > 1}
        return members

    members = code = json_object(body, "the reply", keep)
    for level, name in enumerate(path, 1):
        code = code.get(name, msgspec.UNSET) if isinstance(code, dict) else msgspec.UNSET
        if code is _TWICE:
            raise Malformed(f"the reply's {'.'.join(path[:level])} stands twice")
    tx_id = members.get("tx_id", msgspec.UNSET)
    if tx_id is _TWICE:
        raise Malformed("the reply's tx_id stands twice")
    return _Reported(code, tx_id, members.get("outcome"), members.get("retry_after_ms"))
