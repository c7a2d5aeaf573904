"""The HTTP client's connections, its time and its requests; through the real hub, on both event loops."""

import asyncio
import errno
import os
import random
import threading
import time
from typing import Any

import pytest
from hubs import ask, hub_of, run_on, until
from peer import (
    GOOD,
    GOOD_CHUNKED,
    SOON,
    Line,
    Peer,
    Script,
    answering,
    body_of,
    closing,
    free_port,
    http,
    once,
    unanswered,
)

from eaimw.adapters import http_client, resolver
from eaimw.adapters.http_reply import Connection
from eaimw.hub import Hub
from eaimw.wire import MAX_BYTES, read_transaction

pytestmark = pytest.mark.usefixtures("complaints")


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Time.


def silent_after(*pieces: bytes) -> Script:
    def script(line: Line) -> None:
        line.send(*pieces)
        line.stay()

    return script


def dripping(start: bytes, piece: bytes) -> Script:
    def script(line: Line) -> None:
        line.drip(start, piece)
        line.until_ended()

    return script


SILENT = {
    "after the connection": silent_after(),
    "after the request": silent_after(),
    "after the head": silent_after(GOOD[:-34]),
    "before the last byte": silent_after(GOOD[:-1]),
    "before the last chunk": silent_after(GOOD_CHUNKED[:-5]),
    "after a 1xx": silent_after(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "dripping a head": dripping(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    "dripping a body": dripping(http(b"", "200 OK", "Content-Length: 9999", length=False), b" "),
    "dripping chunks": dripping(GOOD_CHUNKED[:-5], b"1\r\n \r\n"),
    "dripping 1xx": dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("case", SILENT)
def test_the_timeout_is_the_wall_clock_over_the_whole_call(loop: str, case: str) -> None:
    """However the target delays, E901 comes at the timeout, unknown, a failure, and it sees its connection end."""

    def script(line: Line) -> None:
        if case != "after the connection":
            line.read()
        SILENT[case](line)

    with Peer(script) as peer:

        async def story(hub: Hub) -> None:
            reply = await ask(hub)
            assert (reply["code"], reply["outcome"], reply["attempts"]) == ("E901", "unknown", 1)
            assert 150 <= reply["elapsed_ms"] < 150 + SOON / 2
            assert str(hub.targets["CORE"].breaker.state) == "OPEN"
            await until(lambda: peer.ended)

        run_on(loop, lambda: peer.hub(timeout=0.15, fail_threshold=1), story)


def test_a_callers_own_shorter_budget_is_no_sample(loop: str) -> None:
    """timeout_ms below the target's timeout: E901 in that time, and the circuit learns nothing from it."""

    async def story(hub: Hub) -> None:
        for _ in range(3):
            reply = await ask(hub, timeout_ms=40)
            assert (reply["code"], reply["outcome"]) == ("E901", "unknown")
            assert 40 <= reply["elapsed_ms"] < SOON
        assert str(hub.targets["CORE"].breaker.state) == "CLOSED"

    with Peer(once()) as peer:
        run_on(loop, lambda: peer.hub(fail_threshold=1), story)


def test_calls_with_many_deadlines_end_each_at_its_own(loop: str) -> None:
    """One timer serves all calls of a target: a later deadline, set before or after, does not hold up a nearer one."""

    async def story(hub: Hub) -> None:
        last = asyncio.create_task(ask(hub))
        await until(lambda: peer.requests)
        budgets = [110, 30, 60, 31, 32, 90]
        for budget, reply in zip(
            budgets, await asyncio.gather(*(ask(hub, timeout_ms=budget) for budget in budgets)), strict=True
        ):
            assert reply["code"] == "E901"
            assert budget <= reply["elapsed_ms"] < SOON
        assert not last.done()
        await cancelled(last)

    with Peer(once()) as peer:
        run_on(loop, peer.hub, story)


def test_a_connection_that_nobody_answers(loop: str) -> None:
    """No connection within the connect timeout: E902, nothing was sent, and it is a failure."""

    async def story(hub: Hub) -> None:
        reply = await ask(hub)
        assert (reply["code"], reply["outcome"], reply["attempts"]) == ("E902", "not_sent", 1)
        assert reply["retryable"] is True
        assert 145 <= reply["elapsed_ms"] < 150 + SOON / 2
        assert str(hub.targets["CORE"].breaker.state) == "OPEN"

    with unanswered() as url:
        run_on(loop, lambda: hub_of(url, connect_timeout=0.15, fail_threshold=1), story)


def test_a_budget_that_ends_while_connecting(loop: str) -> None:
    """The caller's budget is nearer than the connect timeout: E901, nothing was sent, and never a sample.

    Many at once: a timer that rings a millisecond early must not turn it into the target's E902.
    """

    async def story(hub: Hub) -> None:
        for reply in await asyncio.gather(*(ask(hub, timeout_ms=10 + n) for n in range(60))):
            assert (reply["code"], reply["outcome"], reply["retryable"]) == ("E901", "not_sent", True)
        assert str(hub.targets["CORE"].breaker.state) == "CLOSED"

    with unanswered() as url:
        run_on(loop, lambda: hub_of(url, fail_threshold=1), story)


def test_a_budget_that_ends_anywhere(loop: str) -> None:
    """Three hundred calls with 1 to 3 ms each: connections that come too late are not lost or left open."""

    async def story(hub: Hub) -> None:
        for reply in await asyncio.gather(*(ask(hub, timeout_ms=1 + n % 3) for n in range(300))):
            assert reply["code"] in ("E901", "0000")
            if reply["outcome"] == "not_sent":
                assert reply["code"] == "E901"

    with Peer(answering(GOOD)) as peer:
        run_on(loop, lambda: peer.hub(min_call=0.0), story)


def test_nothing_is_sent_after_the_deadline(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is there only after the call's deadline carries no request: E901, nothing was sent."""
    made = Connection.connection_made

    def connection_made(self: Connection, transport: Any) -> None:
        made(self, transport)
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            pass

    monkeypatch.setattr(Connection, "connection_made", connection_made)

    async def story(hub: Hub) -> dict[str, Any]:
        return await ask(hub, timeout_ms=45)

    with Peer(answering(GOOD)) as peer:
        reply = run_on(loop, peer.hub, story)
        assert (reply["code"], reply["outcome"]) == ("E901", "not_sent")
    assert peer.requests == []


# No connection.


def test_a_refused_connection(loop: str) -> None:
    """Nobody listens: E902 at once, nothing was sent, one attempt, and the message says where."""
    port = free_port()
    reply = run_on(loop, lambda: hub_of(f"http://127.0.0.1:{port}/tx"), ask)
    assert (reply["code"], reply["outcome"], reply["attempts"]) == ("E902", "not_sent", 1)
    assert f"127.0.0.1 port {port}" in reply["message"]


def test_a_name_that_cannot_be_resolved(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such host: E902, nothing was sent; also where the look-up raises what nobody foresaw."""
    for problem in (OSError("no such host"), UnicodeError("label too long"), ZeroDivisionError("a bug")):

        def look_up(_: str, problem: Exception = problem) -> list[str]:
            raise problem

        monkeypatch.setattr(resolver, "system_addresses", look_up)
        reply = run_on(loop, lambda: hub_of("http://core.invalid/tx"), ask)
        assert (reply["code"], reply["outcome"], reply["attempts"]) == ("E902", "not_sent", 1)
        assert str(problem) in reply["message"]


def test_a_look_up_that_hangs(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is bounded by the connect timeout, and another target's look-up does not wait for it."""
    is_over = threading.Event()

    def look_up(host: str) -> list[str]:
        if host == "hangs":
            is_over.wait(10)
        return ["127.0.0.1"]

    monkeypatch.setattr(resolver, "system_addresses", look_up)
    from eaimw.app import open_hub
    from eaimw.config import HubSettings, TargetSettings

    async def story(hub: Hub) -> None:
        slow = asyncio.create_task(ask(hub))
        assert (await ask(hub, target="CLAIM"))["code"] == "0000"
        assert not slow.done()
        reply = await slow
        assert (reply["code"], reply["outcome"]) == ("E902", "not_sent")
        assert "hangs" in reply["message"]

    with Peer(answering(GOOD)) as peer:
        targets = {
            "CORE": TargetSettings(f"http://hangs:{peer.port}/tx", connect_timeout=0.3),
            "CLAIM": TargetSettings(f"http://works:{peer.port}/tx", connect_timeout=10.0, timeout=10.0),
        }
        run_on(loop, lambda: open_hub(HubSettings(targets)), story)
        is_over.set()


def test_every_address_of_a_name_is_tried(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """localhost may be ::1 first: a target that listens on 127.0.0.1 alone is reached."""
    monkeypatch.setattr(resolver, "system_addresses", lambda host: ["::1", "127.0.0.1"])
    with Peer(answering(GOOD)) as peer:
        reply = run_on(loop, lambda: hub_of(f"http://localhost:{peer.port}/tx"), ask)
        assert (reply["code"], reply["attempts"]) == ("0000", 1)
        assert peer.requests[0].all("Host") == [f"localhost:{peer.port}"]


def test_an_address_that_is_silent_leaves_the_next_its_part(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first address does not answer at all: the second is still reached within the connect timeout."""
    monkeypatch.setattr(resolver, "system_addresses", lambda host: ["127.0.0.2", "127.0.0.1"])
    with Peer(answering(GOOD)) as peer, unanswered("127.0.0.2", peer.port):
        reply = run_on(loop, lambda: hub_of(f"http://two:{peer.port}/tx", connect_timeout=0.4), ask)
    assert reply["code"] == "0000"
    assert reply["elapsed_ms"] >= 195


# Kept-alive connections.


def figures(hub: Hub) -> tuple[int, int, int]:
    """Connections opened, reused, and lost while idle."""
    count = hub.targets["CORE"].transport.connections  # type: ignore[attr-defined]
    return count["opened"], count["reused"], count["lost"]


def test_a_connection_is_used_again(loop: str) -> None:
    """Ten transactions in a row, whatever their framing: one connection."""
    raws = [GOOD, GOOD_CHUNKED, http(body_of(), "500 Oh"), http(b"<html>"), http(b"", "204 No Content", length=False)]

    async def story(hub: Hub) -> None:
        for _ in range(10):
            await ask(hub)
        assert figures(hub) == (1, 9, 0)

    with Peer(answering(*raws, *raws)) as peer:
        run_on(loop, peer.hub, story)
        assert (peer.accepted, len(peer.requests)) == (1, 10)


@pytest.mark.parametrize("raw", [http(body_of(), "200 OK", "Connection: close"), GOOD.replace(b"/1.1", b"/1.0")])
def test_a_target_that_says_it_closes_is_believed(loop: str, raw: bytes) -> None:
    """Connection: close, and HTTP/1.0 without keep-alive: the hub ends the connection and makes another."""
    with Peer(once(raw)) as peer:

        async def story(hub: Hub) -> None:
            for _ in range(3):
                assert (await ask(hub))["code"] == "0000"
            await until(lambda: peer.ended == 3)

        run_on(loop, peer.hub, story)
        assert peer.accepted == 3


@pytest.mark.parametrize("how", ["orderly", "reset"])
def test_a_connection_that_the_target_closed_while_idle(loop: str, how: str) -> None:
    """Another one is made and nothing is lost, though the loop had no time to see the end before it sends."""
    is_ended = threading.Event()

    def script(line: Line) -> None:
        line.read()
        line.send(GOOD)
        is_answered.wait(10)
        if how == "reset":
            line.reset()
        line.close()
        is_ended.set()

    is_answered = threading.Event()

    async def story(hub: Hub) -> None:
        for n in range(5):
            reply = await ask(hub, tx_id="T-1", n=n)
            assert (reply["code"], reply["attempts"]) == ("0000", 1)
            is_answered.set()
            assert is_ended.wait(10)
            is_answered.clear()
            is_ended.clear()
        assert figures(hub) == (5, 0, 4)

    with Peer(script) as peer:
        run_on(loop, peer.hub, story)
        assert (peer.accepted, len(peer.requests)) == (5, 5)


def test_a_target_that_closes_just_after_each_answer(loop: str) -> None:
    """Closed 0 to 5 ms after each answer, 1,000 transactions in a row: none is executed twice or without a reply.

    `unknown` comes only where bytes had left: E902. Nearly all are done, since an end is looked for before sending.
    """
    chance = random.Random(7)
    pauses = [chance.choice((0.0, 0.001, 0.002, 0.005)) for _ in range(1000)]
    executed: list[str] = []

    def script(line: Line) -> None:
        pause = 10.0
        while pause and (request := line.read(pause)) is not None:
            executed.append(request.json["tx_id"])
            line.send(http(body_of(tx_id=request.json["tx_id"])))
            pause = pauses[len(executed) % 1000]

    async def story(hub: Hub) -> list[dict[str, Any]]:
        taken = []
        for n in range(1000):
            taken.append(await ask(hub, tx_id=f"T-{n}"))
            if n % 2:  # the other half follows at once
                await asyncio.sleep(pauses[-n] * chance.uniform(0.9, 1.3))
        return taken

    with Peer(script) as peer:
        taken = run_on(loop, peer.hub, story)
        assert peer.accepted > 100
    assert len(executed) == len(set(executed))
    for reply in taken:
        if reply["code"] == "0000":
            assert reply["tx_id"] in executed
        else:
            assert (reply["code"], reply["outcome"], reply["attempts"]) == ("E902", "unknown", 1)
    assert sum(reply["code"] == "0000" for reply in taken) > 900


def taking_and_resetting(line: Line) -> None:
    line.read()
    line.reset()


LOST: dict[str, Script] = {
    "502": answering(http(b"", "502 Bad Gateway")),
    "503": answering(http(b"busy", "503 Service Unavailable", "Retry-After: 0")),
    "504": answering(http(b"<html>", "504 Gateway Timeout")),
    "408": answering(http(b"", "408 Request Timeout")),
    "reset": taking_and_resetting,
    "closed": closing(),
    "half a reply": closing(GOOD[:30]),
}


@pytest.mark.parametrize("case", LOST)
def test_what_the_target_took_is_never_sent_again(loop: str, case: str) -> None:
    """It takes the request and answers 502, 503 or 504, or ends the connection: received exactly once.

    On a fresh connection as on one that was used before.
    """

    def script(line: Line) -> None:
        if line.number == 0:
            line.read()
            line.send(GOOD)
        LOST[case](line)

    async def story(hub: Hub) -> None:
        assert (await ask(hub))["code"] == "0000"
        for tx_id in ("T-2", "T-3"):
            reply = await ask(hub, tx_id=tx_id)
            assert (reply["code"] in ("E500", "E902"), reply["outcome"], reply["attempts"]) == (True, "unknown", 1)

    with Peer(script) as peer:
        run_on(loop, peer.hub, story)
        assert [peer.times(tx_id) for tx_id in ("T-1", "T-2", "T-3")] == [1, 1, 1]


def test_idle_connections_are_dropped(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They end before the usual 5 s of servers, without another transaction, and none of them is left."""
    assert http_client.IDLE_LIMIT < 5
    monkeypatch.setattr(http_client, "IDLE_LIMIT", 0.05)

    async def story(hub: Hub) -> None:
        await asyncio.gather(*(ask(hub) for _ in range(4)))
        await until(lambda: peer.ended == peer.accepted)
        assert (await ask(hub))["code"] == "0000"
        assert figures(hub)[2] == 0

    with Peer(once(GOOD)) as peer:
        run_on(loop, peer.hub, story)


def test_a_connection_that_rested_too_long_is_not_used(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the loop was held up beyond the limit, the next transaction gets another connection all the same."""

    async def story(hub: Hub) -> None:
        await ask(hub)
        monkeypatch.setattr(http_client, "IDLE_LIMIT", 0.0)
        await ask(hub)
        assert figures(hub) == (2, 0, 0)

    with Peer(answering(GOOD)) as peer:
        run_on(loop, peer.hub, story)


def test_never_more_connections_than_calls_in_flight(loop: str) -> None:
    """200 transactions, at most 5 in flight: at most 5 connections, all used again."""

    async def story(hub: Hub) -> None:
        async def one_after_another() -> None:
            for _ in range(40):
                assert (await ask(hub))["code"] == "0000"

        await asyncio.gather(*(one_after_another() for _ in range(5)))
        assert sum(figures(hub)[:2]) == 200

    with Peer(answering(GOOD)) as peer:
        run_on(loop, lambda: peer.hub(max_inflight=5), story)
        assert peer.accepted <= 5


def test_the_hubs_end_is_the_end_of_its_connections(loop: str) -> None:
    """When the hub closes, the target sees every connection end."""
    with Peer(once(GOOD)) as peer:

        async def story(hub: Hub) -> None:
            await asyncio.gather(*(ask(hub) for _ in range(3)))

        run_on(loop, peer.hub, story)
        deadline = time.monotonic() + 10
        while peer.ended < peer.accepted:
            assert time.monotonic() < deadline
            time.sleep(0.001)


# The request.


def test_the_request_carries_the_callers_bytes(loop: str) -> None:
    """The body is what came, byte for byte, with its length; the headers say attempt, time left and priority."""
    raw = (
        b'{ "tx_id":"T-1",\t"target":"CORE", "timeout_ms": 2500, "priority":"high", "a": 1.0, "b":"\\u00e9 \xc3\xa9" }'
    )

    async def story(hub: Hub) -> None:
        before = time.time() * 1000
        assert (await hub.handle(read_transaction(raw))).code == "0000"
        (request,) = peer.requests
        assert request.line == "POST /in/tx?a=b HTTP/1.1"
        assert request.body == raw
        for name, value in {
            "Host": f"127.0.0.1:{peer.port}",
            "Content-Length": str(len(raw)),
            "Content-Type": "application/json",
            "X-Attempt": "1",
            "X-Priority": "high",
            "Idempotency-Key": None,
            "Transfer-Encoding": None,
            "Expect": None,
        }.items():
            assert request.all(name) == ([] if value is None else [value]), name
        (left,), (deadline,) = request.all("X-Timeout-Ms"), request.all("X-Deadline")
        assert 1 <= int(left) <= 2500
        assert before + int(left) - 2 <= int(deadline) <= time.time() * 1000 + 2501

    with Peer(answering(GOOD)) as peer:
        run_on(loop, lambda: hub_of(f"http://127.0.0.1:{peer.port}/in/tx?a=b"), story)


def test_the_largest_request_is_sent_whole(loop: str) -> None:
    """A transaction of 1,048,576 bytes arrives as it is, and its connection is used again."""
    start = b'{"tx_id": "T-1", "target": "CORE", "pad": "'
    raw = start + b"x" * (MAX_BYTES - len(start) - 2) + b'"}'

    async def story(hub: Hub) -> None:
        for _ in range(2):
            assert (await hub.handle(read_transaction(raw))).code == "0000"

    with Peer(answering(GOOD)) as peer:
        run_on(loop, peer.hub, story)
        assert [request.body == raw for request in peer.requests] == [True, True]
        assert peer.accepted == 1


def test_the_time_left_shrinks(loop: str) -> None:
    """X-Timeout-Ms is what is left of the call when it is sent, not what it had: here a slow look-up took its part."""

    def look_up(_: str) -> list[str]:
        time.sleep(0.06)
        return ["127.0.0.1"]

    with Peer(answering(GOOD)) as peer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolver, "system_addresses", look_up)
        run_on(loop, lambda: hub_of(f"http://slow:{peer.port}/tx", timeout=10), ask)
        assert 1 <= int(peer.requests[0].all("X-Timeout-Ms")[0]) <= 9_941


@pytest.mark.parametrize("key", ["K-1", "a b", "ключ 鍵", "x" * 256, "é" * 256])
def test_the_idempotency_key_is_forwarded(loop: str, key: str) -> None:
    """As a header, in UTF-8."""
    with Peer(answering(GOOD)) as peer:
        assert run_on(loop, peer.hub, lambda hub: ask(hub, idempotency_key=key))["code"] == "0000"
        assert peer.requests[0].all("Idempotency-Key") == [key]


@pytest.mark.parametrize("key", ["a\r\nX-Admin: 1", "a\nb", "a\rb", "\0", "a\tb", "a\x7f", "a\x85b", "\r\n\r\nPOST /"])
def test_a_key_with_control_characters_is_not_forwarded(loop: str, key: str) -> None:
    """It makes no header, neither its own nor another; the body carries it as it came."""
    with Peer(answering(GOOD)) as peer:
        assert run_on(loop, peer.hub, lambda hub: ask(hub, idempotency_key=key))["code"] == "0000"
        (request,) = peer.requests
        assert request.all("Idempotency-Key") == request.all("X-Admin") == []
        assert request.json["idempotency_key"] == key


# The caller's end, and what nobody foresaw.


def test_a_call_that_is_cancelled_while_it_waits(loop: str) -> None:
    """Its connection is ended, so that a late reply is nobody's; place and permit come back, and it is no sample."""

    def script(line: Line) -> None:
        if line.number == 0:
            line.read()
            line.until_ended()
        else:
            answering(GOOD)(line)

    async def story(hub: Hub) -> None:
        task = asyncio.create_task(ask(hub))
        await until(lambda: peer.requests)
        await cancelled(task)
        assert (await ask(hub))["code"] == "0000"
        await until(lambda: peer.ended == 1)
        assert str(hub.targets["CORE"].breaker.state) == "CLOSED"
        assert (await ask(hub))["code"] == "0000"

    with Peer(script) as peer:
        run_on(loop, lambda: peer.hub(max_inflight=1, fail_threshold=1), story)


def test_a_call_that_is_cancelled_while_it_connects(loop: str) -> None:
    """Nothing of the connection is left; place and permit come back."""

    async def story(hub: Hub) -> None:
        for _ in range(3):
            task = asyncio.create_task(ask(hub))
            await until(lambda: hub.targets["CORE"].attempts)
            hub.targets["CORE"].attempts = 0
            await cancelled(task)
        assert str(hub.targets["CORE"].breaker.state) == "CLOSED"

    with unanswered() as url:
        run_on(loop, lambda: hub_of(url, max_inflight=1, fail_threshold=1), story)


def test_calls_that_are_cancelled_anywhere(loop: str) -> None:
    """After every number of turns of the loop from the start to the reply: nothing is left, the next one is served."""

    async def story(hub: Hub) -> None:
        for turns in range(40):
            task = asyncio.create_task(ask(hub))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.result()["code"] == "0000"
        assert (await ask(hub))["code"] == "0000"

    with Peer(answering(GOOD)) as peer:
        run_on(loop, lambda: peer.hub(max_inflight=1), story)


def test_what_nobody_foresaw_in_the_transport(
    loop: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception of no kind that is known: E500, place and permit come back, the next transaction is served."""

    def fails(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def story(hub: Hub) -> None:
        await ask(hub)
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "exchange", fails)
            for _ in range(3):
                reply = await ask(hub)
                assert (reply["code"], reply["outcome"]) == ("E500", "unknown")
                assert reply["elapsed_ms"] < SOON
        assert (await ask(hub))["code"] == "0000"

    with Peer(answering(GOOD)) as peer:
        run_on(loop, lambda: peer.hub(max_inflight=1), story)
    assert "a fault of the hub" in capsys.readouterr().err


def test_a_write_that_fails_leaves_nothing_untold(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody foresaw after the waiting has begun: the connection's end finds nobody, and nothing complains."""

    def exchange(self: Connection, request: bytes, deadline: float, waiter: Any) -> None:
        write(self, request, deadline, waiter)
        raise ZeroDivisionError("a bug")

    write = Connection.exchange
    monkeypatch.setattr(Connection, "exchange", exchange)
    with Peer(once()) as peer:
        assert run_on(loop, peer.hub, ask)["code"] == "E500"


def test_a_probe_that_failed_as_nobody_foresaw_strands_no_circuit(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its permit comes back: the next transaction is the probe, and closes the circuit."""

    def fails(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def story(hub: Hub) -> None:
        assert (await ask(hub))["code"] == "E500"
        assert str(hub.targets["CORE"].breaker.state) == "OPEN"
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "exchange", fails)
            assert (await ask(hub))["code"] == "E500"
        assert (await ask(hub))["code"] == "0000"
        assert str(hub.targets["CORE"].breaker.state) == "CLOSED"

    with Peer(answering(http(b"<html>"), GOOD)) as peer:
        run_on(loop, lambda: peer.hub(fail_threshold=1, reset_timeout=0), story)


def test_an_impatient_caller_is_no_sample_whatever_the_other_addresses_do(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address is silent until the caller's budget is over, the other refuses: E901, the circuit stays closed."""
    monkeypatch.setattr(resolver, "system_addresses", lambda host: ["127.0.0.2", "127.0.0.1"])
    port = free_port()

    async def story(hub: Hub) -> None:
        reply = await ask(hub, timeout_ms=60)
        assert (reply["code"], reply["outcome"]) == ("E901", "not_sent")
        assert str(hub.targets["CORE"].breaker.state) == "CLOSED"

    with unanswered("127.0.0.2", port):
        run_on(loop, lambda: hub_of(f"http://two:{port}/tx", fail_threshold=1), story)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL])
def test_a_lack_of_our_own_opens_no_circuit(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """No descriptor or port left for a connection: E902, not sent, and nothing is said of the target.

    On asyncio's loop alone: uvloop's takes no other method.
    """

    async def story(hub: Hub) -> None:
        async def lacking(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", lacking)
        reply = await ask(hub)
        assert (reply["code"], reply["outcome"], reply["retryable"]) == ("E902", "not_sent", True)
        assert os.strerror(number) in reply["message"]
        assert str(hub.targets["CORE"].breaker.state) == "CLOSED"

    run_on("asyncio", lambda: hub_of("http://127.0.0.1:1/tx", fail_threshold=1), story)


def test_closing_the_hub_says_nothing_of_the_target(loop: str) -> None:
    """A call in flight ends as E902, unknown; its circuit stays closed, and nothing is left of it."""

    async def story(hub: Hub) -> None:
        call = asyncio.create_task(ask(hub))
        await until(lambda: peer.requests)
        await hub.close()
        reply = await call
        assert (reply["code"], reply["outcome"]) == ("E902", "unknown")
        assert str(hub.targets["CORE"].breaker.state) == "CLOSED"
        transport: Any = hub.targets["CORE"].transport
        assert (transport._busy, transport._idle, transport._alarm, transport._sweep) == ({}, [], None, None)

    def script(line: Line) -> None:
        line.read()
        line.stay()

    with Peer(script) as peer:
        run_on(loop, lambda: peer.hub(fail_threshold=1), story)


def test_a_call_that_was_still_connecting_is_not_sent_after_the_end(loop: str) -> None:
    """The hub is closed while a call waits for its connection: E902, not sent; the connection is not kept."""
    is_open = threading.Event()

    def look_up(host: str) -> list[str]:
        is_open.wait(10)
        return ["127.0.0.1"]

    async def story(hub: Hub) -> None:
        call = asyncio.create_task(ask(hub))
        await until(lambda: any(thread.name.startswith("look up") for thread in threading.enumerate()))
        await hub.close()
        is_open.set()
        reply = await call
        assert (reply["code"], reply["outcome"]) == ("E902", "not_sent")
        assert str(hub.targets["CORE"].breaker.state) == "CLOSED"
        transport: Any = hub.targets["CORE"].transport
        assert (transport._busy, transport._idle, transport._alarm, transport._sweep) == ({}, [], None, None)

    with pytest.MonkeyPatch.context() as patch, Peer(answering(GOOD)) as peer:
        patch.setattr(resolver, "system_addresses", look_up)
        run_on(loop, lambda: hub_of(f"http://slow:{peer.port}/tx", fail_threshold=1), story)
        assert peer.requests == []


@pytest.mark.parametrize("key", [" a", "a ", "\u00a0a"])
def test_a_key_that_a_header_would_change_is_not_forwarded(loop: str, key: str) -> None:
    """Outer blanks are stripped by whoever receives a header: two keys would become one."""
    with Peer(answering(GOOD)) as peer:
        run_on(loop, peer.hub, lambda hub: ask(hub, idempotency_key=key))
        assert peer.requests[0].all("Idempotency-Key") == []
        assert peer.requests[0].json["idempotency_key"] == key


def test_a_refusal_counts_though_another_address_is_none_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPv6 is switched off, so ::1 cannot be tried; 127.0.0.1 refuses: a failure of the target, said as its refusal."""
    monkeypatch.setattr(resolver, "system_addresses", lambda host: ["::1", "127.0.0.1"])
    port = free_port()

    async def story(hub: Hub) -> None:
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def without_ipv6(factory: Any, host: str, *more: Any, **options: Any) -> Any:
            if ":" in host:
                raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
            return await connect(factory, host, *more, **options)

        monkeypatch.setattr(loop, "create_connection", without_ipv6)
        reply = await ask(hub)
        assert (reply["code"], reply["outcome"]) == ("E902", "not_sent")
        assert "127.0.0.1" in reply["message"]
        assert str(hub.targets["CORE"].breaker.state) == "OPEN"

    run_on("asyncio", lambda: hub_of(f"http://two:{port}/tx", fail_threshold=1), story)


def test_a_look_up_without_a_descriptor_is_no_sample(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system says that there is no such name, for it could open nothing: that is our lack, and is said as such."""

    def nothing_open(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def look_up(host: str) -> list[str]:
        raise OSError("Name or service not known")

    async def story(hub: Hub) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "open", nothing_open)
            reply = await ask(hub)
        assert (reply["code"], reply["outcome"]) == ("E902", "not_sent")
        assert os.strerror(errno.EMFILE) in reply["message"]
        assert str(hub.targets["CORE"].breaker.state) == "CLOSED"

    monkeypatch.setattr(resolver, "system_addresses", look_up)
    run_on(loop, lambda: hub_of("http://name/tx", fail_threshold=1), story)


@pytest.mark.parametrize("stage", ["look-up", "connection"])
def test_closing_the_hub_ends_what_is_connecting_at_once(
    loop: str, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """A call that waits for its name or its connection has its reply when close() returns: E902, not sent."""
    is_over = threading.Event()
    if stage == "look-up":
        monkeypatch.setattr(resolver, "system_addresses", lambda host: is_over.wait(10) or ["127.0.0.1"])

    async def story(hub: Hub) -> None:
        call = asyncio.create_task(ask(hub))
        transport: Any = hub.targets["CORE"].transport
        await until(lambda: transport._connecting)
        await hub.close()
        assert call.done()
        reply = call.result()
        assert (reply["code"], reply["outcome"], reply["retryable"]) == ("E902", "not_sent", True)
        assert "closed" in reply["message"]
        assert str(hub.targets["CORE"].breaker.state) == "CLOSED"
        is_over.set()

    with unanswered() as url:
        run_on(loop, lambda: hub_of(url if stage == "connection" else "http://name/tx", fail_threshold=1), story)
