"""The relay as a program: what it reads and writes, how it ends, and where it is run without its environment."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from relayed import ENDS_WITHIN, NOBODY, PROGRAM, Json, Peer, Say, http, lines_of, ok, peer, relay, relayed, tx
from served import ROOT, eventually

LIMIT = 1_048_576
# For the long runs: coverage, which measures the programs that tests start too, would double their time.
UNMEASURED = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
MIB = 1024  # in KiB, as the system tells memory


@pytest.fixture(scope="module")
def well() -> Iterator[Peer]:
    """A target that is well, and quick."""
    with peer() as well:
        yield well


@contextlib.contextmanager
def unread_pipe() -> Iterator[tuple[int, int]]:
    """Its ends, for an output that is read when the test wants it. The writing end is to be closed by the test."""
    source, sink = os.pipe()
    try:
        yield source, sink
    finally:
        os.close(source)


def padded(size: int) -> bytes:
    """A good transaction of exactly so many bytes."""
    empty = json.dumps(tx(size, x=""))
    return json.dumps(tx(size, x="x" * (size - len(empty)))).encode()


# What it reads


BAD_LINES = {
    "no JSON": b"x",
    "NUL bytes": b"\x00\x00",
    "no UTF-8 in a string": b'{"tx_id": "T-1", "target": "CORE", "x": "\xff"}',
    "a field twice": b'{"tx_id": "T-1", "tx_id": "T-1", "target": "CORE"}',
    "a field twice, once escaped": b'{"tx_id": "T-1", "target": "CORE", "t\\u0061rget": "CORE"}',
    "NaN": b'{"tx_id": "T-1", "target": "CORE", "amount": NaN}',
    "a lone surrogate": b'{"tx_id": "T-1", "target": "CORE", "x": "\\ud800"}',
    "too deep": b'{"tx_id": "T-1", "target": "CORE", "x": ' + b"[" * 100 + b"]" * 100 + b"}",
    "far too deep": b"[" * 500_000,
    "null": b'{"tx_id": null, "target": "CORE"}',
    "neither target nor op": b'{"tx_id": "T-1"}',
    "an array": b"[]",
    "a mark on a later line": b'\xef\xbb\xbf{"tx_id": "T-1", "target": "CORE"}',
    "one byte too long": padded(LIMIT + 1),
}


def test_each_bad_line_gets_e400_with_its_number_and_the_next_is_served(well: Peer) -> None:
    """Bad and good lines in turn: every one has its reply, and no byte of a bad one reaches the target."""
    well.received.clear()
    lines = [line for n, bad in enumerate(BAD_LINES.values()) for line in (bad, json.dumps(tx(f"good-{n}")).encode())]
    done = relayed(b"\n".join(lines), "--max-inflight", "100", core=well.url)
    assert done.status == 0
    bad = [reply for reply in done.replies if reply["code"] == "E400"]
    numbers = [int(reply["message"].removeprefix("line ").split(":")[0]) for reply in bad]
    assert numbers == list(range(1, 2 * len(BAD_LINES), 2))
    assert {reply["outcome"] for reply in bad} == {"not_sent"}
    good = {f"T-good-{n}" for n in range(len(BAD_LINES))}
    assert {reply["tx_id"] for reply in done.replies if reply["code"] == "0000"} == good
    assert set(well.received) == good


def test_line_ends_marks_and_the_longest_line_are_taken(well: Peer) -> None:
    """A byte order mark at the very start, CRLF, 1,048,576 bytes, separators of Unicode, no end of the last line."""
    unicode = '{"tx_id": "T-u", "target": "CORE", "x": "\u2028\u2029\x85"}'.encode()
    raw = b"\xef\xbb\xbf" + b"\r\n\n".join([*lines_of([tx(1)]).splitlines(), padded(LIMIT), unicode])
    done = relayed(raw, core=well.url)
    assert sorted((reply["tx_id"], reply["code"]) for reply in done.replies) == [
        ("T-1", "0000"),
        (f"T-{LIMIT}", "0000"),
        ("T-u", "0000"),
    ]


def test_a_line_of_200_mb_is_refused_with_memory_bounded(well: Peer) -> None:
    """E400 comes before the line has ended; memory grows by a few MiB; the next line is served."""
    chunk = b"x" * 10_000_000
    with relay(core=well.url) as running:
        running.feed(tx(1))
        running.replies(1)
        before = running.memory()
        running.feed(b'{"tx_id": "T-2", "target": "CORE", "x": "', chunk)
        assert running.replies(2)[1]["message"].startswith("line 2: the transaction is longer than 1,048,576 bytes")
        for _ in range(19):
            running.feed(chunk)
        running.feed(b'"}\n', tx(3))
        assert running.replies(3)[2]["tx_id"] == "T-3"
        assert running.memory("VmHWM") < before + 16 * MIB
        assert running.end() == 0


def test_100_000_lines_of_a_file_are_answered_in_flat_memory(well: Peer, tmp_path: Path) -> None:
    """Both targets are well: no refusal, one reply for each, and no more memory at the end than after a fifth."""
    count = 100_000
    file = tmp_path / "input"
    file.write_bytes(lines_of(tx(n, "CORE" if n % 2 else "CLAIM") for n in range(count)))
    with relay(str(file), core=well.url, claim=well.url, env=UNMEASURED) as running:
        memory: list[int] = []
        for at in (count // 5, count * 95 // 100):
            running.come(at, within=90)
            memory.append(running.memory())
        assert running.wait(60) == 0
    assert len(running.lines) == count
    assert all(b'"code":"0000"' in line for line in running.lines)
    assert len({line.split(b'"')[3] for line in running.lines}) == count
    assert memory[1] < memory[0] + 8 * MIB


def test_a_million_blank_lines_are_counted_in_flat_memory(tmp_path: Path) -> None:
    """They are no transactions, but the line after them has its number."""
    file = tmp_path / "input"
    file.write_bytes(b"\n" * 1_000_000 + b"x")
    with relay(str(file)) as running:
        assert running.replies(1)[0]["message"].startswith("line 1000001: ")
        assert running.wait() == 0
    assert "transactions 1, replies 1" in running.errors


def test_a_million_bad_lines_are_answered_in_flat_memory(tmp_path: Path) -> None:
    """Each its E400, and no more memory for a million than for a tenth."""
    count = 1_000_000
    file = tmp_path / "input"
    file.write_bytes(b"x\n" * count)
    with unread_pipe() as (source, sink), relay(str(file), stdout=sink, env=UNMEASURED) as running:
        os.close(sink)
        memory: list[int] = []
        seen, last = 0, b""
        while chunk := os.read(source, 1_000_000):
            seen += chunk.count(b"\n")
            last = (last + chunk)[-1000:]
            if seen >= (count // 10 if not memory else count * 9 // 10) and len(memory) < 2:
                memory.append(running.memory())
        assert running.wait() == 0
    assert seen == count
    assert b'"message":"line 1000000: ' in last
    assert memory[1] < memory[0] + 8 * MIB


# Back-pressure


@pytest.mark.parametrize("options", [["-"], ["--no-backpressure", "FILE"]])
def test_lines_of_a_pipe_that_find_no_place_are_refused_at_once(options: list[str], tmp_path: Path) -> None:
    """Two places are taken by calls that hang: E905 for every further line, without any wait."""
    lines = lines_of(tx(n) for n in range(50))
    (tmp_path / "FILE").write_bytes(lines)
    with (
        peer(lambda _: None) as hung,
        relay(*options, "--max-inflight", "2", "--timeout", "60", core=hung.url, cwd=tmp_path) as running,
    ):
        if options == ["-"]:
            running.feed(lines)
        replies = running.replies(48)
        assert {reply["code"] for reply in replies} == {"E905"}
        assert eventually(lambda: sum(hung.received.values()) == 2)


@pytest.mark.parametrize("options", [["--backpressure", "-"], ["FILE"]])
def test_lines_of_a_file_wait_for_room_instead(options: list[str], tmp_path: Path) -> None:
    """Far more lines than places: the target never has more than two of them, and none is refused."""
    lines = lines_of(tx(n) for n in range(300))
    (tmp_path / "FILE").write_bytes(lines)
    with (
        peer(lambda request: ok(request)._replace(after=0.002)) as slow,
        relay(*options, "--max-inflight", "2", core=slow.url, cwd=tmp_path) as running,
    ):
        if options[-1] == "-":
            running.feed(lines)
        running.close_input()
        assert running.wait() == 0
        assert [reply["code"] for reply in running.all_replies()] == ["0000"] * 300
        assert len(slow.received) == 300
        assert slow.connected_most <= 2


def test_lines_of_a_hung_core_do_not_stop_those_of_claim(well: Peer, tmp_path: Path) -> None:
    """In one file, in turns, more of CORE's than it has places: CLAIM's are all answered while CORE's hang."""
    (tmp_path / "input").write_bytes(lines_of(tx(n, "CLAIM" if n % 2 else "CORE") for n in range(2_000)))
    with (
        peer(lambda _: None) as hung,
        relay(str(tmp_path / "input"), "--timeout", "60", core=hung.url, claim=well.url) as running,
    ):
        replies = running.replies(1_000)
        assert {(reply["target"], reply["code"]) for reply in replies} == {("CLAIM", "0000")}
        assert sum(hung.received.values()) == 10


