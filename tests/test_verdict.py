"""A code that stands elsewhere than in `code`: the same rules, and fast and strict reading agree."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hubs import ask, run_on
from hypothesis import example, given
from hypothesis import strategies as st
from peer import Peer, answering, http

from eaimw.config import TargetSettings
from eaimw.errors import Malformed, NoReply, SettingsError
from eaimw.model import Answer
from eaimw.verdict import Verdict, _read_reported_strictly, _reader_of, judge_by
from eaimw.wire import MAX_DEPTH

FIELD = "header.result_code"


def verdict(body: bytes, field: str = FIELD, status: int = 200) -> Verdict:
    return judge_by(field)(Answer(status, body), "T")


def no_reply(body: bytes, field: str = FIELD, status: int = 200) -> NoReply:
    with pytest.raises(NoReply) as caught:
        verdict(body, field, status)
    return caught.value


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("result_code", b'{"result_code":"B201"}'),
        (FIELD, b'{"header":{"result_code":"B201"}}'),
        (FIELD, b'{"tx_id":"T","code":5,"header":{"x":[{}],"result_code":"B201","y":{"header":1}},"data":null}'),
        (FIELD, b'{"h\\u0065ader":{"result\\u005fcode":"B201"}}'),
        (FIELD, b'{"header":{"result_code":"B201","tx_id":"OTHER","header":{}},"result_code":"0000","x":1,"x":2}'),
        ("result.status.code", b'{"result":{"status":{"code":"B201"},"code":"0000"},"code":"0000"}'),
        ("a.b.c.d.e", b'{"a":{"b":{"c":{"d":{"e":"B201"}}}}}'),
        ("a.a.a", b'{"a":{"a":{"a":"B201"}}}'),
        ("header.tx_id", b'{"tx_id":"T","header":{"tx_id":"B201"}}'),
        ("outcome", b'{"outcome":"B201"}'),
        ("outcome.code", b'{"outcome":{"code":"B201"}}'),
        ("soap:Body.$.@code#1-x", b'{"soap:Body":{"$":{"@code#1-x":"B201"}}}'),
    ],
)
def test_a_code_is_found_where_the_field_says(field: str, body: bytes) -> None:
    """At any depth, under escapes, beside members of like names; the object is passed on as it came."""
    said = verdict(body, field)
    assert (said.code, said.rule.outcome, bytes(said.data)) == ("B201", "done", body)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"code":"0000"}',
        b'{"header":{}}',
        b'{"header":{"code":"0000"}}',
        b'{"header":null,"result_code":"0000"}',
        b'{"header":"0000"}',
        b'{"header":["result_code","0000"]}',
        b'{"header":[{"result_code":"0000"}]}',
        b'{"header.result_code":"0000"}',
    ],
)
def test_a_step_that_is_missing_or_no_object_is_no_code(body: bytes) -> None:
    """The message names the whole field, and the object is shown."""
    problem = no_reply(body)
    assert str(problem) == "the reply has no header.result_code"
    assert problem.data == msgspec.Raw(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"header":{"result_code":0}}', "has the header.result_code 0, not a string of four"),
        (b'{"header":{"result_code":null}}', "has the header.result_code null"),
        (b'{"header":{"result_code":{"result_code":"0000"}}}', "has the header.result_code {"),
        (b'{"header":{"result_code":"0000","result_code":"0000"}}', "the reply's header.result_code stands twice"),
        (b'{"header":{"result_code":"0000","result\\u005fcode":"0000"}}', "header.result_code stands twice"),
        (b'{"header":{},"header":{"result_code":"0000"}}', "the reply's header stands twice"),
        (b'{"header":{"result_code":"0000"},"\\u0068eader":1}', "the reply's header stands twice"),
        (b'{"header":{"result_code":"0000"},"tx_id":"T","tx_id":"T"}', "the reply's tx_id stands twice"),
        (b'{"header":{"result_code":"0000"},"tx_id":"OTHER"}', "the tx_id of another transaction"),
        (b'{"header":{"result_code":"0000","x":"\xff"}}', "not UTF-8"),
        (b'{"header":{"result_code":"0000","x":NaN}}', "NaN"),
        (b'{"header":{"result_code":"0000"}', "not JSON"),
        (b'{"header":{"result_code":"0000","x":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}}", "nested deeper"),
    ],
    ids=repr,
)
def test_what_is_no_reply_is_none_at_any_depth(body: bytes, message: str) -> None:
    """A code of another kind, a name twice on its path or twice behind an escape, bytes that are no JSON."""
    assert message in str(no_reply(body))


def test_names_off_the_path_may_stand_twice() -> None:
    """They are the target's business, as with a code at the top."""
    body = b'{"x":{"header":1,"header":2},"header":{"y":{"result_code":1,"result_code":2},"result_code":"0000"}}'
    assert verdict(body).code == "0000"


