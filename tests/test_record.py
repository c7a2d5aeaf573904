"""The record: a line for each transaction with what is needed to replay it, beside the access log or without it."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from relayed import NOBODY, Json, from_file, ok, peer, relay, tx
from scene import Scene, run
from served import direct, eventually
from test_access_log import records, shown_lines

from eaimw.adapters.record import RecordShape
from eaimw.adapters.transaction_log import MAX_LINE, TransactionLog
from eaimw.errors import LocalFault, TimedOut
from eaimw.kernel.breaker import State
from eaimw.model import Call, Reply, Transaction

FIELDS = ["time", "target", "op", "timeout_ms", "code", "outcome", "duration", "sample", "state"]


class Steps:
    """A wall clock that people set, and a monotonic one."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.set_by = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def time(self) -> float:
        return 1_700_000_000.0 + self.seconds + self.set_by

    def now(self) -> Any:
        raise NotImplementedError


class Recording:
    """A hub that records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Steps()
        self.log = TransactionLog(path, RecordShape(self.clock), clock=self.clock, say=print)
        self.scene = Scene(threshold=1, access_log=self.log)

    def answer(self, said: Any, seconds: float = 0.0, **fields: Any) -> None:
        """One transaction whose call takes so long."""

        async def late(_: Call) -> Any:
            self.scene.clock.seconds += seconds
            return said

        self.scene.core.script = late
        run(self._send(fields))

    async def _send(self, fields: Json) -> None:
        await self.scene.send(**fields)

    def lines(self) -> list[Json]:
        self.log.close()
        return records(self.path)


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    made = Recording(tmp_path / "record.jsonl")
    yield made
    made.log.close()


def told(line: Json) -> list[Any]:
    return [line[field] for field in ("code", "outcome", "duration", "sample", "state")]


def test_a_call_has_its_duration_and_what_it_said_of_the_target(recording: Recording) -> None:
    """In seconds, to a microsecond; the time is when the hub took it."""
    recording.answer("0000", 0.25, op="PAY", timeout_ms=2_000)
    recording.answer("E500", 1.0000004)
    recording.answer("0000", op="PAY")
    first, second, third = recording.lines()
    assert list(first) == FIELDS
    assert first["time"] == "2023-11-14T22:15:00.000000+00:00"
    assert second["time"] == "2023-11-14T22:15:00.250000+00:00"
    assert [first[field] for field in ("target", "op", "timeout_ms")] == ["CORE", "PAY", 2_000]
    assert told(first) == ["0000", "done", 0.25, "success", "CLOSED"]
    assert told(second) == ["E500", "unknown", 1.0, "failure", "CLOSED"]
    assert told(third) == ["E904", "not_sent", None, "none", "OPEN"]


@pytest.mark.parametrize(
    ("problem", "fields", "line"),
    [
        (TimedOut("late", handed_over=True), {}, ["E901", "unknown", 0.5, "failure", "CLOSED"]),
        (TimedOut("late", handed_over=True), {"timeout_ms": 500}, ["E901", "unknown", 0.5, "none", "CLOSED"]),
        (LocalFault("no descriptor", handed_over=False), {}, ["E902", "not_sent", 0.5, "none", "CLOSED"]),
    ],
    ids=["by the target", "by its caller's budget", "by a lack of ours"],
)
def test_a_call_that_failed_says_whether_the_target_did(
    recording: Recording, problem: Exception, fields: Json, line: list[Any]
) -> None:
    """What is nobody's vote in the hub is none in the record."""

    async def fail(_: Call) -> Any:
        recording.scene.clock.seconds += 0.5
        return problem

    recording.scene.core.script = fail
    run(recording._send(fields))
    assert [told(each) for each in recording.lines()] == [line]


def test_what_was_not_called_has_no_duration(recording: Recording) -> None:
    """Malformed, without a target, while the hub goes down."""

    async def story() -> None:
        await recording.scene.hub.handle_tx({"op": 5})
        await recording.scene.send("NOBODY")
        recording.scene.hub.go_down()
        await recording.scene.send()

    run(story())
    lines = recording.lines()
    assert [[line["target"], *told(line)] for line in lines] == [
        [None, "E400", "not_sent", None, "none", None],
        ["NOBODY", "E903", "not_sent", None, "none", None],
        ["CORE", "E911", "not_sent", None, "none", None],
    ]


