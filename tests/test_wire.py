"""Bytes to records: what is a transaction, what is a reply, and what each refusal says."""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eaimw.errors import Malformed, NoReply
from eaimw.model import Answer, Reply, Transaction
from eaimw.verdict import judge_by
from eaimw.wire import (
    MAX_BYTES,
    _read_strictly,
    from_python,
    read_transaction,
    to_python,
    with_headers,
    write_reply,
)

judge = judge_by()


def nested(levels: int) -> bytes:
    """A transaction whose nesting is `levels` deep, the outer object included."""
    return b'{"tx_id":"T","target":"CORE","x":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def fault(raw: bytes) -> Malformed:
    with pytest.raises(Malformed) as caught:
        read_transaction(raw)
    return caught.value


def test_a_plain_transaction() -> None:
    """All fields, and the bytes as they came."""
    raw = b'{"tx_id":"T-1","target":"CORE","op":"PAY","priority":"high","timeout_ms":250,"idempotency_key":"k","n":1.5}'
    tx = read_transaction(raw)
    assert tx == Transaction(
        tx_id="T-1", target="CORE", op="PAY", priority="high", timeout_ms=250, idempotency_key="k", raw=raw
    )


def test_what_is_not_given_is_none() -> None:
    """The target is told that the priority is normal; here it is not known to be given."""
    tx = read_transaction(b'{"tx_id":"T","op":"PAY"}')
    assert (tx.target, tx.priority, tx.timeout_ms, tx.idempotency_key) == (None, None, None, None)


NOW = 1_700_000_000.0  # seconds since the epoch
IN_2_S = b"1700000002000"
TIMES = {
    "what is left": ({b"x-timeout-ms": b"250"}, 250),
    "until when": ({b"x-deadline": IN_2_S}, 2000),
    "what is left counts, since clocks differ": ({b"x-timeout-ms": b"2500", b"x-deadline": IN_2_S}, 2500),
    "until when is then not even read": ({b"x-timeout-ms": b"2500", b"x-deadline": b"soon"}, 2500),
    "the body's own is nearer": ({b"x-timeout-ms": b"9000"}, 3000),
    "the body's own is the same": ({b"x-timeout-ms": b"3000"}, 3000),
    "nothing is left": ({b"x-timeout-ms": b"0"}, 0),
    "past": ({b"x-deadline": b"1699999999999"}, 0),
    "long past": ({b"x-deadline": b"0"}, 0),
    "this very moment": ({b"x-deadline": b"1700000000000"}, 0),
    "leading zeros": ({b"x-timeout-ms": b"000000000000042"}, 42),
}


@pytest.mark.parametrize("case", TIMES)
def test_the_nearest_of_body_and_headers_is_the_budget(case: str) -> None:
    """X-Timeout-Ms or else X-Deadline, against timeout_ms; what the target gets stays the caller's."""
    headers, left = TIMES[case]
    body = b'{"tx_id":"T","op":"PAY","timeout_ms":3000}'
    tx = with_headers(read_transaction(body), headers, lambda: NOW)
    assert (tx.timeout_ms, tx.raw) == (left, body)


@pytest.mark.parametrize("headers", [{b"x-timeout-ms": b"3600001"}, {b"x-deadline": b"9" * 15}])
def test_more_than_an_hour_is_an_hour(headers: dict[bytes, bytes]) -> None:
    """A caller that has time, or none that it knows, is no bad caller."""
    assert with_headers(read_transaction(b'{"tx_id":"T","op":"PAY"}'), headers, lambda: NOW).timeout_ms == 3_600_000


def test_without_such_headers_there_is_no_budget() -> None:
    """And the clock is not even looked at."""
    assert with_headers(read_transaction(b'{"tx_id":"T","op":"PAY"}'), HEADERS, pytest.fail).timeout_ms is None


