"""The hub's server under TLS: what callers get, and what silent, careless or hostile ones do in the handshake."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import trustme
from commands import eaimw
from cryptography.hazmat.primitives.serialization import PrivateFormat
from hubs import PATIENCE, run_alone, until
from relayed import ENDS_WITHIN, NOBODY, PROGRAM, Json, Peer, http, ok, peer, program, tx
from served import eventually
from serving import TX, Caller, Server, encrypted, pem_files, request
from test_http_server import REFUSED

from eaimw.adapters import http_server
from eaimw.adapters.http_server import HttpServer
from eaimw.adapters.server_tls import server_context
from eaimw.app import open_hub, two_targets
from eaimw.config import Address, TlsSettings
from eaimw.errors import Unusable
from eaimw.wire import MAX_BYTES

LARGE = b'{"code":"0000","x":"' + b"y" * (MAX_BYTES - 22) + b'"}'  # as large as a reply may be


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pem_files(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def trust(folder: Path) -> ssl.SSLContext:
    """What a caller trusts."""
    return ssl.create_default_context(cafile=folder / "ca.pem")


@contextmanager
def serving(folder: Path, core: Peer, *more: str) -> Iterator[Server]:
    """The relay's program with a hub.toml that has the certificate and, of [hub], these lines."""
    own = ["[hub]", f"tls_certificate = '{folder}/cert.pem'", f"tls_key = '{folder}/key.pem'", *more]
    target = ["[targets.CORE]", f"url = '{core.url}'", "timeout = 10", "max_inflight = 50"]
    with tempfile.TemporaryDirectory() as place:
        file, log = Path(place, "hub.toml"), Path(place, "breaker.log")
        file.write_text("\n".join([*own, *target]), encoding="utf-8")
        options = ["--listen", "127.0.0.1:0", "--config", str(file), "--breaker-log", str(log)]
        with program([sys.executable, str(PROGRAM), *options], log) as running:
            yield Server(running)


@pytest.fixture(scope="module")
def well() -> Iterator[Peer]:
    with peer() as made:
        yield made


@pytest.fixture(scope="module")
def server(folder: Path, well: Peer) -> Iterator[Server]:
    with serving(folder, well) as made:
        yield made


class TlsCaller(Caller):
    """A raw connection under TLS."""

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        self.sock = trust.wrap_socket(socket.create_connection(("127.0.0.1", port), 30), server_hostname="127.0.0.1")
        self._rest = b""


def in_process(
    loop: str, folder: Path, story: Callable[[HttpServer, int], Awaitable[None]], core: str = NOBODY, **more: Any
) -> None:
    """Tell a story to a server in such a loop; afterwards nothing of it is left."""

    async def tell() -> None:
        context = server_context(TlsSettings(folder / "cert.pem", folder / "key.pem"))
        async with open_hub(two_targets(core)) as hub:
            server = HttpServer(hub, tls=context, **more)
            await server.start(Address("127.0.0.1", 0))
            listener: Any = server._server
            # Of a large reply most must wait in the program, or the system would take it all.
            listener.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            try:
                await story(server, int(server.url.rpartition(":")[2]))
            finally:
                await server.close()
            assert server.connections == {}
            assert server.arrivals.bytes == 0

    run_alone(loop, tell)


# What callers do.


def test_requests_and_curl_are_served(server: Server, folder: Path) -> None:
    """Over one kept connection, chunked, with Expect and an offer to upgrade; it says that it listens on https."""
    assert server.url.startswith("https://127.0.0.1:")
    with requests.Session() as session:
        for number in range(3):
            data = json.dumps(tx(number))
            answer = session.post(f"{server.url}/tx", data=data, verify=str(folder / "ca.pem"), timeout=30)
            assert (answer.status_code, answer.json()["tx_id"]) == (200, f"T-{number}")
    offers = ["-H", "Expect: 100-continue", "-H", "Upgrade: h2c", "-H", "Connection: Upgrade, HTTP2-Settings"]
    for more in ([], ["-H", "Transfer-Encoding: chunked"]):
        command = ["curl", "-s", "--cacert", str(folder / "ca.pem"), *offers, *more, "--data-binary", TX.decode()]
        done = subprocess.run([*command, f"{server.url}/tx"], capture_output=True, timeout=60, check=True)
        assert json.loads(done.stdout)["code"] == "0000"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_today_are_spoken(server: Server, folder: Path, version: ssl.TLSVersion) -> None:
    """TLS 1.2 and 1.3; nothing older is configured."""
    trust = ssl.create_default_context(cafile=folder / "ca.pem")
    trust.minimum_version = trust.maximum_version = version
    with TlsCaller(server.port, trust) as caller:
        for _ in range(2):
            caller.send(request())
            assert caller.answer()[0] == 200
    context = server_context(TlsSettings(folder / "cert.pem", folder / "key.pem"))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("size", [1, 37, 100_000])
