"""Bytes to records and back: transactions in, replies out. What targets answer is read in `verdict`.

msgspec reads what is plain. It lets some faults through (a key that stands twice, bad UTF-8 in what it skips, depth
beyond our limit), so a cheap look at the bytes sends every suspect to a slow, strict reading, which also makes the
messages: a test holds the two readings equal.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate
from typing import Any, NoReturn

import msgspec
from msgspec import UNSET, UnsetType

from eaimw.bounds import MAX_SECONDS
from eaimw.config import NAME_ALLOWED, is_name
from eaimw.errors import Malformed, shown
from eaimw.model import Reply, Transaction

MAX_BYTES = 1_048_576
MAX_DEPTH = 100
MAX_TIMEOUT_MS = int(MAX_SECONDS * 1000)

is_tx_id = re.compile(r"[A-Za-z0-9._:-]{1,128}").fullmatch

_PRIORITIES = ("high", "normal", "low")


class _Fields(msgspec.Struct, gc=False):
    """What msgspec reads of a transaction; the bounds are checked after it."""

    tx_id: str
    target: str | UnsetType = UNSET
    op: str | UnsetType = UNSET
    priority: str | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET


# field -> (is the value allowed?, what is allowed)
_ALLOWED: dict[str, tuple[Callable[[Any], object], str]] = {
    "tx_id": (lambda v: isinstance(v, str) and is_tx_id(v), "a string of 1 to 128 of A-Z a-z 0-9 . _ : -"),
    "target": (lambda v: isinstance(v, str) and is_name(v), NAME_ALLOWED),
    "op": (lambda v: isinstance(v, str) and is_name(v), NAME_ALLOWED),
    "priority": (lambda v: v in _PRIORITIES, '"high", "normal" or "low"'),
    "timeout_ms": (
        lambda v: type(v) is int and 1 <= v <= MAX_TIMEOUT_MS,
        f"an integer from 1 to {MAX_TIMEOUT_MS}",
    ),
    "idempotency_key": (lambda v: isinstance(v, str) and 1 <= len(v) <= 256, "a string of 1 to 256 characters"),
}

_decode_fields = msgspec.json.Decoder(_Fields).decode


def read_transaction(raw: bytes) -> Transaction:
    """One transaction from its bytes, without the line end. Raises Malformed: the field, what it is, what it may be."""
    if len(raw) > MAX_BYTES:
        raise Malformed(f"the transaction has {len(raw):,} bytes; at most {MAX_BYTES:,} are allowed")
    if is_suspect(raw):
        return _read_strictly(raw)
    try:
        fields = _decode_fields(raw)
    except (msgspec.DecodeError, RecursionError):
        return _read_strictly(raw)
    target, op = fields.target, fields.op
    count = raw.count
    # Where a name of ours stands a second time, in a value perhaps, the strict reading tells what it is.
    if (
        not is_tx_id(fields.tx_id)
        or count(b'"tx_id"') > 1
        or (target is UNSET and op is UNSET)
        or (target is not UNSET and (not _is_common_name(target) or count(b'"target"') > 1))
        or (op is not UNSET and (not _is_common_name(op) or count(b'"op"') > 1))
    ):
        return _read_strictly(raw)
    tx = Transaction(fields.tx_id, raw, target or None, op or None)
    if fields.priority is UNSET and fields.timeout_ms is UNSET and fields.idempotency_key is UNSET:
        return tx
    return _with_rarer_fields(tx, fields)


def _with_rarer_fields(tx: Transaction, fields: _Fields) -> Transaction:
    added: dict[str, Any] = {}
    for name in ("priority", "timeout_ms", "idempotency_key"):
        value = getattr(fields, name)
        if value is UNSET:
            continue
        if not _is_allowed(name, value) or tx.raw.count(f'"{name}"'.encode()) > 1:
            return _read_strictly(tx.raw)
        added[name] = value
    return msgspec.structs.replace(tx, **added)


@lru_cache(1024)
def _is_common_name(name: str) -> bool:
    """`is_name`, for those that come again and again."""
    return is_name(name) is not None


_is_trace = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch


# header -> what is allowed. 15 digits: no clock shows more, and nobody is kept busy with longer numbers.
_OF_TIME = {
    b"x-timeout-ms": "what is left, in milliseconds: 1 to 15 digits",
    b"x-deadline": "milliseconds since 1970: 1 to 15 digits",
}
_is_milliseconds = re.compile(rb"[0-9]{1,15}").fullmatch


def with_headers(tx: Transaction, headers: Mapping[bytes, bytes], time: Callable[[], float]) -> Transaction:
    """The transaction with what its caller's HTTP headers add (names in lower case); its own fields win.

    Idempotency-Key and X-Priority as the fields, else Malformed; a traceparent that is none is ignored, as W3C's
    Trace Context asks. timeout_ms: the nearest of its own, and X-Timeout-Ms or else X-Deadline, which is compared with
    `time`, in seconds since the epoch; 0: past. Malformed if that is no number.
    """
    added: dict[str, str | int] = {}
    for header, field in ((b"idempotency-key", "idempotency_key"), (b"x-priority", "priority")):
        if header not in headers or getattr(tx, field) is not None:
            continue
        value = headers[header].decode("utf-8", "replace")
        if not _is_allowed(field, value):
            raise _malformed_header(header, _ALLOWED[field][1], value, tx)
        added[field] = value
    left = _left_by(headers, tx, time)
    if left is not None:
        added["timeout_ms"] = left if tx.timeout_ms is None else min(left, tx.timeout_ms)
    trace = headers.get(b"traceparent", b"")
    if _is_trace(trace):
        added["traceparent"] = trace.decode()
    return msgspec.structs.replace(tx, **added) if added else tx


def _left_by(headers: Mapping[bytes, bytes], tx: Transaction, time: Callable[[], float]) -> int | None:
    """Milliseconds that the caller's headers leave; None if they do not say. Raises Malformed."""
    # Clocks differ, so what is left counts before a moment.
    for header, allowed in _OF_TIME.items():
        value = headers.get(header)
        if value is None:
            continue
        if not _is_milliseconds(value):
            raise _malformed_header(header, allowed, value.decode("utf-8", "replace"), tx)
        left = int(value)
        if header == b"x-deadline":
            left -= math.ceil(time() * 1000)  # never more than there is
        return max(0, min(left, MAX_TIMEOUT_MS))
    return None


