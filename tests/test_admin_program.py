"""The admin plane beside a relay: `--admin`, its token, `[admin]` in hub.toml, and how it starts and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import requests
from commands import eaimw
from prometheus_client.parser import text_string_to_metric_families as parse
from relayed import Running, from_file, peer, relay, tx
from served import eventually, get

from eaimw.config import Address, AdminSettings, parse_address
from eaimw.errors import SettingsError
from eaimw.hub_file import read_hub_file
from eaimw.toml_file import BadFile

TOKEN = "s3cret"
ADMIN = ("--admin", "127.0.0.1:0")


def base_of(running: Running) -> str:
    running.says("admin on http://")
    return next(line for line in running.errors.splitlines() if line.startswith("admin on ")).removeprefix("admin on ")


def test_after_a_mixed_run_the_figures_are_what_was_read(tmp_path: Path) -> None:
    """While the input is still open: each transaction in one counter, each target with its own story."""
    with (
        peer() as core,
        relay(*ADMIN, "--fail-threshold", "2", "--reset-timeout", "3600", core=core.url) as running,
    ):
        base = base_of(running)
        count = 0
        for number in range(10):  # one by one, so that CORE's calls share a connection
            running.feed(tx(number), tx(f"C-{number}", "CLAIM"), tx(f"N-{number}", "NOBODY"), b"x\n")
            count += 4
            running.come(count)
        families = {family.name: family for family in parse(get(base + "/metrics").text)}
        assert sum(sample.value for sample in families["eaimw_transactions"].samples) == count
        connections = {
            (sample.labels["target"], sample.labels["event"]): sample.value
            for sample in families["eaimw_connections"].samples
        }
        assert (connections["CORE", "opened"], connections["CORE", "reused"]) == (1, 9)
        targets = get(base + "/targets").json()
        assert list(targets) == ["CORE", "CLAIM"]
        assert targets["CORE"]["codes"] == {"0000": 10}
        claim = get(base + "/targets/CLAIM").json()
        assert (claim["state"], claim["why"]) == (
            "OPEN",
            "2 consecutive failures, the last E902: no connection to 127.0.0.1 port 9: Connection refused",
        )
        assert claim["codes"] == {"E902": 2, "E904": 8}
        assert 3_000 < claim["next_probe_in"] <= 3_600
        assert get(base + "/readyz").status_code == 200, "an open circuit is the target's trouble, not the hub's"
        (line,) = running.log.read_text().splitlines()
        assert claim["since"][:19] == line[:19] or claim["since"] < line, "the log's line is written right after"
        assert running.end() == 0
        with pytest.raises(requests.ConnectionError):
            get(base + "/healthz")


def test_while_it_drains_it_is_alive_and_not_ready() -> None:
    """SIGTERM with a call in flight: 503 from /readyz until the last reply is out, 200 from /healthz."""
    with contextlib.ExitStack() as target:
        core = target.enter_context(peer(lambda _: None))
        with relay(*ADMIN, "--timeout", "60", core=core.url) as running:
            base = base_of(running)
            running.feed(tx(1))
            eventually(lambda: core.received)
            assert get(base + "/readyz").json() == {"status": "ready"}
            running.process.send_signal(signal.SIGTERM)
            eventually(lambda: get(base + "/readyz").status_code == 503)
            assert get(base + "/healthz").status_code == 200
            assert get(base + "/targets/CORE").json()["inflight"] == 1
            target.close()  # the call ends with its connection
            assert running.wait() == 0
            assert len(running.lines) == 1


def test_the_token_of_the_environment_is_asked_for() -> None:
    """On loopback too; never for the two paths of health."""
    with relay(*ADMIN, env={**os.environ, "EAIMW_ADMIN_TOKEN": TOKEN}) as running:
        base = base_of(running)
        assert get(base + "/metrics").status_code == 401
        assert get(base + "/metrics", TOKEN).status_code == 200
        assert get(base + "/readyz").status_code == 200
        assert running.end() == 0
        assert TOKEN not in running.errors


def test_a_port_that_is_taken_ends_it_with_one_line() -> None:
    """Status 1, what is wrong and what to do; nothing is relayed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with relay("--admin", address) as running:
            running.close_input()
            assert running.wait() == 1
    assert running.errors == (
        f"relay: the admin plane cannot listen on {address}: the port is taken; "
        "end the program that has it, or choose another (0: any free one)\n"
    )


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "core.example:0", "127.1:0"])
@pytest.mark.parametrize("token", ["", None])
def test_what_others_can_reach_needs_a_token(address: str, token: str | None) -> None:
    """Status 2, naming the option and where a token may come from; an empty variable is no token."""
    environment = {name: value for name, value in os.environ.items() if name != "EAIMW_ADMIN_TOKEN"}
    with relay(
        "--admin", address, env=environment | ({} if token is None else {"EAIMW_ADMIN_TOKEN": token})
    ) as running:
        assert running.wait() == 2
    assert "--admin must be a loopback address such as 127.0.0.1:9300, or have a token" in running.errors
    assert "EAIMW_ADMIN_TOKEN" in running.errors
    assert not running.log.exists()