@pytest.mark.parametrize("header", [b"x-timeout-ms", b"x-deadline"])
@pytest.mark.parametrize(
    "value", [b"", b"soon", b"-1", b"+1", b"1.5", b"1 2", b"1, 2", b"1_000", b"0x1", b"1" * 16, b"\xd9\xa1", b"\xff"]
)
def test_a_senseless_time_in_a_header_is_said(header: bytes, value: bytes) -> None:
    """Which header, what is allowed and what was found; for the transaction that it came with."""
    with pytest.raises(Malformed) as caught:
        with_headers(read_transaction(b'{"tx_id":"T","target":"CORE"}'), {header: value}, lambda: NOW)
    assert (caught.value.tx_id, caught.value.target) == ("T", "CORE")
    message = str(caught.value)
    assert message.startswith(f"the header {header.decode()} must be ")
    assert message.endswith(f"1 to 15 digits, not {value.decode('utf-8', 'replace')!r}")


HEADERS = {b"x-priority": b"high", b"idempotency-key": b"HEADER"}


@pytest.mark.parametrize(
    ("body", "priority", "key"),
    [
        (b'{"tx_id":"T","op":"PAY"}', "high", "HEADER"),
        (b'{"tx_id":"T","op":"PAY","priority":"low","idempotency_key":"BODY"}', "low", "BODY"),
        (b'{"tx_id":"T","op":"PAY","pri\\u006frity":"low","idempotency\\u005fkey":"BODY"}', "low", "BODY"),
        (b'{"tx_id":"T","op":"PAY","note":{"priority":"x","idempotency_key":1}}', "high", "HEADER"),
        (b'{"tx_id":"T","op":"PAY","note":"priority","of":"idempotency_key"}', "high", "HEADER"),
        (b'{"tx_id":"T","op":"PAY","priority":"normal"}', "normal", "HEADER"),
    ],
)
def test_the_bodys_own_fields_win_over_headers(body: bytes, priority: str, key: str) -> None:
    """However they are spelt; a name of ours within something else is no field."""
    tx = with_headers(read_transaction(body), HEADERS, lambda: 0.0)
    assert (tx.priority, tx.idempotency_key) == (priority, key)


GOOD = [
    b'{"tx_id":"T","target":"CORE","note":"\xed\x95\x9c\xea\xb8\x80"}',
    b'{"tx_id":"T","target":"CORE","note":"\\ud55c\\uae00 \\ud83d\\ude00"}',
    b'{"\\u0074x_id":"T","target":"CORE"}',
    b' {"tx_id" : "T" ,\t"target":"CORE"}\r',
    b'{"tx_id":"T","target":"CORE","inner":{"tx_id":5,"target":null,"op":[]}}',
    b'{"tx_id":"T","target":"CORE","n":' + b"9" * 5000 + b"}",
    b'{"tx_id":"T","target":"CORE","x":1,"x":2}',
    b'{"tx_id":"T","target":"CORE","x":"[[[[{{{{"}',
    b'{"tx_id":"' + b"a" * 128 + b'","target":"' + b"b" * 64 + b'"}',
    b'{"tx_id":"T","target":"CORE","timeout_ms":3600000}',
    b'{"tx_id":"T","target":"CORE","idempotency_key":"' + "é".encode() * 256 + b'"}',
    nested(100),
    b'{"tx_id":"T","target":"CORE","x":[' + b",".join([b"[1]"] * 200) + b"]}",
]


@pytest.mark.parametrize("raw", GOOD, ids=lambda raw: repr(raw[:50]))
def test_good_ones_are_taken(raw: bytes) -> None:
    """Escapes, other alphabets, blanks, deep, long and repeated members that are the target's business."""
    assert read_transaction(raw).raw == raw


