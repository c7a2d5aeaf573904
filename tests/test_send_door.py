"""`eaimw send` at a door that is not a hub's, or is one to be opened otherwise: said once, and no false alarm."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from commands import send
from cryptography.hazmat.primitives.serialization import PrivateFormat
from peer import GOOD, Line, Peer, closing, free_port
from peer import http as raw_http
from relayed import Done, lines_of, peer, relay, tx
from serving import Server, encrypted, pem_files
from test_http_server_tls import serving
from test_http_tls import serving as tls_of

from eaimw.adapters.hub_door import speaks_tls, turns_away
from eaimw.config import Endpoint

MANY = lines_of(map(tx, range(1_000)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pem_files(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A hub that asks for a client certificate."""
    with peer() as core, serving(folder, core, f"tls_client_ca = '{folder}/ca.pem'") as made:
        yield made


def trusting(folder: Path) -> dict[str, str]:
    return os.environ | {"SSL_CERT_FILE": str(folder / "ca.pem")}


def said_once(done: Done, url: str, words: str) -> None:
    """Nothing was taken, so no line is told; one says why, and no further line was tried."""
    first, second, total = done.errors.splitlines()
    assert first == f"send: {url}/tx: {words}; nothing more is sent"
    assert second == "send: ended before the input did: what stands after line 8 was not sent"
    assert total.startswith("transactions 8, replies 0, not sent 8, outcome unknown 0, ")
    assert (done.status, done.replies) == (1, [])


# A client certificate


def test_with_a_certificate_a_hub_that_asks_for_one_is_used(folder: Path, server: Server, tmp_path: Path) -> None:
    """Its key beside it in the same file, or in one of its own."""
    key = (folder / "mine.pem").read_text().partition("-----BEGIN CERTIFICATE")[0]
    (tmp_path / "key.pem").write_text(key)
    (tmp_path / "cert.pem").write_text((folder / "mine.pem").read_text().removeprefix(key))
    for options in (
        ("--cert", str(folder / "mine.pem")),
        ("--cert", str(tmp_path / "cert.pem"), "--key", str(tmp_path / "key.pem")),
    ):
        done = send(lines_of(map(tx, range(20))), "--to", server.url, *options, env=trusting(folder))
        assert (done.status, len(done.replies)) == (0, 20), done.errors


def test_a_certificate_or_key_that_is_no_good_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    """Missing, without its key, of another, encrypted: status 1, and nobody is asked for a passphrase."""
    cert, theirs, secret = str(folder / "cert.pem"), str(folder / "theirs.pem"), tmp_path / "secret.pem"
    secret.write_bytes(encrypted(folder, PrivateFormat.PKCS8))
    both = tmp_path / "both.pem"
    both.write_bytes(secret.read_bytes() + (folder / "cert.pem").read_bytes())
    nothing = str(tmp_path / "nothing.pem")
    no_passphrase = "is encrypted; send asks nobody for a passphrase: give it the key without one"
    for options, says in (
        (("--cert", nothing), f"--cert: {nothing} cannot be read: No such file or directory"),
        (("--cert", cert, "--key", nothing), f"--key: {nothing} cannot be read: No such file or directory"),
        (("--cert", cert), f"--cert, without --key: {cert} holds no private key in PEM"),
        (("--cert", cert, "--key", theirs), f"--key: {theirs} is not the key of {cert}"),
        (("--cert", cert, "--key", str(secret)), f"--key: {secret} {no_passphrase}"),
        (("--cert", str(both)), f"--cert, without --key: {both} {no_passphrase}"),
        (("--cert", str(secret)), f"--cert: {secret} is no PEM file of certificates"),
    ):
        done = send(b"", "--to", "https://127.0.0.1:9", *options)
        assert (done.status, done.errors) == (1, f"send: {says}\n")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--to", "https://127.0.0.1:9", "--key", "x.pem"), "--key needs --cert beside it"),
        (("--to", "http://127.0.0.1:9", "--cert", "x.pem"), "--cert is for a hub that speaks https"),
    ],
)
def test_a_certificate_where_it_has_no_use_is_wrong_usage(options: tuple[str, ...], says: str) -> None:
    """Status 2, before any file is read."""
    done = send(b"", *options)
    assert done.status == 2
    assert says in done.errors


# What looks like a lost transaction and is none


def test_a_hub_that_asks_for_a_certificate_is_told_as_such(folder: Path, server: Server) -> None:
    """TLS 1.3 refuses a caller without one after the handshake, when its transaction may be on its way."""
    done = send(MANY, "--to", server.url, env=trusting(folder))
    said_once(done, server.url, "the hub asks for a client certificate: --cert, --key")


