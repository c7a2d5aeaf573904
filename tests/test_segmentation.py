"""However a stream is cut on its way, it means the same; whatever bytes it has, nothing but an answer comes of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peer import GOOD, body_of, chunked, http
from segments import PLACES, cut, segmentations
from test_http_reply import NOT_HTTP, TAKEN, TAKEN_AT_THE_END, Wire
from test_http_request import BODY, post
from test_http_server import REFUSED

from eaimw.adapters.drive import Waiter
from eaimw.adapters.http_reply import Connection
from eaimw.adapters.http_request import Arrivals, RequestReader
from eaimw.adapters.line_io import Line, LineSplitter
from eaimw.errors import CallFailed, Malformed, NoReply
from eaimw.model import Answer
from eaimw.verdict import judge_by
from eaimw.wire import read_transaction, with_headers

# Replies, as a connection takes them.

KNOWN = GOOD.replace(b"0000", b"B201")  # of the same head and length: after it the head is known


def received(pieces: Iterable[bytes], ends: bool, *, after: bytes = b"") -> tuple[object, bool]:
    """What becomes of an exchange whose reply comes in these pieces: the answer or the kind of failure, and whether the
    connection can be used again. after: a reply to an exchange before it."""
    connection, wire = Connection(), Wire()
    connection.connection_made(wire)
    for reply, is_last in ((after, False), (b"", True)):
        waiter: Waiter[Answer] = Waiter()
        if reply or is_last:
            connection.exchange(b"", 0.0, waiter)
        for piece in pieces if is_last else filter(None, [reply]):
            if not wire.is_aborted:
                connection.data_received(piece)
    if ends and not wire.is_aborted:
        connection.eof_received()
    if not waiter.done():
        return "nothing yet", connection.is_usable
    problem = waiter.exception()
    if problem is None:
        return waiter.result(), connection.is_usable
    assert isinstance(problem, CallFailed)
    return type(problem), connection.is_usable


@pytest.mark.parametrize("after", [b"", KNOWN], ids=["first reply", "head known"])
@pytest.mark.parametrize("case", [*TAKEN, *TAKEN_AT_THE_END, *NOT_HTTP])
def test_a_reply_means_the_same_wherever_it_is_cut(case: str, after: bytes) -> None:
    """Each that is taken, each that is refused: in one segment, at every cut; also where its head may be known."""
    raw = TAKEN.get(case) or TAKEN_AT_THE_END.get(case) or NOT_HTTP[case]
    ends = case in TAKEN_AT_THE_END

    async def compare() -> None:
        whole = received([raw], ends)
        assert isinstance(whole[0], Answer) == (case not in NOT_HTTP)
        for pieces in segmentations(raw, short=100):
            assert received(pieces, ends, after=after) == whole

    asyncio.run(compare())


REPLY_PARTS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.0 503 No\r\n",
        b"Content-Length: 35\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Upgrade: h2c\r\n",
        b"X: y\r\n",
        b"\r\n",
        b"3\r\nabc\r\n",
        b"0\r\n",
        b"0\r\n\r\n",
        body_of(),
        GOOD,
        chunked(body_of()),
        http(b"", "204 No Content"),
    ]
)
STREAMS = st.lists(REPLY_PARTS | st.binary(max_size=6), max_size=8).map(b"".join)


@given(STREAMS, PLACES, st.booleans())
def test_any_bytes_of_a_target_become_an_answer_or_a_failure(raw: bytes, places: list[int], is_known: bool) -> None:
    """Nothing else is raised, an exchange whose connection ends has its end, and where it was cut changes nothing."""

    async def compare() -> None:
        whole, pieces = (
            received(cut(raw, []), ends=True),
            received(cut(raw, places), True, after=KNOWN if is_known else b""),
        )
        assert whole[0] != "nothing yet"
        assert pieces == whole

    asyncio.run(compare())


# Requests, as the server takes them.

PIPELINES = {
    "one": post(),
    "two": post(b"{}") + post(b"[1]"),
    "three, one of them refused": post(b"{}") + post(b"1", path=b"/nowhere") + post(b"{}"),
    "a request in a request": post(post(b"{}")),
    "chunks": b"POST /tx HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + post(b"{}"),
    "line ends between": post(b"{}") + b"\r\n\r\n" + post(b"{}"),
    "the last one closes": post(b"{}") + post(b"{}", b"Connection: close"),
    "an upgrade declined": post(b"{}", b"Connection: Upgrade", b"Upgrade: h2c") + post(b"[]"),
}


def understood(pieces: Iterable[bytes], arrivals: Arrivals) -> tuple[list[object], bool, bool]:
    """The requests that come of these pieces, and whether something is arriving or all is over."""
    reader = RequestReader(arrivals)
    for piece in pieces:
        reader.feed(piece)
    requests: list[object] = [
        each if each.refused is None or not each.refused.is_final else each.refused.status for each in reader.requests
    ]
    state = reader.is_arriving and not reader.is_over, reader.is_over
    reader.end()
    assert arrivals.bytes == 0, "what has arrived takes no room any more"
    return requests, *state


def experienced() -> Arrivals:
    """What a server shares that has met the heads of these requests already."""
    arrivals = Arrivals()
    for body in (BODY, b"{}", b"[1]", b"[]", post(b"{}")):
        reader = RequestReader(arrivals)
        reader.feed(post(body))
        reader.end()
    return arrivals


@pytest.mark.parametrize("is_known", [False, True], ids=["heads new", "heads known"])
@pytest.mark.parametrize("case", [*PIPELINES, *REFUSED])
def test_requests_mean_the_same_wherever_they_are_cut(case: str, is_known: bool) -> None:
    """As many as in one segment, with the same bodies and the same refusals; also where their heads are known."""
    raw = PIPELINES.get(case) or REFUSED[case][0]
    whole = understood(cut(raw, []), Arrivals())
    assert whole[0]
    known = experienced()
    for pieces in segmentations(raw):
        assert understood(pieces, known if is_known else Arrivals()) == whole


REQUEST_PARTS = st.sampled_from(
    [
        *PIPELINES.values(),
        b"POST /tx HTTP/1.1\r\n",
        b"GET /healthz HTTP/1.1\r\n",
        b"Content-Length: 2\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
        b"\r\n",
        b"{}",
        b"2\r\n{}\r\n",
        b"0\r\n\r\n",
    ]
)


@given(st.lists(REQUEST_PARTS | st.binary(max_size=6), max_size=8).map(b"".join), PLACES)
def test_any_bytes_of_a_caller_become_requests_or_a_refusal(raw: bytes, places: list[int]) -> None:
    """Nothing is raised, no request is lost or made up, and where the stream was cut changes nothing."""
    whole = understood(cut(raw, []), Arrivals())
    assert understood(cut(raw, places), Arrivals()) == whole
    assert understood(cut(raw, places), experienced()) == whole


# Lines, and what stands in them.


def split(pieces: Iterable[bytes]) -> Iterator[Line]:
    splitter = LineSplitter()
    for piece in pieces:
        yield from splitter.feed(piece)
    yield from splitter.end()


@pytest.mark.parametrize(
    "raw", [b"\xef\xbb\xbf" + BODY + b"\r\n\n \t\r\n" + BODY, b"a\nb\r\n\rc\r\r\n\n", b"\n\xef\xbb\xbfa\r", b"\r\n"]
)
def test_lines_are_the_same_wherever_they_are_cut(raw: bytes) -> None:
    """Every cut, every two cuts: the same lines with the same numbers."""
    whole = [*split([raw])]
    for pieces in segmentations(raw):
        assert [*split(pieces)] == whole


@given(
    st.binary(max_size=60),
    st.dictionaries(
        st.sampled_from([b"idempotency-key", b"x-priority", b"traceparent", b"x-timeout-ms", b"x-deadline"]),
        st.binary(max_size=60) | st.integers(0, 10**16).map(b"%d".__mod__),
    ),
)
def test_any_headers_and_bytes_become_a_transaction_or_a_refusal(raw: bytes, headers: dict[bytes, bytes]) -> None:
    """Nothing but Malformed is raised, and the target's bytes are the caller's."""
    for text in (raw, b'{"tx_id":"T","target":"CORE","x":"' + raw + b'"}', BODY):
        with contextlib.suppress(Malformed):
            tx = read_transaction(text)
            assert with_headers(tx, headers, lambda: 1e9).raw == text


@given(st.binary(max_size=60), st.integers(100, 999), st.sampled_from(["code", "header.result_code", "outcome"]))
def test_any_answer_gets_a_verdict_or_is_no_reply(raw: bytes, status: int, field: str) -> None:
    """Whatever the status, the bytes and the place of the code: a Verdict with a code, or NoReply."""
    judge = judge_by(field)
    for body in (raw, b'{"header":{"result_code":"0000","x":' + raw + b'},"code":"0000","outcome":"E904"}'):
        with contextlib.suppress(NoReply):
            assert len(judge(Answer(status, body), "T").code) == 4