# What it writes


def test_standard_output_carries_replies_alone(well: Peer) -> None:
    """A line of JSON for each, whatever happens; the summary by target and code is on standard error."""
    lines = [tx(1), tx(2, "CLAIM"), tx(3, "NOBODY"), {"tx_id": 4}]
    done = relayed(lines, core=well.url)
    assert sorted(reply["code"] for reply in done.replies) == ["0000", "E400", "E902", "E903"]
    assert done.errors.splitlines()[:3] == ["CORE   0000 1", "CLAIM  E902 1", "-      E400 1  E903 1"]
    assert done.errors.splitlines()[3].startswith("transactions 4, replies 4, ")


def test_each_reply_is_written_as_soon_as_it_is_known(well: Peer) -> None:
    """The input stays open, and the reply is there all the same."""
    with relay(core=well.url) as running:
        for n in range(3):
            running.feed(tx(n))
            assert running.replies(n + 1)[n]["tx_id"] == f"T-{n}"
        assert running.end() == 0


def test_a_reader_that_goes_away_ends_the_run_with_a_word(well: Peer) -> None:
    """As with `| head -1`: the input is still open, and the run ends, status 1, with one line that says why."""
    with unread_pipe() as (source, sink), relay(core=well.url, stdout=sink) as running:
        os.close(sink)
        running.feed(tx(1))
        assert json.loads(os.read(source, 10_000))["tx_id"] == "T-1"
        os.dup2(os.open(os.devnull, os.O_RDONLY), source)  # closes the pipe, and the number stays ours
        running.feed(tx(2))
        assert running.wait() == 1
    words = "relay: standard output cannot be written: Broken pipe; 1 replies could not be delivered"
    assert running.errors.splitlines()[-1] == words


