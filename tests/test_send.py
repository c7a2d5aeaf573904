"""`eaimw send`: lines to a hub that runs, as a program against a real one, and against peers that misbehave."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from commands import COMMAND, command, screen, send
from peer import GOOD, Peer, answering
from peer import http as raw_http
from relayed import Done, Say, http, lines_of, ok, peer, relay, tx
from served import eventually
from test_http_tls import serving

from eaimw.adapters.line_io import BATCH_BYTES, BATCHES, CHUNK
from eaimw.wire import MAX_BYTES

NOT_THERE = "http://127.0.0.1:9"


@contextmanager
def hub(core: str) -> Iterator[str]:
    """A relay that listens, with that target; its address."""
    with relay("--listen", "127.0.0.1:0", core=core) as running:
        running.says("listening on ")
        yield running.errors.split()[2]


def told(done: Done) -> list[str]:
    """The lines of standard error about single transactions, in the order of their lines."""
    return sorted(line for line in done.errors.splitlines() if line.startswith("send: line "))


# What goes well


def test_each_line_gets_its_reply_and_the_summary_counts_them() -> None:
    """Byte order mark, carriage returns, blank lines and a last line without an end, from standard input."""
    lines = b"\r\n".join(json.dumps(tx(number)).encode() for number in range(5))
    with peer() as core, hub(core.url) as url:
        done = send(b"\xef\xbb\xbf\n" + lines.replace(b"\r\n", b"\r\n \t\r\n", 1), "--to", url)
    assert sorted(reply["tx_id"] for reply in done.replies) == [f"T-{number}" for number in range(5)]
    assert {reply["code"] for reply in done.replies} == {"0000"}
    counts, total = done.errors.splitlines()
    assert counts == "CORE  0000 5"
    assert total.startswith("transactions 5, replies 5, ")
    assert total.endswith(" replies/s")
    assert done.status == 0


def test_a_file_is_read_as_standard_input_is(tmp_path: Path) -> None:
    """By its name, or as `-`."""
    file = tmp_path / "transactions.jsonl"
    file.write_bytes(lines_of(map(tx, range(3))))
    with peer() as core:
        for source in (str(file), "-"):
            with file.open("rb") as given, command("send", source, "--to", core.url, stdin=given) as running:
                assert running.wait() == 0
                assert len(running.lines) == 3


def test_the_most_frequent_code_stands_first_in_the_summary() -> None:
    """As in the table of `eaimw targets`; equal ones by name."""
    codes = ["0000", "B201", "B201", "A001", "B201", "Z000", "Z000"]
    with peer(lambda request: ok(request, codes[int(request["tx_id"][2:])])) as target:
        done = send(lines_of(map(tx, range(len(codes)))), "--to", target.url)
    assert done.errors.splitlines()[0] == "-  B201 3  Z000 2  0000 1  A001 1"


def test_exit_status_0_whatever_the_code() -> None:
    """A bad line has its E400, an unknown target its E903, a denial its code: each is a reply."""
    with peer(lambda request: ok(request, "B201")) as core, hub(core.url) as url:
        done = send(lines_of([tx(1), tx(2, "NOBODY"), tx(3)]) + b"{bad\n", "--to", url)
    assert sorted(reply["code"] for reply in done.replies) == ["B201", "B201", "E400", "E903"]
    assert sorted(done.errors.splitlines()[:2]) == ["-     E400 1  E903 1", "CORE  B201 2"]
    assert done.status == 0


def test_the_bytes_of_a_line_are_sent_as_they_are() -> None:
    """Blanks, escapes, order and numbers; and a reply over several lines becomes one."""
    raw = b' {"x": 1.000, "tx_id" :"T-1",  "\\u0041": 1e400,"target":"CORE" }\t'
    reply = b'{"code": "0000",\r\n "data": {"b": 1.00}}\n'
    with Peer(answering(raw_http(reply))) as target:
        done = send(raw + b"\r\n", "--to", target.url)
        (request,) = target.requests
    assert request.body == raw
    assert request.all("Content-Type") == ["application/json"]
    assert done.replies == [{"code": "0000", "data": {"b": 1.0}}]


def test_so_many_at_once_and_no_more() -> None:
    """With --at-once 3 three are under way together, over three connections, however many there are."""
    with peer(lambda request: ok(request)._replace(after=0.05)) as target:
        done = send(lines_of(map(tx, range(30))), "--at-once", "3", "--to", target.url)
        assert target.connected_most == 3
        assert set(target.received.values()) == {1}
    assert len(done.replies) == 30


def test_one_at_a_time_is_in_order_over_one_connection() -> None:
    """The connection is used again, and each reply is written before the next line is sent."""
    with Peer(answering(GOOD)) as target:
        done = send(lines_of(map(tx, range(20))), "--at-once", "1", "--to", target.url)
        assert (target.accepted, len(target.requests)) == (1, 20)
        assert [request.json["tx_id"] for request in target.requests] == [f"T-{number}" for number in range(20)]
    assert done.status == 0


def test_a_reply_is_written_as_soon_as_it_is_known() -> None:
    """While the input is open and another one is still on its way."""
    with (
        peer(lambda request: None if request["tx_id"] == "T-slow" else ok(request)) as target,
        command("send", "--to", target.url) as running,
    ):
        running.feed(tx("slow"), tx("quick"))
        assert running.replies(1)[0]["tx_id"] == "T-quick"


def test_no_proxy_of_the_environment_stands_between() -> None:
    """A hub is a server of one's own network."""
    proxies = {f"{name}_proxy": NOT_THERE for name in ("http", "https", "all")} | {"no_proxy": "", "NO_PROXY": ""}
    with peer() as target:
        done = send(lines_of([tx(1)]), "--to", target.url, env=os.environ | proxies)
    assert done.status == 0


