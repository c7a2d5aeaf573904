"""The breaker log: its lines, its file that may be moved, and a disk that fails.

These tests may run as root, whom no folder's rights stop: a folder that cannot be written to is one that has vanished.
"""

import os
import re
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from freezegun import freeze_time
from served import eventually

from eaimw.adapters import breaker_log, log_file
from eaimw.adapters.breaker_log import BreakerLog
from eaimw.adapters.log_file import LogFile
from eaimw.adapters.system import SystemClock
from eaimw.errors import Unusable
from eaimw.kernel.breaker import State

CLOSED, OPEN, HALF_OPEN = State.CLOSED, State.OPEN, State.HALF_OPEN
# One round of a circuit that opens, fails a probe and closes.
ROUND = [(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED)]


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def time(self) -> float:
        return self.now().timestamp()

    def now(self) -> datetime:
        return datetime(2026, 11, 29, 20, 51, 3, tzinfo=UTC) + timedelta(seconds=self.seconds)


class Log:
    """A breaker log under test, its clock, and what it said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self.said: list[str] = []
        self.log = BreakerLog(path, clock=self.clock, say=self.said.append)

    def change(self, target: str = "CORE", before: State = CLOSED, after: State = OPEN) -> None:
        self.log.changed(target, before, after)

    def written(self, count: int = 1, path: Path | None = None) -> list[str]:
        """Wait for so many lines in the file; those that are there."""

        def lines() -> list[str]:
            there = (path or self.path).read_text() if (path or self.path).exists() else ""
            return there.split("\n")[:-1]

        eventually(lambda: len(lines()) >= count)
        return lines()

    def lost(self, count: int) -> None:
        eventually(lambda: self.log.lost == count)


@contextmanager
def opened(path: Path) -> Iterator[Log]:
    log = Log(path)
    try:
        yield log
    finally:
        log.log.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with opened(tmp_path / "breaker.log") as log:
        yield log


def instead_of_write(
    patch: pytest.MonkeyPatch, file: LogFile, write: Callable[[Callable[[int, bytes], int], int, bytes], int]
) -> None:
    """From now on the writes to a log go through `write(real, fd, data)`; those of others do not."""
    real = os.write

    def instead(fd: int, data: bytes) -> int:
        return write(real, fd, data) if fd == file._fd else real(fd, data)

    patch.setattr(os, "write", instead)


# What stands in it


def test_a_line_is_time_target_and_change(log: Log) -> None:
    """The time is UTC with six digits, also where the microseconds are none; the file ends with a line end."""
    log.change()
    log.clock.seconds = 0.123456
    log.change("CLAIM", HALF_OPEN, CLOSED)
    log.clock.seconds = 60.00004
    log.change("CORE", OPEN, HALF_OPEN)
    log.log.close()
    assert log.path.read_text() == (
        "2026-11-29T20:51:03.000000+00:00|CORE|CLOSED->OPEN\n"
        "2026-11-29T20:51:03.123456+00:00|CLAIM|HALF_OPEN->CLOSED\n"
        "2026-11-29T20:52:03.000040+00:00|CORE|OPEN->HALF_OPEN\n"
    )


def test_the_machines_clock_is_written_in_utc(tmp_path: Path) -> None:
    """The offset is +00:00, and the six digits are there at a full second."""
    log = BreakerLog(tmp_path / "log", clock=SystemClock(), say=print)
    with freeze_time("2026-11-29 20:51:03"):
        log.changed("CORE", CLOSED, OPEN)
    log.close()
    assert log.path.read_text() == "2026-11-29T20:51:03.000000+00:00|CORE|CLOSED->OPEN\n"


def test_it_is_there_from_the_start(log: Log) -> None:
    """Before any change the file exists and is empty, and others may read it."""
    assert log.path.read_bytes() == b""
    assert stat.S_IMODE(log.path.stat().st_mode) & 0o444


def test_each_change_is_one_line_in_order(log: Log) -> None:
    """Of each target a line's FROM is the TO of its line before."""
    for _ in range(200):
        for change in ROUND:
            log.change("CORE", *change)
            log.change("CLAIM", *change)
    log.log.close()
    lines = [line.split("|") for line in log.path.read_text().splitlines()]
    for name in ("CORE", "CLAIM"):
        assert [change for _, target, change in lines if target == name] == [f"{a}->{b}" for a, b in ROUND] * 200


