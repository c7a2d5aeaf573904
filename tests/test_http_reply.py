"""What the HTTP client takes for a reply, from a hostile or sloppy target; through the real hub, on both loops."""

import asyncio
import json
import socket
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hubs import ask, run_on, until
from peer import (
    GOOD,
    GOOD_CHUNKED,
    GOOD_UNTIL_CLOSE,
    SOON,
    Line,
    Peer,
    Script,
    answering,
    body_of,
    chunked,
    closing,
    http,
    once,
    replies,
)

from eaimw.adapters.drive import Waiter
from eaimw.adapters.http_reply import MAX_HEAD, MAX_RAW, Connection
from eaimw.errors import CallFailed
from eaimw.hub import Hub
from eaimw.model import Answer
from eaimw.wire import MAX_BYTES

pytestmark = pytest.mark.usefixtures("complaints")


def first(raw: bytes) -> Script:
    """The first connection gets these bytes and must then be ended by the hub; further ones are served well."""

    def script(line: Line) -> None:
        if line.number == 0:
            once(raw)(line)
        else:
            answering(GOOD)(line)

    return script


# What is no reply: the framing.

HEAD = "HTTP/1.1 200 OK\r\n"
NOT_HTTP = {
    "garbage": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00 what is this",
    "a page without a head": b"<html>hello</html>",
    "a request": b"POST /tx HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2 without minor": GOOD.replace(b"HTTP/1.1", b"HTTP/2"),
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + GOOD,
    "101 without Upgrade": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "101 and then a reply": b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + GOOD,
    "status 000": http(body_of(), "000 Nothing"),
    "status 000 and then a reply": http(b"", "000 Nothing") + GOOD,
    "status of two digits": http(body_of(), "20 OK"),
    "status of four digits": http(body_of(), "2000 OK"),
    "two lengths": http(body_of(), "200 OK", f"Content-Length: {len(body_of())}"),
    "two lengths in one": http(body_of(), "200 OK", "Content-Length: 35, 35", length=False),
    "length and chunking": http(b"2\r\n{}\r\n0\r\n\r\n", "200 OK", "Transfer-Encoding: chunked"),
    "chunking and length": http(
        b"2\r\n{}\r\n0\r\n\r\n", "200 OK", "Transfer-Encoding: chunked", "Content-Length: 2", length=False
    ),
    "signed length": http(body_of(), "200 OK", "Content-Length: +35", length=False),
    "negative length": http(body_of(), "200 OK", "Content-Length: -1", length=False),
    "hex length": http(body_of(), "200 OK", "Content-Length: 0x23", length=False),
    "empty length": http(body_of(), "200 OK", "Content-Length:", length=False),
    "overflowing length": http(body_of(), "200 OK", "Content-Length: 18446744073709551651", length=False),
    "the greatest length": http(body_of(), "200 OK", "Content-Length: 18446744073709551615", length=False),
    "announces 1 GiB": http(b"", "200 OK", "Content-Length: 1073741824", length=False),
    "announces one byte too many": http(b"", "200 OK", f"Content-Length: {MAX_BYTES + 1}", length=False),
    "blank before the colon": http(body_of(), "200 OK", "Content-Length : 35", length=False),
    "bare LF after the status": GOOD.replace(b"OK\r\n", b"OK\n"),
    "bare LF after a header": http(body_of(), "200 OK", "X: y\nZ: a"),
    "bare LF alone": GOOD.replace(b"\r\n", b"\n"),
    "bare CR in a header": http(body_of(), "200 OK", "X: y\rZ: a"),
    "folded header": http(body_of(), "200 OK", "X: y\r\n z"),
    "NUL in a header": http(body_of(), "200 OK", "X: a\0b"),
    "NUL in a name": http(body_of(), "200 OK", "X\0: b"),
    "NUL in the reason": http(body_of(), "200 O\0K"),
    "no name": http(body_of(), "200 OK", ": b"),
    "gzip, chunked": chunked(body_of()).replace(b": chunked", b": gzip, chunked"),
    "chunked, gzip": chunked(body_of()).replace(b": chunked", b": chunked, gzip"),
    "gzip as transfer coding": http(body_of(), "200 OK", "Transfer-Encoding: gzip", length=False),
    "identity as transfer coding": http(body_of(), "200 OK", "Transfer-Encoding: identity", length=False),
    "empty transfer coding": http(body_of(), "200 OK", "Transfer-Encoding:", length=False),
    "twice chunked": chunked(body_of()).replace(b": chunked", b": chunked, chunked"),
    "twice chunked in two": chunked(body_of()).replace(b": chunked", b": chunked\r\nTransfer-Encoding: chunked"),
    "chunked and gzip in two": chunked(body_of()).replace(b": chunked", b": chunked\r\nTransfer-Encoding: gzip"),
    "chunk size in 0x": chunked(b"").replace(b"0\r\n", b"0x2\r\n"),
    "negative chunk size": chunked(b"").replace(b"0\r\n", b"-2\r\n"),
    "no chunk size": chunked(b"").replace(b"0\r\n", b"\r\n"),
    "overflowing chunk size": chunked(b"").replace(b"0\r\n", b"10000000000000023\r\n"),
    "bare LF after a chunk": chunked(body_of()).replace(b"}\r\n", b"}\n"),
    "chunk longer than it says": chunked(body_of()).replace(b"}\r\n", b"} \r\n"),
    "length in a trailer": chunked(body_of(), trailers="Content-Length: 7\r\n"),
    "trailers of 64 KiB": chunked(body_of(), trailers="X: y\r\n" * 11_000),
    "an interim reply with a body": http(body_of(), "110 Early") + http(b"", "204 No Content"),
    "an interim reply with chunks": chunked(body_of()).replace(b"200 OK", b"110 E") + http(b"", "204 No Content"),
}


