"""https targets: what is trusted, what is not, and a handshake without end; through the real hub, on both loops."""

import asyncio
import datetime
import os
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
import trustme
from hubs import ask, hub_of, run_on, until
from peer import GOOD, GOOD_CHUNKED, GOOD_UNTIL_CLOSE, SOON, Line, Peer, answering, http, once

from eaimw.adapters import resolver
from eaimw.errors import SettingsError
from eaimw.hub import Hub
from eaimw.wire import MAX_BYTES

pytestmark = pytest.mark.usefixtures("complaints")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def serving(authority: trustme.CA, *names: str, **more: Any) -> ssl.SSLContext:
    """The TLS of a target with a certificate of that authority for those names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*(names or ("127.0.0.1",)), **more).configure_cert(context)
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_trusted_target_is_served(loop: str, authority: trustme.CA, ca_file: str, version: ssl.TLSVersion) -> None:
    """With the authority's file: replies of each framing are taken, over one connection that is used again."""
    tls = serving(authority)
    tls.minimum_version = tls.maximum_version = version

    async def story(hub: Hub) -> None:
        for _ in range(4):
            assert (await ask(hub, pad="x" * (MAX_BYTES - 100)))["code"] == "0000"

    with Peer(answering(GOOD, GOOD_CHUNKED), tls) as peer:
        run_on(loop, lambda: peer.hub(ca_file=ca_file), story)
        assert (peer.accepted, len(peer.requests)) == (1, 4)
        assert peer.requests[0].all("Host") == [f"127.0.0.1:{peer.port}"]


def test_a_trusted_name_is_served(
    loop: str, authority: trustme.CA, ca_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate is for the URL's name, not for the address behind it."""
    monkeypatch.setattr(resolver, "system_addresses", lambda host: ["127.0.0.1"])
    with Peer(answering(GOOD), serving(authority, "core.example")) as peer:
        url = f"https://core.example:{peer.port}/tx"
        assert run_on(loop, lambda: hub_of(url, ca_file=ca_file), ask)["code"] == "0000"


CUT = {
    "until close": (GOOD_UNTIL_CLOSE, "0000"),
    "half until close": (GOOD_UNTIL_CLOSE[:-1], "E500"),
    "half of a length": (GOOD[:-1], "E500"),
    "nothing": (b"", "E902"),
}


@pytest.mark.parametrize("how", ["orderly", "reset"])
@pytest.mark.parametrize("case", CUT)
def test_the_connections_end_over_tls(loop: str, authority: trustme.CA, ca_file: str, case: str, how: str) -> None:
    """A reply until an orderly end is taken; one that is cut is E500, an end before it E902; the next is served."""
    raw, code = CUT[case]

    def script(line: Line) -> None:
        if line.number:
            answering(GOOD)(line)
        else:
            line.read()
            line.send(raw)
            line.say_goodbye() if how == "orderly" else line.reset()

    async def story(hub: Hub) -> tuple[dict[str, Any], dict[str, Any]]:
        return await ask(hub), await ask(hub)

    with Peer(script, serving(authority)) as peer:
        reply, other = run_on(loop, lambda: peer.hub(ca_file=ca_file), story)
    if code == "0000" and how == "reset":
        code = "E500"
    assert (reply["code"], reply["outcome"]) == (code, "done" if code == "0000" else "unknown")
    assert reply["elapsed_ms"] < SOON
    assert other["code"] == "0000"


def test_a_connection_that_the_target_closed_while_idle(loop: str, authority: trustme.CA, ca_file: str) -> None:
    """Another one is made and nothing is lost, though the loop had no time to see the end before it sends."""
    is_answered, is_ended = threading.Event(), threading.Event()

    def script(line: Line) -> None:
        line.read()
        line.send(GOOD)
        is_answered.wait(10)
        line.close()
        is_ended.set()

    async def story(hub: Hub) -> None:
        assert (await ask(hub))["code"] == "0000"
        is_answered.set()
        assert is_ended.wait(10)
        assert (await ask(hub))["code"] == "0000"

    with Peer(script, serving(authority)) as peer:
        run_on(loop, lambda: peer.hub(ca_file=ca_file), story)
        assert (peer.accepted, len(peer.requests)) == (2, 2)


def test_bytes_after_a_whole_reply_over_tls(loop: str, authority: trustme.CA, ca_file: str) -> None:
    """The reply is taken and its connection ended."""

    async def story(hub: Hub) -> None:
        assert (await ask(hub))["code"] == "0000"
        await until(lambda: peer.ended == 1)

    with Peer(once(GOOD + http(b"{}")), serving(authority)) as peer:
        run_on(loop, lambda: peer.hub(ca_file=ca_file), story)


def refused(loop: str, url: str, ca_file: str | None) -> str:
    """The message of the E902 that a target gets which is not trusted."""
    reply = run_on(loop, lambda: hub_of(url, ca_file=ca_file), ask)
    assert (reply["code"], reply["outcome"], reply["attempts"]) == ("E902", "not_sent", 1)
    assert reply["elapsed_ms"] < SOON
    message: str = reply["message"]
    return message


def test_another_authority_is_not_trusted(loop: str, authority: trustme.CA, ca_file: str) -> None:
    """A certificate of an authority that is not in the file; and without a file the system does not know ours."""
    with Peer(answering(GOOD), serving(trustme.CA())) as peer:
        assert "CERTIFICATE_VERIFY_FAILED" in refused(loop, peer.url, ca_file)
    with Peer(answering(GOOD), serving(authority)) as peer:
        assert "CERTIFICATE_VERIFY_FAILED" in refused(loop, peer.url, None)
    assert peer.requests == []


def test_another_hosts_certificate_is_not_trusted(loop: str, authority: trustme.CA, ca_file: str) -> None:
    """Right authority, wrong name."""
    with Peer(answering(GOOD), serving(authority, "claim.example")) as peer:
        assert "CERTIFICATE_VERIFY_FAILED" in refused(loop, peer.url, ca_file)
    assert peer.requests == []


def test_an_expired_certificate_is_not_trusted(loop: str, authority: trustme.CA, ca_file: str) -> None:
    """Right authority, right name, last year."""
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=365)
    tls = serving(authority, "127.0.0.1", not_before=then - datetime.timedelta(days=30), not_after=then)
    with Peer(answering(GOOD), tls) as peer:
        assert "expired" in refused(loop, peer.url, ca_file)
    assert peer.requests == []


