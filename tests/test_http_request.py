"""Heads that came before are not parsed anew, and nothing is different for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaimw.adapters import http_request
from eaimw.adapters.http_request import (
    KNOWN_HEADS,
    MAX_KNOWN,
    MOST_WAITING,
    PIECE,
    Arrivals,
    Request,
    RequestReader,
)

BODY = b'{"tx_id":"T-1","target":"CORE"}'


def post(body: bytes = BODY, *lines: bytes, path: bytes = b"/tx", version: bytes = b"1.1") -> bytes:
    head = (b"Host: hub", *lines, b"Content-Length: %d" % len(body))
    return b"POST %s HTTP/%s\r\n%s\r\n\r\n%s" % (path, version, b"\r\n".join(head), body)


def seen(reader: RequestReader) -> list[Request]:
    requests = [*reader.requests]
    reader.requests.clear()
    return requests


def known(arrivals: Arrivals, data: bytes) -> bool:
    """Would this be taken without the parser?"""
    return arrivals.known(data) is not None


def test_a_head_that_came_before_is_known_with_every_body_of_its_length() -> None:
    """The second request has the first one's head and a body of its own."""
    arrivals = Arrivals()
    reader = RequestReader(arrivals)
    reader.feed(post())
    (first,) = seen(reader)
    other = BODY.replace(b"T-1", b"T-2")
    assert known(arrivals, post(other))
    reader.feed(post(other))
    (second,) = seen(reader)
    assert (second.head, second.body) == (first.head, other)


def test_what_one_connection_has_sent_is_known_on_another() -> None:
    """Heads are the server's, not the connection's."""
    arrivals = Arrivals()
    RequestReader(arrivals).feed(post())
    assert known(arrivals, post())