def test_https_is_checked_against_the_system(tmp_path: Path) -> None:
    """An authority of SSL_CERT_FILE is trusted; without it nothing is sent."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with Peer(answering(GOOD), serving(authority)) as target:
        done = send(lines_of([tx(1)]), "--to", target.url)
        assert done.status == 1
        assert "certificate" in done.errors
        assert "not sent 1, outcome unknown 0" in done.errors
        assert target.requests == []
        trusting = os.environ | {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}
        assert send(lines_of([tx(1)]), "--to", target.url, env=trusting).status == 0


# What does not


def test_where_no_hub_is_it_is_said_once() -> None:
    """One line on what to do, and no more lines are tried than were on their way."""
    done = send(lines_of(map(tx, range(1_000))), "--to", NOT_THERE)
    first, second, total = done.errors.splitlines()
    assert first == (
        "send: no connection to http://127.0.0.1:9/tx: Connection refused; "
        "start the hub there (eaimw relay --listen), or correct --to"
    )
    assert second == "send: ended before the input did: what stands after line 8 was not sent"
    assert total.startswith("transactions 8, replies 0, not sent 8, outcome unknown 0, ")
    assert (done.status, done.replies) == (1, [])


def test_a_host_that_does_not_exist_is_no_hub() -> None:
    """A name that cannot be looked up, and one that cannot be a name: the same sentence, no traceback."""
    for host in ("nowhere.invalid", "x" * 70 + ".invalid"):
        done = send(lines_of([tx(1)]), "--to", f"http://{host}")
        assert done.status == 1
        assert done.errors.startswith(f"send: no connection to http://{host}/tx: ")
        assert "Traceback" not in done.errors


def test_what_brought_no_reply_is_told_and_the_others_go_on() -> None:
    """Reset, closed, cut, no JSON, no object, no code, a redirect: the outcome is unknown; nothing is sent twice."""
    says = {
        "T-1": Say(b"", closes_after=0.0),
        "T-2": Say(b"", closes_after=0.0, resets=True),
        "T-3": http(b"<html>", "502 Bad Gateway", "text/html"),
        "T-4": http(b'["0000"]'),
        "T-5": http(b'{"code": 0}', "404 Not Found"),
        "T-6": http(b"", "302 Found"),
        "T-7": Say(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"code": "0000"}', closes_after=0.0),
        "T-8": Say(b"SSH-2.0-OpenSSH_9.6\r\n", closes_after=0.0),
    }
    with peer(lambda request: says.get(request["tx_id"], ok(request))) as target:
        done = send(lines_of(map(tx, range(10))), "--at-once", "1", "--to", target.url)
        assert set(target.received.values()) == {1}
    assert sorted(reply["tx_id"] for reply in done.replies) == ["T-0", "T-9"]
    lines = told(done)
    assert [line.split(":")[1] for line in lines] == [f" line {number + 1} (T-{number})" for number in range(1, 9)]
    assert all(line.endswith(": its outcome is unknown; look it up") for line in lines)
    assert "no hub's reply (HTTP 502)" in lines[2]
    assert "transactions 10, replies 2, not sent 0, outcome unknown 8, " in done.errors
    assert done.status == 1


def test_an_answer_without_end_is_cut_off() -> None:
    """It is no reply, and takes no more memory than the longest one may."""
    endless = Say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", again=b"8000\r\n" + b" " * 32768 + b"\r\n")
    with peer(lambda request: endless if request["tx_id"] == "T-1" else ok(request)) as target:
        done = send(lines_of(map(tx, range(3))), "--at-once", "1", "--to", target.url)
    assert [reply["tx_id"] for reply in done.replies] == ["T-0", "T-2"]
    assert "what came back is no hub's reply (HTTP 200)" in done.errors


def test_a_hub_that_does_not_answer_is_left_in_time() -> None:
    """--timeout; the next line is sent all the same."""
    with peer(lambda request: None if request["tx_id"] == "T-1" else ok(request)) as target:
        done = send(lines_of([tx(1), tx(2)]), "--at-once", "1", "--timeout", "0.3", "--to", target.url)
    assert told(done) == ["send: line 1 (T-1): no answer within 0.3 s: its outcome is unknown; look it up"]
    assert (done.status, len(done.replies)) == (1, 1)


def test_a_hub_that_goes_away_leaves_the_rest_unsent() -> None:
    """After a reply each refused line is named, as not sent."""
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(peer())
        with command("send", "--at-once", "1", "--to", target.url) as running:
            running.feed(tx(1))
            running.come(1)
            stack.close()
            running.feed(b"\n", tx(2), b"no JSON\n")
            assert running.end() == 1
    assert "send: line 3 (T-2): Connection refused: not sent" in running.errors
    assert "send: line 4: Connection refused: not sent" in running.errors
    assert "transactions 3, replies 1, not sent 2, outcome unknown 0, " in running.errors


def test_a_line_longer_than_a_transaction_may_be_is_not_sent() -> None:
    """It is named, and the others go on."""
    with peer() as target:
        done = send(b"x" * (MAX_BYTES + 1) + b"\n" + lines_of([tx(1)]), "--to", target.url)
    assert told(done) == ["send: line 1: it is longer than 1,048,576 bytes, the most allowed: not sent"]
    assert (done.status, len(done.replies)) == (1, 1)


def test_an_input_that_cannot_be_read_is_status_1(tmp_path: Path) -> None:
    """A folder, and a file that is not there."""
    for source in (tmp_path, tmp_path / "nothing"):
        with command("send", str(source), "--to", NOT_THERE) as running:
            assert running.wait() == 1
            assert f"send: the input {source} " in running.errors


def test_where_nobody_takes_the_replies_it_ends() -> None:
    """A pipe whose reader has gone: nothing new is sent, and it is said."""
    reading, writing = os.pipe()
    os.close(reading)
    with peer() as target, open(writing, "wb") as gone, command("send", "--to", target.url, stdout=gone) as running:
        running.feed(tx(1))
        assert running.wait() == 1
    assert "send: standard output cannot be written: Broken pipe; 1 replies could not be delivered" in running.errors


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "Missing option '--to'"),
        (("--to", "127.0.0.1:8080"), "--to must be an http:// or https:// URL such as"),
        (("--to", "http://user:secret@h"), "--to must be "),
        (("--to", NOT_THERE, "--at-once", "0"), "0 is not in the range 1<=x<=500"),
        (("--to", NOT_THERE, "--at-once", "501"), "501 is not in the range 1<=x<=500"),
        (("--to", NOT_THERE, "--timeout", "nan"), "--timeout must be seconds above 0, at most 3,600, not nan"),
        (("--to", NOT_THERE, "--timeout", "3601"), "--timeout must be seconds above 0, at most 3,600, not 3601.0"),
    ],
)
def test_wrong_usage_is_status_2(options: tuple[str, ...], says: str) -> None:
    """What is wrong is named, with what is allowed."""
    with command("send", *options) as running:
        assert running.wait() == 2
    assert says in running.errors


# Signals, memory, the terminal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(number: signal.Signals) -> None:
    """What is in flight gets its reply, nothing new is sent; it says where it ended; status 1."""
    with (
        peer(lambda request: ok(request)._replace(after=1.0)) as target,
        command("send", "--at-once", "2", "--to", target.url) as running,
    ):
        running.feed(*map(tx, range(100)))
        eventually(lambda: len(target.received) == 2)
        running.process.send_signal(number)
        running.says(f"send: {number.name}: taking nothing new, waiting for what is in flight")
        assert running.wait() == 1
        assert sorted(target.received) == ["T-0", "T-1"]
    assert len(running.lines) == 2
    assert "send: ended before the input did: what stands after line 2 was not sent" in running.errors


def test_a_signal_after_the_last_line_changes_nothing() -> None:
    """The input was sent to its end, and all of it is answered: status 0."""
    with (
        peer(lambda request: ok(request)._replace(after=1.0)) as target,
        command("send", "--to", target.url) as running,
    ):
        running.feed(tx(1))
        running.close_input()
        eventually(lambda: target.received)
        # Its threads are then the main one, the writer, the one that posts, and the reader until the input ends.
        eventually(lambda: len(os.listdir(f"/proc/{running.process.pid}/task")) == 3)
        running.process.terminate()
        assert running.wait() == 0
    assert "ended before" not in running.errors


def test_a_second_signal_ends_it_at_once() -> None:
    """However long the hub takes."""
    with peer(lambda request: None) as target, command("send", "--to", target.url) as running:
        running.feed(tx(1))
        eventually(lambda: target.received)
        running.process.terminate()
        running.says("once more ends it at once")
        running.process.terminate()
        assert running.wait() == -signal.SIGTERM


def test_a_long_file_is_not_read_into_memory(tmp_path: Path) -> None:
    """While the hub holds what is in flight, no more is read than a few batches."""
    file = tmp_path / "long.jsonl"
    line = lines_of([tx(1, pad="x" * 1_000)])
    file.write_bytes(line * 20_000)
    with (
        peer(lambda request: None) as target,
        file.open("rb") as given,
        command("send", "--to", target.url, stdin=given) as running,
    ):
        eventually(lambda: target.received["T-1"] == 8, within=20)
        read = os.lseek(given.fileno(), 0, os.SEEK_CUR)  # the offset is one for both
        assert 0 < read <= CHUNK + BATCHES * BATCH_BYTES < file.stat().st_size / 4
        assert target.received["T-1"] == 8
        assert running.process.poll() is None


def test_a_terminal_shows_a_bar() -> None:
    """On standard error, to its end, with a sentence on a line of its own."""
    says = {"T-5": Say(b"", closes_after=0.0)}
    with peer(lambda request: says.get(request["tx_id"], ok(request))) as target, screen() as terminal:
        lines = lines_of(map(tx, range(6)))
        process = subprocess.Popen(
            [*COMMAND, "send", "--at-once", "1", "--to", target.url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal.file, env=terminal.environment,
        )  # fmt: skip
        replies, _ = process.communicate(lines, timeout=60)
        eventually(lambda: "replies/s" in terminal.shown)
    assert process.returncode == 1
    assert len(replies.splitlines()) == 5
    assert "5 replies" in terminal.shown
    assert "\r\x1b[Ksend: line 6 (T-5): " in terminal.shown
