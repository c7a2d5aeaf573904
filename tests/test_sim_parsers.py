"""Any bytes, cut anywhere: what callers and targets send means the same however it is cut, and breaks nothing."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eaimw.adapters.http_server import HttpServer
from eaimw.config import Address, HubSettings, TargetSettings
from eaimw.policy import BreakerSettings
from eaimw.sim.forms import FORMS
from eaimw.sim.link import Conditions, Way
from eaimw.sim.target import ANSWER, Plan
from eaimw.sim.world import World

Cut = Literal["whole", "random", "bytes"]
CUTS: tuple[Cut, ...] = ("random", "bytes")
LISTENS = Address("203.0.113.1", 80)


def world() -> World:
    target = TargetSettings("http://10.0.0.1:80/tx", timeout=1.0, breaker=BreakerSettings(1000))
    return World(HubSettings({"CORE": target}), seed=1)


class Saying(asyncio.Protocol):
    """A target that answers each request with these bytes, and closes if so; else it waits."""

    def __init__(self, raw: bytes, closes: bool) -> None:
        self._raw = raw
        self._closes = closes

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._raw)
        if self._closes:
            self._transport.close()


def told_by_the_hub(raw: bytes, closes: bool, cut: Cut) -> tuple[Any, ...]:
    """What the hub makes of a target's bytes, and of the next transaction."""
    made = world()

    async def story() -> list[dict[str, Any]]:
        made.link("CORE").conditions = Conditions(back=Way(pieces=cut))
        await made.loop.create_server(lambda: Saying(raw, closes), *made.address("CORE"))
        return [await made.hub.handle_tx({"tx_id": tx_id, "target": "CORE"}) for tx_id in ("T-1", "T-2")]

    first, second = made.run(story)
    assert not made.network.open_connections() or not closes
    return first["code"], first["outcome"], first.get("data"), second["tx_id"]


def answer(**more: Any) -> Plan:
    return Plan(ANSWER, 200, json.dumps({"tx_id": "T-1", "code": "0000", **more}).encode(), "0000")


REPLIES = [form.write(answer()) for form in FORMS.values() if len(form.write(answer())) < 1000]


@st.composite
def spoilt(draw: st.DrawFn, good: list[bytes]) -> bytes:
    """One of the good ones with some bytes of it changed, cut out, said twice or put in."""
    raw = draw(st.sampled_from(good))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(raw)))
        end = draw(st.integers(at, min(len(raw), at + 20)))
        put = draw(
            st.binary(max_size=6) | st.sampled_from([b"\r\n", b"\r\n\r\n", b"0\r\n", b": ", b"{", raw[at:end] * 2])
        )
        raw = raw[:at] + put + raw[end:]
    return raw


@settings(max_examples=150, deadline=None)
@given(spoilt(REPLIES) | st.binary(max_size=80), st.booleans())
@example(b"", True)
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", False)
def test_a_targets_bytes_mean_the_same_however_they_are_cut(raw: bytes, closes: bool) -> None:
    """One reply, with the same code, outcome and data; and the next transaction has its own."""
    whole = told_by_the_hub(raw, closes, "whole")
    assert [told_by_the_hub(raw, closes, cut) for cut in CUTS] == [whole, whole]


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if len(form.write(answer())) < 1000])
def test_a_form_means_the_same_wherever_it_is_cut_in_two(name: str) -> None:
    """At each of its bytes: the rest comes with the next piece, and sees the same."""
    form = FORMS[name]
    raw = form.write(answer()) + (b"" if form.then is None else form.then(answer()))
    whole = told_by_the_hub(raw, True, "whole")
    assert whole[0] == ("0000" if form.is_whole else form.hub_says if name != "length_too_long" else "E500")
    for cut in CUTS:
        assert told_by_the_hub(raw, True, cut) == whole


class Caller(asyncio.Protocol):
    """Writes its bytes, and keeps what comes."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.said = b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(self._raw)

    def data_received(self, data: bytes) -> None:
        self.said += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


def said_to_a_caller(raw: bytes, cut: Cut) -> bytes:
    """All that the hub's server says to one who sends this and then waits."""
    made = world()

    async def story() -> bytes:
        reply = FORMS["plain"].write(answer())
        await made.loop.create_server(lambda: Saying(reply, False), *made.address("CORE"))
        server = HttpServer(made.hub)
        await server.start(LISTENS)
        made.network.link(*LISTENS).conditions = Conditions(there=Way(pieces=cut))
        _, caller = await made.loop.create_connection(lambda: Caller(raw), *LISTENS)
        await asyncio.wait((caller.ended,), timeout=100)
        await server.drain()
        await server.close()
        assert caller.ended.done()
        assert (server.calls, server.arrivals.bytes, len(server.connections)) == (0, 0, 0)
        # Of two faults in one request, which is named first may depend on the cut.
        return re.sub(rb'Content-Length: \d+|"message":"(?:[^"\\]|\\.)*"', b"", caller.said)

    return made.run(story)


def request(body: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"POST /tx HTTP/1.1", b"Host: h", *headers, b"Content-Length: %d" % len(body), b"", body])


GOOD = request(b'{"tx_id": "T-1", "target": "CORE"}')
CHUNKED = (
    b"POST /tx HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'10\r\n{"tx_id": "T-1",\r\n12\r\n "target": "CORE"}\r\n0\r\n\r\n'
)
CLOSING = request(b'{"tx_id": "T-1", "target": "CORE"}', b"Connection: close")
OLD = b"GET /tx HTTP/1.0\r\n\r\n"
REQUESTS = [
    GOOD,
    CHUNKED,
    CLOSING,
    OLD,
    request(b'{"tx_id": "T-1", "target": "NONE"}'),
    request(b"no transaction"),
    b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(REQUESTS), max_size=3), spoilt(REQUESTS) | st.binary(max_size=80))
@example([GOOD], b"")
@example([], CHUNKED.replace(b"Encoding: ", b"Encoding:!\r\n"))
def test_a_callers_bytes_mean_the_same_however_they_are_cut(good: list[bytes], rest: bytes) -> None:
    """The same answers in the same order, and nothing is left of them; each good request before the rest has one."""
    raw = b"".join(good) + rest
    whole = said_to_a_caller(raw, "whole")
    assert [said_to_a_caller(raw, cut) for cut in CUTS] == [whole, whole]
    assert whole.count(b"HTTP/1.1 ") >= (0 if CLOSING in good or OLD in good else len(good))
