"""The simulated targets as programs: each mode on the wire, the books, the end of a process."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import requests
from served import ROOT, Served, direct, eventually, target

DEPOSIT = {"op": "DEPOSIT", "account": "A-1", "amount": 10}


@pytest.fixture(scope="module")
def started() -> Iterator[Served]:
    with target("core") as core:
        yield core


@pytest.fixture
def core(started: Served) -> Served:
    """A CORE that is as at its start."""
    started.renew()
    return started


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with direct() as session:
        yield session


def address(core: Served) -> tuple[str, int]:
    host, _, port = core.base.removeprefix("http://").rpartition(":")
    return host, int(port)


def request_bytes(tx_id: str) -> bytes:
    body = json.dumps({"tx_id": tx_id, **DEPOSIT}).encode()
    return b"POST /tx HTTP/1.1\r\nHost: core\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def hanging_call(core: Served, tx_id: str = "T-1") -> socket.socket:
    """A connection on which a whole request was sent and no answer has been read."""
    connection = socket.create_connection(address(core), timeout=5)
    connection.sendall(request_bytes(tx_id))
    return connection


# The modes on the wire


@pytest.mark.parametrize(
    ("mode", "status", "code", "executed"),
    [("normal", 200, "0000", 1), ("fail", 500, "E500", 0), ("deny", 200, "B299", 0)],
)
def test_modes_that_answer_at_once(
    core: Served, session: requests.Session, mode: str, status: int, code: str, executed: int
) -> None:
    """Status, code and the echoed tx_id come back as JSON, and the books agree."""
    core.ctl(mode=mode)
    response = session.post(core.url, json={"tx_id": "T-1", **DEPOSIT}, timeout=5)
    answer = response.json()
    assert (response.status_code, answer["code"], answer["tx_id"]) == (status, code, "T-1")
    assert response.headers["Content-Type"] == "application/json"
    assert core.tx("T-1") == {"received": 1, "executed": executed, "code": code}
    assert core.stats()["by_code"] == {code: 1}


def test_slow_executes_at_once_and_answers_after_its_delay(core: Served, session: requests.Session) -> None:
    """The deposit stands while the caller still waits; the answer is not earlier than delay_ms."""
    core.ctl(mode="slow", delay_ms=300)
    started = time.monotonic()
    with hanging_call(core) as connection:
        eventually(lambda: core.tx("T-1")["executed"] == 1)
        assert core.tx("T-1")["code"] is None
        assert b'"code": "0000"' in connection.recv(4096)
    assert time.monotonic() - started >= 0.3
    assert core.tx("T-1")["code"] == "0000"


def test_hang_never_answers(core: Served, session: requests.Session) -> None:
    """The caller's patience ends first, and nothing was executed or answered."""
    core.ctl(mode="hang")
    with pytest.raises(requests.ReadTimeout):
        session.post(core.url, json={"tx_id": "T-1", **DEPOSIT}, timeout=0.2)
    assert core.tx("T-1") == {"received": 1, "executed": 0, "code": None}
    assert core.stats()["by_code"] == {}


def test_drop_reads_the_request_and_closes_without_a_byte(core: Served) -> None:
    """The connection ends in order (no reset) with nothing on it, and the deposit was made."""
    core.ctl(mode="drop")
    with hanging_call(core) as connection:
        assert connection.recv(4096) == b""
    assert core.tx("T-1") == {"received": 1, "executed": 1, "code": None}
    eventually(lambda: core.stats()["inflight"] == 0)


def test_garbage_is_a_page_with_status_200(core: Served, session: requests.Session) -> None:
    """It looks like success and is no JSON."""
    core.ctl(mode="garbage")
    response = session.post(core.url, json={"tx_id": "T-1", **DEPOSIT}, timeout=5)
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/html")
    assert response.text.startswith("<html>")
    assert core.stats()["by_code"] == {"-": 1}
    assert core.tx("T-1") == {"received": 1, "executed": 1, "code": None}


def test_flaky_mixes_failures_and_answers(core: Served, session: requests.Session) -> None:
    """Over one connection both kinds come, each with its own status, and the same seed gives the same run."""

    def run() -> list[int]:
        core.ctl(mode="flaky", rate=0.5, seed=11)
        return [session.post(core.url, json={"tx_id": f"T-{n}"}, timeout=5).status_code for n in range(20)]

    first = run()
    assert set(first) == {200, 500}
    core.reset()
    assert run() == first


