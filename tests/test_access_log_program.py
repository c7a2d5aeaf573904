"""The access log of a hub that runs as a program: its lines against the replies, signals, disks that fail."""

import os
import signal
import socket
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from relayed import NOBODY, Json, Running, Say, from_file, lines_of, ok, peer, tx
from served import direct, eventually, get
from serving import request
from test_access_log import SHARED, reader_of, records, reply

from eaimw.adapters.access_log import AccessShape
from eaimw.adapters.system import SystemClock
from eaimw.adapters.transaction_log import MAX_LINE, MAX_WAITING, TransactionLog

HUB = "[hub]\naccess_log = '%s'\n"
PATIENT = "[defaults]\nmax_inflight = 4\n[defaults.breaker]\nfail_threshold = 3\nreset_timeout = 0.01\n"


def answers_of_all_kinds(request: Json) -> Say:
    number = int(request["tx_id"].removeprefix("T-"))
    return ok(request, ("0000", "B201", "E500", "0000", "E500", "E500", "E500")[number % 7])


def agree(replies: list[Json], lines: list[Json]) -> None:
    """Each reply has its line and each line its reply."""

    def shared(them: list[Json]) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(each[field] for field in SHARED) for each in them)

    assert shared(replies) == shared(lines)


def test_after_a_storm_the_lines_are_the_replies(tmp_path: Path) -> None:
    """3,000 lines of a pipe at reading speed, of every kind, bad ones among them: one line for each reply."""
    given = []
    for number in range(3_000):
        target = "NOBODY" if number % 50 == 1 else "CORE"
        given.append(b'{"tx_id":7}\n' if number % 50 == 0 else lines_of([tx(number, target, op="PAY")]))
    with (
        peer(answers_of_all_kinds) as core,
        from_file(tmp_path, HUB % "access.log" + PATIENT, core=core.url) as running,
    ):
        running.feed(*given)
        assert running.end() == 0
        replies = running.all_replies()
    lines = records(tmp_path / "access.log")
    assert len(replies) == len(given)
    agree(replies, lines)
    assert {"0000", "E400", "E903", "E905"} <= {line["code"] for line in lines}
    assert all(line["left"] == (line["outcome"] != "not_sent") for line in lines)
    assert all(line["op"] == ("PAY" if line["tx_id"] else None) for line in lines)


def test_served_over_http_the_lines_are_the_replies(tmp_path: Path) -> None:
    """With --listen; an abandoned caller has its line too, and SIGTERM writes what waits."""
    with peer(answers_of_all_kinds) as core:
        options = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        with from_file(tmp_path, HUB % "access.log" + PATIENT, *options, core=core.url) as running:
            running.says("admin on ")
            listening, admin = (line.rpartition(" ")[2] for line in running.errors.splitlines()[:2])
            with direct() as session:
                replies = [session.post(listening + "/tx", json=tx(n), timeout=10).json() for n in range(200)]
                replies.append(session.post(listening + "/tx", data=b"{", timeout=10).json())
            host, port = listening.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port))) as leaving:
                leaving.sendall(request(lines_of([tx(7_000)])))
                eventually(lambda: core.received["T-7000"] or "T-7000" in (tmp_path / "access.log").read_text())
            assert "eaimw_access_log_errors_total 0.0" in get(admin + "/metrics").text
            running.process.send_signal(signal.SIGTERM)
            assert running.wait() == 0
            errors = running.errors
    lines = records(tmp_path / "access.log")
    assert [line["tx_id"] for line in lines].count("T-7000") == 1
    agree(replies, [line for line in lines if line["tx_id"] != "T-7000"])
    assert f"transactions {len(lines)}, replies {len(lines)}, " in errors


def test_sigterm_writes_what_is_in_flight_and_refused(tmp_path: Path) -> None:
    """Nothing that was answered before the end is without its line."""
    with (
        peer(lambda request: ok(request)._replace(after=0.3)) as core,
        from_file(tmp_path, HUB % "access.log", core=core.url) as running,
    ):
        running.feed(*(tx(n) for n in range(30)))
        running.come(20)  # those that found no place
        running.process.send_signal(signal.SIGTERM)
        assert running.wait() == 0
        replies = running.all_replies()
    assert {each["code"] for each in replies} == {"0000", "E905"}
    agree(replies, records(tmp_path / "access.log"))


def test_sighup_makes_both_logs_anew(tmp_path: Path) -> None:
    """After log rotation has moved them; without a transaction."""
    logs = [tmp_path / "access.log", tmp_path / "breaker.log"]
    with peer(ok) as core, from_file(tmp_path, HUB % "access.log", core=core.url) as running:
        running.feed(tx(1))
        running.replies(1)
        eventually(lambda: records(logs[0]))
        for log in logs:
            log.rename(log.with_suffix(".1"))
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: all(log.exists() for log in logs))
        running.feed(tx(2))
        assert running.end() == 0
    assert [line["tx_id"] for log in (logs[0].with_suffix(".1"), logs[0]) for line in records(log)] == ["T-1", "T-2"]