def test_a_hub_behind_has_its_words_at_the_top() -> None:
    """tx_id, outcome and retry_after_ms of an E9 code are read there, not beside the code."""
    inner = b'"header":{"result_code":"E904","outcome":"done","retry_after_ms":1}'
    said = verdict(b'{"outcome":"not_sent","retry_after_ms":700,%s}' % inner, status=503)
    assert (said.code, said.outcome, said.retry_after_ms) == ("E904", "not_sent", 700)
    said = verdict(b"{%s}" % inner, status=503)
    assert (said.outcome, said.retry_after_ms) == (None, None)


@pytest.mark.parametrize("field", ["outcome", "retry_after_ms"])
def test_a_code_in_a_hubs_word_is_no_such_word(field: str) -> None:
    """The one that the code stands in is as if it were left out, in either reading."""
    for code in (b"E904", b"\\u0045904"):
        body = json.dumps({"outcome": "not_sent", "retry_after_ms": 5, field: "?"}).encode().replace(b"?", code)
        said = verdict(body, field)
        assert (said.code, said.outcome, said.retry_after_ms) == (
            ("E904", None, 5) if field == "outcome" else ("E904", "not_sent", None)
        )


# Names of paths and others. An object is the tuple of its members, since a name may stand twice.
names = st.sampled_from(["header", "result_code", "tx_id", "outcome", "retry_after_ms", "code", "x"])
plain = st.sampled_from(["0000", "B201", "E904", "T", "not_sent", 5, 5.5, None, True, 10**30, "\ud800"])
values: st.SearchStrategy[Any] = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=2) | st.lists(st.tuples(names, inner), max_size=4).map(tuple),
    max_leaves=12,
)
objects = st.lists(st.tuples(names, values), max_size=5).map(tuple)


def text_of(value: Any, escapes: bool) -> str:
    """As JSON. escapes: the first letter of each name is written as its number."""
    if isinstance(value, tuple):
        members = [(f"\\u{ord(name[0]):04x}{name[1:]}" if escapes else name, each) for name, each in value]
        return "{" + ",".join(f'"{name}":{text_of(each, escapes)}' for name, each in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(text_of(each, escapes) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)


@given(
    objects,
    st.booleans(),
    st.sampled_from(["code", "result_code", FIELD, "header.header", "outcome", "outcome.code", "header.x.result_code"]),
    st.data(),
)
@example((("header", (("result_code", "0000"),)),), False, FIELD, None)
def test_the_fast_reading_equals_the_strict_one(value: tuple[Any, ...], escapes: bool, field: str, data: Any) -> None:
    """Whatever comes, cut or whole, both readings find the same, or refuse it alike."""
    body = text_of(value, escapes).encode("utf-8", "surrogatepass")
    if data is not None and data.draw(st.booleans()):
        body = body[: data.draw(st.integers(0, len(body)))]
    path = field.split(".")
    results: list[object] = []
    for read in (_reader_of(path), lambda body: _read_reported_strictly(body, path)):
        try:
            found = read(body)
        except Malformed as problem:
            results.append(str(problem))
        else:
            words = [None if path[0] == word else getattr(found, word) for word in ("outcome", "retry_after_ms")]
            results.append((found.code, found.tx_id, words))
    assert results[0] == results[1]


# The setting.


@pytest.mark.parametrize(
    "field",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a.b.c.d.e.f",
        "a b",
        'a"',
        "a/b",
        "a\\b",
        "é",
        "a\n",
        "x" * 65,
        "tx_id",
        "tx_id.code",
        5,
        None,
    ],
)
def test_what_is_no_field_is_said(field: Any) -> None:
    """Names the setting, what was found and what is allowed."""
    with pytest.raises(SettingsError, match="code_field must be 1 to 5 names joined by dots, each of 1 to 64 of A-Z"):
        TargetSettings("http://127.0.0.1:1/tx", code_field=field)


@pytest.mark.parametrize("field", ["code", "x" * 64, "a.b.c.d.e", "tx_idx", "a.tx_id", "-.$.@.#.:"])
def test_what_is_a_field_is_taken(field: str) -> None:
    """Up to five names of up to 64 characters."""
    assert TargetSettings("http://127.0.0.1:1/tx", code_field=field).code_field == field


def test_a_target_is_judged_by_its_own_field(loop: str) -> None:
    """Through the hub: a denial deep in the object is done; a code at the top alone is E500."""
    body = b'{"code":"E500","result":{"status":{"code":"B201"}}}'

    with Peer(answering(http(body))) as peer:
        reply = run_on(loop, lambda: peer.hub(code_field="result.status.code"), ask)
    assert (reply["code"], reply["outcome"], reply["data"]) == ("B201", "done", json.loads(body))

    with Peer(answering(http(b'{"code":"0000"}'))) as peer:
        reply = run_on(loop, lambda: peer.hub(code_field="result.status.code"), ask)
    assert (reply["code"], reply["message"]) == ("E500", "the reply has no result.status.code")
