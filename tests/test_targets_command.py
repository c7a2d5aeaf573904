"""`eaimw targets`: the table, and the command against the admin plane of a relay that runs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
import pytest
import trustme
from commands import COMMAND, command, screen
from peer import GOOD, Line, Peer, answering, free_port
from peer import http as raw_http
from relayed import Running, peer, relay, tx
from served import eventually
from test_admin_program import ADMIN, TOKEN, base_of
from test_http_tls import serving

from eaimw.cli.target_table import span, table

NOW = datetime(2026, 11, 29, 20, 55, 3, tzinfo=UTC)
CORE: dict[str, Any] = {
    "name": "CORE",
    "url": "http://127.0.0.1:9201/tx",
    "state": "OPEN",
    "since": "2026-11-29T20:51:03.123456+00:00",
    "why": "5 consecutive failures, the last E901",
    "next_probe_in": 6.21,
    "inflight": 0,
    "max_inflight": 10,
    "codes": {"0000": 1200, "E901": 5, "E904": 31},
    "latency": {"p50": 0.0031, "p95": 0.0088, "p99": 3.67},
    "since_success": 247.3,
    "since_failure": 3.79,
}
CLAIM: dict[str, Any] = CORE | {
    "name": "CLAIM",
    "state": "CLOSED",
    "why": "closed since the start",
    "next_probe_in": None,
    "inflight": 3,
    "codes": {},
    "latency": {"p50": None, "p95": None, "p99": None},
    "since_success": None,
    "since_failure": None,
}


def plain(targets: dict[str, dict[str, Any]], width: int | None = None) -> list[str]:
    return [click.unstyle(line) for line in table(targets, NOW, width)]


# The table


def test_the_table_says_all_of_each_target_in_three_lines() -> None:
    """Figures under their titles; why it is so and since when; its replies, the most frequent code first."""
    assert plain({"CORE": CORE, "CLAIM": CLAIM}) == [
        "TARGET  STATE     PROBE  IN FLIGHT    P50    P95   P99  SUCCESS   FAILURE",
        "CORE    OPEN    in 6.2s       0/10  3.1ms  8.8ms  3.7s   4m ago  3.8s ago",
        "  since 2026-11-29 20:51:03 UTC (4m): 5 consecutive failures, the last E901",
        "  0000 1,200  E904 31  E901 5",
        "CLAIM   CLOSED        -       3/10      -      -     -        -         -",
        "  since 2026-11-29 20:51:03 UTC (4m): closed since the start",
        "  no replies yet",
    ]


def test_an_operation_whose_own_circuit_is_not_closed_has_a_line() -> None:
    """After its target's lines: which one, its state, since when and why."""
    open_one = {key: CORE[key] for key in ("state", "since", "why", "next_probe_in")}
    lines = plain({"CLAIM": CLAIM | {"ops": {"REPORT": open_one, "STATUS": open_one | {"state": "CLOSED"}}}})
    assert lines[4:] == ["  REPORT OPEN since 2026-11-29 20:51:03 UTC (4m): 5 consecutive failures, the last E901"]


def test_no_line_is_wider_than_the_terminal() -> None:
    """At 80 columns with long names, reasons and many codes: what does not fit is cut, and seen to be."""
    wide = CORE | {"name": "A" * 64, "state": "HALF_OPEN", "why": "w" * 100, "inflight": 100_000}
    wide["codes"] = {f"X{number:03}": 1_000 - number for number in range(50)}
    lines = plain({"a": wide, "b": CLAIM}, 80)
    assert max(map(len, lines)) <= 80
    assert re.match(r"A{5,6}\.\.\.  HALF_OPEN  in 6.2s ", lines[1])
    assert lines[2].endswith("www...")
    assert re.fullmatch(r"  X000 1,000  X001 999 .*  and \d+ more", lines[3])
    assert lines[4].split()[:2] == ["CLAIM", "CLOSED"]
    assert plain({"a": wide})[1].startswith("A" * 64 + "  HALF_OPEN")


def test_all_figures_fit_into_80_columns() -> None:
    """Of a target in the midst of trouble, as long as they come."""
    busy = CORE | {"state": "HALF_OPEN", "inflight": 1_000, "max_inflight": 1_000, "since_success": 0.999}
    busy |= {"next_probe_in": 3_599.0, "latency": {"p50": 0.0999, "p95": 0.999, "p99": 0.999}}
    assert max(len(line) for line in plain({"CORE": busy}, 80)) <= 80
    assert "..." not in "".join(plain({"CORE": busy}, 80))