BAD: list[tuple[bytes, str, str | None]] = [
    (b"", "not JSON", None),
    (b"nonsense", "not JSON", None),
    (b'{"tx_id":"T","target":"CORE"', "not JSON", None),
    (b'{"tx_id":"T","target":"CORE"} x', "not JSON", None),
    (b'["tx_id"]', "not one JSON object", None),
    (b'"T"', "not one JSON object", None),
    (b"null", "not one JSON object: null", None),
    (b"{}", "tx_id is missing", None),
    (b'{"tx_id":"T"}', "target is missing", "T"),
    (b'{"target":"CORE"}', "tx_id is missing", None),
    (b'{"tx_id":5,"target":"CORE"}', "tx_id must be a string of 1 to 128 .*, not 5", None),
    (b'{"tx_id":"","target":"CORE"}', "tx_id must be .*, not ''", None),
    (b'{"tx_id":"a b","target":"CORE"}', "tx_id must be .*, not 'a b'", None),
    (b'{"tx_id":"' + b"a" * 129 + b'","target":"CORE"}', "tx_id must be", None),
    (b'{"tx_id":"T\\n","target":"CORE"}', "tx_id must be", None),
    (b'{"tx_id":"T","target":"co re"}', "target must be .*, not 'co re'", "T"),
    (b'{"tx_id":"T","target":"' + b"b" * 65 + b'"}', "target must be", "T"),
    (b'{"tx_id":"T","target":null}', "target must be .*, not null", "T"),
    (b'{"tx_id":"T","target":"CORE","op":null}', "op must be .*, not null", "T"),
    (b'{"tx_id":"T","target":"CORE","op":""}', "op must be .*, not ''", "T"),
    (b'{"tx_id":"T","target":"","op":"X"}', "target must be .*, not ''", "T"),
    (b'{"tx_id":"T","target":"CORE","priority":null}', "priority must be .*, not null", "T"),
    (b'{"tx_id":"T","target":"CORE","priority":"urgent"}', "priority must be .*, not 'urgent'", "T"),
    (b'{"tx_id":"T","target":"CORE","priority":{}}', "priority must be", "T"),
    (b'{"tx_id":"T","target":"CORE","timeout_ms":0}', "timeout_ms must be an integer .*, not 0", "T"),
    (b'{"tx_id":"T","target":"CORE","timeout_ms":3600001}', "timeout_ms must be", "T"),
    (b'{"tx_id":"T","target":"CORE","timeout_ms":-1}', "timeout_ms must be", "T"),
    (b'{"tx_id":"T","target":"CORE","timeout_ms":1.0}', "timeout_ms must be .*, not 1.0", "T"),
    (b'{"tx_id":"T","target":"CORE","timeout_ms":true}', "timeout_ms must be .*, not true", "T"),
    (b'{"tx_id":"T","target":"CORE","timeout_ms":"5"}', "timeout_ms must be .*, not '5'", "T"),
    (b'{"tx_id":"T","target":"CORE","timeout_ms":null}', "timeout_ms must be .*, not null", "T"),
    (b'{"tx_id":"T","target":"CORE","timeout_ms":' + b"9" * 5000 + b"}", "timeout_ms must be", "T"),
    (b'{"tx_id":"T","target":"CORE","idempotency_key":""}', "idempotency_key must be", "T"),
    (b'{"tx_id":"T","target":"CORE","idempotency_key":null}', "idempotency_key must be", "T"),
    (b'{"tx_id":"T","target":"CORE","idempotency_key":"' + b"k" * 257 + b'"}', "idempotency_key must be", "T"),
    (b'{"tx_id":"T","tx_id":"T","target":"CORE"}', "tx_id stands twice", None),
    (b'{"tx_id":"T","t\\u0078_id":"U","target":"CORE"}', "tx_id stands twice", None),
    (b'{"tx_id":"T","target":"CORE","target":"CLAIM"}', "target stands twice", "T"),
    (b'{"tx_id":"T","target":"CORE","x":NaN}', "NaN", None),
    (b'{"tx_id":"T","target":"CORE","x":-Infinity}', "Infinity", None),
    (b'{"tx_id":"T","target":"CORE","x":"\xff"}', "not UTF-8", None),
    (b'{"tx_id":"T","target":"CORE","\xff":1}', "not UTF-8", None),
    (b'{"tx_id":"T","target":"CORE","x":"\xed\xa0\x80"}', "not UTF-8", None),
    (b'{"tx_id":"T","target":"CORE","x":"\\ud800"}', "lone surrogate", "T"),
    (b'{"tx_id":"T","target":"CORE","x":["\\udc00\\ud800"]}', "lone surrogate", "T"),
    (b'{"tx_id":"T","target":"CORE","x":"\x01"}', "not JSON: Invalid control character at character", None),
    (b'{"tx_id":"T","target":"CORE","x":01}', "not JSON", None),
    (b'{"tx_id":"T","target":"CORE",}', "not JSON", None),
    (b'\xef\xbb\xbf{"tx_id":"T","target":"CORE"}', "byte order mark", None),
    (nested(101), "nested deeper than 100", None),
    (nested(100_000), "nested deeper than 100", None),
    (b"[" * 1_000_000, "nested deeper than 100", None),
    (b'{"tx_id":"T","target":"CORE","x":"' + b"y" * MAX_BYTES + b'"}', "at most 1,048,576", None),
]


