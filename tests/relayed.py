"""For tests: the relay as a program of its own, ended and reaped whatever happens, and a peer that answers as told.

with peer(lambda tx: ok(tx)) as core, relay("--max-inflight", "4", core=core.url) as running:
    running.feed({"tx_id": "T-1", "target": "CORE"})
    (reply,) = running.replies(1)
    assert running.end() == 0
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import uvloop
from served import ROOT, eventually

PROGRAM = ROOT / "breaker" / "relay.py"
NOBODY = "http://127.0.0.1:9/tx"  # the port of `discard`: nothing listens there
# Seconds; both cores may be busy.
REPLIES_WITHIN = 30.0
ENDS_WITHIN = 30.0

Json = dict[str, Any]


def tx(number: int | str, target: str = "CORE", **more: object) -> Json:
    """A transaction without an op: 0000 where the target is well."""
    return {"tx_id": f"T-{number}", "target": target, **more}


def lines_of(transactions: Iterable[Json]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in transactions)


# The program


class Running:
    """A relay that runs. What it writes is read as it comes, so that it is never held up by us."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self.log = log  # the breaker log, if no other was asked for
        self.lines: list[bytes] = []
        self._errors: list[bytes] = []
        self._readers = [
            threading.Thread(target=_collect, args=(stream, into))
            for stream, into in ((process.stdout, self.lines), (process.stderr, self._errors))
            if stream is not None
        ]
        for reader in self._readers:
            reader.start()

    @property
    def errors(self) -> str:
        """What stands on its standard error so far."""
        return b"".join(self._errors).decode()

    def feed(self, *transactions: Json | bytes) -> None:
        """Write to its input: an object as a line, bytes as they are."""
        rest = memoryview(b"".join(each if isinstance(each, bytes) else lines_of([each]) for each in transactions))
        while rest:
            rest = rest[os.write(self._input.fileno(), rest) :]

    def close_input(self) -> None:
        self._input.close()

    def replies(self, count: int, within: float = REPLIES_WITHIN) -> list[Json]:
        """The first replies, so many of them, in the order in which they came."""
        self.come(count, within)
        return [json.loads(line) for line in self.lines[:count]]

    def come(self, count: int, within: float = REPLIES_WITHIN) -> None:
        """Wait until so many replies are there."""
        eventually(lambda: len(self.lines) >= count or self._has_ended(), within)
        assert len(self.lines) >= count, f"{len(self.lines)} of {count} replies; it says: {self.errors}"

    def all_replies(self) -> list[Json]:
        """Every reply that it has written so far."""
        return [json.loads(line) for line in self.lines]

    def says(self, words: str, within: float = REPLIES_WITHIN) -> None:
        """Wait for words on standard error."""
        eventually(lambda: words in self.errors or self._has_ended(), within)
        assert words in self.errors, f"it says: {self.errors}"

    def wait(self, within: float = ENDS_WITHIN) -> int:
        """Its exit status, when it has ended; all it wrote is there then."""
        status = self.process.wait(within)
        for reader in self._readers:
            reader.join(within)
            assert not reader.is_alive(), "somebody else still holds its output"
        return status

    def end(self) -> int:
        """Close its input; the exit status."""
        self.close_input()
        return self.wait()

    def memory(self, field: str = "VmRSS") -> int:
        """KiB of memory: VmRSS now, VmHWM at most so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field + ":"))

    @property
    def _input(self) -> IO[bytes]:
        assert self.process.stdin is not None, "its input is not ours"
        return self.process.stdin

    def _has_ended(self) -> bool:
        if self.process.poll() is None:
            return False
        self.wait()
        return True


@contextmanager
def program(
    command: list[str],
    log: Path,
    *,
    stdin: int | IO[bytes] = subprocess.PIPE,
    stdout: int | IO[bytes] = subprocess.PIPE,
    shell: str = "",
    **popen: Any,
) -> Iterator[Running]:
    """The command, ended and reaped whatever happens. log: where its breaker log is.

    shell: what bash shall do with the command, as `exec "$@" >&-`.
    """
    around = ["bash", "-c", shell, "-"] if shell else []
    with subprocess.Popen(
        [*around, *command], stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, bufsize=0, **popen
    ) as process:
        running = Running(process, log)
        try:
            yield running
        finally:
            process.kill()  # nothing if it has ended
            running.wait()


@contextmanager
def relay(
    *options: str,
    core: str = NOBODY,
    claim: str = NOBODY,
    **more: Any,
) -> Iterator[Running]:
    """`python breaker/relay.py OPTIONS` with a breaker log of its own. A URL not given: nobody listens there.

    more: as `program` takes it.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "breaker.log")
        command = [sys.executable, str(PROGRAM), "--core-url", core, "--claim-url", claim, "--breaker-log", str(log)]
        with program([*command, *options], log, **more) as running:
            yield running