@pytest.mark.parametrize(
    "data",
    [
        post() + post(),
        post()[:-1],
        post() + b"x",
        b"\r\n" + post(),
        post(b"{}", b"Connection: close"),
        post(version=b"1.0"),
        post(b"{}", b"Idempotency-Key: K-1"),
        post(b"{}", b"X-Deadline: 1700000000000"),
        post(b"{}", b"X-Timeout-Ms: 250\r\nX-Deadline: 1700000000000"),
        post(b"{}", b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        post(b"{}", b"X-Long: " + b"x" * MAX_KNOWN),
        post(path=b"/elsewhere"),
        b"POST /tx HTTP/1.1\r\nHost: hub\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n",
    ],
)
def test_what_is_no_plain_whole_request_is_not_remembered(data: bytes) -> None:
    """Two at once, a part, a connection that will end, a head that will not come again, a refused one."""
    arrivals = Arrivals()
    RequestReader(arrivals).feed(data)
    assert not known(arrivals, data)


def test_the_rest_of_a_request_is_never_taken_for_one() -> None:
    """The body of a request that arrives in two parts is itself a request whose head is known."""
    arrivals = Arrivals()
    RequestReader(arrivals).feed(post())
    reader = RequestReader(arrivals)
    outer = post(post())
    at = outer.index(b"\r\n\r\n") + 4
    reader.feed(outer[:at])
    reader.feed(outer[at:])
    (request,) = seen(reader)
    assert request.body == post()


def test_heads_that_are_known_are_bounded() -> None:
    """A caller who never sends the same head twice cannot fill the memory."""
    arrivals = Arrivals()
    reader = RequestReader(arrivals)
    for number in range(KNOWN_HEADS + 10):
        reader.feed(post(b"{}", b"X-Number: %d" % number))
        assert len(seen(reader)) == 1
    assert not known(arrivals, post(b"{}", b"X-Number: 0"))
    assert known(arrivals, post(b"{}", b"X-Number: %d" % (KNOWN_HEADS + 9)))


def test_no_more_than_some_requests_wait_however_many_have_come() -> None:
    """Fourteen thousand in one segment: a few are parsed, the rest is kept as it came, counted, and parsed in turn."""
    arrivals = Arrivals()
    reader = RequestReader(arrivals)
    one = b"GET / HTTP/1.1\r\n\r\n"
    reader.feed(one * 14_000)
    count = 0
    while reader.requests:
        assert len(reader.requests) <= MOST_WAITING + PIECE // len(one)
        assert arrivals.bytes == len(reader.kept)
        count += len(seen(reader))
        reader.go_on()
    assert (count, arrivals.bytes, reader.is_arriving) == (14_000, 0, False)


def test_what_is_kept_is_limited_over_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the connection is refused, and gives everything back at its end."""
    monkeypatch.setattr(http_request, "MAX_ARRIVING", 10_000)
    arrivals = Arrivals()
    first, second = RequestReader(arrivals), RequestReader(arrivals)
    first.feed(post() * 80)
    second.feed(post() * 100)
    refused = seen(second)[-1].refused
    assert refused is not None
    assert (refused.status, refused.is_final, second.is_over) == (503, True, True)
    assert not first.is_over
    first.end()
    second.end()
    assert arrivals.bytes == 0


def test_a_head_with_what_is_left_is_remembered() -> None:
    """Callers have a budget that is theirs always."""
    arrivals = Arrivals()
    data = post(b"{}", b"X-Timeout-Ms: 250")
    RequestReader(arrivals).feed(data)
    request = arrivals.known(data)
    assert request is not None
    assert request.head.headers == {b"x-timeout-ms": b"250"}


@pytest.mark.parametrize(
    ("values", "value"),
    [
        ((b"250", b"250"), b"250"),
        ((b"250", b" 250\t"), b"250"),
        ((b"250", b"300"), b"250, 300"),
        ((b"", b"300"), b", 300"),
        ((b"1", b"2", b"2"), b"1, 2, 2"),
    ],
)
@pytest.mark.parametrize("name", [b"X-Timeout-Ms", b"x-deadline"])
def test_a_time_that_stands_twice_with_two_values_is_seen(name: bytes, values: tuple[bytes, ...], value: bytes) -> None:
    """So that it can be refused: none of the two is preferred."""
    reader = RequestReader(Arrivals())
    reader.feed(post(b"{}", b"\r\n".join(b"%s: %s" % (name, each) for each in values)))
    assert reader.take().head.headers == {name.lower(): value}


LINES = st.sampled_from(
    [
        b"X-Priority: high",
        b"x-priority: low",
        b"X-Other: a: b",
        b"Expect: 100-continue",
        b"Connection: close",
        b"Connection: keep-alive",
        b"Upgrade: h2c",
        b"Transfer-Encoding: chunked",
        b"Content-Length: 3",
        b"Idempotency-Key: K",
        b"X-Timeout-Ms: 250",
        b"X-Deadline: 1700000000000",
        b"broken line",
    ]
)
REQUESTS = st.builds(
    post,
    st.sampled_from([b"", b"{}", b"[1]", BODY, b"\r\n\r\n", b"POST /tx HTTP/1.1\r\n\r\n"]),
    LINES,
    path=st.sampled_from([b"/tx", b"/tx?a=b", b"/healthz", b"/nowhere"]),
    version=st.sampled_from([b"1.1", b"1.1", b"1.0"]),
)


@given(st.lists(REQUESTS, max_size=4), st.integers(0, 80))
def test_known_or_not_the_same_bytes_mean_the_same(requests: list[bytes], cut: int) -> None:
    """Whole ones, each twice, by one who learns; and in two parts by one who cannot."""
    arrivals = Arrivals()
    for data in requests:
        for _ in range(2):
            learning, plain = RequestReader(arrivals), RequestReader(Arrivals())
            learning.feed(data)
            plain.feed(data[:cut])
            plain.feed(data[cut:])
            assert seen(learning) == seen(plain)
            assert (learning.is_arriving, learning.is_over) == (plain.is_arriving, plain.is_over)
            assert learning.waits_for_our_word() == plain.waits_for_our_word()


def test_of_a_body_that_is_cut_nothing_is_kept() -> None:
    """A connection may linger for a while after its end: what is no longer counted must not be held either."""
    arrivals = Arrivals()
    reader = RequestReader(arrivals)
    reader.feed(post(b"x" * 5_000)[:-1])
    assert arrivals.bytes == len(reader._body) == 4_999
    reader.end()
    assert arrivals.bytes == len(reader._body) == 0