def test_with_a_token_it_may_listen_for_others() -> None:
    """On every address of the machine, and it says where."""
    with relay("--admin", "0.0.0.0:0", env={**os.environ, "EAIMW_ADMIN_TOKEN": TOKEN}) as running:
        base = base_of(running)
        assert base.startswith("http://0.0.0.0:")
        assert get(base.replace("0.0.0.0", "127.0.0.1") + "/targets", TOKEN).status_code == 200
        assert running.end() == 0


@pytest.mark.parametrize(
    ("address", "token", "words"),
    [
        ("9300", "", "--admin must be HOST:PORT such as"),
        ("127.0.0.1:70000", "", "--admin must be HOST:PORT such as"),
        ("127.0.0.1:0", "two words", "the admin token must be a string of 1 to 1,024 printable ASCII"),
    ],
)
def test_wrong_settings_are_status_2(address: str, token: str, words: str) -> None:
    """What is wrong is named; a token is never shown."""
    with relay("--admin", address, env={**os.environ, "EAIMW_ADMIN_TOKEN": token}) as running:
        assert running.wait() == 2
    assert words in running.errors
    assert "two words" not in running.errors


# From hub.toml.


def test_the_file_says_where_and_with_what_token(tmp_path: Path) -> None:
    """[admin] listen and token, without any option."""
    with from_file(tmp_path, f"[admin]\nlisten = 'localhost:0'\ntoken = '{TOKEN}'") as running:
        base = base_of(running)
        assert get(base + "/targets").status_code == 401
        assert list(get(base + "/targets", TOKEN).json()) == ["CORE"]
        assert running.end() == 0


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    """The option's address is taken, with the file's token; the file's address alone would need one."""
    with from_file(tmp_path, f"[admin]\nlisten = '192.0.2.1:0'\ntoken = '{TOKEN}'", *ADMIN) as running:
        assert get(base_of(running) + "/targets", TOKEN).status_code == 200
        assert running.end() == 0
    with from_file(tmp_path, "[admin]\nlisten = '192.0.2.1:0'") as running:
        assert running.wait() == 2
        assert "[admin] listen must be a loopback address" in running.errors


def test_faults_of_the_section_are_told_with_all_others(tmp_path: Path) -> None:
    """Place, what was found, what is allowed; but never the token."""
    path = tmp_path / "hub.toml"
    path.write_text("[admin]\nlisten = 9300\ntoken = 'a b'\nport = 1\n[targets.A]\nurl = 'http://x'\n")
    with pytest.raises(BadFile) as caught:
        read_hub_file(path)
    assert caught.value.faults == [
        "admin.port: unknown; known are listen, token",
        (
            "admin.listen: it is 9300; it must be HOST:PORT such as 127.0.0.1:9300 or [::1]:9300, the port from 0 "
            "(any free one) to 65535"
        ),
        "admin.token: it must be a string of 1 to 1,024 printable ASCII characters without blanks",
    ]


def test_eaimw_config_shows_the_address_and_hides_the_token(tmp_path: Path) -> None:
    """Somebody may look over the shoulder."""
    path = tmp_path / "hub.toml"
    path.write_text(f"[admin]\nlisten = '[::1]:0'\ntoken = '{TOKEN}'\n[targets.A]\nurl = 'http://x'\n")
    printed = eaimw("config", str(path)).stdout
    assert 'admin.listen = "[::1]:0"\n# admin.token: there is one; it is not shown\n' in printed
    assert TOKEN not in printed
    assert TOKEN not in repr(read_hub_file(path))
    assert TOKEN not in repr(AdminSettings(Address("::1", 0), TOKEN))


# Addresses.


@pytest.mark.parametrize(
    ("text", "address", "is_loopback"),
    [
        ("127.0.0.1:9300", Address("127.0.0.1", 9300), True),
        ("127.8.8.8:0", Address("127.8.8.8", 0), True),
        ("[::1]:65535", Address("::1", 65535), True),
        ("LOCALHOST:1", Address("LOCALHOST", 1), True),
        ("0.0.0.0:1", Address("0.0.0.0", 1), False),
        ("[::]:1", Address("::", 1), False),
        ("a-host.example:80", Address("a-host.example", 80), False),
        ("localhost.example:80", Address("localhost.example", 80), False),
    ],
)
def test_an_address_is_taken_apart(text: str, address: Address, is_loopback: bool) -> None:
    """And put together again; only what no other machine can reach is loopback."""
    found = parse_address(text, "admin")
    assert (found, str(found), found.is_loopback) == (address, text, is_loopback)


@pytest.mark.parametrize(
    "text",
    ["", ":", ":80", "80", "h", "h:", "h:-1", "h:65536", "h:\uff11", "h: 1", "::1:80", "[::1]", "[]:1", "[127.0.0.1]:1",
     "[::1:80", "h/x:1", "http://h:1", "ä:1", "h\n:1", None, 5],
)  # fmt: skip
def test_what_is_no_address_is_named(text: Any) -> None:
    """A SettingsError that names the setting and shows two good ones."""
    with pytest.raises(SettingsError, match=r"^listen must be HOST:PORT such as 127\.0\.0\.1:9300 or \[::1\]:9300"):
        parse_address(text, "listen")