def test_a_target_without_tls(loop: str, ca_file: str) -> None:
    """It answers in plain HTTP, or closes: E902, and it has never seen the transaction."""

    def plain(line: Line) -> None:
        line.read_some()
        line.send(http(b"", "400 Bad Request"))

    with Peer(plain) as peer:
        assert "TLS" in refused(loop, peer.url.replace("http:", "https:"), ca_file)
    with Peer(lambda line: line.read_some()) as peer:
        assert "127.0.0.1" in refused(loop, peer.url.replace("http:", "https:"), ca_file)


def test_plain_http_to_a_target_with_tls(loop: str, authority: trustme.CA) -> None:
    """The other way round: its handshake fails, and the transaction had left, so the outcome is unknown."""
    with Peer(answering(GOOD), serving(authority)) as peer:
        reply = run_on(loop, lambda: hub_of(peer.url.replace("https:", "http:")), ask)
    assert (reply["code"] in ("E500", "E902"), reply["outcome"]) == (True, "unknown")


def test_a_handshake_without_end(loop: str, ca_file: str) -> None:
    """The target takes the connection and says nothing: E902 within the connect timeout, and nothing is left of it."""
    with Peer(lambda line: line.until_ended()) as peer:

        async def story(hub: Hub) -> None:
            for reply in await asyncio.gather(*(ask(hub) for _ in range(3))):
                assert (reply["code"], reply["outcome"]) == ("E902", "not_sent")
                assert 145 <= reply["elapsed_ms"] < SOON
            await until(lambda: peer.ended == 3)

        url = peer.url.replace("http:", "https:")
        run_on(loop, lambda: hub_of(url, ca_file=ca_file, connect_timeout=0.15), story)


def test_a_budget_that_ends_in_the_handshake(loop: str, ca_file: str) -> None:
    """The caller's budget is nearer than the connect timeout: E901, nothing was sent, no sample."""

    async def story(hub: Hub) -> None:
        for reply in await asyncio.gather(*(ask(hub, timeout_ms=20 + n) for n in range(20))):
            assert (reply["code"], reply["outcome"]) == ("E901", "not_sent")
        assert str(hub.targets["CORE"].breaker.state) == "CLOSED"

    with Peer(lambda line: line.until_ended()) as peer:
        url = peer.url.replace("http:", "https:")
        run_on(loop, lambda: hub_of(url, ca_file=ca_file, fail_threshold=1), story)


def test_a_call_that_is_cancelled_in_the_handshake(loop: str, ca_file: str) -> None:
    """The target sees the connection end, and the place comes back."""

    async def story(hub: Hub) -> None:
        task = asyncio.create_task(ask(hub))
        await until(lambda: peer.accepted)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: peer.ended)

    with Peer(lambda line: line.until_ended()) as peer:
        url = peer.url.replace("http:", "https:")
        run_on(loop, lambda: hub_of(url, ca_file=ca_file, max_inflight=1), story)


def test_calls_that_are_cancelled_anywhere_over_tls(loop: str, authority: trustme.CA, ca_file: str) -> None:
    """After every number of turns of the loop: nothing is left, the next one is served."""

    async def story(hub: Hub) -> None:
        for turns in range(60):
            task = asyncio.create_task(ask(hub))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        assert (await ask(hub))["code"] == "0000"

    # uvloop says this if it is cancelled in the turn in which TLS begins; it closes the connection all the same.
    may_say = "Fatal error on SSL protocol" if loop == "uvloop" else None
    with Peer(answering(GOOD), serving(authority)) as peer:
        run_on(loop, lambda: peer.hub(ca_file=ca_file, max_inflight=1), story, may_say)


@pytest.mark.parametrize("content", [None, b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n", b"\xff\xfe"])
def test_a_ca_file_that_cannot_be_used(loop: str, content: bytes | None, tmp_path: Path) -> None:
    """Missing, empty or no PEM: the hub does not open, and says which target's file it is and why."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match="ca_file of CORE") as raised:
        run_on(loop, lambda: hub_of("https://127.0.0.1:1/tx", ca_file=str(path)), ask)
    assert str(path)[-20:] in str(raised.value) or "..." in str(raised.value)


@pytest.mark.parametrize("ca_file", ["", ".", "a\0b", 7.5])
def test_a_ca_file_that_is_none(loop: str, ca_file: Any) -> None:
    """An empty name is not the system's authorities; a folder, an impossible name and a number are no file either."""
    with pytest.raises(SettingsError, match="ca_file"):
        run_on(loop, lambda: hub_of("https://127.0.0.1:1/tx", ca_file=ca_file), ask)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_ca_file_that_may_not_be_read(loop: str, ca_file: str, tmp_path: Path) -> None:
    """No permission: said as such."""
    path = tmp_path / "ca.pem"
    path.write_bytes(Path(ca_file).read_bytes())
    path.chmod(0)
    with pytest.raises(SettingsError, match="ermission"):
        run_on(loop, lambda: hub_of("https://127.0.0.1:1/tx", ca_file=str(path)), ask)