def test_pipelined_requests_are_answered_in_order(server: Server, trust: ssl.SSLContext, size: int) -> None:
    """Cut anywhere into TLS records."""
    data = b"".join(request(json.dumps(tx(number)).encode()) for number in range(20))
    with TlsCaller(server.port, trust) as caller:
        caller.send(*(data[at : at + size] for at in range(0, len(data), size)))
        assert [json.loads(caller.answer()[2])["tx_id"] for _ in range(20)] == [f"T-{number}" for number in range(20)]


def test_the_largest_body_and_as_large_a_reply(folder: Path, trust: ssl.SSLContext) -> None:
    """1,048,576 bytes each way, three times over one connection."""
    body = b'{"tx_id":"T-1","target":"CORE","x":"' + b"y" * (MAX_BYTES - 38) + b'"}'
    assert len(LARGE) == len(body) == MAX_BYTES
    with (
        peer(lambda _: http(LARGE)) as core,
        serving(folder, core) as server,
        TlsCaller(server.port, trust) as caller,
    ):
        for _ in range(3):
            caller.send(request(body))
            status, _, reply = caller.answer()
            assert (status, json.loads(reply)["data"]) == (200, json.loads(LARGE))


def test_a_caller_that_ends_its_side_does_not_cancel_its_call(folder: Path, trust: ssl.SSLContext) -> None:
    """TLS has no half-close here: close_notify ends the connection; the call goes on and is counted."""
    with peer(lambda request: ok(request)._replace(after=0.3)) as core, serving(folder, core) as server:
        with TlsCaller(server.port, trust) as caller:
            caller.send(request())
            eventually(lambda: sum(core.received.values()) == 1)
            caller.sock.unwrap().close()  # type: ignore[attr-defined]
        assert server.stop() == 0
        assert server.counted() == 1
        assert "0000 1" in server.running.errors


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_request_is_answered_and_ended(server: Server, trust: ssl.SSLContext, case: str) -> None:
    """An E400 of the right status, then the end of TLS and of the connection."""
    data, status = REFUSED[case]
    with TlsCaller(server.port, trust) as caller:
        with contextlib.suppress(OSError):  # it may have ended already
            caller.send(data)
        caller.refused(status)