def test_head_takes_the_first_reply(well: Peer, tmp_path: Path) -> None:
    """In a shell, over a file of many lines: head has its line, the relay ends with status 1, no traceback."""
    (tmp_path / "input").write_bytes(lines_of(tx(n, x="x" * 100) for n in range(20_000)))
    shell = '"$@" | head -1; exit ${PIPESTATUS[0]}'
    with relay(str(tmp_path / "input"), core=well.url, shell=shell, start_new_session=True) as running:
        assert running.wait() == 1
    assert len(running.lines) == 1
    assert "standard output cannot be written: Broken pipe" in running.errors
    assert "Traceback" not in running.errors


def test_a_full_disk_for_the_replies_ends_the_run_with_a_word(well: Peer) -> None:
    """/dev/full as standard output: status 1, the reason, and how many replies it was."""
    with open("/dev/full", "wb") as full:
        done = relayed([tx(1)], core=well.url, stdout=full)
    assert done.status == 1
    words = "relay: standard output cannot be written: No space left on device; 1 replies could not be delivered"
    assert done.errors.splitlines()[-1] == words


@pytest.mark.parametrize(
    ("closed", "words"),
    [
        (">&-", "relay: standard output is closed; the replies go there: send them to a file or a pipe"),
        ("<&-", "relay: standard input is closed; name a file, or pipe transactions into it"),
        ("<&- >&-", "relay: standard output is closed; the replies go there: send them to a file or a pipe"),
    ],
)
def test_a_stream_that_is_closed_at_the_start_is_said(closed: str, words: str) -> None:
    """One line, status 1, and no file that was opened later takes the stream's place."""
    done = relayed([tx(1)], shell=f'exec "$@" {closed}')
    assert (done.status, done.errors, done.replies, done.log) == (1, words + "\n", [], "")


def test_without_standard_error_it_relays(well: Peer) -> None:
    """What would be said goes nowhere, not into the breaker log that was opened meanwhile."""
    done = relayed([tx(1), tx(2, "CLAIM")], "--fail-threshold", "1", core=well.url, shell='exec "$@" 2>&-')
    assert (done.status, sorted(reply["code"] for reply in done.replies)) == (0, ["0000", "E902"])
    assert [line.split("|")[1:] for line in done.log.splitlines()] == [["CLAIM", "CLOSED->OPEN"]]


def test_a_slow_reader_of_the_replies_costs_no_memory_and_no_reply(well: Peer, tmp_path: Path) -> None:
    """Nobody reads for a while: the relay stops taking lines. Then all replies come, once each."""
    count = 40_000
    well.received.clear()
    (tmp_path / "input").write_bytes(lines_of(tx(n) for n in range(count)))
    options = [str(tmp_path / "input"), "--max-inflight", "50"]
    with unread_pipe() as (source, sink), relay(*options, core=well.url, stdout=sink) as running:
        os.close(sink)
        eventually(lambda: len(well.received) > 10_000, within=60)
        stood_at: list[int] = []

        def stands() -> bool:
            stood_at.append(len(well.received))
            return len(stood_at) > 100 and stood_at[-100] == stood_at[-1]

        eventually(stands, within=60)
        assert len(well.received) < count
        assert running.memory("VmHWM") < 100 * MIB
        with open(source, "rb", closefd=False) as replies:
            ids = [json.loads(line)["tx_id"] for line in replies]
        assert running.wait() == 0
    assert len(ids) == count
    assert len(set(ids)) == count


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, str]]:
    """A terminal: the descriptor of who sits at it, and its name."""
    master, slave = os.openpty()
    try:
        yield master, os.ttyname(slave)
    finally:
        os.close(slave)
        os.close(master)