def test_drip_sends_its_body_byte_by_byte(core: Served) -> None:
    """Each byte comes delay_ms after the one before; the whole is a good answer, counted when it is whole."""
    core.ctl(mode="drip", delay_ms=5)
    started = time.monotonic()
    pieces: list[bytes] = []
    with hanging_call(core) as connection:
        while not b"".join(pieces).endswith(b"}"):
            pieces.append(connection.recv(4096))
            assert pieces[-1], "it closed before the end"
    head, _, body = b"".join(pieces).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body)["code"] == "0000"
    assert time.monotonic() - started >= 0.005 * len(body)
    assert len(pieces) > 5, "it came in few pieces"
    assert core.stats()["by_code"] == {"0000": 1}
    assert core.stats()["inflight"] == 0


def test_who_leaves_during_a_drip_was_not_answered(core: Served) -> None:
    """Half an answer is none: no code is counted."""
    core.ctl(mode="drip", delay_ms=20)
    with hanging_call(core) as connection:
        assert connection.recv(1)
    eventually(lambda: core.stats()["inflight"] == 0)
    assert core.stats()["by_code"] == {}


# The books


@pytest.mark.parametrize("settings", [{"mode": "hang"}, {"mode": "slow", "delay_ms": 60_000}])
def test_inflight_falls_when_callers_hang_up(core: Served, settings: dict[str, object]) -> None:
    """Ten open calls are ten in flight; six hang up, four are left; the highest mark stays."""
    core.ctl(**settings)
    with ExitStack() as open_calls:
        calls = [open_calls.enter_context(hanging_call(core, f"T-{n}")) for n in range(10)]
        eventually(lambda: core.stats()["inflight"] == 10)
        for call in calls[:6]:
            call.close()
        eventually(lambda: core.stats()["inflight"] == 4)
        assert core.stats()["max_inflight"] == 10
        assert core.stats()["calls"] == 10
    eventually(lambda: core.stats()["inflight"] == 0)


def test_a_request_that_never_came_whole_is_no_call(core: Served) -> None:
    """Who hangs up in the middle of the request was not received."""
    with socket.create_connection(address(core), timeout=5) as connection:
        connection.sendall(request_bytes("T-1")[:-5])
    with hanging_call(core, "T-2") as connection:
        assert connection.recv(4096)
    assert core.tx("T-1")["received"] == 0
    assert core.stats()["calls"] == 1


def test_an_executed_transaction_is_remembered(core: Served, session: requests.Session) -> None:
    """After a lost answer the repeat gets the first one, and money has moved once."""
    core.ctl(mode="drop")
    with hanging_call(core) as connection:
        assert connection.recv(4096) == b""
    core.ctl(mode="normal")
    for _ in range(2):
        answer = session.post(core.url, json={"tx_id": "T-1", **DEPOSIT}, timeout=5).json()
        assert answer["balance"] == 1010
    assert core.tx("T-1") == {"received": 3, "executed": 1, "code": "0000"}


def test_reset_keeps_the_mode(core: Served, session: requests.Session) -> None:
    """Figures, accounts and memory are as at the start; the settings are not."""
    session.post(core.url, json={"tx_id": "T-1", **DEPOSIT}, timeout=5)
    core.ctl(mode="slow", delay_ms=1)
    core.reset()
    expected = {"mode": "slow", "calls": 0, "inflight": 0, "max_inflight": 0, "executed": 0, "by_code": {}}
    assert core.stats() == expected
    answer = session.post(core.url, json={"tx_id": "T-1", **DEPOSIT}, timeout=5).json()
    assert answer["balance"] == 1010


# Control and bad requests


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", "application/json"])
def test_control_takes_any_content_type(core: Served, session: requests.Session, content_type: str) -> None:
    """`curl -d` says that it sends a form; the body counts. The answer is what is in force."""
    response = session.post(
        core.base + "/_ctl", data='{"mode": "slow"}', headers={"Content-Type": content_type}, timeout=5
    )
    assert response.json() == {"mode": "slow", "delay_ms": 2000, "execute": "before", "seed": None}


@pytest.mark.parametrize(
    ("body", "allowed"),
    [
        ("", "JSON object"),
        ("mode=fail", "JSON object"),
        ("[" * 100_000, "JSON object"),
        ('{"mode": "sick"}', "normal, fail, slow"),
        ('{"mode": "slow", "delay_ms": NaN}', "0 to 3600000"),
        ('{"mode": "hang", "delay_ms": 1}', "execute, seed"),
    ],
)
def test_control_refuses_naming_what_is_allowed(
    core: Served, session: requests.Session, body: str, allowed: str
) -> None:
    """HTTP 400, the error says what is allowed, and the mode is what it was."""
    core.ctl(mode="deny")
    response = session.post(core.base + "/_ctl", data=body, timeout=5)
    assert response.status_code == 400
    assert allowed in response.json()["error"]
    assert core.stats()["mode"] == "deny"