@pytest.mark.parametrize(("raw", "message", "tx_id"), BAD, ids=[repr(raw[:60]) for raw, _, _ in BAD])
def test_bad_ones_say_what_is_wrong(raw: bytes, message: str, tx_id: str | None) -> None:
    """Field, what was found, what is allowed; the tx_id where it can be read."""
    problem = fault(raw)
    assert re.search(message, str(problem)), str(problem)
    assert problem.tx_id == tx_id
    assert len(str(problem)) < 400


def test_the_largest_transaction_is_taken() -> None:
    """1,048,576 bytes, not one more."""
    head, tail = b'{"tx_id":"T","target":"CORE","x":"', b'"}'
    raw = head + b"y" * (MAX_BYTES - len(head) - len(tail)) + tail
    assert len(read_transaction(raw).raw) == MAX_BYTES
    assert "at most" in str(fault(raw + b" "))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
field_names = st.sampled_from(["tx_id", "target", "op", "priority", "timeout_ms", "idempotency_key", "x"])
field_values = json_values | st.sampled_from(["T", "CORE", "high", "normal", 1, 250, 3_600_000, 3_600_001, 0, "", 1.0])


@given(st.lists(st.tuples(field_names, field_values), max_size=7), st.booleans(), st.data())
def test_the_fast_reading_equals_the_strict_one(members: list[tuple[str, Any]], ascii_only: bool, data: Any) -> None:
    """Whatever comes, cut or whole, both readings take it alike or refuse it alike."""
    text = "{" + ",".join(f"{json.dumps(k)}:{json.dumps(v, ensure_ascii=ascii_only)}" for k, v in members) + "}"
    raw = text.encode("utf-8", "surrogatepass")
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw)))]
    results: list[object] = []
    for reading in (read_transaction, _read_strictly):
        try:
            results.append(reading(raw))
        except Malformed as problem:
            results.append((str(problem), problem.tx_id, problem.target))
    assert results[0] == results[1]


@given(st.binary(max_size=60))
@example(b'{"a":"\\')
@example(b"\xef\xbb\xbf")
@example(b'{"tx_id":"T","target":"CORE","\\ud800":1}')
def test_no_bytes_raise_anything_else(raw: bytes) -> None:
    """Any bytes: a transaction or Malformed; as a reply: a verdict or NoReply."""
    for prefix in (b"", b'{"tx_id":"T","target":"CORE","code":"0000","x":'):
        with contextlib.suppress(Malformed):
            read_transaction(prefix + raw)
        with contextlib.suppress(NoReply):
            judge(Answer(200, prefix + raw), "T")


# From Python.


def test_a_dict_is_a_transaction() -> None:
    """The same rules; the target gets its JSON."""
    tx = from_python({"tx_id": "T", "target": "CORE", "amount": 5, "note": "한글"})
    assert json.loads(tx.raw) == {"tx_id": "T", "target": "CORE", "amount": 5, "note": "한글"}


CIRCULAR: dict[str, Any] = {"tx_id": "T", "target": "CORE"}
CIRCULAR["self"] = CIRCULAR