def test_a_terminal_gets_a_bar_and_the_replies_stay_alone(well: Peer, tmp_path: Path) -> None:
    """Progress is drawn on standard error, up to 100 %; standard output has the replies."""
    (tmp_path / "input").write_bytes(lines_of(tx(n) for n in range(20)))
    with terminal() as (user, name):
        done = relayed([], str(tmp_path / "input"), core=well.url, shell=f'exec "$@" 2>{name}')
        drawn = os.read(user, 100_000)
    assert (done.status, len(done.replies)) == (0, 20)
    assert b"20 replies" in drawn
    assert b"100%" in drawn
    assert b"transactions 20, replies 20" in drawn


def test_a_terminal_as_input_is_told_so_and_its_lines_are_answered_at_once(well: Peer) -> None:
    """Who starts it without an input knows what it waits for; each line is answered, and Ctrl-D ends it."""
    with terminal() as (user, name), relay(core=well.url, shell=f'exec "$@" <{name}') as running:
        running.says("reading transactions from the terminal, one JSON object per line; Ctrl-D ends")
        os.write(user, lines_of([tx(1)]))
        assert running.replies(1)[0]["code"] == "0000"
        os.write(user, b"\x04")
        assert running.wait() == 0


# What it cannot use


def test_an_input_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    """Missing, a folder, behind a file, failing as it is read: status 1 and one line. (Root may read everything.)"""
    (tmp_path / "file").write_bytes(b"")
    for name, words in {
        "no": "the input no cannot be read: No such file or directory; name a file of JSON lines",
        ".": "the input . is a folder; name a file of JSON lines",
        "file/no": "the input file/no cannot be read: Not a directory; name a file of JSON lines",
        "": "the input  cannot be read: No such file or directory; name a file of JSON lines",
    }.items():
        done = relayed([], name, cwd=tmp_path)
        assert (done.status, done.errors, done.replies) == (1, f"relay: {words}\n", [])
    done = relayed([], "/proc/self/mem")
    assert (done.status, done.errors.splitlines()[-1]) == (1, "relay: the input cannot be read: Input/output error")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_an_input_without_the_right_to_read_it_is_said(tmp_path: Path) -> None:
    """Status 1 and one line."""
    file = tmp_path / "input"
    file.touch(0o000)
    done = relayed([], str(file))
    assert (done.status, done.errors.count("\n")) == (1, 1)
    assert "Permission denied" in done.errors


def refused_options() -> Iterator[tuple[str, str, str]]:
    """Option, value, and what the message must say is allowed."""
    for value in ("0", "-1", "2.0", "nan", "x", "", "1e3"):
        yield "--fail-threshold", value, "integer"
    for value in ("-1", "nan", "inf", "-inf", "x", "", "-0.001"):
        yield "--reset-timeout", value, "0 or more" if value not in ("x", "") else "valid float"
    for value in ("0", "-1", "100001", "2.0", "inf", "x", ""):
        yield "--max-inflight", value, "integer"
    for value in ("0", "-1", "3601", "nan", "inf", "x", ""):
        yield "--timeout", value, "at most 3,600" if value not in ("x", "") else "valid float"
    for option in ("--core-url", "--claim-url"):
        for value in (
            "",
            "x",
            "127.0.0.1:9201",
            "ftp://a/",
            "http://",
            "http://a:99999/",
            "http://a:0/",
            "http://u@a/",
        ):
            yield option, value, "http://"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """breaker/relay.py, imported by its path."""
    spec = importlib.util.spec_from_file_location("the_relay_program", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("option", "value", "allowed"), list(refused_options()))
def test_a_wrong_option_is_status_2_and_names_itself(
    program: ModuleType, capfd: pytest.CaptureFixture[str], tmp_path: Path, option: str, value: str, allowed: str
) -> None:
    """The option, what was found and what is allowed, in one line after the usage; nothing is read or made."""
    log = tmp_path / "log"
    with pytest.raises(SystemExit) as ended:
        program.main(["--breaker-log", str(log), option, value, str(tmp_path / "no-input")])
    out, errors = capfd.readouterr()
    assert (ended.value.code, out) == (2, "")
    message = errors.splitlines()[-1]
    assert option in message
    assert value in message
    assert allowed in message
    assert not log.exists()


@pytest.mark.parametrize("arguments", [["--no-such"], ["a", "b"], ["--timeout"]])
def test_wrong_usage_is_status_2(arguments: list[str]) -> None:
    """An unknown option, two inputs, an option without its value."""
    done = relayed([], *arguments)
    assert (done.status, done.replies) == (2, [])
    assert "Traceback" not in done.errors


