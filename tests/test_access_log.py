"""The access log: a line for every transaction that says what its caller got, and a disk that fails."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hubs import until
from relayed import Json, lines_of, tx
from scene import Gate, Scene, run
from served import ROOT, eventually
from serving import request
from test_breaker_log import Clock, HungDisk, instead_of_write

from eaimw.adapters import transaction_log
from eaimw.adapters.access_log import AccessShape
from eaimw.adapters.http_server import HttpServer
from eaimw.adapters.transaction_log import BATCH, MAX_LINE, TransactionLog
from eaimw.config import Address
from eaimw.errors import NoConnection, NoReply, TimedOut, Unusable
from eaimw.kernel.breaker import State
from eaimw.model import Call, Reply, Transaction

FIELDS = ["time", "tx_id", "target", "op", "code", "outcome", "attempts", "elapsed_ms", "left", "state"]
# Those that a reply has as well.
SHARED = ["tx_id", "target", "code", "outcome", "attempts", "elapsed_ms"]


class Log:
    """An access log under test, its clock, and what it said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self.said: list[str] = []
        self.log = TransactionLog(path, AccessShape(self.clock), clock=self.clock, say=self.said.append)

    def note(self, number: int | str, op: str | None = "PAY", state: State | None = State.CLOSED) -> None:
        """One transaction that its target answered."""
        call = Call(Transaction(tx_id=f"T-{number}", op=op, raw=b""), 0.0)
        call.has_left, call.state = True, state
        self.log.answered(reply(number), call)

    def written(self, count: int = 1) -> list[Json]:
        """Wait for so many lines in the file; those that are there."""
        return eventually(lambda: there if len(there := records(self.path)) >= count else None) or []

    def lost(self, count: int) -> None:
        eventually(lambda: self.log.lost == count)


def reply(number: int | str) -> Reply:
    return Reply(
        tx_id=f"T-{number}", target="CORE", code="0000", outcome="done", retryable=False, attempts=1, elapsed_ms=1.3
    )


def records(path: Path) -> list[Json]:
    """The whole lines of a file; what is no JSON fails."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


@contextmanager
def opened(path: Path) -> Iterator[Log]:
    log = Log(path)
    try:
        yield log
    finally:
        log.log.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with opened(tmp_path / "access.log") as log:
        yield log


# What stands in it


def test_a_line_has_all_fields_in_their_order(log: Log) -> None:
    """The time is UTC with six digits, as in the breaker log, also where the microseconds are none."""
    log.note(1)
    log.clock.seconds = 0.123456
    log.note(2, op=None, state=None)
    log.clock.seconds = 60.00004
    log.log.answered(reply(3), None)
    log.log.close()
    common = (
        '"target":"CORE","op":%s,"code":"0000","outcome":"done","attempts":1,"elapsed_ms":1.3,"left":%s,"state":%s}\n'
    )
    assert log.path.read_text() == (
        '{"time":"2026-11-29T20:51:03.000000+00:00","tx_id":"T-1",' + common % ('"PAY"', "true", '"CLOSED"')
        + '{"time":"2026-11-29T20:51:03.123456+00:00","tx_id":"T-2",' + common % ("null", "true", "null")
        + '{"time":"2026-11-29T20:52:03.000040+00:00","tx_id":"T-3",' + common % ("null", "false", "null")
    )  # fmt: skip


Kind = tuple[str, str, bool, str | None]  # code, outcome, left, state


async def answered_by(scene: Scene, script: Any) -> Json:
    scene.core.script = script
    return await scene.send(op="PAY")


async def malformed(scene: Scene) -> Json:
    return await scene.hub.handle_tx({"tx_id": "T-bad", "op": 5})


async def unnamed(scene: Scene) -> Json:
    return await scene.hub.handle_tx({"op": "PAY"})


async def without_a_target(scene: Scene) -> Json:
    return await scene.send("NOBODY")


async def while_open(scene: Scene) -> Json:
    await answered_by(scene, "E500")
    return await scene.send()


async def as_the_probe(scene: Scene) -> Json:
    await answered_by(scene, "E500")
    scene.clock.seconds += 10.0
    return await answered_by(scene, "0000")


async def while_full(scene: Scene) -> Json:
    gate = Gate()
    scene.core.script = gate
    first = asyncio.create_task(scene.send())
    await gate.has(1)
    refused = await scene.send()
    gate.open.set()
    await first
    return refused


async def while_it_goes_down(scene: Scene) -> Json:
    scene.hub.go_down()
    return await scene.send()


@pytest.mark.parametrize(
    ("send", "kind"),
    [
        ("0000", ("0000", "done", True, "CLOSED")),
        ("B201", ("B201", "done", True, "CLOSED")),
        ("E500", ("E500", "unknown", True, "CLOSED")),
        (NoReply("half"), ("E500", "unknown", True, "CLOSED")),
        (RuntimeError("a fault of the hub"), ("E500", "unknown", True, "CLOSED")),
        (TimedOut("late", handed_over=True), ("E901", "unknown", True, "CLOSED")),
        (TimedOut("late", handed_over=False), ("E901", "not_sent", False, "CLOSED")),
        (NoConnection("lost", handed_over=True), ("E902", "unknown", True, "CLOSED")),
        (NoConnection("refused", handed_over=False), ("E902", "not_sent", False, "CLOSED")),
        (malformed, ("E400", "not_sent", False, None)),
        (unnamed, ("E400", "not_sent", False, None)),
        (without_a_target, ("E903", "not_sent", False, None)),
        (while_open, ("E904", "not_sent", False, "OPEN")),
        (as_the_probe, ("0000", "done", True, "HALF_OPEN")),
        (while_full, ("E905", "not_sent", False, "CLOSED")),
        (while_it_goes_down, ("E911", "not_sent", False, None)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_kind_of_transaction_has_one_line_that_agrees_with_its_reply(log: Log, send: Any, kind: Kind) -> None:
    """Code, outcome, whether it left, the circuit's state; and all that stands in the reply too."""
    scene = Scene(threshold=1, inflight=1, access_log=log.log)
    got: list[Json] = []

    async def story() -> None:
        got.append(await (send(scene) if asyncio.iscoroutinefunction(send) else answered_by(scene, send)))

    run(story())
    log.log.close()
    there = records(log.path)
    lines = [line for line in there if line["tx_id"] == got[0]["tx_id"]]
    assert len(lines) == 1
    assert len(there) == max(1, scene.count)
    (line,) = lines
    assert list(line) == FIELDS
    assert {field: line[field] for field in SHARED} == {field: got[0][field] for field in SHARED}
    assert (line["code"], line["outcome"], line["left"], line["state"]) == kind