@contextmanager
def from_file(folder: Path, section: str, *options: str, core: str = NOBODY, shell: str = "") -> Iterator[Running]:
    """`python breaker/relay.py --config hub.toml OPTIONS` with CORE alone. section: what stands before it in the file.

    shell: as in `program`.
    """
    (folder / "hub.toml").write_text(f"{section}\n[targets.CORE]\nurl = '{core}'\n", encoding="utf-8")
    command = [sys.executable, str(PROGRAM), "--config", str(folder / "hub.toml"), *options]
    command += ["--breaker-log", str(folder / "breaker.log")]
    with program(command, folder / "breaker.log", shell=shell) as running:
        yield running


class Done(NamedTuple):
    """What a run left."""

    status: int
    replies: list[Json]
    errors: str
    log: str


def relayed(given: bytes | Iterable[Json], *options: str, **more: Any) -> Done:
    """A whole run over some input."""
    with relay(*options, **more) as running:
        with contextlib.suppress(BrokenPipeError):  # it did not want it all; the status says why
            running.feed(given if isinstance(given, bytes) else lines_of(given))
        status = running.end()
        log = running.log.read_text() if running.log.exists() else ""
        return Done(status, running.all_replies(), running.errors, log)


def _collect(stream: IO[bytes], into: list[bytes]) -> None:
    with open(stream.fileno(), "rb", closefd=False) as lines:
        for line in lines:
            into.append(line)  # noqa: PERF402 - one by one: others look on


# The peer: quick, and able to misbehave in ways that no fixture has


class Say(NamedTuple):
    """What a peer does with one request."""

    raw: bytes  # is written
    after: float = 0.0  # seconds before that
    again: bytes = b""  # is written after it until the caller leaves
    closes_after: float | None = None  # seconds after the answer; None: the connection stays
    resets: bool = False  # closes so that the caller sees a reset, not an end


def ok(request: Json, code: str = "0000") -> Say:
    return http(b'{"tx_id":"%s","code":"%s"}' % (request["tx_id"].encode(), code.encode()))


def http(body: bytes, status: str = "200 OK", content_type: str = "application/json") -> Say:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return Say(head.encode() + body)


class Peer:
    """A target. received: how often each tx_id came, whole. connected_most: connections at the same time, at most."""

    def __init__(self, respond: Callable[[Json], Say | None]) -> None:
        self.respond = respond  # None: never an answer
        self.url = ""
        self.received: Counter[str] = Counter()
        self.connections: set[_PeerConnection] = set()
        self.connected_most = 0


class _PeerConnection(asyncio.Protocol):
    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._data = b""
        self._transport: Any = None
        self._again = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._peer.connections.add(self)
        self._peer.connected_most = max(self._peer.connected_most, len(self._peer.connections))

    def connection_lost(self, problem: Exception | None) -> None:
        self._again = b""
        self._peer.connections.discard(self)

    def resume_writing(self) -> None:
        self._go_on()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) < size:
            return
        assert len(body) == size, "a second request before the first one was answered"
        self._data = b""
        request = json.loads(body)
        self._peer.received[request["tx_id"]] += 1
        said = self._peer.respond(request)
        if said is not None and said.after:
            asyncio.get_running_loop().call_later(said.after, self._say, said)
        elif said is not None:
            self._say(said)

    def _say(self, said: Say) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(said.raw)
        if said.resets:
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if said.closes_after is not None:
            asyncio.get_running_loop().call_later(said.closes_after, self._transport.close)
        self._again = said.again
        self._go_on()

    def _go_on(self) -> None:
        if self._again and not self._transport.is_closing():
            self._transport.write(self._again)
            if self._transport.get_write_buffer_size() == 0:
                asyncio.get_running_loop().call_soon(self._go_on)


@contextmanager
def peer(respond: Callable[[Json], Say | None] = ok) -> Iterator[Peer]:
    """A target on a free port, in a thread of its own."""
    made = Peer(respond)
    started, ended = threading.Event(), asyncio.Event()
    loop: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loop.append(asyncio.get_running_loop())
        server = await loop[0].create_server(lambda: _PeerConnection(made), "127.0.0.1", 0)
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/tx"
        started.set()
        await ended.wait()
        server.close()
        for connection in list(made.connections):
            connection._transport.abort()

    thread = threading.Thread(target=lambda: uvloop.run(serve()), name="peer")
    thread.start()
    try:
        assert started.wait(10)
        yield made
    finally:
        loop[0].call_soon_threadsafe(ended.set)
        thread.join()