@pytest.mark.parametrize(
    ("tx", "tx_id"),
    [
        (None, None),
        ([], None),
        ("T", None),
        ({}, None),
        ({"tx_id": "T", "target": "CORE", "x": math.nan}, "T"),
        ({"tx_id": "T", "target": "CORE", "x": object()}, "T"),
        ({"tx_id": "T", "target": "CORE", "x": b"bytes"}, "T"),
        ({"tx_id": "T", "target": "CORE", "x": "\ud800"}, "T"),
        (CIRCULAR, "T"),
        ({"tx_id": object(), "target": "CORE"}, None),
        ({"tx_id": "T", "target": "CORE", (1, 2): 3}, "T"),
        ({"tx_id": "T", "target": "CORE", "x": 10**5000}, "T"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_carry_is_malformed(tx: Any, tx_id: str | None) -> None:
    """Never another exception."""
    with pytest.raises(Malformed) as caught:
        from_python(tx)
    assert caught.value.tx_id == tx_id


# Replies of targets.


def verdict(body: bytes, status: int = 200, tx_id: str = "T") -> Any:
    return judge(Answer(status, body), tx_id)


def no_reply(body: bytes, status: int = 200) -> NoReply:
    with pytest.raises(NoReply) as caught:
        verdict(body, status)
    return caught.value


@pytest.mark.parametrize("status", [200, 201, 204, 299, 400, 404, 422, 428, 430, 499])
def test_2xx_and_4xx_are_judged_by_their_body(status: int) -> None:
    """But for 429 the code counts."""
    assert verdict(b'{"code":"B201"}', status).code == "B201"


@pytest.mark.parametrize("status", [100, 199, 301, 302, 304, 308, 429, 500, 502, 503, 504, 599, 600, 999])
def test_the_other_statuses_are_no_reply(status: int) -> None:
    """5xx, 429, redirects and what is no status of a reply; the object is shown."""
    problem = no_reply(b'{"code":"0000"}', status)
    assert f"HTTP {status}" in str(problem)
    assert problem.data == msgspec.Raw(b'{"code":"0000"}')


@pytest.mark.parametrize("status", [200, 404, 429, 500, 503])
def test_a_hubs_code_counts_with_any_status(status: int) -> None:
    """E9xx in a 429 or 5xx is the word of a hub behind this one."""
    assert verdict(b'{"code":"E904"}', status).code == "E904"


@pytest.mark.parametrize("status", [302, 600])
def test_a_hubs_code_in_a_redirect_is_no_reply(status: int) -> None:
    """A redirect is no reply, whatever stands in it."""
    no_reply(b'{"code":"E904"}', status)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"[]", "not one JSON object"),
        (b"{}", "has no code"),
        (b'{"code":0}', "has the code 0"),
        (b'{"code":null}', "has the code null"),
        (b'{"code":0000}', "not JSON"),
        (b'{"code":" 0000"}', "has the code"),
        (b'{"code":"0000","code":"0000"}', "code stands twice"),
        (b'{"code":"0000","\\u0063ode":"B201"}', "code stands twice"),
        (b'{"inner":{"code":"0000"}}', "has no code"),
        (b'{"code":"0000","tx_id":"OTHER"}', "the tx_id of another"),
        (b'{"code":"0000","tx_id":null}', "the tx_id of another"),
        (b'{"code":"0000","tx_id":"T","tx_id":"T"}', "tx_id stands twice"),
        (b'{"code":"0000","x":NaN}', "NaN"),
        (b'{"code":"0000","x":"\xff"}', "not UTF-8"),
        (b'\xef\xbb\xbf{"code":"0000"}', "byte order mark"),
        (b'{"code":"0000"}{"code":"0000"}', "not JSON"),
        (b'{"code":"0000","x":' + b"[" * 100 + b"]" * 100 + b"}", "nested deeper"),
        (b'{"code":"0000"', "not JSON"),
    ],
    ids=repr,
)
def test_what_is_no_reply(body: bytes, message: str) -> None:
    """Each says why."""
    assert message in str(no_reply(body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"code":"0000","tx_id":"T"}',
        b'{"\\u0063ode":"0000"}',
        b'{"code":"0000","inner":{"code":5,"code":6,"tx_id":7}}',
        b'{"code":"0000","x":' + b"[" * 99 + b"]" * 99 + b"}",
        b'{"code":"0000","x":"\\ud55c","x":"\xed\x95\x9c"}',
    ],
    ids=repr,
)
def test_what_is_a_reply(body: bytes) -> None:
    """Its own tx_id, escapes, other members as they like."""
    assert verdict(body).code == "0000"