def test_what_a_terminal_would_obey_is_not_shown() -> None:
    """A name or reason with an escape in it."""
    lines = plain({"x": CORE | {"why": "a\x1b[2J\nb", "codes": {"\x1b": 1}}})
    assert lines[2].endswith("a?[2J?b")
    assert lines[3] == "  ? 1"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0ms"),
        (0.0005, "0.5ms"),
        (0.25, "250ms"),
        (1.0, "1.0s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (119, "119s"),
        (120, "2m"),
        (7_199, "120m"),
        (7_200, "2h"),
        (172_800, "2d"),
    ],
)
def test_a_length_of_time_is_short(seconds: float, text: str) -> None:
    """A number of at most three figures, and a unit."""
    assert span(seconds) == text


# The command


@contextmanager
def open_claim(**environment: str) -> Iterator[tuple[Running, str]]:
    """A relay whose CORE is well and whose CLAIM, where nobody listens, is open; and its admin plane's address."""
    options = (*ADMIN, "--fail-threshold", "2", "--reset-timeout", "3600")
    with peer() as core, relay(*options, core=core.url, env=os.environ | environment) as running:
        base = base_of(running)
        for number in range(3):
            running.feed(tx(number), tx(f"C-{number}", "CLAIM"))
            running.come(2 * (number + 1))
        yield running, base


def shown(*arguments: str, **environment: str) -> tuple[int, str, str]:
    with command("targets", *arguments, env=os.environ | environment) as running:
        status = running.wait()
        return status, b"".join(running.lines).decode(), running.errors


def test_the_targets_of_a_running_hub_are_shown() -> None:
    """As the relay said its address, without the scheme, or with the path: plain text through a pipe."""
    with open_claim() as (_, base):
        for where in (base, base.removeprefix("http://"), base + "/", base + "/targets"):
            status, text, errors = shown("--admin", where)
            assert (status, errors) == (0, "")
            title, core, why, codes, claim, claim_why, claim_codes = text.splitlines()
            assert title.startswith("TARGET  STATE ")
            assert core.split()[:4] == ["CORE", "CLOSED", "-", "0/10"]
            assert why.endswith(": closed since the start")
            assert codes == "  0000 3"
            assert claim.split()[:5] == ["CLAIM", "OPEN", "in", "60m", "0/10"]
            assert claim_why.partition(": ")[2].startswith("2 consecutive failures, the last E902: no connection")
            assert claim_codes == "  E902 2  E904 1"
            assert "\x1b" not in text


def test_the_token_comes_from_the_environment() -> None:
    """None, a wrong one, one that cannot be one: each is told what to do; the right one is shown nowhere."""
    with open_claim(EAIMW_ADMIN_TOKEN=TOKEN) as (_, base):
        status, text, errors = shown("--admin", base, EAIMW_ADMIN_TOKEN="")
        assert (status, text) == (1, "")
        assert errors == f"targets: {base} asks for a token: put it into EAIMW_ADMIN_TOKEN\n"
        status, _, errors = shown("--admin", base, EAIMW_ADMIN_TOKEN="wr0ng")
        assert (status, errors) == (1, f"targets: the token in EAIMW_ADMIN_TOKEN is not the one that {base} asks for\n")
        status, _, errors = shown("--admin", base, EAIMW_ADMIN_TOKEN="two words")
        assert status == 2
        assert "EAIMW_ADMIN_TOKEN must be a string of 1 to 1,024 printable ASCII characters" in errors
        assert "two words" not in errors
        assert shown("--admin", base, EAIMW_ADMIN_TOKEN=TOKEN)[0] == 0


def test_where_nobody_listens_it_says_what_to_do() -> None:
    """One line, status 1."""
    says = (
        "targets: no answer from an admin plane at http://127.0.0.1:9: Connection refused; start the relay with "
        "--admin, or give the address that the relay says at its start (admin on http://HOST:PORT)\n"
    )
    assert shown("--admin", "127.0.0.1:9") == (1, "", says)


def test_what_concerns_tls_is_told_with_what_to_do() -> None:
    """https to the admin plane, https to another port, and http to one that speaks TLS."""
    with open_claim() as (_, base):
        port = base.rpartition(":")[2]
        status, text, errors = shown("--admin", f"https://127.0.0.1:{port}")
        assert (status, text) == (1, "")
        assert errors == (
            f"targets: no answer from an admin plane at https://127.0.0.1:{port}: it speaks no TLS; "
            f"the admin plane speaks http, without TLS: give http://127.0.0.1:{port}\n"
        )
    with Peer(answering(GOOD), serving(trustme.CA())) as hub:
        _, _, errors = shown("--admin", hub.url.removesuffix("/tx"))
        assert "its certificate is not trusted" in errors
        assert f"the admin plane speaks http, without TLS: give http://127.0.0.1:{hub.port}\n" in errors
        _, _, errors = shown("--admin", f"http://127.0.0.1:{hub.port}")
        assert errors.startswith(
            f"targets: what listens at http://127.0.0.1:{hub.port} speaks TLS; the admin plane speaks http, without TLS"
        )


