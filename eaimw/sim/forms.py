"""The forms in which a target's answer can go out on the wire: unusual ones that are whole replies, and lies.

A back-end, or what stands before it, may say the right thing wrongly. Each form says what the hub owes its caller
then, as the table of reply codes has it, so that the hub can be judged by it: `hub_must_say`.

A form is about one answer. Mode `drip` sends any of them byte by byte; `hang` and `drop` send none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from http import HTTPStatus

from eaimw.sim.target import NO_CODE, Plan

__all__ = ["FORMS", "PLAIN", "WISHES", "Form", "hub_must_say"]

MOST_BODY = 1_048_576  # bytes of a reply; one more is no reply
MOST_HEAD = 65_536
MOST_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Form:
    """One way of answering.

    why: what makes it a whole reply, or none. write: the bytes for what the plan wants said.
    hub_says: the code that the hub must give, whatever was to be said; None: the reply is whole and must be taken.
    rest: seconds that the connection stays open after it, unless a request comes; None: as long as the caller likes.
    is_early: given as soon as the tx_id was read, before the rest of the request; a denial.
    then: the bytes that follow it, with its last one.
    """

    name: str
    why: str
    write: Callable[[Plan], bytes]
    hub_says: str | None = None
    rest: float | None = None
    is_early: bool = False
    then: Callable[[Plan], bytes] | None = None

    @property
    def is_whole(self) -> bool:
        """Is it a reply, which the hub must take?"""
        return self.hub_says is None

    @property
    def spoils_next(self) -> bool:
        """May a request that is sent over the same connection, before what follows is seen there, be E500?

        (E902, of a request that the target has not received, may come after any connection that it ends.)
        """
        return self.then is not None


def hub_must_say(plan: Plan, form: Form) -> str:
    """The code that the hub owes its caller, if the plan's answer reaches it in this form and in time."""
    if form.hub_says is not None:
        return form.hub_says
    is_ill = (plan.status == 429 or plan.status >= 500) and not plan.code.startswith("E9")
    return "E500" if plan.code == NO_CODE or is_ill else plan.code


@lru_cache(maxsize=64)
def _top(status: int, content_type: str) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n".encode()


def _plain(plan: Plan) -> bytes:
    body = plan.body
    return b"%bContent-Length: %d\r\n\r\n%b" % (_top(plan.status, plan.content_type), len(body), body)


PLAIN = Form("plain", "a length and so many bytes", _plain)


def _http(plan: Plan, *headers: bytes) -> bytes:
    """The answer with these headers alone to frame it."""
    return b"\r\n".join([_top(plan.status, plan.content_type)[:-2], *headers, b"", plan.body])


def _length(plan: Plan, more: int = 0) -> bytes:
    return b"Content-Length: %d" % (len(plan.body) + more)


CHUNKING = b"Transfer-Encoding: chunked"


def _says(plan: Plan, body: bytes) -> bytes:
    return _plain(replace(plan, body=body))


def _has_status(plan: Plan, status: int, *headers: bytes) -> bytes:
    return _http(replace(plan, status=status), *headers, _length(plan))


def _without_code(plan: Plan, status: int) -> bytes:
    return _plain(replace(plan, status=status, body=b"try again later\n", content_type="text/plain"))


def _wishes(plan: Plan, status: int, value: bytes) -> bytes:
    """Without a code, and not to be asked again before this."""
    head, body = _without_code(plan, status).split(b"\r\n\r\n", 1)
    return head + b"\r\nRetry-After: " + value + b"\r\n\r\n" + body


def _chunks(body: bytes) -> bytes:
    """Two of them, and not yet the last."""
    half = len(body) // 2
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (body[:half], body[half:]) if chunk)


def _chunked(plan: Plan) -> bytes:
    return _http(plan, CHUNKING).removesuffix(plan.body) + _chunks(plan.body) + b"0\r\n\r\n"


def _padded(body: bytes, size: int) -> bytes:
    return body + b" " * (size - len(body))


def _with_member(body: bytes, member: bytes) -> bytes:
    """The object with one member more at its end; a page stays as little an object as it was."""
    return body[:-1] + b", " + member + b"}"


def _for_tx_id(body: bytes, tx_id: bytes) -> bytes:
    """The object with this as its first member, in place of its tx_id."""
    return b"{" + tx_id + body.partition(b", ")[2]


_DEEP = b'"deep": ' + b"[" * MOST_DEPTH + b"]" * MOST_DEPTH  # the object around it is one level more
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"