@pytest.mark.parametrize("case", NOT_HTTP)
def test_what_is_not_http_is_e500(loop: str, case: str) -> None:
    """A faulty head or framing: E500 at once, the connection is ended, the next transaction gets another one."""
    with Peer(first(NOT_HTTP[case])) as peer:

        async def story(hub: Hub) -> None:
            reply = await ask(hub)
            assert (reply["code"], reply["outcome"], reply["retryable"]) == ("E500", "unknown", False)
            assert "data" not in reply
            assert ("switch protocols" in reply["message"]) == (case.startswith(("switching", "101")))
            assert reply["elapsed_ms"] < SOON
            await until(lambda: peer.ended == 1)
            assert (await ask(hub))["code"] == "0000"

        run_on(loop, peer.hub, story)
        assert (peer.accepted, len(peer.requests)) == (2, 2)


# Unusual, but a reply.

TAKEN = {
    "a length": GOOD,
    "chunks": GOOD_CHUNKED,
    "chunks with extensions": GOOD_CHUNKED.replace(b"\r\n9\r\n", b'\r\n9;a=b;c="d"\r\n'),
    "chunks with a trailer": chunked(body_of(), trailers="X-Sum: 5\r\n"),
    "upper-case coding": GOOD_CHUNKED.replace(b": chunked", b": CHUNKED "),
    "length with zeros and blanks": http(body_of(), "200 OK", f"Content-Length:  000{len(body_of())} ", length=False),
    "no reason": http(body_of(), "200 "),
    "neither reason nor blank": http(body_of(), "200"),
    "a reason in Latin-1": http(body_of(), "200 d'accord \xe9"),
    "100 before it": b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD,
    "103 before it": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + GOOD,
    "three before it": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 P\r\n\r\nHTTP/1.1 103 E\r\nA: b\r\n\r\n" + GOOD,
    "100 before chunks": b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD_CHUNKED,
    "103 with a length": b"HTTP/1.1 103 E\r\nContent-Length: 5\r\n\r\n" + GOOD_CHUNKED,
    "103 with a coding": b"HTTP/1.1 103 E\r\nTransfer-Encoding: chunked\r\n\r\n" + GOOD_CHUNKED,
    "offers an upgrade": http(body_of(), "200 OK", "Upgrade: h2,h2c", "Connection: Upgrade"),
    "201": http(body_of(), "201 Created"),
    "202": http(body_of(), "202 Accepted"),
    "299": http(body_of(), "299 Whatever"),
    "HTTP/1.0": GOOD.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "blank lines first": b"\r\n\r\n" + GOOD,
    "Connection: close": http(body_of(), "200 OK", "Connection: close"),
    "line ends in the body": http(body_of().replace(b",", b",\r\n") + b"\n"),
}
TAKEN_AT_THE_END = {
    "until close": GOOD_UNTIL_CLOSE,
    "until close, HTTP/1.0": GOOD_UNTIL_CLOSE.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "until close after 100": b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD_UNTIL_CLOSE,
    "keeps alive without length": http(body_of(), "200 OK", "Connection: keep-alive", length=False),
}