def test_a_line_is_one_write(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whoever reads along never sees a part of one."""
    writes: list[bytes] = []

    def keep(real: Callable[[int, bytes], int], fd: int, data: bytes) -> int:
        writes.append(data)
        return real(fd, data)

    instead_of_write(monkeypatch, log.log._file, keep)
    for change in ROUND:
        log.change("CORE", *change)
    log.log.close()
    assert [line.count(b"\n") for line in writes] == [1] * len(ROUND)
    assert all(line.endswith(b"\n") for line in writes)


def test_a_later_run_appends(tmp_path: Path) -> None:
    """What is there stays; a torn last line of somebody else stays as a line of its own."""
    path = tmp_path / "log"
    for _ in range(2):
        with opened(path) as log:
            log.change()
    assert path.read_text() == "2026-11-29T20:51:03.000000+00:00|CORE|CLOSED->OPEN\n" * 2
    path.write_text("2026-11-29T20:5")
    with opened(path) as log:
        log.change()
    assert path.read_text() == "2026-11-29T20:5\n2026-11-29T20:51:03.000000+00:00|CORE|CLOSED->OPEN\n"


# The file moves


def test_moved_away_it_is_made_anew_at_the_next_write(log: Log) -> None:
    """As log rotation does it: the old lines stay in the old file, the next one opens the new one."""
    log.change()
    log.written()
    away = log.path.rename(log.path.with_suffix(".1"))
    log.change("CORE", OPEN, HALF_OPEN)
    assert [line.split("|")[2] for line in log.written()] == ["OPEN->HALF_OPEN"]
    assert [line.split("|")[2] for line in away.read_text().splitlines()] == ["CLOSED->OPEN"]
    assert log.log.lost == 0


def test_deleted_it_is_made_anew(log: Log) -> None:
    """Nothing is written into a file that nobody can find."""
    log.path.unlink()
    log.change()
    assert len(log.written()) == 1


def test_replaced_it_is_followed(log: Log) -> None:
    """Another file in its place is the log from now on; what stands in it stays."""
    log.path.with_suffix(".new").write_text("a line\n")
    log.path.with_suffix(".new").rename(log.path)
    log.change()
    assert log.written(2)[0] == "a line"


def test_emptied_in_place_it_goes_on_at_its_start(log: Log) -> None:
    """As `copytruncate` does it: no hole of zero bytes."""
    log.change()
    log.written()
    os.truncate(log.path, 0)
    log.change()
    assert log.written() == ["2026-11-29T20:51:03.000000+00:00|CORE|CLOSED->OPEN"]


def test_a_device_in_its_place_for_a_while_is_left_again(log: Log) -> None:
    """Replaced by a link to /dev/full the lines are lost; when the link is gone the file is made anew."""
    log.change()
    log.written(1)
    log.path.unlink()
    log.path.symlink_to("/dev/full")
    log.change(before=OPEN, after=HALF_OPEN)
    eventually(lambda: log.log.lost == 1)
    log.path.unlink()
    log.change(before=HALF_OPEN, after=CLOSED)
    assert log.written(1)[0].endswith("|CORE|HALF_OPEN->CLOSED")


def test_reopen_makes_it_anew_without_a_write(log: Log) -> None:
    """As a SIGHUP asks for; where nothing has moved it changes nothing."""
    log.log.reopen()
    log.path.rename(log.path.with_suffix(".1"))
    log.log.reopen()
    eventually(log.path.exists)


def test_a_folder_that_vanished_loses_lines_until_it_is_back(tmp_path: Path) -> None:
    """They are counted and said with the reason; when the folder is there again, the next line is written."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with opened(folder / "log") as log:
        shutil.rmtree(folder)
        log.log.reopen()  # fails too, and takes nothing from what is said later
        log.change()
        log.lost(1)
        eventually(lambda: log.said)
        assert log.said == [f"breaker log {log.path}: 1 line lost: its folder does not exist; make it first"]
        folder.mkdir()
        log.change("CORE", OPEN, HALF_OPEN)
        assert len(log.written()) == 1
        assert log.log.lost == 1


def test_a_file_that_may_not_be_made_loses_lines(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that has become read-only: the moved file cannot be made anew (here os.open says so, for root too)."""
    log.path.rename(log.path.with_suffix(".1"))

    def refuse(path: Path, *more: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    log.change()
    log.lost(1)
    eventually(lambda: log.said)
    monkeypatch.undo()
    assert log.said == [
        f"breaker log {log.path}: 1 line lost: permission denied; choose a file that this user may write"
    ]


# The disk fails


def test_a_full_disk_loses_lines_and_says_so() -> None:
    """/dev/full takes nothing: every line is counted, none holds anybody up."""
    with opened(Path("/dev/full")) as log:
        for _ in range(3):
            log.change()
        log.lost(3)
    assert "".join(log.said).count("No space left on device") == len(log.said)


def test_a_torn_line_is_cut_back(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line that still fitted is taken away again; the next whole one stands after the last whole one."""
    log.change()
    log.written()
    instead_of_write(monkeypatch, log.log._file, lambda real, fd, data: real(fd, data[: len(data) // 2]))
    log.change("CORE", OPEN, HALF_OPEN)
    log.lost(1)
    monkeypatch.undo()
    log.change("CLAIM")
    log.log.close()
    time = "2026-11-29T20:51:03.000000+00:00"
    assert log.path.read_text() == f"{time}|CORE|CLOSED->OPEN\n{time}|CLAIM|CLOSED->OPEN\n"
    assert re.search(r"1 line lost: only \d+ of \d+ bytes", log.said[0])


def test_losses_are_said_once_a_minute() -> None:
    """The first at once, those of the next minute together when it is over, the rest at the end."""
    with opened(Path("/dev/full")) as log:
        log.change()
        eventually(lambda: len(log.said) == 1)
        for count in range(2, 12):
            log.clock.seconds = count * 5.0
            log.change()
            log.lost(count)
        assert len(log.said) == 1
        log.clock.seconds = 60.0
        log.change()
        eventually(lambda: len(log.said) == 2)
        log.change()
        log.lost(13)
        assert len(log.said) == 2
    words = f"breaker log {log.path}: %s lost: No space left on device"
    assert log.said == [words % "1 line", words % "11 lines", words % "1 line"]


def test_losses_are_said_though_nothing_more_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The minute ends by itself: nobody has to lose another line for it."""
    monkeypatch.setattr(log_file, "SAY_EVERY", 0.1)
    said: list[str] = []
    log = BreakerLog(Path("/dev/full"), clock=SystemClock(), say=said.append)
    try:
        for _ in range(5):
            log.changed("CORE", CLOSED, OPEN)
        eventually(lambda: sum(int(line.split(": ")[1].split()[0]) for line in said) == 5)
    finally:
        log.close()


class HungDisk:
    """From its making on no write of the log returns, until `ends`."""

    def __init__(self, file: LogFile, patch: pytest.MonkeyPatch) -> None:
        self.is_met = threading.Event()
        self._ended = threading.Event()
        instead_of_write(patch, file, self._write)

    def ends(self) -> None:
        self._ended.set()

    def _write(self, real: Callable[[int, bytes], int], fd: int, data: bytes) -> int:
        self.is_met.set()
        assert self._ended.wait(60)
        return real(fd, data)


def test_more_changes_than_may_wait_are_counted_and_said(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk hangs the queue fills; what does not fit is lost at once, which is said though the disk hangs."""
    log.log._waiting.maxsize = 10
    disk = HungDisk(log.log._file, monkeypatch)
    log.change()
    assert disk.is_met.wait(5)
    for _ in range(15):
        log.change()
    assert log.log.lost == 5
    eventually(lambda: log.said)
    assert "lost: they came faster than the disk took them" in log.said[0]
    disk.ends()
    assert len(log.written(11)) == 11


@pytest.mark.parametrize("waiting", [0, 3, 10])
def test_the_end_is_bounded_though_the_disk_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    """`close` returns within its limit and says what is lost; its thread ends when the disk comes back."""
    monkeypatch.setattr(breaker_log, "CLOSE_LIMIT", 0.1)
    monkeypatch.setattr(breaker_log, "MAX_WAITING", 10)
    log = Log(tmp_path / "log")
    disk = HungDisk(log.log._file, monkeypatch)
    log.change()
    assert disk.is_met.wait(5)
    for _ in range(waiting):
        log.change()
    closing = threading.Thread(target=log.log.close)
    closing.start()
    closing.join(5)
    try:
        assert not closing.is_alive()
        lines = "1 line" if waiting == 0 else f"{waiting + 1} lines"
        assert log.said == [f"breaker log {log.path}: {lines} lost: the disk did not take them in time"]
        assert log.log.lost == waiting + 1
    finally:
        disk.ends()
    log.log._thread.join(5)
    assert not log.log._thread.is_alive()


# What cannot be the log


def pipe_without_reader(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: folder, "it is a folder; name a file in it"),
        (lambda folder: folder / "no" / "log", "its folder does not exist; make it first"),
        (pipe_without_reader, "it is a socket, or a pipe that nobody reads; start its reader first, or name a file"),
        (lambda folder: Path("/dev/null/log"), "Not a directory"),
    ],
    ids=["a folder", "no folder", "a pipe without a reader", "a file as a folder"],
)
def test_what_cannot_be_opened_is_said_at_the_start(tmp_path: Path, make: Callable[[Path], Path], why: str) -> None:
    """At once, with the path and what to do; nothing is left open."""
    path = make(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Unusable) as caught:
        Log(path)
    assert str(caught.value) == f"the breaker log {path} cannot be used: {why}"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_second_log_on_the_same_file_is_refused(log: Log) -> None:
    """Two relays would break each other's chain of states; when the first has ended the file is free."""
    with pytest.raises(Unusable, match=r"another relay writes to it; give this one a --breaker-log of its own"):
        Log(log.path)
    log.log.close()
    with opened(log.path):
        pass


def test_a_pipe_with_a_reader_gets_the_lines(tmp_path: Path) -> None:
    """A collector may stand behind it; when it goes away the lines are lost, and nothing else happens."""
    path = pipe_without_reader(tmp_path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with opened(path) as log:
        log.change()
        log.log._waiting.put(True)
        eventually(lambda: log.log._waiting.empty())
        os.set_blocking(reader, True)
        assert os.read(reader, 1000) == b"2026-11-29T20:51:03.000000+00:00|CORE|CLOSED->OPEN\n"
        os.close(reader)
        log.change()
        log.lost(1)


def test_nothing_is_left_after_the_end(tmp_path: Path) -> None:
    """No thread, no descriptor, no lock."""
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with opened(tmp_path / "log") as log:
            log.change()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)