def _malformed_header(header: bytes, allowed: str, value: str, tx: Transaction) -> Malformed:
    return Malformed(f"the header {header.decode()} must be {allowed}, not {shown(value)}", tx.tx_id, tx.target)


def from_python(tx: object) -> Transaction:
    """One transaction from a dict. Raises Malformed, also for what JSON cannot carry."""
    if not isinstance(tx, dict):
        raise Malformed(f"a transaction is a dict, not {shown(tx)}")
    try:
        raw = json.dumps(tx, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as problem:
        raise Malformed(f"the transaction cannot be written as JSON: {problem}", *_names_of(tx)) from None
    return read_transaction(raw)


def write_reply(reply: Reply) -> bytes:
    """The reply as one JSON object, without a line end."""
    return _encode(reply)


def to_python(reply: Reply) -> dict[str, Any]:
    """The reply as a dict, `data` parsed."""
    fields = {name: value for name in reply.__struct_fields__ if (value := getattr(reply, name)) is not None}
    fields.setdefault("tx_id", None)
    fields.setdefault("target", None)
    if reply.data is not None:
        fields["data"] = json.loads(bytes(reply.data), parse_int=_int)
    return fields


_encode = msgspec.json.Encoder().encode


def is_suspect(raw: bytes) -> bool:
    """May msgspec take this for better than it is? Cheap, and never False for what it may, but for one thing.

    That is a name that stands twice: whoever reads looks for it.
    """
    return (
        (_BACKSLASH in raw and _has_ascii_escaped(raw) is not None)
        or (len(raw) > 2 * MAX_DEPTH and raw.count(b"{") + raw.count(b"[") > MAX_DEPTH)  # each of them has an end
        or not (raw.isascii() or _is_utf8(raw))
    )


# A name that counts may stand behind an escape; all of them are of ASCII, so accented letters are no suspects.
_has_ascii_escaped = re.compile(rb"\\u00[2-7]").search


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_strictly(raw: bytes) -> Transaction:
    pairs: list[tuple[str, Any]] = []

    def keep(members: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal pairs  # inner objects come first, so the last one kept is the outermost
        pairs = members
        return dict(members)

    json_object(raw, "the transaction", keep)
    seen: dict[str, Any] = {}
    problem: str | None = None  # the first one
    for name, value in pairs:
        if name not in _ALLOWED:
            continue
        if name in seen:
            problem = problem or f"{name} stands twice"
            value = None  # which of them was meant cannot be known
        elif not _is_allowed(name, value):
            problem = problem or f"{name} must be {_ALLOWED[name][1]}, not {shown(value)}"
        seen[name] = value
    if "tx_id" not in seen:
        problem = f"tx_id is missing; it must be {_ALLOWED['tx_id'][1]}"
    elif "target" not in seen and "op" not in seen:
        problem = problem or f"target is missing (or an op that is routed); it must be {NAME_ALLOWED}"
    elif b"\\u" in raw and _has_lone_surrogate(pairs):
        problem = problem or "a string has a lone surrogate; \\ud800 to \\udfff are allowed only in pairs"
    if problem is not None:
        raise Malformed(problem, *_names_of(seen))
    return Transaction(**seen, raw=raw)


def _names_of(tx: dict[str, Any]) -> tuple[str | None, str | None]:
    """tx_id and target as far as they are good, for the answer to a bad transaction."""
    tx_id, target = tx.get("tx_id"), tx.get("target")
    return tx_id if _is_allowed("tx_id", tx_id) else None, target if _is_allowed("target", target) else None


def _is_allowed(name: str, value: object) -> bool:
    return bool(_ALLOWED[name][0](value))


def json_object(raw: bytes, what: str, keep: Callable[[list[tuple[str, Any]]], dict[str, Any]]) -> dict[str, Any]:
    """The one object, names unescaped; `keep` makes each object in it of its members. Raises Malformed."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as problem:
        raise Malformed(f"{what} is not UTF-8: byte {raw[problem.start]:#04x} at byte {problem.start + 1}") from None
    if text.startswith("\ufeff"):
        raise Malformed(f"{what} is not plain JSON: it starts with a byte order mark")
    if _depth_exceeds(raw, MAX_DEPTH):
        raise Malformed(f"{what} is nested deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(text, object_pairs_hook=keep, parse_constant=_no_constant, parse_int=_int)
    except json.JSONDecodeError as problem:
        raise Malformed(
            f"{what} is not JSON: {problem.msg.removesuffix(' at')} at character {problem.pos + 1}"
        ) from None
    except _NotJson as problem:
        raise Malformed(f"{what} is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not one JSON object: {shown(value, 40)}")
    return value


class _NotJson(Exception):
    pass


def _no_constant(name: str) -> NoReturn:
    raise _NotJson(f"{name} is not a JSON number")


def _int(digits: str) -> int | Decimal:
    """An integer; one of more digits than Python converts becomes a Decimal, which no field of ours takes."""
    try:
        return int(digits)
    except ValueError:
        return Decimal(digits)


def _depth_exceeds(raw: bytes, limit: int) -> bool:
    """Does the nesting go deeper? Strings are left out; in bytes that are no JSON the answer may be either."""
    if raw.count(b"{") + raw.count(b"[") <= limit:
        return False
    brackets = _STRING.sub(b"", raw).translate(None, delete=_NO_BRACKETS)
    return any(depth > limit for depth in accumulate(map(_STEP.__getitem__, brackets)))


# The closing quote may be missing: to look for it again from each later one would take the square of the size.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_STEP = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}


def _has_lone_surrogate(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return True
    return False


def on_one_line(body: bytes) -> bytes:
    """The object's bytes with line ends (in JSON they stand only between tokens) as spaces."""
    body = body.strip(b" \t\r\n")
    return body.translate(_LINE_ENDS) if _LF in body or _CR in body else body


_LF, _CR, _BACKSLASH = b"\n\r\\"  # a number is found in bytes four times as fast as a byte
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")
