"""For tests: the hub's HTTP server as a running program, and a caller that sends any bytes to it."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from relayed import Json, Peer, Running, relay

TX = b'{"tx_id":"T-1","target":"CORE"}'


def pem_files(made: Path) -> Path:
    """Write: `ca`; of it `cert` with `key`, and a caller's `mine`; of another authority a caller's `theirs`."""
    ours, others = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(made / "ca.pem"))
    own = ours.issue_cert("127.0.0.1")
    own.private_key_pem.write_to_path(str(made / "key.pem"))
    own.cert_chain_pems[0].write_to_path(str(made / "cert.pem"))
    ours.issue_cert("caller.example").private_key_and_cert_chain_pem.write_to_path(str(made / "mine.pem"))
    others.issue_cert("caller.example").private_key_and_cert_chain_pem.write_to_path(str(made / "theirs.pem"))
    return made


def encrypted(folder: Path, kind: PrivateFormat) -> bytes:
    """The key of these files behind a passphrase."""
    key: Any = load_pem_private_key((folder / "key.pem").read_bytes(), None)
    text: bytes = key.private_bytes(Encoding.PEM, kind, BestAvailableEncryption(b"secret"))
    return text


class Server:
    """A hub that serves."""

    def __init__(self, running: Running) -> None:
        running.says("listening on ")
        self.running = running
        self.url = running.errors.split("listening on ", 1)[1].split()[0]
        self.port = int(self.url.rpartition(":")[2])

    def post(self, body: bytes | Json = TX, **more: Any) -> requests.Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return requests.post(f"{self.url}/tx", data=data, timeout=30, **more)

    def stop(self) -> int:
        self.running.process.send_signal(signal.SIGTERM)
        return self.running.wait()

    def counted(self) -> int:
        """Transactions that it says it has read; after its end."""
        return int(self.running.errors.rsplit("transactions ", 1)[1].split(",", 1)[0].replace(",", ""))


@contextmanager
def serving(*options: str, core: Peer | None = None, claim: Peer | None = None) -> Iterator[Server]:
    urls: dict[str, Any] = {name: each.url for name, each in (("core", core), ("claim", claim)) if each is not None}
    with relay("--listen", "127.0.0.1:0", *options, **urls) as running:
        yield Server(running)


class Caller:
    """A raw connection: sends any bytes, reads whole answers."""

    def __init__(self, server: Server) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), 30)
        self._rest = b""

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.sock.sendall(piece)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body of the next answer."""
        while b"\r\n\r\n" not in self._rest:
            self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        assert first.startswith("HTTP/1.1 "), first
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        size = int(headers.get("content-length", 0))
        while len(self._rest) < size:
            self._more()
        body, self._rest = self._rest[:size], self._rest[size:]
        return int(first.split()[1]), headers, body

    def refused(self, status: int) -> str:
        """The next answer is an E400 of this status, and the connection ends; its message."""
        got, headers, body = self.answer()
        reply = json.loads(body)
        assert (got, reply["code"], reply["outcome"], reply["tx_id"]) == (status, "E400", "not_sent", None)
        assert headers["connection"] == "close"
        assert self.is_ended()
        message: str = reply["message"]
        return message

    def is_ended(self) -> bool:
        return self._rest == b"" and self.sock.recv(1) == b""

    def _more(self) -> None:
        data = self.sock.recv(1 << 20)
        assert data, f"the connection ended: {self._rest!r}"
        self._rest += data


def request(body: bytes = TX, *headers: str, start: str = "POST /tx HTTP/1.1") -> bytes:
    lines = [start, "Host: hub", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body