def test_a_second_hub_on_the_same_log_is_refused(tmp_path: Path) -> None:
    """Status 1 and one line, at the start; the first one goes on."""
    (tmp_path / "second").mkdir()
    log = tmp_path / "access.log"
    with peer(ok) as core, from_file(tmp_path, HUB % log, core=core.url) as first:
        first.feed(tx(1))
        first.replies(1)
        with from_file(tmp_path / "second", HUB % log, core=core.url) as second:
            assert second.wait() == 1
            assert second.errors == (
                f"relay: the access log {log} cannot be used: "
                "another relay writes to it; give this one an access_log of its own\n"
            )
        first.feed(tx(2))
        assert first.end() == 0
    assert len(records(log)) == 2


def test_the_breaker_log_of_the_command_line_cannot_be_it(tmp_path: Path) -> None:
    """Status 2: an option that makes one file of both is wrong usage."""
    with from_file(tmp_path, HUB % "breaker.log") as running:
        assert running.wait() == 2
        log = tmp_path / "breaker.log"
        assert f"[hub] access_log is {log}, which is the breaker log; it must be another file" in running.errors


def relayed_with(folder: Path, log: str, count: int, within: float = 60.0, shell: str = "") -> tuple[Running, int]:
    """A run over so many transactions that are refused at once; and the most memory that it took, in KiB."""
    with from_file(folder, HUB % log, core=NOBODY, shell=shell) as running:
        running.feed(lines_of(tx(n, "NOBODY") for n in range(count)))
        running.come(count, within)  # while the log stands still
        memory = running.memory("VmHWM")
        assert running.end() == 0
    assert len(running.lines) == count
    return running, memory


def lost_of(running: Running) -> int:
    """How many lines of the access log it said are lost."""
    said = [line for line in running.errors.splitlines() if line.startswith("access log ")]
    return sum(int(line.split(": ")[1].split()[0].replace(",", "")) for line in said)


def test_relaying_goes_on_when_the_disk_of_the_log_is_full(tmp_path: Path) -> None:
    """/dev/full: every transaction has its reply, and all lines are said to be lost."""
    running, _ = relayed_with(tmp_path, "/dev/full", 2_000)
    assert lost_of(running) == 2_000
    assert "No space left on device" in running.errors


def test_the_losses_are_a_metric(tmp_path: Path) -> None:
    """As they are at that moment, whatever has been said of them."""
    with from_file(tmp_path, HUB % "/dev/full", "--admin", "127.0.0.1:0") as running:
        running.says("admin on ")
        admin = running.errors.split()[-1]
        running.feed(*(tx(n, "NOBODY") for n in range(3)))
        eventually(lambda: "eaimw_access_log_errors_total 3.0" in get(admin + "/metrics").text)
        assert running.end() == 0


def test_a_log_at_its_size_limit_has_whole_lines_only(tmp_path: Path) -> None:
    """The file may grow to 16 KiB: what stands in it is whole, and the rest is said."""
    running, _ = relayed_with(tmp_path, "access.log", 2_000, shell='ulimit -f 16; exec "$@"')
    log = tmp_path / "access.log"
    assert 16_384 - MAX_LINE < log.stat().st_size <= 16_384
    assert log.read_bytes().endswith(b"\n")
    assert len(records(log)) + lost_of(running) == 2_000


def test_a_log_that_stands_still_delays_no_reply_and_memory_stays_bounded(tmp_path: Path) -> None:
    """A pipe that nobody reads, and twice as many transactions as may wait: all answered at once, in flat memory."""
    (tmp_path / "little").mkdir()
    _, little = relayed_with(tmp_path / "little", "access.log", 1_000)
    with closing(os.fdopen(reader_of(tmp_path / "pipe"), "rb")) as unread:
        running, memory = relayed_with(tmp_path, "pipe", 2 * MAX_WAITING)
        held = unread.read()
    assert memory - little < 40 * 1024
    assert max(each["elapsed_ms"] for each in running.all_replies()) < 1_000
    assert held.count(b"\n") + lost_of(running) == 2 * MAX_WAITING


def test_the_machines_clock_is_the_times(tmp_path: Path) -> None:
    """Not before the transaction was sent and not after its line was read."""
    clock = SystemClock()
    log = TransactionLog(tmp_path / "log", AccessShape(clock), clock=clock, say=print)
    before = SystemClock.now().isoformat(timespec="microseconds")
    log.answered(reply(1), None)
    after = SystemClock.now().isoformat(timespec="microseconds")
    log.close()
    assert before <= records(tmp_path / "log")[0]["time"] <= after
