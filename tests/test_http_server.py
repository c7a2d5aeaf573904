"""The hub's HTTP server, through the running program: what callers send, and what a careless or hostile one sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests
from commands import command, eaimw
from relayed import ENDS_WITHIN, Peer, Say, ok, peer, relay, tx
from served import eventually
from serving import TX, Caller, Server, request, serving

from eaimw.adapters import http_request, http_server
from eaimw.adapters.http_server import HttpServer
from eaimw.app import open_hub, two_targets
from eaimw.config import Address, HubSettings, TargetSettings, parse_address
from eaimw.errors import SettingsError
from eaimw.policy import RetrySettings


@pytest.fixture(scope="module")
def well() -> Iterator[Peer]:
    with peer(lambda request: ok(request)) as made:
        yield made


@pytest.fixture(scope="module")
def server(well: Peer) -> Iterator[Server]:
    with serving(core=well, claim=well) as made:
        yield made


# What callers do.


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (TX, 200, "0000"),
        (b"nonsense", 400, "E400"),
        (b"", 400, "E400"),
        (b'{"tx_id":"T-1","target":"NONE"}', 404, "E903"),
    ],
)
def test_the_status_follows_the_code(server: Server, body: bytes, status: int, code: str) -> None:
    """The reply is the body; its status is that of the code's row."""
    answer = server.post(body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["Content-Type"] == "application/json"


def test_refusals_say_when_to_come_again() -> None:
    """E905 and E904: 503 with Retry-After in whole seconds, rounded up, at least 1."""
    with peer(lambda _: None) as silent:
        with serving("--max-inflight", "1", "--timeout", "0.5", "--fail-threshold", "1", core=silent) as server:
            with ThreadPoolExecutor(1) as pool:
                first = pool.submit(server.post)
                eventually(lambda: sum(silent.received.values()) == 1)
                full = server.post()
                late = first.result()
            opened = server.post()
        assert (full.status_code, full.json()["code"]) == (503, "E905")
        assert int(full.headers["Retry-After"]) == 2
        assert (late.status_code, late.json()["code"]) == (504, "E901")
        assert "Retry-After" not in late.headers
        assert (opened.status_code, opened.json()["code"]) == (503, "E904")
        wait = opened.json()["retry_after_ms"]
        assert int(opened.headers["Retry-After"]) == -(-wait // 1000)


def test_health_and_readiness(server: Server) -> None:
    """Both 200 while it serves; a query does not matter."""
    for path, word in (("/healthz", "alive"), ("/readyz?x=1", "ready")):
        answer = requests.get(server.url + path, timeout=30)
        assert (answer.status_code, answer.json()) == (200, {"status": word})


def test_the_target_gets_what_the_callers_headers_add() -> None:
    """Idempotency-Key, X-Priority and traceparent are passed on; the body's own fields win; a bad one is E400."""
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        heads: list[str] = []

        def answer(times: int) -> None:
            for _ in range(times):
                sock, _ = listener.accept()
                with sock:
                    data = b""
                    while not data.endswith(b"}"):
                        data += sock.recv(65_536)
                    heads.append(data.partition(b"\r\n\r\n")[0].decode().lower())
                    body = b'{"code":"0000"}'
                    sock.sendall(
                        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                    )

        url = f"http://127.0.0.1:{listener.getsockname()[1]}/tx"
        with relay("--listen", "127.0.0.1:0", core=url) as running, ThreadPoolExecutor(1) as pool:
            server = Server(running)
            answering = pool.submit(answer, 3)
            bad = server.post(headers={"X-Priority": "urgent"}).json()
            assert bad["message"].startswith("the header x-priority must be")
            assert bad["tx_id"] == "T-1"
            server.post(headers={"X-Priority": "high", "Idempotency-Key": "k", "traceparent": trace})
            server.post(
                tx(1, priority="low", idempotency_key="own"), headers={"X-Priority": "high", "Idempotency-Key": "k"}
            )
            server.post(headers={"traceparent": "nonsense"})
            answering.result()
    assert f"x-priority: high\r\nidempotency-key: k\r\ntraceparent: {trace}" in heads[0]
    assert "x-priority: low\r\nidempotency-key: own" in heads[1]
    assert "traceparent" not in heads[2]


def test_a_callers_deadline_may_stand_in_a_header() -> None:
    """It bounds the call; a past one is E906, not called; a pipelined request's is looked at when it is its turn."""
    with peer(lambda request: None if request["tx_id"] == "T-silent" else ok(request)) as core:
        with serving(core=core) as server:
            late = server.post(tx("silent"), headers={"X-Timeout-Ms": "100"}).json()
            assert (late["code"], late["outcome"]) == ("E901", "unknown")
            assert 100 <= late["elapsed_ms"] < 2_000
            for headers in ({"X-Timeout-Ms": "0"}, {"X-Deadline": "1700000000000"}):
                past = server.post(headers=headers)
                assert (past.status_code, past.json()["code"], past.json()["attempts"]) == (504, "E906", 0)
            bad = server.post(headers={"X-Timeout-Ms": "soon"})
            assert (bad.status_code, bad.json()["code"], bad.json()["tx_id"]) == (400, "E400", "T-1")
            assert server.post(headers={"X-Deadline": "9" * 15}).json()["code"] == "0000"
            with Caller(server) as caller:
                soon = round(time.time() * 1000) + 300
                silent = b'{"tx_id":"T-silent","target":"CORE","timeout_ms":500}'
                caller.send(request(silent) + request(TX, f"X-Deadline: {soon}"))
                codes = [json.loads(caller.answer()[2])["code"] for _ in range(2)]
            assert codes == ["E901", "E906"]
        assert core.received == {"T-silent": 2, "T-1": 1}


def test_other_clients_are_served(server: Server) -> None:
    """aiohttp with keep-alive and chunked bodies; curl with Expect: 100-continue and an offer to upgrade."""

    async def story() -> None:
        async def pieces() -> Any:
            for at in range(0, len(TX), 5):
                yield TX[at : at + 5]

        async with aiohttp.ClientSession() as session:
            for _ in range(3):
                async with session.post(f"{server.url}/tx", data=pieces()) as answer:
                    assert (await answer.json())["code"] == "0000"

    asyncio.run(story())
    offers = ["-H", "Expect: 100-continue", "-H", "Upgrade: h2c", "-H", "Connection: Upgrade, HTTP2-Settings"]
    for more in ([], ["-H", "Transfer-Encoding: chunked"]):
        command = ["curl", "-s", *offers, *more, "--data-binary", TX.decode(), f"{server.url}/tx"]
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        assert json.loads(done.stdout)["code"] == "0000"


def test_pipelined_requests_are_answered_in_order() -> None:
    """One after another, whatever they are, also cut anywhere."""
    with peer(lambda request: ok(request)) as core, serving(core=core) as server, Caller(server) as caller:
        bodies = [json.dumps(tx(number)).encode() for number in range(30)]
        data = b"".join(request(body) for body in bodies) + b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"
        for at in range(0, len(data), 37):
            caller.send(data[at : at + 37])
        for number in range(30):
            assert json.loads(caller.answer()[2])["tx_id"] == f"T-{number}"
        assert json.loads(caller.answer()[2]) == {"status": "alive"}


@pytest.mark.parametrize("size", [1, 2, 7, 100_000])
def test_a_request_may_come_in_pieces(server: Server, size: int) -> None:
    """Cut anywhere, its reply is the same; the connection serves on."""
    with Caller(server) as caller:
        for body in (TX, b'{"tx_id":"T-2","target":"CLAIM","x":"' + b"y" * 3000 + b'"}'):
            data = request(body)
            caller.send(*(data[at : at + size] for at in range(0, len(data), size)))
            assert caller.answer()[0] == 200


OFFER = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")


@pytest.mark.parametrize("size", [1, 3, 17, 101, 100_000])
def test_an_offer_to_upgrade_is_declined_wherever_it_stands(size: int) -> None:
    """Among pipelined requests, cut anywhere: each is executed once, each has its own reply, in order."""
    with peer(lambda request: ok(request)) as core, serving(core=core) as server, Caller(server) as caller:
        bodies = [json.dumps(tx(number)).encode() for number in range(8)]
        data = b"".join(request(body, *(OFFER if number % 3 else ())) for number, body in enumerate(bodies))
        for at in range(0, len(data), size):
            caller.send(data[at : at + size])
        assert [json.loads(caller.answer()[2])["tx_id"] for _ in bodies] == [f"T-{number}" for number in range(8)]
        assert set(core.received.values()) == {1}
        assert len(core.received) == 8


def test_a_body_is_never_taken_for_a_head() -> None:
    """A body full of lines that look like an offer to upgrade, and like a request, stays one body."""
    evil = request(b'{"tx_id":"EVIL","target":"CORE"}')
    body = TX + b"\r\nupgrade: x" * 60 + b" " * 50 + evil
    with peer(lambda request: ok(request)) as core, serving(core=core) as server, Caller(server) as caller:
        caller.send(request(body, *OFFER), request(b'{"tx_id":"NEXT","target":"CORE"}'))
        assert caller.answer()[0] == 400
        assert json.loads(caller.answer()[2])["tx_id"] == "NEXT"
        assert dict(core.received) == {"NEXT": 1}


def test_thousands_of_offers_in_one_segment(server: Server) -> None:
    """Each is declined; none holds another up for ever, and the server serves on."""
    with Caller(server) as caller:
        caller.send(request(b"{}", "Connection: upgrade", "Upgrade: h2c") * 2_000)
        for _ in range(2_000):
            assert caller.answer()[0] == 400
    assert server.post().status_code == 200


def test_a_trailer_is_no_header_and_has_a_limit(server: Server) -> None:
    """What stands behind a body is not passed on; one without end is 431."""
    chunks = b"POST /tx HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(TX), TX)
    with Caller(server) as caller:
        caller.send(chunks + b"X-Priority: nonsense\r\n\r\n")
        assert caller.answer()[0] == 200
        with contextlib.suppress(OSError):
            for piece in (chunks, *[b"a" * 10_000] * 60):
                caller.send(piece)
        assert "longer than 16,384 bytes" in caller.refused(431)


def test_a_stray_line_end_between_requests_is_nothing(server: Server) -> None:
    """Old clients send one after a body: the connection stays idle, and its next request is served."""
    with Caller(server) as caller:
        caller.send(request() + b"\r\n")
        assert caller.answer()[0] == 200
        caller.send(b"\r\n", b"\r\n\r\n", request())
        assert caller.answer()[0] == 200


def test_a_pipelined_request_that_waits_for_our_word_gets_it_in_its_turn() -> None:
    """Expect: 100-continue behind a request under way: the 100 comes after the first reply; HTTP/1.0 gets none."""
    with peer(lambda request: ok(request)._replace(after=0.2)) as core, serving(core=core) as server:
        with Caller(server) as caller:
            head, _, body = request(TX, "Expect: 100-continue").partition(b"\r\n\r\n")
            caller.send(request(), head + b"\r\n\r\n")
            assert caller.answer()[0] == 200
            assert caller.answer()[0] == 100
            caller.send(body)
            assert caller.answer()[0] == 200
        with Caller(server) as caller:
            caller.send(request(TX, "Expect: 100-continue", start="POST /tx HTTP/1.0"))
            assert caller.answer()[0] == 200


def test_http_1_0_keeps_the_connection_only_if_asked(server: Server) -> None:
    """Without a word it ends after the answer; with keep-alive it says so and serves on."""
    with Caller(server) as caller:
        caller.send(request(TX, "Connection: keep-alive", start="POST /tx HTTP/1.0"))
        assert caller.answer()[1]["connection"] == "keep-alive"
        caller.send(request(start="POST /tx HTTP/1.0"))
        assert caller.answer()[1]["connection"] == "close"
        assert caller.is_ended()


def test_a_caller_that_sends_no_more_gets_its_answer(server: Server) -> None:
    """Half-closed after the request: answered, then closed."""
    with Caller(server) as caller:
        caller.send(request())
        caller.sock.shutdown(socket.SHUT_WR)
        assert caller.answer()[0] == 200
        assert caller.is_ended()


@pytest.mark.parametrize("resets", [True, False])
def test_a_caller_that_hangs_up_does_not_cancel_its_call(resets: bool) -> None:
    """The target answers later: the result is counted, the place comes back, nothing else suffers."""
    after = peer(lambda request: ok(request)._replace(after=0.4))
    with after as core, serving("--max-inflight", "1", core=core) as server:
        with Caller(server) as caller:
            caller.send(request())
            eventually(lambda: sum(core.received.values()) == 1)
            if resets:
                caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        eventually(lambda: server.post(tx(2)).json()["code"] == "0000")
        assert server.stop() == 0
    assert "0000 2" in server.running.errors


# What careless and hostile callers do.


BIG = 1_048_577
REFUSED = {
    "no length": (b"POST /tx HTTP/1.1\r\nHost: h\r\n\r\n", 411),
    "too long": (b"POST /tx HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % BIG, 413),
    "not HTTP": (b"\x16\x03\x01\x02\x00nonsense\r\n\r\n", 400),
    "a bare line feed": (b"POST /tx HTTP/1.1\nHost: h\n\n", 400),
    "two lengths": (b"POST /tx HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
    "length and chunks": (
        b"POST /tx HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        400,
    ),
    "gzip": (b"POST /tx HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
    "a signed length": (b"POST /tx HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}", 400),
    "an overflowing length": (b"POST /tx HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n{}", 400),
    "a bad chunk": (b"POST /tx HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    "a folded header": (b"POST /tx HTTP/1.1\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\n{}", 400),
    "a NUL": (b"POST /tx HTTP/1.1\r\nX: a\0b\r\nContent-Length: 2\r\n\r\n{}", 400),
    "a long path": (b"POST /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
    "a long header": (b"POST /tx HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\nContent-Length: 2\r\n\r\n{}", 431),
    "many headers": (b"POST /tx HTTP/1.1\r\n" + b"X: y\r\n" * 4_000 + b"Content-Length: 2\r\n\r\n{}", 431),
    "an endless line": (b"POST /tx HTTP/1.1\r\nX: " + b"y" * 300_000, 431),
    "another protocol": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a tunnel": (b"CONNECT host:443 HTTP/1.1\r\nHost: host:443\r\n\r\n", 400),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("size", [1_000_000, 1_000])
def test_a_request_whose_framing_is_in_doubt_is_answered_and_ended(server: Server, case: str, size: int) -> None:
    """An E400 of the right status as the body, then the connection ends; no transaction was read."""
    data, status = REFUSED[case]
    with Caller(server) as caller:
        for at in range(0, len(data), size):
            try:
                caller.send(data[at : at + size])
            except OSError:
                break  # it has ended already
        caller.refused(status)
    assert server.post().status_code == 200


def test_a_chunked_body_beyond_the_limit(server: Server) -> None:
    """413 as soon as it is known, whatever still comes."""
    with Caller(server) as caller:
        caller.send(b"POST /tx HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        caller.send((b"10000\r\n" + b"x" * 0x10000 + b"\r\n") * 17)
        assert "more than 1,048,576 bytes" in caller.refused(413)


def test_the_largest_body_is_taken(server: Server) -> None:
    """1,048,576 bytes are a transaction."""
    body = b'{"tx_id":"T-1","target":"CORE","x":"' + b"y" * (1_048_576 - 38) + b'"}'
    assert len(body) == 1_048_576
    assert server.post(body).status_code == 200


@pytest.mark.parametrize(
    ("start", "status", "allow"),
    [("POST /nope HTTP/1.1", 404, None), ("PUT /tx HTTP/1.1", 405, "POST"), ("DELETE /readyz HTTP/1.1", 405, "GET")],
)
def test_a_wrong_path_or_method_keeps_the_connection(
    server: Server, start: str, status: int, allow: str | None
) -> None:
    """404 and 405 (with Allow) as an E400; the framing is not in doubt, so the next request is served."""
    with Caller(server) as caller:
        caller.send(request(TX, start=start))
        got, headers, body = caller.answer()
        assert (got, json.loads(body)["code"], headers.get("allow")) == (status, "E400", allow)
        caller.send(request())
        assert caller.answer()[0] == 200


def test_head_gets_no_body(server: Server) -> None:
    """Its answer is a head alone, so the next one is not misread."""
    with Caller(server) as caller:
        caller.send(b"HEAD /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        eventually(lambda: b"\r\n\r\n" in caller.sock.recv(1 << 16, socket.MSG_PEEK))
        assert caller.sock.recv(1 << 16).endswith(b"\r\n\r\n")
        caller.send(request())
        assert caller.answer()[0] == 200


def test_only_what_was_read_whole_is_counted(well: Peer) -> None:
    """A storm of good, bad, aborted and refused requests: the hub's count is what callers count."""
    with serving("--max-inflight", "2", core=well, claim=well) as server:
        read: Counter[str] = Counter()
        for body in (TX, b"nonsense", b'{"tx_id":"T","target":"NONE"}', b""):
            for _ in range(5):
                read[server.post(body).json()["code"]] += 1
        requests.post(f"{server.url}/nope", data=TX, timeout=30)
        read["E400"] += 1
        for data, _ in REFUSED.values():
            with Caller(server) as caller:
                try:
                    caller.send(data)
                    caller.answer()
                except (OSError, AssertionError):
                    pass
        with Caller(server) as caller:
            caller.send(request()[:-5])
        requests.get(f"{server.url}/nope", timeout=30)
        requests.post(f"{server.url}/nope", data=TX, headers={"Connection": "close"}, timeout=30)
        read["E400"] += 1
        assert server.stop() == 0
        assert server.counted() == sum(read.values())


def test_a_slow_sender_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that drips past the limit is 408 and ended; an idle connection is closed; others are served."""
    monkeypatch.setattr(http_server, "ARRIVAL_LIMIT", 0.3)
    monkeypatch.setattr(http_server, "IDLE_LIMIT", 0.6)
    monkeypatch.setattr(http_server, "SWEEP_EVERY", 0.05)

    def call(port: int) -> None:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as idle,
            socket.create_connection(("127.0.0.1", port), 10) as slow,
        ):
            answer = b""
            for byte in request():
                slow.settimeout(0.05)
                try:
                    slow.sendall(bytes([byte]))
                    answer += slow.recv(1000)
                except TimeoutError:
                    continue
                except OSError:
                    break
                if answer:
                    break
            assert answer.startswith(b"HTTP/1.1 408 "), answer
            idle.settimeout(10)
            assert idle.recv(1) == b""

    async def story() -> None:
        async with open_hub(two_targets()) as hub:
            server = HttpServer(hub)
            await server.start(Address("127.0.0.1", 0))
            await asyncio.to_thread(call, int(server.url.rpartition(":")[2]))
            await server.close()
            assert server.connections == {}
            assert server.arrivals.bytes == 0

    asyncio.run(story())


def test_two_thousand_idle_connections_do_not_matter(server: Server) -> None:
    """They are held, and everybody else is served."""
    callers = [Caller(server) for _ in range(2_000)]
    try:
        assert server.post().status_code == 200
        callers[-1].send(request())
        assert callers[-1].answer()[0] == 200
    finally:
        for caller in callers:
            caller.sock.close()


def test_connections_beyond_the_limit_are_answered() -> None:
    """503 with E908 at once and closed, never left hanging; when others have gone there is room again."""

    def call(port: int) -> None:
        first = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(3)]
        for sock in first:
            sock.sendall(request(b"{}"))
            assert sock.recv(1000).startswith(b"HTTP/1.1 400 ")
        with socket.create_connection(("127.0.0.1", port), 10) as more:
            answer = more.recv(1000)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b'"code":"E908"' in answer
            assert more.recv(1) == b""
        for sock in first:
            sock.close()
        deadline = time.monotonic() + 10
        while True:
            with socket.create_connection(("127.0.0.1", port), 10) as again:
                again.sendall(request(b"{}"))
                if again.recv(1000).startswith(b"HTTP/1.1 400 "):
                    return
            assert time.monotonic() < deadline

    async def story() -> None:
        async with open_hub(two_targets()) as hub:
            server = HttpServer(hub, max_connections=3)
            await server.start(Address("127.0.0.1", 0))
            await asyncio.to_thread(call, int(server.url.rpartition(":")[2]))
            await server.close()

    asyncio.run(story())


def test_bodies_that_arrive_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit of all connections a further body is 503 with E908; when one has arrived there is room again."""
    monkeypatch.setattr(http_request, "MAX_ARRIVING", 100_000)

    def call(port: int) -> None:
        head = b"POST /tx HTTP/1.1\r\nHost: h\r\nContent-Length: 90000\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), 10) as first:
            first.sendall(head + b"x" * 80_000)
            deadline = time.monotonic() + 10
            while True:
                with socket.create_connection(("127.0.0.1", port), 10) as second:
                    second.sendall(head + b"x" * 89_999)
                    answer = second.recv(1000)
                if answer:
                    break
                assert time.monotonic() < deadline
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b'"code":"E908"' in answer
            assert b"Retry-After: " in answer
            first.sendall(b"x" * 10_000)
            assert first.recv(1000).startswith(b"HTTP/1.1 400 ")
            first.sendall(head + b"x" * 90_000)
            assert first.recv(1000).startswith(b"HTTP/1.1 400 ")

    async def story() -> None:
        async with open_hub(two_targets()) as hub:
            server = HttpServer(hub)
            await server.start(Address("127.0.0.1", 0))
            await asyncio.to_thread(call, int(server.url.rpartition(":")[2]))
            await server.close()
            assert server.arrivals.bytes == 0

    asyncio.run(story())


# Callers that are gone.


@pytest.mark.parametrize("way", ["resets", "closes", "stays", "sends no more"])
def test_for_a_caller_that_has_gone_nothing_is_tried_again(way: str) -> None:
    """It resets or closes while the hub waits to try again: no further attempt, and none for one that sends no more,
    which looks as if it had closed; that one gets its first error. One that stays has its second attempt.
    """
    busy = Say(b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
    retry = RetrySettings(attempts=2)

    def call(port: int, core: Peer) -> None:
        with socket.create_connection(("127.0.0.1", port), 10) as sock:
            sock.sendall(request(b'{"tx_id":"T-1","target":"CORE","idempotency_key":"K"}'))
            eventually(lambda: core.received["T-1"] == 1)
            if way == "resets":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            if way == "closes":
                return
            if way == "sends no more":
                sock.shutdown(socket.SHUT_WR)
            answer = sock.recv(1000)
        assert (b'"code":"0000"' in answer) == (way == "stays")
        assert (b'"attempts":2' in answer) == (way == "stays")

    async def story(core: Peer) -> None:
        async with open_hub(HubSettings({"CORE": TargetSettings(core.url, retry=retry)})) as hub:
            server = HttpServer(hub)
            await server.start(Address("127.0.0.1", 0))
            await asyncio.to_thread(call, int(server.url.rpartition(":")[2]), core)
            await server.drain()
            await server.close()
            assert hub.targets["CORE"].codes == {"0000" if way == "stays" else "E500": 1}

    with peer(lambda request: busy if core.received[request["tx_id"]] == 1 else ok(request)) as core:
        asyncio.run(story(core))
        assert core.received["T-1"] == (2 if way == "stays" else 1)


# The end.


def test_going_down_loses_no_reply() -> None:
    """SIGTERM with 20 calls in flight: they get their answers, new ones E911 on the open listener, /readyz is 503."""
    late = peer(lambda request: ok(request)._replace(after=1.0))
    with late as core, serving("--max-inflight", "50", "--timeout", "10", core=core) as server:
        with ThreadPoolExecutor(20) as pool:
            calls = [pool.submit(server.post, tx(number)) for number in range(20)]
            eventually(lambda: sum(core.received.values()) == 20)
            server.running.process.send_signal(signal.SIGTERM)
            server.running.says("SIGTERM")
            new = server.post(tx(99))
            assert (new.status_code, new.json()["code"]) == (503, "E911")
            assert requests.get(f"{server.url}/readyz", timeout=30).status_code == 503
            assert requests.get(f"{server.url}/healthz", timeout=30).status_code == 200
            assert [call.result().json()["code"] for call in calls] == ["0000"] * 20
        assert server.running.wait(ENDS_WITHIN) == 0
        assert server.counted() == 21


def test_a_caller_that_does_not_read_does_not_hold_the_end_up(well: Peer) -> None:
    """Its replies fill the connection; SIGTERM ends the hub some seconds later all the same."""
    with serving(core=well) as server, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        sock.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while True:
                sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n" * 2_000)
        server.running.process.send_signal(signal.SIGTERM)
        assert server.running.wait(ENDS_WITHIN) == 0


def test_an_idle_server_ends_at_once_with_its_connections(well: Peer) -> None:
    """SIGINT: open but idle connections do not hold it up."""
    with serving(core=well) as server, Caller(server) as caller:
        caller.send(request())
        assert caller.answer()[0] == 200
        server.running.process.send_signal(signal.SIGINT)
        assert server.running.wait(10) == 0
        assert caller.is_ended()


def test_an_address_that_cannot_be_used() -> None:
    """A port that is taken: exit 1 and what to do; a text that is no address, or INPUT beside it: exit 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options, status, words in (
            ([f"127.0.0.1:{port}"], 1, "choose another"),
            (["no.such.host.invalid:0"], 1, "cannot listen on no.such.host.invalid:0"),
            (["nonsense"], 2, "--listen must be HOST:PORT"),
            (["127.0.0.1:0", "FILE"], 2, "INPUT does not go with --listen"),
        ):
            with relay("--listen", *options) as running:
                assert running.wait() == status
                assert words in running.errors
                assert "Traceback" not in running.errors


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:8080", ("::1", 8080)), ("host.name:65535", ("host.name", 65535))],
)
def test_an_address_is_taken_apart(text: str, address: tuple[str, int]) -> None:
    """Host and port; IPv6 in brackets; and it prints as it was written."""
    parsed = parse_address(text, "listen")
    assert (parsed.host, parsed.port) == address
    assert str(parsed) == text


@pytest.mark.parametrize(
    "text", ["", ":80", "host", "host:", "host:-1", "host:65536", "host:x", "::1:80", "[::1]", 80, None]
)
def test_what_is_no_address_is_said(text: Any) -> None:
    """SettingsError naming the setting, what was found and what is allowed."""
    with pytest.raises(SettingsError, match="listen must be HOST:PORT"):
        parse_address(text, "listen")


def test_the_hub_of_a_file_is_served(tmp_path: Path, well: Peer) -> None:
    """`eaimw serve FILE`: its targets, its listen, its log; without a listen it says what to add."""
    file = tmp_path / "hub.toml"
    file.write_text(f"[hub]\nlisten = '127.0.0.1:0'\n[targets.EAST]\nurl = '{well.url}'\n", encoding="utf-8")
    with command("serve", str(file), cwd=tmp_path) as running:
        server = Server(running)
        assert server.post(tx(1, "EAST")).json()["code"] == "0000"
        assert server.stop() == 0
    assert (tmp_path / "breaker.log").exists()
    file.write_text(f"[targets.EAST]\nurl = '{well.url}'\n", encoding="utf-8")
    done = eaimw("serve", str(file))
    assert done.returncode == 2
    assert "has no [hub] listen" in done.stderr


def test_the_admin_plane_stands_beside_the_server(well: Peer) -> None:
    """`listening on`, then `admin on`; the sum of eaimw_transactions_total is what callers counted."""
    with serving("--admin", "127.0.0.1:0", core=well, claim=well) as server:
        server.running.says("admin on ")
        first, second = server.running.errors.splitlines()[:2]
        assert first.startswith("listening on http://")
        assert second.startswith("admin on http://")
        for body in (TX, b"nonsense", b'{"tx_id":"T","target":"NONE"}', TX):
            server.post(body)
        metrics = requests.get(second.split()[-1] + "/metrics", timeout=30).text
        counts = [line for line in metrics.splitlines() if line.startswith("eaimw_transactions_total{")]
        assert sum(float(line.rsplit(" ", 1)[1]) for line in counts) == 4
        assert server.stop() == 0


def test_threads_of_callers_are_all_answered(server: Server) -> None:
    """Sixteen callers with keep-alive, a hundred each: each gets the reply to its own transaction."""
    wrong: list[object] = []

    def call(caller: int) -> None:
        with requests.Session() as session:
            for number in range(100):
                name = f"T-{caller}-{number}"
                data = json.dumps({"tx_id": name, "target": ("CORE", "CLAIM")[number % 2]})
                reply = session.post(f"{server.url}/tx", data=data, timeout=30).json()
                if reply["tx_id"] != name or reply["code"] not in ("0000", "E905"):
                    wrong.append(reply)

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