def test_bounds_themselves_are_allowed(well: Peer) -> None:
    """The largest and the smallest value of each option."""
    for options in (
        ["--fail-threshold", "1", "--reset-timeout", "0", "--max-inflight", "1", "--timeout", "3600"],
        ["--fail-threshold", str(10**12), "--reset-timeout", "1e9", "--max-inflight", "100000", "--timeout", "5.5"],
    ):
        done = relayed([tx(1)], *options, core=well.url.removesuffix("/tx"))
        assert [reply["code"] for reply in done.replies] == ["0000"]


# How it ends


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_with_20_calls_in_flight_answers_them_and_refuses_the_parked(
    number: signal.Signals, tmp_path: Path
) -> None:
    """The 20 get their answers, what was read and not sent gets E911 at once, status 0."""
    (tmp_path / "input").write_bytes(lines_of(tx(n) for n in range(50)))
    with (
        peer(lambda request: ok(request)._replace(after=1.0)) as slow,
        relay(str(tmp_path / "input"), "--max-inflight", "20", core=slow.url) as running,
    ):
        eventually(lambda: len(slow.received) == 20, within=20)
        running.process.send_signal(number)
        running.says(f"relay: {number.name}: taking nothing new")
        assert running.wait() == 0
        replies = running.all_replies()
        assert [reply["code"] for reply in replies] == ["E911"] * 30 + ["0000"] * 20
        assert {reply["tx_id"] for reply in replies} == {f"T-{n}" for n in range(50)}
        assert {reply["outcome"] for reply in replies[:30]} == {"not_sent"}
        assert set(slow.received) == {reply["tx_id"] for reply in replies[30:]}


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(first: signal.Signals, second: signal.Signals) -> None:
    """A call hangs and nobody wants to wait: the program ends by the signal, as a shell expects it."""
    with peer(lambda _: None) as hung, relay("--timeout", "3600", core=hung.url) as running:
        running.feed(tx(1))
        eventually(lambda: hung.received, within=20)
        running.process.send_signal(first)
        running.says("once more ends it at once")
        running.process.send_signal(second)
        assert running.wait() == -second
    assert "Traceback" not in running.errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_waits_for_input_ends_it(well: Peer, number: signal.Signals) -> None:
    """The pipe is open and nothing is in flight: it ends by itself, status 0."""
    with relay(core=well.url) as running:
        running.feed(tx(1), b'{"tx_id": "T-2"')
        running.replies(1)
        running.process.send_signal(number)
        assert running.wait(10) == 0
    assert len(running.lines) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("library", ["msgspec", "httptools", "uvloop"])
def test_a_signal_during_the_start_gives_no_traceback(number: signal.Signals, library: str) -> None:
    """It comes just when a library is loaded: the program ends by the signal, or in good order if it was so far."""
    with relay() as running:
        maps = Path(f"/proc/{running.process.pid}/maps")
        eventually(lambda: f"/{library}/" in maps.read_text() or running.process.poll() is not None, within=20)
        running.process.send_signal(number)
        assert running.wait() in (0, -number)
    assert "Traceback" not in running.errors
    assert "KeyboardInterrupt" not in running.errors
    assert running.lines == []


def test_whenever_it_is_ended_each_transaction_read_has_one_reply(well: Peer, tmp_path: Path) -> None:
    """In the middle of a file: the replies are those of its first lines, as many as it says it has read, once each."""
    (tmp_path / "input").write_bytes(lines_of(tx(n, "CORE" if n % 3 else "CLAIM") for n in range(60_000)))
    for count in (1, 500, 5_000):
        with relay(str(tmp_path / "input"), core=well.url, claim=well.url) as running:
            running.replies(count)
            running.process.send_signal(signal.SIGTERM)
            assert running.wait() == 0
        numbers = sorted(int(reply["tx_id"].removeprefix("T-")) for reply in running.all_replies())
        assert numbers == list(range(len(numbers)))
        assert f"\ntransactions {len(numbers):,}, replies {len(numbers):,}, " in running.errors
        assert count <= len(numbers) < 60_000


def test_sighup_makes_the_log_anew_and_relaying_goes_on(well: Peer) -> None:
    """After log rotation has moved it; without a change of state."""
    with relay(core=well.url) as running:
        running.feed(tx(1))
        running.replies(1)
        running.log.rename(running.log.with_suffix(".1"))
        running.process.send_signal(signal.SIGHUP)
        eventually(running.log.exists)
        running.feed(tx(2))
        assert running.end() == 0
    assert len(running.lines) == 2


# The breaker log


def chain_of(log: str, target: str) -> list[str]:
    return [line.split("|")[2] for line in log.splitlines() if line.split("|")[1] == target]