def test_a_wall_clock_that_is_set_moves_nothing(recording: Recording) -> None:
    """What lay between two transactions lies between their times."""
    recording.answer("0000")
    recording.scene.clock.seconds += 2.0
    recording.clock.set_by = -3_600.0
    recording.answer("0000")
    assert [line["time"][11:26] for line in recording.lines()] == ["22:15:00.000000", "22:15:02.000000"]


def test_the_readme_shows_a_line() -> None:
    """With all fields in their order."""
    assert [list(line) for line in shown_lines() if "tx_id" not in line] == [FIELDS]


def test_the_longest_line_is_within_its_bound(recording: Recording) -> None:
    """As with the access log, the queue is bounded in bytes."""
    call = Call(Transaction(tx_id="T" * 128, op="O" * 64, raw=b"", timeout_ms=3_600_000), 0.0)
    call.state, call.took, call.sample = State.HALF_OPEN, 3_599.123456, "failure"
    longest = Reply(tx_id="T", target="N" * 64, code="E902", outcome="not_sent", retryable=False, attempts=1)
    recording.log.answered(longest, call)
    recording.log.close()
    assert 300 < recording.path.stat().st_size <= MAX_LINE


# The program


def test_a_relay_of_lines_records_each(tmp_path: Path) -> None:
    """Without a hub.toml, added to what is there."""
    file = tmp_path / "record.jsonl"
    for _ in range(2):
        with peer(ok) as core, relay("--record", str(file), core=core.url) as running:
            running.feed(tx(1, op="PAY"), b"{\n", tx(2, "CLAIM"))
            assert running.end() == 0
    assert sorted(line["code"] for line in records(file)) == ["0000", "0000", "E400", "E400", "E902", "E902"]


def test_a_server_records_beside_the_access_log(tmp_path: Path) -> None:
    """Both have a line for each transaction, and a signal makes both anew."""
    files = [tmp_path / "access.log", tmp_path / "record.jsonl"]
    options = ("--listen", "127.0.0.1:0", "--record", str(files[1]))
    with (
        peer(ok) as core,
        from_file(tmp_path, "[hub]\naccess_log = 'access.log'\n", *options, core=core.url) as running,
        direct() as session,
    ):
        running.says("listening on ")
        url = running.errors.split()[2] + "/tx"
        for number in range(20):
            assert session.post(url, json=tx(number), timeout=10).json()["code"] == "0000"
        eventually(lambda: all(len(records(file)) == 20 for file in files))
        for file in files:
            file.rename(file.with_suffix(".1"))
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: all(file.exists() for file in files))
        assert session.post(url, json=tx(20), timeout=10).json()["code"] == "0000"
        running.process.send_signal(signal.SIGTERM)
        assert running.wait() == 0
    assert [len(records(file)) for file in files] == [1, 1]
    access, record = (records(file.with_suffix(".1")) for file in files)
    for seen, kept in zip(access, record, strict=True):
        assert kept["duration"] <= seen["elapsed_ms"] / 1000 + 0.00005


@pytest.mark.parametrize(
    ("name", "which"), [("breaker.log", "breaker log"), ("access.log", "access log")], ids=["breaker", "access"]
)
def test_it_cannot_be_another_log(tmp_path: Path, name: str, which: str) -> None:
    """Status 2 with both names."""
    file = tmp_path / name
    with from_file(tmp_path, "[hub]\naccess_log = 'access.log'\n", "--record", str(file)) as running:
        assert running.wait() == 2
        assert f"--record is {file}, which is the {which}; it must be another file" in running.errors


def test_a_file_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    """Status 1; and so is one that another relay writes to."""
    with relay("--record", str(tmp_path)) as running:
        assert running.wait() == 1
        assert running.errors == f"relay: the record {tmp_path} cannot be used: it is a folder; name a file in it\n"
    file = tmp_path / "record.jsonl"
    with relay("--record", str(file), core=NOBODY) as first:
        first.feed(tx(1))
        first.replies(1)
        with relay("--record", str(file)) as second:
            assert second.wait() == 1
            assert "another relay writes to it; give this one another file with --record" in second.errors
        assert first.end() == 0
    assert [json.loads(line)["code"] for line in file.read_text().splitlines()] == ["E902"]