def shown_lines() -> list[Json]:
    """The lines of logs that the README shows."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"time":')]


def test_the_readme_shows_a_line() -> None:
    """With all fields in their order."""
    assert [list(line) for line in shown_lines() if "tx_id" in line] == [FIELDS]


def test_the_longest_line_is_within_its_bound(log: Log) -> None:
    """So the bound of the queue in records is one in bytes."""
    call = Call(Transaction(tx_id="T" * 128, op="O" * 64, raw=b""), 0.0)
    call.state = State.HALF_OPEN
    longest = Reply(
        tx_id="T" * 128,
        target="N" * 64,
        code="E902",
        outcome="not_sent",
        retryable=False,
        attempts=10**6,
        elapsed_ms=3_600_000.1,
    )
    log.log.answered(longest, call)
    log.log.close()
    assert 400 < log.path.stat().st_size <= MAX_LINE


def test_a_caller_that_hangs_up_has_its_line(log: Log) -> None:
    """Its call goes on, and whether the target acted is what one asks the log then; a request cut short has none."""
    scene = Scene(access_log=log.log)
    gate = Gate()
    scene.core.script = gate

    async def story() -> None:
        server = HttpServer(scene.hub)
        await server.start(Address("127.0.0.1", 0))
        host, port = server.url.removeprefix("http://").split(":")
        whole = request(lines_of([tx(1)]))
        for sent in (whole, whole[:-5]):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            await writer.drain()
            if sent is whole:
                await gate.has(1)
            writer.transport.abort()
        await asyncio.sleep(0)
        gate.open.set()
        await until(lambda: scene.at_rest, within=10)
        await server.close()

    run(story())
    log.log.close()
    assert [(line["tx_id"], line["code"], line["left"]) for line in records(log.path)] == [("T-1", "0000", True)]


def test_many_are_all_there_in_order(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a batch, some while it writes: each once, as they were answered; and few writes for them."""
    count = 10 * BATCH
    writes: list[bytes] = []

    def noted(real: Callable[[int, bytes], int], fd: int, data: bytes) -> int:
        writes.append(data)
        return real(fd, data)

    instead_of_write(monkeypatch, log.log._file, noted)
    for number in range(count):
        log.note(number)
    log.log.close()
    assert [line["tx_id"] for line in records(log.path)] == [f"T-{number}" for number in range(count)]
    assert len(writes) < count / 16
    assert log.log.lost == 0


def test_a_lone_one_is_written_soon(log: Log) -> None:
    """Nobody has to answer another transaction for it, nor after a rest."""
    for number in range(1, 4):
        log.note(number)
        assert len(log.written(number)) == number


# The file moves


def test_moved_away_it_is_made_anew(log: Log) -> None:
    """At the next line by itself; at a SIGHUP without one."""
    log.note(1)
    log.written()
    away = log.path.rename(log.path.with_suffix(".1"))
    log.note(2)
    assert [line["tx_id"] for line in log.written()] == ["T-2"]
    assert [line["tx_id"] for line in records(away)] == ["T-1"]
    log.path.rename(log.path.with_suffix(".2"))
    log.log.reopen()
    eventually(log.path.exists)
    assert log.log.lost == 0


# The disk fails


def test_a_full_disk_loses_lines_and_says_so() -> None:
    """/dev/full takes nothing: every line is counted, and said together."""
    with opened(Path("/dev/full")) as log:
        for number in range(3):
            log.note(number)
        log.lost(3)
    assert "".join(log.said).count("No space left on device") == len(log.said)
    assert log.said[0].startswith("access log /dev/full: ")