def test_a_certificate_that_the_hub_does_not_trust_is_told_as_such(folder: Path, server: Server) -> None:
    """One of another authority."""
    done = send(MANY, "--to", server.url, "--cert", str(folder / "theirs.pem"), env=trusting(folder))
    said_once(
        done,
        server.url,
        "the hub refuses the client certificate: give one of an authority that is in its tls_client_ca",
    )


def test_http_to_a_hub_that_speaks_https_is_told_as_such(server: Server) -> None:
    """The hub ends the connection without a word."""
    url = server.url.replace("https://", "http://")
    said_once(send(MANY, "--to", url), url, "http:// was given and the hub speaks https")


def test_an_authority_that_is_not_trusted_is_told_as_such(server: Server) -> None:
    """With the way to name it; a transaction is not sent before that is settled."""
    said_once(
        send(MANY, "--to", server.url),
        server.url,
        "its certificate is not trusted (self-signed certificate in certificate chain): name its CA in SSL_CERT_FILE",
    )


def test_a_certificate_for_another_host_is_told_as_such(folder: Path, server: Server) -> None:
    """To trust its authority would not help."""
    url = server.url.replace("127.0.0.1", "localhost")
    said_once(
        send(MANY, "--to", url, env=trusting(folder)),
        url,
        "its certificate is for another host (Hostname mismatch, certificate is not valid for 'localhost')",
    )


def test_https_to_a_hub_that_speaks_http_is_told_as_such() -> None:
    """The other way round."""
    with relay("--listen", "127.0.0.1:0") as running:
        url = Server(running).url.replace("http://", "https://")
        said_once(send(MANY, "--to", url), url, "it speaks no TLS: give http:// instead of https://")


@pytest.mark.parametrize(("token", "status"), [("", 404), ("a-token", 401)])
def test_the_admin_port_is_told_as_such(token: str, status: int) -> None:
    """It takes no transaction, with a token or without."""
    with relay("--admin", "127.0.0.1:0", env=os.environ | {"EAIMW_ADMIN_TOKEN": token}) as running:
        running.says("admin on ")
        url = running.errors.split()[2]
        said_once(send(MANY, "--to", url), url, f"this is no hub's listen address (HTTP {status}: the admin port?)")


def test_another_server_ends_it_and_what_it_may_have_taken_is_told() -> None:
    """HTTP 200 with a page, and no HTTP at all: those already on their way are unknown, and no more are sent."""
    for answer, words in ((raw_http(b"<html>"), "HTTP 200"), (b"SSH-2.0-OpenSSH_9.6\r\n", "what came back is no HTTP")):
        with Peer(closing(answer)) as other:
            done = send(MANY, "--at-once", "3", "--to", other.url)
            assert 1 <= len(other.requests) <= 3
        *told, why, _, total = done.errors.splitlines()
        assert why == f"send: {other.url}: this is no hub's listen address ({words}); nothing more is sent"
        assert len(told) == len(other.requests)
        assert all(line.endswith(": its outcome is unknown; look it up") for line in told)
        assert f"replies 0, not sent 0, outcome unknown {len(told)}, " in total
        assert done.status == 1


# What is no such thing


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_hub_that_dies_over_the_first_line_leaves_it_unknown(has_tls: bool, tmp_path: Path) -> None:
    """Its door shows nothing strange, so nothing is made of it, and the others go on."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def script(line: Line) -> None:
        if line.number == 1 and not has_tls:
            return  # a look at the door: a hub ends what is no HTTP
        while line.read() is not None and line.number > 0:
            line.send(GOOD)

    with Peer(script, tls_of(authority) if has_tls else None) as hub:
        done = send(lines_of(map(tx, range(3))), "--at-once", "1", "--to", hub.url, env=trusting(tmp_path))
    assert len(done.replies) == 2
    told, *_, total = done.errors.splitlines()
    assert told.startswith("send: line 1 (T-0): ")
    assert told.endswith(": its outcome is unknown; look it up")
    assert "not sent 0, outcome unknown 1, " in total
    assert "_ssl.c" not in done.errors


def test_a_door_is_looked_at_without_sending_a_transaction(folder: Path, server: Server) -> None:
    """Who speaks TLS, and who turns a caller away; where nobody listens neither."""
    hub = Endpoint.parse(server.url)
    strange = ssl.create_default_context(cafile=folder / "ca.pem")
    known = ssl.create_default_context(cafile=folder / "ca.pem")
    known.load_cert_chain(folder / "mine.pem")
    assert speaks_tls(hub)
    assert turns_away(hub, strange)
    assert not turns_away(hub, known)
    nobody = Endpoint.parse(f"https://127.0.0.1:{free_port()}")
    assert not speaks_tls(nobody)
    assert not turns_away(nobody, strange)
    with relay("--listen", "127.0.0.1:0") as plain:
        assert not speaks_tls(Endpoint.parse(Server(plain).url))