@pytest.mark.parametrize("body", [b"x", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_no_transaction_is_400_with_e400(core: Served, session: requests.Session, body: bytes) -> None:
    """A bad request is answered in JSON, counted as a call, and the connection goes on."""
    response = session.post(core.url, data=body, timeout=5)
    assert (response.status_code, response.json()["code"]) == (400, "E400")
    assert core.stats()["by_code"] == {"E400": 1}
    assert core.stats()["calls"] == 1
    assert session.post(core.url, json={"tx_id": "T-1"}, timeout=5).json()["code"] == "0000"


def test_the_largest_transaction_is_taken(core: Served, session: requests.Session) -> None:
    """1,048,576 bytes are a good body, and so is one byte more: the limit is the hub's to keep."""
    for size in (1_048_576, 1_048_577):
        empty = len(json.dumps({"tx_id": "T-1", "x": ""}))
        body = json.dumps({"tx_id": "T-1", "x": "x" * (size - empty)})
        assert len(body) == size
        assert session.post(core.url, data=body, timeout=5).json()["code"] == "0000"


def test_connections_are_kept(core: Served) -> None:
    """Two requests are served on one connection, one after another."""
    with socket.create_connection(address(core), timeout=5) as connection:
        for tx_id in ("T-1", "T-2"):
            connection.sendall(request_bytes(tx_id))
            assert tx_id.encode() in connection.recv(4096)


# The program


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_promptly_with_calls_hanging(number: signal.Signals) -> None:
    """Exit 0 within five seconds, though five callers still wait; their connections end."""
    with target("core") as core, ExitStack() as open_calls:
        core.ctl(mode="hang")
        calls = [open_calls.enter_context(hanging_call(core, f"T-{n}")) for n in range(5)]
        eventually(lambda: core.stats()["inflight"] == 5)
        core.process.send_signal(number)
        assert core.process.wait(5) == 0
        assert {call.recv(4096) for call in calls} <= {b""}


def test_claim_serves_its_own_trade(session: requests.Session) -> None:
    """fixtures/claim.py knows policies, and stops with 0."""
    with target("claim") as claim:
        tx = {"tx_id": "T-1", "op": "SUBMIT", "policy": "P-1", "claim": "C-1", "amount": 5}
        assert session.post(claim.url, json=tx, timeout=5).json()["code"] == "0000"
        tx["tx_id"] = "T-2"
        assert session.post(claim.url, json=tx, timeout=5).json()["code"] == "B211"
        assert claim.stop() == 0


@pytest.mark.parametrize(("name", "port"), [("core", "9201"), ("claim", "9202")])
def test_help_names_the_default_port(name: str, port: str) -> None:
    """`--help`, or `-h`, shows the options with their defaults."""
    for option in ("--help", "-h"):
        done = run(name, option)
        assert done.returncode == 0
        assert port in done.stdout
        assert "127.0.0.1" in done.stdout


def test_a_taken_port_is_said_in_one_line(core: Served) -> None:
    """Exit 1, one line that says what to do, no traceback, and nothing on standard output."""
    done = run("core", "--port", str(address(core)[1]))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "port is taken" in done.stderr
    assert "--port" in done.stderr


@pytest.mark.parametrize("host", ["no such host", "203.0.113.1", "a..b"])
def test_a_host_that_is_not_ours_is_said_in_one_line(host: str) -> None:
    """Exit 1 and one line that names the host and the option: for a name, an address, and what is neither."""
    done = run("claim", "--host", host, "--port", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert host in done.stderr
    assert "--host" in done.stderr


def test_an_empty_host_is_wrong_usage() -> None:
    """The system would take it for every address of the machine: exit 2."""
    done = run("core", "--host", "", "--port", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--host" in done.stderr


def test_the_first_line_tells_where_it_listens() -> None:
    """The name in capitals, and the real port of a program that was given 0."""
    with target("claim", "--host", "localhost") as claim:
        assert claim.base.startswith("http://localhost:")
        assert address(claim)[1] > 0
        assert claim.stats()["calls"] == 0


def run(name: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """The program run to its end."""
    command = [sys.executable, str(ROOT / "fixtures" / f"{name}.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