def test_a_torn_batch_keeps_its_whole_lines(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes a piece: what is whole of it stays, the half line is cut back, the rest is counted as lost."""
    instead_of_write(monkeypatch, log.log._file, lambda real, fd, data: real(fd, data[: len(data) * 5 // 8]))
    for number in range(4):
        log.note(number)
    log.lost(2)
    monkeypatch.undo()
    log.note(4)
    log.log.close()
    assert [line["tx_id"] for line in records(log.path)] == ["T-0", "T-1", "T-4"]


def test_while_the_disk_hangs_nobody_waits_and_the_queue_is_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is lost at once, and said though the disk hangs; what waited is written when it is back."""
    monkeypatch.setattr(transaction_log, "MAX_WAITING", 1_000)
    disk = HungDisk(log.log._file, monkeypatch)
    log.note("first")
    assert disk.is_met.wait(5)
    for number in range(1_500):  # were one of them to wait, this would not end
        log.note(number)
    assert log.log.lost == 500
    assert len(log.log._waiting) == 1_000
    eventually(lambda: log.said)
    assert "lost: they came faster than the disk took them" in log.said[0]
    disk.ends()
    assert len(log.written(1_001)) == 1_001


def test_the_end_is_bounded_though_the_disk_hangs(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` returns within its limit and says what is lost; its thread ends when the disk comes back."""
    monkeypatch.setattr(transaction_log, "CLOSE_LIMIT", 0.1)
    disk = HungDisk(log.log._file, monkeypatch)
    log.note("first")
    assert disk.is_met.wait(5)
    log.note("second")
    ending = threading.Thread(target=log.log.close)
    ending.start()
    ending.join(5)
    try:
        assert not ending.is_alive()
        assert log.said == [f"access log {log.path}: 2 lines lost: the disk did not take them in time"]
    finally:
        disk.ends()
    log.log._thread.join(5)
    assert not log.log._thread.is_alive()


def test_nothing_of_a_transaction_is_kept_but_its_line(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk hangs a megabyte of a request, or of a reply, is not held by the record that waits."""
    disk = HungDisk(log.log._file, monkeypatch)
    log.note("first")
    assert disk.is_met.wait(5)
    raw, data = os.urandom(100), msgspec.Raw(os.urandom(100))
    before = sys.getrefcount(raw), sys.getrefcount(data)
    answer = reply("T")
    answer.data = data
    call = Call(Transaction(tx_id="T", raw=raw), 0.0)
    log.log.answered(answer, call)
    del call, answer
    assert (sys.getrefcount(raw), sys.getrefcount(data)) == before
    disk.ends()


# Pipes


def reader_of(path: Path) -> int:
    os.mkfifo(path)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def test_a_pipe_gets_whole_lines_though_its_reader_is_slow(tmp_path: Path) -> None:
    """More than a pipe holds: the writer waits for its reader, and no line is torn."""
    path = tmp_path / "pipe"
    reader = reader_of(path)
    os.set_blocking(reader, True)
    count = 4 * BATCH
    with os.fdopen(reader) as lines, opened(path) as log:
        for number in range(count):
            log.note(number)
        assert [json.loads(lines.readline())["tx_id"] for _ in range(count)] == [f"T-{n}" for n in range(count)]
        assert log.log.lost == 0


def test_a_pipe_that_nobody_reads_loses_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds is whole; the rest is counted, with the reason."""
    monkeypatch.setattr("eaimw.adapters.log_file.READER_LIMIT", 0.05)
    path = tmp_path / "pipe"
    reader = reader_of(path)
    count = 4 * BATCH
    with closing(os.fdopen(reader, "rb")) as unread, opened(path) as log:
        for number in range(count):
            log.note(number)
        eventually(lambda: log.log.lost > count // 2)
        eventually(lambda: not log.log._waiting and not log.log._writing)
        held = unread.read()
        assert held.endswith(b"\n")
        assert held.count(b"\n") + log.log.lost == count
        assert all(list(json.loads(line)) == FIELDS for line in held.splitlines())
    assert "it is a pipe whose reader is too slow" in log.said[0]


# What cannot be the log


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: folder, "it is a folder; name a file in it"),
        (lambda folder: folder / "no" / "log", "its folder does not exist; make it first"),
    ],
    ids=["a folder", "no folder"],
)
def test_what_cannot_be_opened_is_said_at_the_start(tmp_path: Path, make: Callable[[Path], Path], why: str) -> None:
    """At once, with the path and what to do."""
    path = make(tmp_path)
    with pytest.raises(Unusable) as caught:
        Log(path)
    assert str(caught.value) == f"the access log {path} cannot be used: {why}"


def test_nothing_is_left_after_the_end(tmp_path: Path) -> None:
    """No thread, no descriptor, no lock; and a second one at the same time is refused."""
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with opened(tmp_path / "log") as log:
            log.note(1)
            with pytest.raises(Unusable, match="another relay writes to it; give this one an access_log of its own"):
                Log(tmp_path / "log")
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)
    assert len(records(tmp_path / "log")) == 3