_WHOLE = (
    PLAIN,
    Form("chunked", "chunking is the other framing", _chunked),
    Form("until_close", "without length or chunking an orderly close ends it", _http, rest=0.0),
    Form("interim_first", "a 1xx is not yet the reply", lambda plan: _INTERIM + _plain(plan)),
    Form("http_1_0", "an older version with a length", lambda p: _plain(p).replace(b"/1.1", b"/1.0", 1), rest=0.0),
    Form("created", "every 2xx is judged by its body", lambda plan: _has_status(plan, 201)),
    Form("not_found", "a 4xx, but for 429, is judged by its body", lambda plan: _has_status(plan, 404)),
    Form("without_tx_id", "only a tx_id that is there must be equal", lambda p: _says(p, _for_tx_id(p.body, b""))),
    Form("largest", "1 MiB is allowed, blanks included", lambda p: _says(p, _padded(p.body, MOST_BODY))),
    Form("closing", "says so", lambda plan: _http(plan, b"Connection: close", _length(plan)), rest=0.0),
    Form("closed_unsaid", "was whole before the connection ended", _plain, rest=0.0),
    Form("closed_when_idle", "keep-alive has its end", _plain, rest=0.5),
    Form("early", "a target need not read what it denies", _plain, is_early=True),
    Form("then_bytes", "what follows is dropped", _plain, then=lambda plan: b"\0 what is this"),
    Form("then_again", "what follows is dropped", _plain, then=_plain),
)  # fmt: skip

_LIES = (
    Form("two_lengths", "two lengths", lambda plan: _http(plan, _length(plan), _length(plan)), "E500"),
    Form("length_and_chunking", "length with chunking",
         lambda p: _chunked(p).replace(CHUNKING, CHUNKING + b"\r\n" + _length(p), 1), "E500"),
    Form("bad_length", "a bad length", lambda plan: _http(plan, b"Content-Length: +%d" % len(plan.body)), "E500"),
    Form("bad_head", "a malformed head", lambda plan: b"HTTP/1.1 OK 200\r\n\r\n" + plan.body, "E500"),
    Form("long_head", "a head over 64 KiB",
         lambda plan: _http(plan, b"X-Pad: " + b"x" * MOST_HEAD, _length(plan)), "E500"),
    Form("too_long", "over 1 MiB by one byte", lambda p: _says(p, _padded(p.body, MOST_BODY + 1)), "E500"),
    Form("too_long_in_chunks", "over 1 MiB by one byte, unannounced",
         lambda p: _chunked(replace(p, body=_padded(p.body, MOST_BODY + 1))), "E500"),
    Form("too_deep", "nested over 100 deep", lambda p: _says(p, _with_member(p.body, _DEEP)), "E500"),
    Form("with_bom", "a byte order mark", lambda plan: _says(plan, b"\xef\xbb\xbf" + plan.body), "E500"),
    Form("code_twice", "a code that stands twice",
         lambda p: _says(p, _with_member(p.body, b'"code": "0000"')), "E500"),
    Form("code_twice_escaped", "a code that stands twice, once as an escape",
         lambda p: _says(p, _with_member(p.body, b'"\\u0063ode": "0000"')), "E500"),
    Form("foreign_tx_id", "the tx_id of another",
         lambda p: _says(p, _for_tx_id(p.body, b'"tx_id": "somebody-elses", ')), "E500"),
    Form("redirect", "a redirect", lambda plan: _has_status(plan, 307, b"Location: /elsewhere"), "E500"),
    Form("server_error", "a 5xx without an E9 code", lambda plan: _has_status(plan, 502), "E500"),
    Form("too_many", "429 without a code", lambda plan: _without_code(plan, 429), "E500"),
    Form("unavailable", "503 without a code", lambda plan: _without_code(plan, 503), "E500"),
    Form("cut", "cut before its announced end", lambda plan: _plain(plan)[:-1], "E500", rest=0.0),
    Form("cut_in_head", "cut after its first byte", lambda plan: b"H", "E500", rest=0.0),
    Form("cut_in_chunks", "cut before its last chunk", lambda p: _chunked(p).removesuffix(b"0\r\n\r\n"), "E500",
         rest=0.0),
    Form("cut_until_close", "ended by a close, and half an object", lambda plan: _http(plan)[:-1], "E500", rest=0.0),
    Form("interim_alone", "ended before the first byte of the reply", lambda plan: _INTERIM, "E902", rest=0.0),
    Form("length_too_short", "half an object by its length; the rest follows it",
         lambda plan: _http(plan, _length(plan, -1))[:-1], "E500", then=lambda plan: plan.body[-1:]),
    Form("length_too_long", "no whole reply within the timeout", lambda plan: _http(plan, _length(plan, 1)), "E901"),
)  # fmt: skip

# Those with a Retry-After; the hub's clock begins with 2026 in a simulation.
_WISHES = (
    Form("wait_a_second", "503 without a code", lambda plan: _wishes(plan, 503, b"1"), "E500"),
    Form("wait_long", "503 without a code", lambda plan: _wishes(plan, 503, b"90000"), "E500"),
    Form("wait_until", "503 without a code", lambda p: _wishes(p, 503, b"Thu, 01 Jan 2026 00:00:05 GMT"), "E500"),
    Form("wait_senselessly", "429 without a code", lambda plan: _wishes(plan, 429, b"a while"), "E500"),
)
WISHES = [form.name for form in _WISHES]

FORMS: dict[str, Form] = {form.name: form for form in (*_WHOLE, *_LIES, *_WISHES)}