def test_another_ones_answer_is_not_shown() -> None:
    """An object with another tx_id is another customer's: no data."""
    for tx_id in (b'"OTHER"', b'{"name":"OTHER"}'):
        problem = no_reply(b'{"code":"0000","tx_id":' + tx_id + b',"balance":5}')
        assert problem.data is None
        assert "OTHER" not in str(problem)


def test_data_is_untouched_but_for_line_ends() -> None:
    """Numbers, order, escapes and blanks stay; line ends between tokens become blanks."""
    body = b'\r\n{\r\n  "code": "0000",\n\t"n": 1.50, "big": 12345678901234567890123, "s": "\\u00e9\\n/"}\n'
    assert bytes(verdict(body).data) == (
        b'{    "code": "0000", \t"n": 1.50, "big": 12345678901234567890123, "s": "\\u00e9\\n/"}'
    )


@pytest.mark.parametrize(
    ("body", "outcome", "wait"),
    [
        (b'{"code":"E904","outcome":"not_sent","retry_after_ms":700}', "not_sent", 700),
        (b'{"code":"E901","outcome":"done"}', "done", None),
        (b'{"code":"E904","outcome":"perhaps","retry_after_ms":-1}', None, None),
        (b'{"code":"E904","outcome":{},"retry_after_ms":1e9}', None, None),
        (b'{"code":"E904","outcome":["done"],"retry_after_ms":true}', None, None),
        (b'{"code":"0000","outcome":"not_sent","retry_after_ms":5}', None, None),
    ],
    ids=repr,
)
def test_a_hubs_own_words_are_kept_where_they_are_ours(body: bytes, outcome: str | None, wait: int | None) -> None:
    """Outcome and wait of an E9 code, if they are of our kind; of any other code they are its business."""
    said = verdict(body)
    assert (said.outcome, said.retry_after_ms) == (outcome, wait)


def hostile(size: int) -> bytes:
    """More brackets than levels are allowed, then a string of quotes that never ends."""
    return b"[" * 101 + b'"' + b'\\"' * (size // 2)


def processor_time(action: Callable[[], object]) -> float:
    """Seconds of this thread's own processor time: how busy the machine is does not show in it."""
    start = time.thread_time()
    action()
    return time.thread_time() - start


@pytest.mark.parametrize("read", [fault, no_reply], ids=["a line", "a reply"])
def test_hostile_bytes_take_no_more_than_their_size(read: Callable[[bytes], object]) -> None:
    """Eight times the size takes about eight times the work, not sixty-four."""
    small, large = hostile(100_000), hostile(800_000)
    times = [(processor_time(lambda: read(small)), processor_time(lambda: read(large))) for _ in range(5)]
    assert min(time for _, time in times) < 30 * min(time for time, _ in times)


# Replies of ours.


def test_a_reply_is_one_line_with_the_contracts_fields() -> None:
    """The fields that apply, null where tx_id or target is not known."""
    reply = Reply(tx_id=None, target=None, code="E400", outcome="not_sent", retryable=False, attempts=0, elapsed_ms=0.0)
    assert write_reply(reply) == (
        b'{"tx_id":null,"target":null,"code":"E400","outcome":"not_sent","retryable":false,"attempts":0,"elapsed_ms":0.0}'
    )


def test_data_goes_out_as_it_came_in() -> None:
    """Its bytes, not a re-encoding."""
    reply = Reply(tx_id="T", target="CORE", code="0000", outcome="done", retryable=False, attempts=1, elapsed_ms=1.5,
                  data=msgspec.Raw(b'{"n": 1.50}'))  # fmt: skip
    assert write_reply(reply).endswith(b',"data":{"n": 1.50}}')
    assert to_python(reply)["data"] == {"n": 1.5}
    digits = "9" * 5000
    reply.data = msgspec.Raw(b'{"n": %s}' % digits.encode())
    assert str(to_python(reply)["data"]["n"]) == digits
    assert "message" not in to_python(reply)