def test_the_log_follows_each_circuit_from_state_to_state() -> None:
    """Each FROM is the TO before it, for both targets, while the answers come in any order."""

    def flapping(request: Json) -> Say:
        return ok(request, "E500" if int(request["tx_id"].removeprefix("T-")) % 3 else "0000")

    lines = [tx(n, "CORE" if n % 2 else "CLAIM") for n in range(2_000)]
    options = ["--fail-threshold", "2", "--reset-timeout", "0", "--max-inflight", "3", "--backpressure"]
    with peer(flapping) as core:
        done = relayed(lines, *options, core=core.url, claim=core.url)
    assert (done.status, len(done.replies)) == (0, 2_000)
    for name in ("CORE", "CLAIM"):
        chain = chain_of(done.log, name)
        assert len(chain) > 20
        assert chain[0].startswith("CLOSED->")
        assert all(before.split("->")[1] == after.split("->")[0] for before, after in pairwise(chain))


def test_a_second_relay_on_the_same_log_is_refused(well: Peer) -> None:
    """Status 1 and one line, at the start; the first one goes on."""
    with relay(core=well.url) as first:
        first.feed(tx(1))
        first.replies(1)
        second = relayed([tx(1)], "--breaker-log", str(first.log))
        assert (second.status, second.replies) == (1, [])
        assert second.errors == (
            f"relay: the breaker log {first.log} cannot be used: "
            "another relay writes to it; give this one a --breaker-log of its own\n"
        )
        first.feed(tx(2))
        assert first.end() == 0


def test_a_log_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    """Status 1 and one line."""
    done = relayed([tx(1)], "--breaker-log", str(tmp_path))
    assert (done.status, done.replies) == (1, [])
    words = f"relay: the breaker log {tmp_path} cannot be used: it is a folder; name a file in it\n"
    assert done.errors == words


def test_relaying_goes_on_when_the_disk_of_the_log_is_full() -> None:
    """/dev/full: every transaction has its reply, status 0, and the loss is said."""
    done = relayed([tx(1), tx(2), tx(3)], "--fail-threshold", "1", "--breaker-log", "/dev/full")
    assert (done.status, len(done.replies)) == (0, 3)
    assert "breaker log /dev/full: 1 line lost: No space left on device" in done.errors


def test_a_log_at_its_size_limit_has_whole_lines_only(well: Peer) -> None:
    """The file may grow to 1 KiB: what does not fit whole is cut back and said; relaying goes on."""
    lines = [tx(n) for n in range(30)]
    options = ["--fail-threshold", "1", "--reset-timeout", "0", "--max-inflight", "1", "--backpressure"]
    with peer(lambda request: ok(request, "E500")) as core:
        done = relayed(lines, *options, core=core.url, shell='ulimit -f 1; exec "$@"')
    assert (done.status, len(done.replies)) == (0, 30)
    assert done.log.endswith("->OPEN\n") or done.log.endswith("->HALF_OPEN\n")
    assert 900 < len(done.log) <= 1024
    assert " lost: " in done.errors