@pytest.mark.parametrize(
    "answer",
    [
        raw_http(b"<html>"),
        raw_http(b"{}"),
        raw_http(b"[1]"),
        raw_http(b'{"CORE": {"name": "CORE"}}'),
        raw_http(b'{"CORE": 5}'),
        raw_http(b'{"error": "no"}', "404 Not Found"),
        raw_http(b"[" * 100_000),
        raw_http(b"", "302 Found", "Location: /"),
    ],
    ids=["HTML", "empty", "list", "half", "number", "404", "deep", "redirect"],
)
def test_what_is_no_admin_plane_is_told(answer: bytes) -> None:
    """Whatever it answers, in one line, without a traceback."""

    def script(line: Line) -> None:
        line.read_some()
        line.send(answer)
        line.close()

    with Peer(script) as other:
        status, text, errors = shown("--admin", f"127.0.0.1:{other.port}")
    assert (status, text) == (1, "")
    assert re.fullmatch(r"targets: what answers at http://\S+ is no admin plane \(HTTP \d+\); give .*\n", errors)


def test_wrong_usage_is_status_2() -> None:
    """No address, and none that could be one."""
    for arguments in ((), ("--admin", "ftp://h"), ("--admin", "h:99999"), ("--admin", "http://")):
        status, _, errors = shown(*arguments)
        assert status == 2
        assert "--admin" in errors


def test_watching_through_a_pipe_prints_it_again() -> None:
    """Each second, with the time; a hub that goes away is told in place of the table; Ctrl-C is status 0."""
    with open_claim() as (hub, base), command("targets", "--watch", "--admin", base) as running:
        eventually(lambda: text_of(running).count("TARGET  STATE") >= 2, within=20)
        assert hub.end() == 0
        eventually(lambda: "Connection refused" in text_of(running), within=20)
        running.process.send_signal(signal.SIGINT)
        assert running.wait() == 0
        assert running.errors == ""
    tables = text_of(running).split("\n\n")
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n", each) for each in tables if each)


def test_a_hub_that_comes_back_is_shown_again() -> None:
    """It is tried again each second."""
    with contextlib.ExitStack() as first:
        _, base = first.enter_context(open_claim())
        with command("targets", "--watch", "--admin", base) as running:
            eventually(lambda: "CLAIM   OPEN" in text_of(running), within=20)
            first.close()
            eventually(lambda: "no answer from an admin plane" in text_of(running), within=20)
            with relay("--admin", base.removeprefix("http://")) as again:
                base_of(again)
                eventually(lambda: "CLAIM   CLOSED" in text_of(running), within=20)


def test_watching_waits_for_a_hub_that_is_not_there_yet() -> None:
    """What is missing stands in place of the table until there is one."""
    where = f"127.0.0.1:{free_port()}"
    with command("targets", "--watch", "--admin", where) as running:
        eventually(lambda: "Connection refused; start the relay with --admin" in text_of(running), within=20)
        with relay("--admin", where):
            eventually(lambda: "CLAIM   CLOSED" in text_of(running), within=20)
            running.process.send_signal(signal.SIGINT)
            assert (running.wait(), running.errors) == (0, "")


def test_waiting_in_vain_is_ended_by_ctrl_c() -> None:
    """Status 0, as the help says."""
    with command("targets", "--watch", "--admin", "127.0.0.1:9") as running:
        eventually(lambda: "Connection refused" in text_of(running), within=20)
        running.process.send_signal(signal.SIGINT)
        assert (running.wait(), running.errors) == (0, "")


def test_watching_what_is_no_admin_plane_ends_at_once() -> None:
    """To wait would not help: status 1."""
    with relay("--listen", "127.0.0.1:0") as hub:
        hub.says("listening on ")
        status, _, errors = shown("--watch", "--admin", hub.errors.split()[2])
    assert status == 1
    assert "is no admin plane (HTTP 404)" in errors


def test_watching_on_a_terminal_draws_in_place() -> None:
    """From the first column of the first line, in colour, no wider and no higher than the window."""
    with open_claim() as (_, base), screen(columns=70, lines=6) as terminal:
        process = subprocess.Popen(
            [*COMMAND, "targets", "--watch", "--admin", base],
            stdin=terminal.file, stdout=terminal.file, stderr=subprocess.PIPE, env=terminal.environment,
        )  # fmt: skip
        try:
            eventually(lambda: terminal.shown.count("\x1b[H") >= 3, within=20)
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, b"")
    frame = terminal.shown.split("\x1b[H")[1]
    assert "\x1b[32m" in frame
    lines = click.unstyle(frame).splitlines()
    assert len([line for line in lines if line]) == 5
    assert all(len(line) <= 70 for line in lines)
    assert "... 4 lines more: make the window higher" in lines[4]


def text_of(running: Running) -> str:
    return b"".join(running.lines).decode()