def test_a_body_beyond_the_limit_is_answered_while_it_still_comes(server: Server, trust: ssl.SSLContext) -> None:
    """413 reaches a caller that reads only when it has sent all."""
    with TlsCaller(server.port, trust) as caller:
        caller.send(b"POST /tx HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        caller.send((b"10000\r\n" + b"x" * 0x10000 + b"\r\n") * 20)
        assert "more than 1,048,576 bytes" in caller.refused(413)


def test_http_at_the_tls_port_ends_its_own_connection_alone(server: Server, folder: Path) -> None:
    """No answer that such a caller could read; nothing is said, and others are served."""
    before = server.running.errors
    with Caller(server) as caller:
        caller.send(request())
        with contextlib.suppress(ConnectionResetError):
            while b := caller.sock.recv(1000):
                assert not b.startswith(b"HTTP")
    assert server.post(verify=str(folder / "ca.pem")).json()["code"] == "0000"
    assert server.running.errors == before


# Certificates of callers.


def test_only_callers_with_a_certificate_of_the_authority_are_served(folder: Path, well: Peer) -> None:
    """With one: served. Without, or with another authority's: refused in the handshake, no transaction is read."""
    with serving(folder, well, f"tls_client_ca = '{folder}/ca.pem'") as server:
        ca = str(folder / "ca.pem")
        assert server.post(verify=ca, cert=str(folder / "mine.pem")).json()["code"] == "0000"
        for cert in (None, str(folder / "theirs.pem")):
            with pytest.raises(requests.exceptions.ConnectionError):
                server.post(verify=ca, cert=cert)
        assert server.post(verify=ca, cert=str(folder / "mine.pem")).json()["code"] == "0000"
        assert server.stop() == 0
        assert server.counted() == 2
        assert "Traceback" not in server.running.errors


# Handshakes.


def test_a_silent_caller_has_no_more_than_the_limit(
    loop: str, folder: Path, trust: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent, or stuck in the midst of its hello: ended when the limit is over; another one is served meanwhile."""
    monkeypatch.setattr(http_server, "ARRIVAL_LIMIT", 0.5)

    def call(port: int) -> None:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as silent,
            socket.create_connection(("127.0.0.1", port), 10) as half,
        ):
            half.sendall(hello()[:60])
            with TlsCaller(port, trust) as caller:
                caller.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
                assert caller.answer()[0] == 200
            for sock in (silent, half):
                with contextlib.suppress(ConnectionResetError):
                    assert sock.recv(1) == b""

    in_process(loop, folder, lambda _, port: asyncio.to_thread(call, port))


def hello() -> bytes:
    """The first bytes of a handshake, as a caller sends them."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    shaking = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="hub.example")
    with contextlib.suppress(ssl.SSLWantReadError):
        shaking.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("resets", [True, False])
def test_callers_that_go_in_the_midst_of_the_handshake(
    loop: str, folder: Path, trust: ssl.SSLContext, resets: bool
) -> None:
    """After any number of its bytes, or of garbage: nothing is left of them, and nobody else notices."""

    def call(port: int) -> None:
        whole = hello()
        for data in (*(whole[:size] for size in range(0, len(whole) + 1, 40)), b"\x16\x03\x01\xff\xff", b"\0" * 5000):
            with socket.create_connection(("127.0.0.1", port), 10) as sock:
                sock.sendall(data)
                if resets:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with TlsCaller(port, trust) as caller:
            caller.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            assert caller.answer()[0] == 200

    async def story(server: HttpServer, port: int) -> None:
        await asyncio.to_thread(call, port)
        await until(lambda: len(server.connections) + handshakes(server) == 0, PATIENCE)

    in_process(loop, folder, story)


def handshakes(server: HttpServer) -> int:
    listener: Any = server._server
    return len(listener._handshakes)


def test_handshakes_and_connections_have_one_limit(loop: str, folder: Path, trust: ssl.SSLContext) -> None:
    """Beyond it a caller is ended at once, without a handshake; when others have gone there is room again."""

    async def story(server: HttpServer, port: int) -> None:
        def shake() -> TlsCaller:
            return TlsCaller(port, trust)

        with contextlib.ExitStack() as silent, await asyncio.to_thread(shake):
            for _ in range(2):
                silent.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            await until(lambda: handshakes(server) == 2, PATIENCE)
            with pytest.raises((ConnectionError, ssl.SSLEOFError)):
                await asyncio.to_thread(shake)
            assert (len(server.connections), handshakes(server)) == (1, 2)
            silent.close()
            await until(lambda: handshakes(server) == 0, PATIENCE)
            with await asyncio.to_thread(shake):
                assert len(server.connections) == 2

    in_process(loop, folder, story, max_connections=3)


def test_a_server_that_closes_ends_handshakes_too(loop: str, folder: Path) -> None:
    """At once: nobody who is silent in the handshake holds it up."""
    with contextlib.ExitStack() as silent:

        async def story(server: HttpServer, port: int) -> None:
            sockets.extend(silent.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(20))
            await until(lambda: handshakes(server) == 20, PATIENCE)

        sockets: list[socket.socket] = []
        begun = time.monotonic()
        in_process(loop, folder, story)
        assert time.monotonic() - begun < http_server.ARRIVAL_LIMIT
        for sock in sockets:
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""


# Time.


def test_who_is_idle_or_slow_is_ended(
    loop: str, folder: Path, trust: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the handshake the limits are those of any connection: 408 for half a request, an orderly end when idle."""
    monkeypatch.setattr(http_server, "IDLE_LIMIT", 1.0)
    monkeypatch.setattr(http_server, "SWEEP_EVERY", 0.05)

    def call(port: int) -> None:
        with TlsCaller(port, trust) as idle, TlsCaller(port, trust) as slow:
            idle.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            assert idle.answer()[0] == 200
            slow.send(request()[:-5])
            monkeypatch.setattr(http_server, "ARRIVAL_LIMIT", 0.3)
            slow.refused(408)
            assert idle.is_ended()

    in_process(loop, folder, lambda _, port: asyncio.to_thread(call, port))


# The end.


def test_going_down_loses_no_reply(folder: Path) -> None:
    """SIGTERM with 20 calls in flight: they get their answers, new ones E911 on the open listener; then it ends."""
    ca = str(folder / "ca.pem")
    with peer(lambda request: ok(request)._replace(after=1.0)) as core, serving(folder, core) as server:
        with ThreadPoolExecutor(20) as pool:

            def post(number: int) -> Json:
                reply: Json = server.post(tx(number), verify=ca).json()
                return reply

            calls = [pool.submit(post, number) for number in range(20)]
            eventually(lambda: sum(core.received.values()) == 20)
            server.running.process.send_signal(signal.SIGTERM)
            server.running.says("SIGTERM")
            assert post(99)["code"] == "E911"
            assert requests.get(f"{server.url}/readyz", timeout=30, verify=ca).status_code == 503
            assert [call.result()["code"] for call in calls] == ["0000"] * 20
        assert server.running.wait(ENDS_WITHIN) == 0
        assert server.counted() == 21


def reluctant(port: int, trust: ssl.SSLContext) -> ssl.SSLSocket:
    """A caller's connection in which only a few bytes wait to be read."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.settimeout(30)
    raw.connect(("127.0.0.1", port))
    return trust.wrap_socket(raw, server_hostname="127.0.0.1")


def read_all(sock: ssl.SSLSocket) -> bytes:
    """A whole answer with LARGE as its data."""
    answer = b""
    while not answer.endswith(b'y"}}'):
        more = sock.recv(1 << 16)
        assert more, f"it ended after {len(answer)} bytes"
        answer += more
    return answer


def test_a_reply_that_is_not_yet_taken_holds_the_end_up(loop: str, folder: Path, trust: ssl.SSLContext) -> None:
    """TLS hands all it has encrypted to the connection below; the hub waits until the caller has taken that."""

    async def story(server: HttpServer, port: int) -> None:
        with await asyncio.to_thread(reluctant, port, trust) as sock:
            await asyncio.to_thread(sock.sendall, request())
            await until(lambda: core.received["T-1"] == 1 and not server.calls, PATIENCE)
            draining = asyncio.create_task(server.drain())
            await asyncio.wait([draining], timeout=0.3)
            assert not draining.done()
            assert len(await asyncio.to_thread(read_all, sock)) > MAX_BYTES
            await draining

    with peer(lambda _: http(LARGE)) as core:
        in_process(loop, folder, story, core.url)


def test_a_caller_that_does_not_take_its_reply_holds_the_end_up_for_a_time(
    loop: str, folder: Path, trust: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then its connection is ended, and the hub goes down."""
    monkeypatch.setattr(http_server, "STUCK_LIMIT", 0.5)
    monkeypatch.setattr(http_server, "SWEEP_EVERY", 0.05)

    async def story(server: HttpServer, port: int) -> None:
        with await asyncio.to_thread(reluctant, port, trust) as sock:
            await asyncio.to_thread(sock.sendall, request())
            await until(lambda: core.received["T-1"] == 1 and not server.calls, PATIENCE)
            async with asyncio.timeout(10):
                await server.drain()
            await until(lambda: not server.connections, PATIENCE)

    with peer(lambda _: http(LARGE)) as core:
        in_process(loop, folder, story, core.url)


def test_the_last_reply_of_a_connection_may_be_taken_slowly(
    loop: str, folder: Path, trust: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Connection: close the end waits for a caller who has not yet taken the reply, longer than to linger."""
    monkeypatch.setattr(http_server, "LINGER_LIMIT", 0.05)
    monkeypatch.setattr(http_server, "SWEEP_EVERY", 0.01)

    async def story(server: HttpServer, port: int) -> None:
        with await asyncio.to_thread(reluctant, port, trust) as sock:
            await asyncio.to_thread(sock.sendall, request(TX, "Connection: close"))
            await until(lambda: core.received["T-1"] == 1 and not server.calls, PATIENCE)
            answered = time.monotonic()
            await until(lambda: time.monotonic() > answered + 10 * http_server.LINGER_LIMIT, PATIENCE)
            assert len(await asyncio.to_thread(read_all, sock)) > MAX_BYTES

    with peer(lambda _: http(LARGE)) as core:
        in_process(loop, folder, story, core.url)


# Addresses and files.


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_an_address_that_is_taken_is_said(loop: str, folder: Path, host: str) -> None:
    """As without TLS; a host that is none likewise, and what was opened is closed again."""

    async def story(server: HttpServer, port: int) -> None:
        for address in (Address(host, port), Address("no.such.host.invalid", 0)):
            other = HttpServer(server.hub, tls=server.tls)
            with pytest.raises(Unusable, match=f"cannot listen on {address}.* choose another"):
                await other.start(address)
            await other.close()

    in_process(loop, folder, story)


BROKEN = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("setting", ["certificate", "key", "client_ca"])
@pytest.mark.parametrize("content", [None, b"", b"garbage", b"\xff\0", BROKEN, BROKEN[:40]])
def test_a_file_that_cannot_be_used_is_named(folder: Path, tmp_path: Path, setting: str, content: bytes | None) -> None:
    """Missing, a folder, empty, no PEM, cut: the setting, the file and what is wrong."""
    bad = tmp_path / "bad.pem"
    if content is not None:
        bad.write_bytes(content)
    good = {"certificate": folder / "cert.pem", "key": folder / "key.pem", "client_ca": folder / "ca.pem"}
    why = "holds no private key in PEM" if setting == "key" else "is no PEM file of certificates"
    for path, words in (
        (bad, why if content is not None else "cannot be read: No such file"),
        (tmp_path, "is not a file"),
    ):
        with pytest.raises(Unusable) as caught:
            server_context(TlsSettings(**{**good, setting: path}))
        assert str(caught.value).startswith(f"hub.tls_{setting}: {path} {words}")


def test_a_key_that_is_not_the_certificates_or_is_encrypted(folder: Path, tmp_path: Path) -> None:
    """Another key, one of another kind, an encrypted one of either format: said, and nobody is asked."""
    rsa = trustme.CA(key_type=trustme.KeyType.RSA).issue_cert("x", key_type=trustme.KeyType.RSA)
    of_another, no_passphrase = f"is not the key of {folder / 'cert.pem'}", "is encrypted; the hub asks nobody for"
    for content, words in (
        (trustme.CA().issue_cert("x").private_key_pem.bytes(), of_another),
        (rsa.private_key_pem.bytes(), of_another),
        (encrypted(folder, PrivateFormat.PKCS8), no_passphrase),
        (encrypted(folder, PrivateFormat.TraditionalOpenSSL), no_passphrase),
    ):
        (tmp_path / "key.pem").write_bytes(content)
        with pytest.raises(Unusable) as caught:
            server_context(TlsSettings(folder / "cert.pem", tmp_path / "key.pem"))
        assert str(caught.value).startswith(f"hub.tls_key: {tmp_path / 'key.pem'} {words}")


def test_key_and_certificates_may_stand_in_one_file(folder: Path) -> None:
    """As programs that renew certificates like to write them."""
    server_context(TlsSettings(folder / "mine.pem", folder / "mine.pem", folder / "ca.pem"))


def test_check_and_serve_say_what_is_wrong_with_the_files(folder: Path, tmp_path: Path) -> None:
    """check: every bad file at once, exit 2. serve and relay: exit 1. With good files check is content."""
    text = f"[hub]\nlisten = '127.0.0.1:0'\ntls_certificate = '{folder}/cert.pem'\ntls_key = '{folder}/key.pem'\n"
    text += "[targets.A]\nurl = 'https://127.0.0.1:1'\n"
    file = tmp_path / "hub.toml"

    def run(*command: str) -> tuple[int, list[str]]:
        done = eaimw(*command, str(file), cwd=tmp_path)
        return done.returncode, (done.stderr or done.stdout).splitlines()

    file.write_text(text, encoding="utf-8")
    assert run("check") == (0, [f"{file}: good: A; 0 routes"])
    bad = text.replace(f"{folder}/key.pem", "no.pem").replace("[targets", "tls_client_ca = 'hub.toml'\n[targets")
    file.write_text(bad + "ca_file = 'no.pem'\n", encoding="utf-8")
    key = f"hub.tls_key: {tmp_path}/no.pem cannot be read: No such file or directory"
    ca = f"hub.tls_client_ca: {file} is no PEM file of certificates"
    status, lines = run("check")
    assert (status, lines[:2]) == (2, [f"{file}: {key}", f"{file}: {ca}"])
    assert lines[2].startswith(f"{file}: targets.A.ca_file: it is '")
    assert len(lines) == 3
    assert run("serve") == (1, [f"relay: {key}", ca])
    file.write_text(text + "ca_file = 'no.pem'\n", encoding="utf-8")
    for command in (["serve"], ["relay", "--config"]):
        status, lines = run(*command)
        assert (status, len(lines)) == (1, 1)
        assert lines[0].startswith("relay: ca_file of A must be a readable PEM file of certificates (No such file")