@pytest.mark.parametrize("case", [*TAKEN, *TAKEN_AT_THE_END])
def test_a_reply_is_a_reply(loop: str, case: str) -> None:
    """What HTTP allows is taken, twice in a row."""
    script = answering(TAKEN[case]) if case in TAKEN else closing(TAKEN_AT_THE_END[case])
    for reply in replies(loop, script, count=2):
        assert (reply["code"], reply["outcome"], reply["attempts"]) == ("0000", "done", 1)
        assert reply["data"] == {"tx_id": "T-1", "code": "0000"}
        assert reply["elapsed_ms"] < SOON


class Wire:
    """A transport without a socket, for a connection alone."""

    def __init__(self) -> None:
        self.is_aborted = False

    def get_extra_info(self, _: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def write(self, data: bytes) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


def alone(*pieces: bytes, ends: bool = False) -> tuple[str, bool]:
    """What a connection makes of a reply that comes in these segments, and whether it can be used again."""

    async def tell() -> tuple[str, bool]:
        connection, wire = Connection(), Wire()
        connection.connection_made(wire)
        waiter: Waiter[Answer] = Waiter()
        connection.exchange(b"", 0.0, waiter)
        for piece in pieces:
            if not wire.is_aborted:
                connection.data_received(piece)
        if ends and not wire.is_aborted:
            connection.eof_received()
        if not waiter.done():
            return "nothing yet", connection.is_usable
        problem = waiter.exception()
        assert problem is None or isinstance(problem, CallFailed)
        return repr(problem) if problem is not None else repr(waiter.result()), connection.is_usable

    return asyncio.run(tell())


# When to come again.

BODY = body_of()
RETRY_AFTER = {
    "none": (http(BODY), None),
    "seconds": (http(BODY, "503 Busy", "Retry-After: 7"), "7"),
    "in any case of letters": (http(BODY, "200 OK", "rETRY-aFTER:7"), "7"),
    "a date": (http(BODY, "429 Slow", "Retry-After: Sun, 29 Nov 2026 20:51:03 GMT"), "Sun, 29 Nov 2026 20:51:03 GMT"),
    "whatever it means": (http(BODY, "200 OK", "Retry-After: soon"), "soon"),
    "blanks around it": (http(BODY, "200 OK", "Retry-After: \t 7 \t"), "7"),
    "the first of two": (http(BODY, "200 OK", "Retry-After: 7", "Retry-After: 9"), "7"),
    "the first, of no use": (http(BODY, "200 OK", "Retry-After: " + "7" * 65, "Retry-After: 9"), None),
    "empty": (http(BODY, "200 OK", "Retry-After:"), None),
    "as long as it may be": (http(BODY, "200 OK", "Retry-After: " + "7" * 64), "7" * 64),
    "too long": (http(BODY, "200 OK", "Retry-After: " + "7" * 65), None),
    "a tab in it": (http(BODY, "200 OK", "Retry-After: 7\t8"), None),
    "no ASCII": (http(BODY, "200 OK", "Retry-After: 7\xb5"), None),
    "a longer name": (http(BODY, "200 OK", "Retry-Afters: 7"), None),
    "in a 1xx": (b"HTTP/1.1 103 Early\r\nRetry-After: 7\r\n\r\n" + http(BODY), None),
    "in a 1xx and the reply": (
        b"HTTP/1.1 103 Early\r\nRetry-After: 7\r\n\r\n" + http(BODY, "200 OK", "Retry-After: 9"),
        "9",
    ),
    "in a trailer": (chunked(BODY, trailers="Retry-After: 7\r\n"), None),
    "before chunks": (chunked(BODY).replace(b"\r\n", b"\r\nRetry-After: 7\r\n", 1), "7"),
    "in what stands behind it": (http(BODY) + http(BODY, "200 OK", "Retry-After: 7"), None),
}


@pytest.mark.parametrize("case", RETRY_AFTER)
def test_an_answer_says_when_to_come_again(case: str) -> None:
    """The Retry-After of the reply itself, the first, as it came, if it is short and printable; wherever TCP cuts."""
    raw, retry_after = RETRY_AFTER[case]
    for pieces in ([raw], [raw[:30], raw[30:]], [raw[at : at + 1] for at in range(len(raw))]):
        assert answers(pieces)[0].retry_after == retry_after


def test_a_head_that_is_known_keeps_its_retry_after() -> None:
    """Each reply has its own head's, parsed anew or not."""
    with_it, without = http(BODY, "503 Busy", "Retry-After: 7"), http(BODY)
    got = answers([with_it], [with_it], [without], [without], [with_it])
    assert [answer.retry_after for answer in got] == ["7", "7", None, None, "7"]


def answers(*replies_in_pieces: list[bytes]) -> list[Answer]:
    """What one connection makes of these replies, one after another; nothing is fed to it once it has ended."""

    async def tell() -> list[Answer]:
        connection, wire = Connection(), Wire()
        connection.connection_made(wire)
        got = []
        for pieces in replies_in_pieces:
            waiter: Waiter[Answer] = Waiter()
            connection.exchange(b"", 0.0, waiter)
            for piece in pieces:
                if not wire.is_aborted:
                    connection.data_received(piece)
            got.append(waiter.result())
        return got

    return asyncio.run(tell())


@pytest.mark.parametrize("case", [*TAKEN, *TAKEN_AT_THE_END])
def test_where_tcp_cuts_a_reply_changes_nothing(case: str) -> None:
    """Every reply in two segments, cut at every byte, and byte by byte: the same result as in one."""
    raw = TAKEN.get(case) or TAKEN_AT_THE_END[case]
    ends = case in TAKEN_AT_THE_END
    whole = alone(raw, ends=ends)
    assert whole[0].startswith("Answer(")
    assert alone(*(raw[n : n + 1] for n in range(len(raw))), ends=ends) == whole
    for cut in range(1, len(raw)):
        assert alone(raw[:cut], raw[cut:], ends=ends) == whole


@pytest.mark.parametrize("case", [case for case in NOT_HTTP if "garbage" not in case])
def test_where_tcp_cuts_what_is_no_reply_changes_nothing(case: str) -> None:
    """What is refused in one segment is refused byte by byte, and the connection is ended."""
    raw = NOT_HTTP[case]
    told, is_usable = alone(*(raw[n : n + 1] for n in range(len(raw))))
    assert told.startswith("NoReply(")
    assert not is_usable


def test_byte_by_byte_over_a_socket(loop: str) -> None:
    """A reply sent byte by byte over a real connection is taken, and the connection is used again."""

    def script(line: Line) -> None:
        for raw in (GOOD, GOOD_CHUNKED):
            line.read()
            line.send(*(raw[n : n + 1] for n in range(len(raw))))
        line.until_ended()

    assert [reply["code"] for reply in replies(loop, script, count=2)] == ["0000", "0000"]


# What is no reply: the meaning.

NO_ANSWER = {
    "204": http(b"", "204 No Content", length=False),
    "200 with an empty body": http(b""),
    "200 with blanks": http(b"  \r\n"),
    "200 with an HTML page": http(b"<html><body>Welcome</body></html>", "200 OK", "Content-Type: text/html"),
    "502 with an HTML page": http(b"<html><h1>Bad Gateway</h1></html>", "502 Bad Gateway"),
    "301": http(body_of(), "301 Moved Permanently", "Location: http://127.0.0.1:1/"),
    "302": http(b"", "302 Found", "Location: /elsewhere"),
    "304": http(b"", "304 Not Modified", length=False),
    "307": http(body_of(), "307 Temporary Redirect", "Location: /tx2"),
    "429 without a code": http(b"slow down", "429 Too Many Requests"),
    "429 with 0000": http(body_of(), "429 Too Many Requests"),
    "500 without a code": http(b"", "500 Internal Server Error"),
    "500 with 0000": http(body_of(), "500 Internal Server Error"),
    "503 with B201": http(body_of(code="B201"), "503 Service Unavailable"),
    "404 without a code": http(b"not found", "404 Not Found"),
    "400 with an object without a code": http(b'{"error": "what?"}', "400 Bad Request"),
    "a status above 599": http(body_of(), "999 Denied"),
    "gzip as content coding": http(b"\x1f\x8b\x08\x00rest", "200 OK", "Content-Encoding: gzip"),
    "byte order mark": http(b"\xef\xbb\xbf" + body_of()),
    "UTF-16": http(body_of().decode().encode("utf-16")),
    "code twice": http(b'{"code": "0000", "code": "B201"}'),
    "code twice, once escaped": http(b'{"code": "0000", "\\u0063ode": "B201"}'),
    "code twice, the same": http(b'{"code": "0000", "code": "0000"}'),
    "code within another object only": http(b'{"result": {"code": "0000"}}'),
    "code a number": http(b'{"code": 0}'),
    "code null": http(b'{"code": null}'),
    "code in small letters": http(body_of(code="e500")),
    "code of five": http(body_of(code="00000")),
    "code with a blank": http(body_of(code=" 000")),
    "code with a line end": http(body_of(code="0000\n")),
    "code in other digits": http(body_of(code="\u0660\u0660\u0660\u0660")),
    "tx_id of another": http(body_of(tx_id="T-2", secret=7)),
    "tx_id null": http(body_of(tx_id=None)),
    "tx_id a number": http(body_of(tx_id=1)),
    "tx_id twice": http(b'{"tx_id": "T-1", "tx_id": "T-1", "code": "0000"}'),
    "nested 101 deep": http(b'{"code": "0000", "a": ' + b"[" * 100 + b"]" * 100 + b"}"),
    "nested 100,000 deep": http(b'{"code": "0000", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "bad UTF-8 in a value": http(b'{"code": "0000", "a": "\xff"}'),
    "bad UTF-8 in a name": http(b'{"code": "0000", "\xc0\x80": 1}'),
    "NaN": http(b'{"code": "0000", "a": NaN}'),
    "Infinity": http(b'{"code": "0000", "a": -Infinity}'),
    "something after the object": http(body_of() + b" x"),
    "two objects": http(body_of() + body_of()),
    "an array": http(b"[" + body_of() + b"]"),
    "a string": http(b'"0000"'),
    "null": http(b"null"),
    "half an object": http(body_of()[:-1]),
}
SHOWN = ("301", "307", "429 with 0000", "500 with 0000", "503 with B201", "a status above 599", "400 with an", "code ")


@pytest.mark.parametrize("case", NO_ANSWER)
def test_what_is_no_answer_is_e500(loop: str, case: str) -> None:
    """Whole HTTP, but not one JSON object with a valid code: E500, a failure; the next transaction is served."""
    reply, other = replies(loop, answering(NO_ANSWER[case], GOOD), count=2)
    assert (reply["code"], reply["outcome"], reply["attempts"]) == ("E500", "unknown", 1)
    assert reply["message"]
    is_shown = case.startswith(SHOWN) and "twice" not in case
    assert ("data" in reply) == is_shown, "a valid object that is this transaction's is shown, and nothing else"
    assert "secret" not in str(reply.get("data"))
    assert reply["elapsed_ms"] < SOON
    assert other["code"] == "0000"


def test_what_is_no_answer_opens_the_circuit() -> None:
    """An HTML page is a failure of the target, as often as it comes."""
    codes = [r["code"] for r in replies("uvloop", answering(http(b"<html>")), count=4, fail_threshold=3)]
    assert codes == ["E500", "E500", "E500", "E904"]


@pytest.mark.parametrize(
    ("raw", "code", "outcome"),
    [
        (http(body_of(code="B201")), "B201", "done"),
        (http(body_of(code="B201"), "409 Conflict"), "B201", "done"),
        (http(body_of(code="E400"), "400 Bad Request"), "E400", "done"),
        (http(body_of(code="0000"), "404 Not Found"), "0000", "done"),
        (http(body_of(code="ZZ99")), "ZZ99", "done"),
        (http(body_of(code="E500")), "E500", "unknown"),
        (http(body_of(code="E500"), "500 Internal Server Error"), "E500", "unknown"),
        (http(body_of(code="E904", outcome="not_sent"), "503 Service Unavailable"), "E904", "not_sent"),
        (http(body_of(code="E907", outcome="not_sent"), "429 Too Many Requests"), "E907", "not_sent"),
        (http(body_of(code="E901", outcome="unknown"), "504 Gateway Timeout"), "E901", "unknown"),
        (http(body_of(code="E905"), "503 Service Unavailable"), "E905", "unknown"),
        (http(body_of(code="E999")), "E999", "unknown"),
        (http(b'{"code": "0000"}'), "0000", "done"),
        (http(b'{"\\u0063ode": "0000"}'), "0000", "done"),
        (http(b'{"code": "0000", "a": {"code": "B201", "tx_id": "T-2"}}'), "0000", "done"),
        (http(b'{"code": "0000", "a": ' + b"[" * 99 + b"]" * 99 + b"}"), "0000", "done"),
        (http(b'{"code": "0000", "a": "' + b"[" * 200 + b'"}'), "0000", "done"),
    ],
)
def test_the_code_of_an_answer_is_passed_on(loop: str, raw: bytes, code: str, outcome: str) -> None:
    """2xx and 4xx are judged by their body; 429 and 5xx count if their code is a hub's own; data is what came."""
    (reply,) = replies(loop, answering(raw))
    assert (reply["code"], reply["outcome"]) == (code, outcome)
    assert reply["data"] == json.loads(raw.partition(b"\r\n\r\n")[2])


def test_another_ones_answer_is_not_shown(loop: str) -> None:
    """An object with the tx_id of another transaction: its data belongs to another caller."""
    (reply,) = replies(loop, answering(http(body_of(tx_id="T-2", balance=1000), "500 Oh")))
    assert reply["code"] == "E500"
    assert "data" not in reply
    assert "1000" not in json.dumps(reply["message"])


# Limits.


def sized(size: int) -> bytes:
    """A good object of so many bytes."""
    return body_of(pad="x" * (size - len(body_of(pad=""))))


@pytest.mark.parametrize(
    "pack", [http, lambda body: chunked(body[:7], body[7:]), lambda body: http(body, length=False)]
)
def test_the_largest_body_is_taken_and_one_byte_more_is_not(loop: str, pack: Callable[[bytes], bytes]) -> None:
    """1,048,576 bytes are a reply, 1,048,577 are not, however they are framed."""
    (good,) = replies(loop, closing(pack(sized(MAX_BYTES))))
    assert (good["code"], len(good["data"]["pad"])) == ("0000", MAX_BYTES - len(body_of(pad="")))
    (bad,) = replies(loop, closing(pack(sized(MAX_BYTES + 1))))
    assert (bad["code"], bad["outcome"]) == ("E500", "unknown")
    assert f"longer than {MAX_BYTES:,} bytes" in bad["message"]


def test_chunks_of_one_byte_are_taken_up_to_the_limit() -> None:
    """The largest body in chunks of a byte each: framing is more than the body, and it is still a reply."""
    body = sized(MAX_BYTES)
    raw = http(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n", "200 OK", length=False)
    raw = raw.replace(b"OK\r\n", b"OK\r\nTransfer-Encoding: chunked\r\n", 1)
    assert replies("uvloop", answering(raw))[0]["code"] == "0000"


def test_the_largest_head_is_taken_and_one_byte_more_is_not(loop: str) -> None:
    """A head of 65,536 bytes is taken, one of 65,537 is not: whether it is a header, a reason, or a 1xx before it."""
    plain = http(body_of(), "200 OK", "X: ")
    room = MAX_HEAD - (len(plain) - len(body_of()))
    interim = b"HTTP/1.1 103 Early\r\n\r\n"
    for more, code in ((0, "0000"), (1, "E500")):
        size = room + more
        hints = interim * ((size - 100) // len(interim))
        for raw in (
            plain.replace(b"X: ", b"X: " + b"x" * size),
            plain.replace(b"OK", b"OK" + b"x" * size),
            plain.replace(b"X: ", b"a:\r\n" * (size // 4) + b"X: " + b"x" * (size % 4)),
            hints + plain.replace(b"X: ", b"X: " + b"x" * (size - len(hints))),
            b"\r\n" * (size // 2) + plain.replace(b"X: ", b"X: " + b"x" * (size % 2)),
        ):
            assert raw.index(body_of()) == MAX_HEAD + more
            (reply,) = replies(loop, answering(raw))
            assert (reply["code"], reply["elapsed_ms"] < SOON) == (code, True), raw[:40]
            assert alone(raw)[0].startswith("Answer(" if code == "0000" else "NoReply(")
            pieces = [raw[n : n + 1000] for n in range(0, len(raw), 1000)]
            assert alone(*pieces) == alone(raw)


ENDLESS = {
    "one header": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 4096),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 500),
    "a status line": (b"HTTP/1.1 200 ", b"x" * 4096),
    "line ends": (b"", b"\r\n" * 2048),
    "1xx": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "1xx with headers": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100),
    "a header of a 1xx": (b"HTTP/1.1 103 Early Hints\r\nLink: ", b"x" * 4096),
    "chunks": (chunked(b"")[: -len("0\r\n\r\n0\r\n\r\n")], b"1000\r\n" + b"x" * 4096 + b"\r\n"),
    "one chunk": (chunked(b"")[: -len("0\r\n\r\n0\r\n\r\n")] + b"ffffffffffffff\r\n", b"x" * 65536),
    "a chunk extension": (chunked(b"")[: -len("0\r\n\r\n0\r\n\r\n")] + b"1;a=", b"x" * 65536),
    "a body until close": (http(b"", length=False), b"x" * 65536),
    "trailers": (GOOD_CHUNKED[:-2], b"X: y\r\n" * 500),
    "one trailer": (GOOD_CHUNKED[:-2] + b"X: ", b"x" * 65536),
    # The length ends within a piece: what came only after the next request would be taken for its reply.
    "what follows a length": (http(b"", "200 OK", f"Content-Length: {MAX_BYTES - 99}", length=False), b"x" * 65536),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_what_never_ends_is_cut(loop: str, case: str) -> None:
    """A reply without an end is E500 at its limit, long before the timeout; memory stays within some MiB."""
    start, more = ENDLESS[case]

    def script(line: Line) -> None:
        if line.number == 0:
            line.read()
            line.send(start)
            line.send_for_ever(more)
        else:
            answering(GOOD)(line)

    tracemalloc.start()
    try:
        reply, other = replies(loop, script, count=2)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (reply["code"], reply["outcome"], other["code"]) == ("E500", "unknown", "0000")
    assert reply["elapsed_ms"] < SOON
    assert most < 3 * MAX_RAW


# The connection's end.

CUT = {"length": GOOD, "chunked": GOOD_CHUNKED, "until close": GOOD_UNTIL_CLOSE, "after 100": b""}
CUT["after 100"] = b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD
INTERIM = len(CUT["after 100"]) - len(GOOD)


@pytest.mark.parametrize("how", ["orderly", "reset"])
@pytest.mark.parametrize("kind", CUT)
def test_a_reply_that_is_cut_is_never_whole(loop: str, kind: str, how: str) -> None:
    """Cut after every byte: E902 before the first one of the reply, E500 after it; a 1xx is not the reply.

    Without length or chunking an orderly end makes whole what is one JSON object; a reset never does.
    """
    raw = CUT[kind]

    def script(line: Line) -> None:
        request = line.read()
        assert request is not None
        line.send(raw[: request.json["cut"]])
        if how == "reset":
            line.reset()

    async def story(hub: Hub) -> list[dict[str, Any]]:
        cuts = range(len(raw) + (how == "reset" and kind == "until close"))
        return await asyncio.gather(*(ask(hub, cut=cut) for cut in cuts))

    with Peer(script) as peer:
        for cut, reply in enumerate(run_on(loop, peer.hub, story)):
            is_before_it = cut == 0 or (kind == "after 100" and cut == INTERIM)
            assert (reply["code"], reply["outcome"]) == ("E902" if is_before_it else "E500", "unknown"), cut
            assert reply["elapsed_ms"] < SOON
        assert peer.accepted == len(peer.requests)


def test_a_1xx_and_the_start_of_the_reply_in_one_segment() -> None:
    """The reply has begun with its first byte, also where that comes together with a 1xx."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert alone(interim, ends=True)[0].startswith("NoConnection(")
    assert alone(interim + b"H", ends=True)[0].startswith("NoReply(")
    assert alone(interim, b"H", ends=True)[0].startswith("NoReply(")


def test_blanks_after_an_object_may_be_missing(loop: str) -> None:
    """Without length: one whole JSON object is a reply even if more blanks were to come; half of one is not."""
    (reply,) = replies(loop, closing(GOOD_UNTIL_CLOSE + b"\r\n "))
    assert reply["code"] == "0000"


AFTER_IT = {
    "garbage": b"garbage",
    "a second reply": http(body_of(code="B201")),
    "a second reply that is refused": http(b"", "200 OK", "Transfer-Encoding: gzip", "X: a\0b"),
    "half a reply": GOOD[:20],
    "a reply too long": http(b"", "200 OK", "Content-Length: 99999999", length=False),
    "a switch of protocols": b"HTTP/1.1 101 S\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD,
}


@pytest.mark.parametrize("kind", ["length", "chunked"])
@pytest.mark.parametrize("case", AFTER_IT)
def test_bytes_after_a_whole_reply_are_dropped_with_their_connection(loop: str, case: str, kind: str) -> None:
    """The reply is taken, the connection ended, and the next transaction gets its own answer on another one."""
    with Peer(first(CUT[kind] + AFTER_IT[case])) as peer:

        async def story(hub: Hub) -> None:
            assert (await ask(hub))["code"] == "0000"
            await until(lambda: peer.ended == 1)
            assert (await ask(hub))["code"] == "0000"

        run_on(loop, peer.hub, story)
        assert peer.accepted == 2


def unasked(is_answered: threading.Event, is_sent: threading.Event) -> Script:
    """The first connection gets its reply, and later a second one that nobody asked for."""

    def script(line: Line) -> None:
        if line.number == 0:
            line.read()
            line.send(GOOD)
            is_answered.wait(10)
            line.send(http(b'{"code": "B201"}'))
            is_sent.set()
            line.until_ended()
        else:
            answering(GOOD)(line)

    return script


def test_bytes_that_nobody_asked_for_end_their_connection(loop: str) -> None:
    """A reply without a request is nobody's: the hub ends the connection as soon as it sees it."""
    is_answered, is_sent = threading.Event(), threading.Event()

    async def story(hub: Hub) -> None:
        await ask(hub)
        is_answered.set()
        await until(lambda: peer.ended == 1)
        assert (await ask(hub))["code"] == "0000"

    with Peer(unasked(is_answered, is_sent)) as peer:
        run_on(loop, peer.hub, story)
        assert (peer.accepted, len(peer.requests)) == (2, 2)


def test_bytes_that_nobody_asked_for_are_not_the_next_ones_reply(loop: str) -> None:
    """Nor where the loop has not yet read them: their connection is not used for the next transaction."""
    is_answered, is_sent = threading.Event(), threading.Event()

    async def story(hub: Hub) -> dict[str, Any]:
        await ask(hub)
        is_answered.set()
        assert is_sent.wait(10)  # the loop is held up: it cannot look before it sends
        return await ask(hub)

    with Peer(unasked(is_answered, is_sent)) as peer:
        assert run_on(loop, peer.hub, story)["code"] == "0000"
        assert (peer.accepted, len(peer.requests)) == (2, 2)


def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes only some KiB of a request off the hub's hands."""
    made = Connection.connection_made

    def connection_made(self: Connection, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    monkeypatch.setattr(Connection, "connection_made", connection_made)


LARGE = "x" * (MAX_BYTES - 200)


def test_a_reply_before_the_whole_request_is_taken(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target answers a large request before it has read it: taken, and the connection is not used again."""
    small_buffers(monkeypatch)

    def script(line: Line) -> None:
        if line.number == 0:
            line.read_some()
            line.send(http(body_of(code="B201"), "413 Too Large"))
            line.stay()
        else:
            answering(GOOD)(line)

    async def story(hub: Hub) -> None:
        assert (await ask(hub, pad=LARGE))["code"] == "B201"
        assert (await ask(hub))["code"] == "0000"

    with Peer(script) as peer:
        run_on(loop, peer.hub, story)
        assert peer.accepted == 2


def test_a_target_that_ends_its_side_in_the_middle_of_a_request(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can answer no more: E902 at once, though it has not read the request and never will."""
    small_buffers(monkeypatch)

    def script(line: Line) -> None:
        line.read_some()
        line.half_close()
        line.stay()

    async def story(hub: Hub) -> dict[str, Any]:
        return await ask(hub, pad=LARGE)

    with Peer(script) as peer:
        reply = run_on(loop, peer.hub, story)
    assert (reply["code"], reply["outcome"]) == ("E902", "unknown")
    assert reply["elapsed_ms"] < SOON


def test_a_connection_that_ends_before_its_first_use(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target ends what it has just accepted: E902 at once, not at the timeout."""
    is_ended = threading.Event()

    def script(line: Line) -> None:
        line.close()
        is_ended.set()

    made = Connection.connection_made

    def connection_made(self: Connection, transport: Any) -> None:
        made(self, transport)
        assert is_ended.wait(10)

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    (reply,) = replies(loop, script)
    assert reply["code"] == "E902"
    assert reply["elapsed_ms"] < SOON