def test_relaying_goes_on_when_the_folder_of_the_log_has_vanished(tmp_path: Path) -> None:
    """The changes are lost and said, the replies are not."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with relay("--fail-threshold", "1", "--breaker-log", str(folder / "log")) as running:
        eventually((folder / "log").exists, within=20)
        shutil.rmtree(folder)
        running.feed(tx(1))
        running.replies(1)
        running.says("1 line lost: its folder does not exist")
        assert running.end() == 0


# What targets do


@pytest.mark.parametrize("pause", [0.0, 0.001, 0.005])
def test_a_target_that_closes_its_kept_alive_connection_after_each_answer(pause: float) -> None:
    """1,000 in a row: each executed at most once, none without a reply, `unknown` only where bytes had left."""
    count = 1_000
    with peer(lambda request: ok(request)._replace(closes_after=pause)) as core:
        options = ["--max-inflight", "1", "--backpressure", "--fail-threshold", str(count)]
        done = relayed([tx(n) for n in range(count)], *options, core=core.url)
        assert (done.status, len({reply["tx_id"] for reply in done.replies})) == (0, count)
        assert set(core.received.values()) == {1}
        for reply in done.replies:
            times = core.received[reply["tx_id"]]
            if reply["code"] == "0000":
                assert (reply["outcome"], times) == ("done", 1)
            else:
                assert reply["code"] == "E902"
                assert reply["outcome"] == "unknown" or times == 0


NO_REPLIES = {
    "an HTML page with 200": http(b"<html>sorry</html>", content_type="text/html"),
    "an HTML page with 502": http(b"<html>sorry</html>", "502 Bad Gateway", "text/html"),
    "an empty body": http(b""),
    "204": Say(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "chunks without the last one": Say(
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n{"code": "0000" }\r\n', closes_after=0.0
    ),
    "a cut reply without length": Say(b'HTTP/1.1 200 OK\r\n\r\n{"code": "0000"', closes_after=0.0),
    "a reset in the middle": Say(
        b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"code": "0000"', closes_after=0.01, resets=True
    ),
    "a length of 1 GiB": Say(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n", again=b" " * 65_536),
    "chunks without end": Say(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", again=b"10000\r\n" + b" " * 65_536 + b"\r\n"
    ),
    "a head without end": Say(b"HTTP/1.1 200 OK\r\n", again=b"X-More: " + b"x" * 5_000 + b"\r\n"),
}


def test_pages_empty_cut_and_endless_replies_are_e500_and_the_next_is_served() -> None:
    """`unknown` for each, memory stays bounded, and the transaction after it gets its answer."""
    kinds = list(NO_REPLIES.values())

    def respond(request: Json) -> Say:
        number = int(request["tx_id"].removeprefix("T-"))
        return ok(request) if number % 2 else kinds[number // 2]

    with peer(respond) as core, relay(core=core.url) as running:
        for number in range(2 * len(kinds)):
            running.feed(tx(number))
            reply = running.replies(number + 1)[number]
            expected = ("0000", "done") if number % 2 else ("E500", "unknown")
            assert (reply["code"], reply["outcome"]) == expected, list(NO_REPLIES)[number // 2]
        assert running.memory("VmHWM") < 80 * MIB
        assert running.end() == 0
        assert set(core.received.values()) == {1}


def test_one_place_and_a_target_just_within_its_timeout_refuses_the_other_99_at_once() -> None:
    """100 at once: 99 are E905 before the one answer; the circuit stays closed."""
    with peer(lambda request: ok(request)._replace(after=0.9)) as core:
        done = relayed([tx(n) for n in range(100)], "--max-inflight", "1", "--timeout", "1", core=core.url)
    assert [reply["code"] for reply in done.replies] == ["E905"] * 99 + ["0000"]
    assert {reply["outcome"] for reply in done.replies[:99]} == {"not_sent"}
    assert done.log == ""


def test_nothing_is_resent_when_the_target_answers_502_503_504_or_resets() -> None:
    """Default settings: the target has received each exactly once, and the caller is told `unknown`."""
    page = b"<html>sorry</html>"
    kinds = {
        "E500": [http(page, status, "text/html") for status in ("502 Bad Gateway", "503 Busy", "504 Timeout")],
        "E902": [Say(b"", closes_after=0.0, resets=True), Say(b"", closes_after=0.0)],
    }
    said = [(code, say) for code, says in kinds.items() for say in says]
    with peer(lambda request: said[int(request["tx_id"].removeprefix("T-"))][1]) as core:
        done = relayed([tx(n) for n in range(len(said))], "--fail-threshold", "100", core=core.url)
    assert sorted((reply["tx_id"], reply["code"], reply["outcome"], reply["attempts"]) for reply in done.replies) == [
        (f"T-{n}", code, "unknown", 1) for n, (code, _) in enumerate(said)
    ]
    assert [core.received[f"T-{n}"] for n in range(len(said))] == [1] * len(said)


# Run as a file, imported, without its environment


def test_importing_it_runs_nothing(program: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    """It has `main`, and has neither read nor written nor made a log."""
    assert callable(program.main)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("in_thread", [False, True])
def test_main_works_from_python(
    program: ModuleType, capfd: pytest.CaptureFixture[str], well: Peer, tmp_path: Path, in_thread: bool
) -> None:
    """In the main thread and in another: replies on standard output, SystemExit 0, and signals are as before."""
    (tmp_path / "input").write_bytes(lines_of([tx(1)]))
    arguments = ["--core-url", well.url, "--breaker-log", str(tmp_path / "log"), str(tmp_path / "input")]
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    ended: list[object] = []

    def run() -> None:
        try:
            program.main(arguments)
        except SystemExit as end:
            ended.append(end.code)

    if in_thread:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        run()
    assert ended == [0]
    assert json.loads(capfd.readouterr().out)["code"] == "0000"
    assert [signal.getsignal(number) for number in numbers] == before


def copy_of_the_checkout(folder: Path) -> Path:
    """What a fresh clone has, as far as the relay needs it; its program."""
    for name in ("breaker", "eaimw", "scripts"):
        shutil.copytree(
            ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.log")
        )
    return folder / "breaker" / "relay.py"


def bare(*command: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run Python without any package of ours, as `python breaker/relay.py` is run by who has just cloned."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, timeout=60, check=False)


BASE = str(getattr(sys, "_base_executable", sys.executable))  # the interpreter that made our environment


def shim(folder: Path, script: str, mode: int = 0o755) -> None:
    """A `.venv` whose Python is this shell script."""
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n" + script)
    python.chmod(mode)


def setup_words(folder: Path) -> str:
    return f"relay.py: eaimw's environment is not installed; run {folder}/scripts/setup once, then this again\n"


def test_without_its_environment_it_says_what_to_run(tmp_path: Path) -> None:
    """One line, status 1, no traceback; from any folder."""
    program = copy_of_the_checkout(tmp_path)
    done = bare(BASE, "-S", program, "--help")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", setup_words(tmp_path))


def test_it_uses_the_checkouts_environment(tmp_path: Path) -> None:
    """With a `.venv` in the checkout a bare Python is enough, and the arguments come through."""
    program = copy_of_the_checkout(tmp_path)
    shim(tmp_path, f'exec {sys.executable} "$@"\n')
    (tmp_path / "input").write_bytes(lines_of([tx("a b".replace(" ", "-"), "NO")]))
    done = bare(BASE, "-S", program, "--core-url", NOBODY, tmp_path / "input")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (0, "E903")
    assert (tmp_path / "breaker" / "breaker.log").exists()


@pytest.mark.parametrize(
    ("script", "mode"),
    [(f'exec {BASE} -S "$@"\n', 0o755), ("exec /no/such/python\n", 0o644)],
    ids=["it lacks the packages", "it cannot be run"],
)
def test_an_environment_that_does_not_help_is_not_tried_for_ever(tmp_path: Path, script: str, mode: int) -> None:
    """The word comes instead, at once."""
    program = copy_of_the_checkout(tmp_path)
    shim(tmp_path, script, mode)
    done = bare(BASE, "-S", program)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", setup_words(tmp_path))


def python_39() -> str | None:
    for candidate in (shutil.which("python3.9"), *Path.home().glob(".pyenv/versions/3.9.*/bin/python")):
        if candidate and bare(candidate, "-c", "import sys; assert sys.version_info[:2] == (3, 9)").returncode == 0:
            return str(candidate)
    return None


def test_an_old_python_says_what_to_run_too(tmp_path: Path) -> None:
    """3.9 parses the program and gives the same line; with a `.venv` it hands over."""
    python = python_39()
    if python is None:
        pytest.skip("there is no Python 3.9 on this machine")
    program = copy_of_the_checkout(tmp_path)
    done = bare(python, program)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", setup_words(tmp_path))
    shim(tmp_path, f'exec {sys.executable} "$@"\n')
    done = bare(python, program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: relay.py [OPTIONS] [INPUT]")


@pytest.mark.parametrize("folder", [ROOT, ROOT / "breaker", Path("/")])
def test_it_runs_from_any_folder(folder: Path) -> None:
    """Also from its own, and with its folder on the path: it does not take breaker.py for a package."""
    with relay("--help", cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT / "breaker")}) as running:
        assert running.wait() == 0
    assert running.lines[0].startswith(b"Usage: relay.py")


def test_its_help_is_asked_for_as_with_every_command() -> None:
    """`-h` too."""
    with relay("-h") as running:
        assert running.wait() == 0
    assert running.lines[0].startswith(b"Usage: relay.py")


def test_a_stop_does_not_wait_for_standard_error() -> None:
    """Nobody reads standard error and it is full: SIGTERM still ends the run, with every reply out."""
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(sink, b"x" * 4096)
    os.set_blocking(sink, True)
    try:
        with subprocess.Popen(
            [sys.executable, str(PROGRAM), "--breaker-log", "/dev/null", "--core-url", NOBODY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
        ) as process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(lines_of([tx(1)]))
                process.stdin.flush()
                assert json.loads(process.stdout.readline())["code"] == "E902"
                process.send_signal(signal.SIGTERM)
                assert process.wait(ENDS_WITHIN) == 0
            finally:
                process.kill()
    finally:
        os.close(source)
        os.close(sink)


def test_the_relay_makes_room_for_its_calls() -> None:
    """A low soft limit of descriptors is raised; one that the system does not allow is said, and opens no circuit."""
    limit = 'ulimit -Sn 40; exec "$@"'
    with relay("--max-inflight", "200", shell=limit) as running:
        limits = Path(f"/proc/{running.process.pid}/limits")
        running.feed(tx(1))
        running.come(1)
        assert re.search(r"Max open files +464 ", limits.read_text())
        assert running.end() == 0
        assert "descriptors" not in running.errors
    with peer(lambda request: None) as core, peer() as claim:
        limit = 'ulimit -n 40; exec "$@"'
        with relay("--max-inflight", "100", "--timeout", "1", core=core.url, claim=claim.url, shell=limit) as running:
            running.says("--max-inflight may need 264 descriptors and the system allows 40")
            running.feed(*(tx(n) for n in range(100)))
            eventually(lambda: sum(reply["code"] == "E902" for reply in running.all_replies()) > 20)
            running.feed(*(tx(f"C-{n}", "CLAIM") for n in range(8)))
            running.come(108)
            assert running.end() == 0
            log = running.log.read_text()
        replies = running.all_replies()
        assert {reply["code"] for reply in replies if reply["target"] == "CLAIM"} <= {"0000", "E902"}
        assert all(reply["outcome"] == "not_sent" for reply in replies if reply["code"] == "E902")
        assert "|CLAIM|" not in log
