"""hub.toml: what is good of it, what is wrong with it, and where each value came from."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from commands import eaimw
from hub_files import GOOD, faults, read
from relayed import ok, peer
from served import ROOT

from eaimw.config import (
    Address,
    HubSettings,
    OpSettings,
    TargetSettings,
    TlsSettings,
)
from eaimw.errors import SettingsError, Unusable
from eaimw.hub_file import KEYS, read_hub_file, with_options
from eaimw.policy import BreakerSettings, RetrySettings
from eaimw.toml_file import BadFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def keys_of(record: type) -> str:
    """Its fields, as a message lists them."""
    return ", ".join(each.name for each in fields(record))


# In [defaults]; a target has its url before them. The tables stand last.
TARGET_KEYS = (
    "timeout, max_inflight, connect_timeout, ca_file, code_field, hold_after_timeout, min_call, expected_rate, "
    "expected_latency, expected_p99, upstream_attempts, downstream_attempts, breaker, retry"
)


def test_what_is_in_force(folder: Path) -> None:
    """A target's own value wins over [defaults], and those over what is built in; 0 is a value."""
    file = read(folder, GOOD)
    assert file.settings.targets == {
        "CORE": TargetSettings(
            "http://core:8080",
            2.5,
            7,
            BreakerSettings(9, 0, ("consecutive", "ratio"), window_calls=50, mode="shadow"),
            expected_rate=50,
            retry=RetrySettings(3, budget_min=0),
        ),
        "CLAIM.NEW": TargetSettings(
            "https://claim/api?x=1",
            4,
            7,
            BreakerSettings(reset_timeout=0, rules=("ratio",), window_calls=50),
            ca_file=str(folder / "ca.pem"),
            code_field="header.result_code",
        ),
    }
    assert file.settings.routes == {"PAY": "CORE"}
    assert file.settings.ops == {
        "PAY": OpSettings(read=False, idempotent=True, timeout=2),
        "LOOK.UP": OpSettings(read=True, idempotent=True),
        "CANCEL": OpSettings(),
    }
    assert file.breaker_log == folder / "logs/breaker.log"
    assert file.access_log == folder / "logs/access.log"
    assert file.listen == Address("127.0.0.1", 8080)
    assert file.tls == TlsSettings(folder / "cert.pem", Path("/etc/hub/key.pem"), folder / "ca.pem")


def test_where_each_value_came_from(folder: Path) -> None:
    """The target's own table, [defaults], or built in."""
    file = read(folder, GOOD)
    written = {key: origin for key, origin in file.origins["CORE"].items() if origin != "built in"}
    assert written == {
        "url": "targets.CORE",
        "timeout": "targets.CORE",
        "max_inflight": "defaults",
        "expected_rate": "targets.CORE",
        "breaker.fail_threshold": "targets.CORE",
        "breaker.reset_timeout": "defaults",
        "breaker.rules": "targets.CORE",
        "breaker.window_calls": "defaults",
        "breaker.mode": "targets.CORE",
        "retry.attempts": "targets.CORE",
        "retry.budget_min": "targets.CORE",
    }
    assert set(file.origins["CORE"]) == set(KEYS)
    assert file.op_origins["PAY"] == {"read": "built in", "idempotent": "ops.PAY", "timeout": "ops.PAY"}
    assert set(file.op_origins["CANCEL"].values()) == {"built in"}


def test_the_command_line_wins_for_every_target(folder: Path) -> None:
    """And is named as the origin; a bad value is a SettingsError."""
    file = with_options(read(folder, GOOD), {"timeout": 1.0, "breaker.fail_threshold": 2})
    for name, target in file.settings.targets.items():
        assert (target.timeout, target.breaker.fail_threshold, target.max_inflight) == (1.0, 2, 7)
        assert file.origins[name]["timeout"] == file.origins[name]["breaker.fail_threshold"] == "command line"
        assert file.origins[name]["max_inflight"] == "defaults"
        assert target.breaker.window_calls == 50
    with pytest.raises(SettingsError, match="timeout"):
        with_options(file, {"timeout": 0})


@pytest.mark.parametrize("name", ["logs/one.log", "logs/../logs/one.log", "link.log"])
def test_one_file_for_both_logs_is_a_fault(folder: Path, name: str) -> None:
    """However it is named: lines of two kinds in one file are of use to nobody."""
    (folder / "link.log").symlink_to("logs/one.log")
    text = f"[hub]\nbreaker_log = 'logs/one.log'\naccess_log = '{name}'\n[targets.CORE]\nurl = 'http://x'\n"
    assert faults(folder, text) == [
        f"hub.access_log: it is '{name}', which is the breaker log; it must be another file"
    ]


def test_every_fault_is_told_at_once(folder: Path) -> None:
    """Place, what was found, what is allowed, and the nearest known key."""
    text = """
hubb = 1
[hub]
listen = 8080
breaker_log = ""
access_log = 5
[defaults]
url = "http://x"
max_inflight = 0
[defaults.breaker]
fail_treshold = 3
[targets."a b"]
url = "http://x"
[targets.CORE]
timeout = "3"
max_inflght = 4
[targets.CLAIM]
url = "ftp://x"
breaker = 5
[targets.-]
url = "http://x"
connect_timeout = true
[routes]
PAY = "CROE"
"x y" = 5
[ops]
GET = 5
[ops."x y"]
[ops.PAY]
raed = true
retries = 3
read = 1
idempotent = "yes"
[ops.A.B]
read = true
"""
    assert faults(folder, text) == [
        "hubb: unknown; known are hub, admin, defaults, targets, routes, ops; did you mean hub?",
        (
            "hub.listen: it is 8080; it must be HOST:PORT such as 127.0.0.1:9300 or [::1]:9300, the port from 0 "
            "(any free one) to 65535"
        ),
        "hub.breaker_log: it is ''; it must be the path of a file",
        "hub.access_log: it is 5; it must be the path of a file",
        f"defaults.url: unknown; known are {TARGET_KEYS}",
        (
            f"defaults.breaker.fail_treshold: unknown; known are {keys_of(BreakerSettings)}; "
            "did you mean fail_threshold?"
        ),
        "defaults.max_inflight: it is 0; it must be an integer from 1 to 100,000",
        "targets.a b: the name must be a string of 1 to 64 of A-Z a-z 0-9 _ . -, and not - alone",
        f"targets.CORE.max_inflght: unknown; known are url, {TARGET_KEYS}; did you mean max_inflight?",
        "targets.CORE.timeout: it is '3'; it must be seconds above 0, at most 3,600",
        (
            "targets.CORE.url: it is missing; it must be an http:// or https:// URL such as http://127.0.0.1:9201/tx, "
            "in printable ASCII without blanks"
        ),
        "targets.CLAIM.breaker: it is 5; it must be a table, [targets.CLAIM.breaker]",
        "targets.CLAIM.url: it is 'ftp://x'; it must be an http:// or https:// URL such as http://127.0.0.1:9201/tx",
        "targets.-: the name must be a string of 1 to 64 of A-Z a-z 0-9 _ . -, and not - alone",
        "targets.-.connect_timeout: it is true; it must be seconds above 0, at most 3,600",
        "routes.PAY: it is 'CROE'; it must be one of the targets (a b, CORE, CLAIM, -); did you mean CORE?",
        "routes.x y: the op must be a string of 1 to 64 of A-Z a-z 0-9 _ . -",
        "routes.x y: it is 5; it must be one of the targets (a b, CORE, CLAIM, -)",
        "ops.GET: it is 5; it must be a table, [ops.GET]",
        "ops.x y: the op must be a string of 1 to 64 of A-Z a-z 0-9 _ . -",
        "ops.PAY.raed: unknown; known are read, idempotent, timeout; did you mean read?",
        "ops.PAY.retries: unknown; known are read, idempotent, timeout",
        "ops.PAY.read: it is 1; it must be true or false",
        "ops.PAY.idempotent: it is 'yes'; it must be true or false",
        "ops.A.B: unknown; known are read, idempotent, timeout",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "targets: there is none"),
        ("targets = 5", "targets: it is 5; it must be a table"),
        ("[[targets]]", "targets: it is"),
        ("[targets]\nCORE = 'http://x'", "targets.CORE: it is 'http://x'; it must be a table, [targets.CORE]"),
        ("x", "it is not TOML: "),
        ("a = 1\na = 2", "it is not TOML: "),
        ("a = 1" + "0" * 5000, "it is not TOML: "),
        ("a = " + "[" * 5000, "it is not TOML: "),
        ("[hub]\ntls_key = 'k'", "hub.tls_key: it needs tls_certificate beside it, which is not there"),
        ("[hub]\ntls_certificate = 'c'", "hub.tls_certificate: it needs tls_key beside it, which is not there"),
        ("[hub]\ntls_client_ca = 'c'", "hub.tls_client_ca: it needs tls_certificate and tls_key beside it, which"),
        ("[hub]\ntls_certificate = 5\ntls_key = 'k'", "hub.tls_certificate: it is 5; it must be the path of a file"),
        (
            "[hub]\ntls_keys = 'k'",
            "hub.tls_keys: unknown; known are listen, breaker_log, access_log, tls_certificate, tls_key, tls_cl",
        ),
        ("ops = 5\n[targets.A]\nurl = 'http://x'", "ops: it is 5; it must be a table, [ops]"),
        ("routes = []\n[targets.A]\nurl = 'http://x'", "routes: it is []; it must be a table"),
        ("[targets.A]\nurl = 'http://x'\ntimeout = nan", "targets.A.timeout: it is nan"),
        ("[targets.A]\nurl = 'http://x'\ntimeout = 1979-05-27", "targets.A.timeout: it is datetime.date"),
        ("[targets.A]\nurl = ['http://x']", "targets.A.url: it is ['http://x']"),
        ("[targets.A]\nurl = 'http://x'\nca_file = 3", "targets.A.ca_file: it is 3; it must be the path of a PEM file"),
        (
            "[targets.A]\nurl = 'http://x'\ncode_field = 'a..b'",
            "targets.A.code_field: it is 'a..b'; it must be 1 to 5 names",
        ),
        (
            "[defaults]\ncode_field = 5",
            "defaults.code_field: it is 5; it must be 1 to 5 names joined by dots, each of 1",
        ),
        ("[targets.A]\nurl = 'http://x'\n[targets.A.breaker]\nreset_timeout = -1", "targets.A.breaker.reset_timeout: "),
    ],
)
def test_files_of_a_wrong_shape(folder: Path, text: str, fault: str) -> None:
    """Never another exception than one that says what is wrong."""
    assert any(told.startswith(fault) for told in faults(folder, text))


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    """Missing, a folder: Unusable; bytes that are no text: a fault of the file."""
    for path in (folder / "nothing.toml", folder):
        with pytest.raises(Unusable, match=r"name a hub\.toml"):
            read_hub_file(path)
    (folder / "hub.toml").write_bytes(b"\xff")
    with pytest.raises(BadFile, match="not TOML"):
        read_hub_file(folder / "hub.toml")


@pytest.mark.parametrize(
    ("ops", "words"),
    [
        ([], "ops must be a mapping from op to OpSettings"),
        ({"x y": OpSettings()}, "an op must be a string of 1 to 64"),
        ({"PAY": {"read": True}}, "the op PAY must be an OpSettings"),
    ],
)
def test_ops_from_python_are_checked_as_well(ops: Any, words: str) -> None:
    """SettingsError naming the op and what is allowed; a value that is no bool likewise."""
    with pytest.raises(SettingsError, match=words):
        HubSettings({"CORE": TargetSettings("http://x")}, ops=ops)
    with pytest.raises(SettingsError, match="idempotent must be true or false, not 1"):
        OpSettings(idempotent=1)  # type: ignore[arg-type]


# The commands.


def test_the_commands_say_what_is_wrong_and_how_bad(folder: Path) -> None:
    """check and config: 2 for a file with faults, 1 for one that cannot be read; no traceback."""
    (folder / "hub.toml").write_text("[targets.CORE]\nurl = 'ftp://x'\n", encoding="utf-8")
    for command in ("check", "config"):
        bad, missing = eaimw(command, str(folder / "hub.toml")), eaimw(command, str(folder / "nothing.toml"))
        assert (bad.returncode, missing.returncode) == (2, 1)
        assert bad.stderr.startswith(f"{folder / 'hub.toml'}: targets.CORE.url: it is 'ftp://x'")
        assert missing.stderr.count("\n") == 1
        assert "Traceback" not in bad.stderr + missing.stderr


@pytest.mark.parametrize(
    ("admin", "is_said"),
    [
        ("listen = '0.0.0.0:9300'", True),
        ("listen = '0.0.0.0:9300'\ntoken = 'secret'", False),
        ("listen = '127.0.0.1:9300'", False),
        ("token = 'secret'", False),
    ],
)
def test_check_says_where_the_environment_must_bring_the_token(folder: Path, admin: str, is_said: bool) -> None:
    """The file is good, and the hub would not start without it."""
    text = f"[admin]\n{admin}\n[targets.CORE]\nurl = 'http://127.0.0.1:1/tx'\n"
    (folder / "hub.toml").write_text(text, encoding="utf-8")
    done = eaimw("check", str(folder / "hub.toml"))
    assert done.returncode == 0
    assert ("EAIMW_ADMIN_TOKEN" in done.stdout) is is_said


def test_what_config_prints_is_the_same_hub(folder: Path) -> None:
    """Read again it has the same settings; each line says where its value came from."""
    first = read(folder, GOOD)
    printed = eaimw("config", str(folder / "hub.toml")).stdout
    assert "timeout = 2.5  # targets.CORE" in printed
    assert "max_inflight = 7  # defaults" in printed
    assert "connect_timeout = 0.5  # built in" in printed
    assert "[ops.PAY]\nread = false  # built in\nidempotent = true  # ops.PAY\ntimeout = 2  # ops.PAY\n" in printed
    assert read(folder, printed).settings == first.settings
    assert read(folder, printed).breaker_log == first.breaker_log
    assert read(folder, printed).access_log == first.access_log
    assert read(folder, printed).listen == first.listen
    assert read(folder, printed).tls == first.tls


def test_the_relay_takes_its_targets_from_the_file(folder: Path) -> None:
    """Any number of targets, a route, the file's log, and an option that wins over the file."""
    with peer() as east, peer(lambda tx: ok(tx, "B201")) as west:
        (folder / "hub.toml").write_text(
            f"[hub]\nbreaker_log = 'their.log'\n[targets.EAST]\nurl = '{east.url}'\n"
            f"[targets.WEST]\nurl = '{west.url}'\n[routes]\nGO = 'WEST'\n",
            encoding="utf-8",
        )
        command = [sys.executable, "breaker/relay.py", "--config", str(folder / "hub.toml")]
        lines = [{"tx_id": "1", "target": "EAST"}, {"tx_id": "2", "op": "GO"}, {"tx_id": "3", "target": "CORE"}]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
            input="".join(json.dumps(line) + "\n" for line in lines),
        )  # fmt: skip
    replies = {reply["tx_id"]: reply for reply in map(json.loads, done.stdout.splitlines())}
    assert [(replies[name]["target"], replies[name]["code"]) for name in "123"] == [
        ("EAST", "0000"), ("WEST", "B201"), ("CORE", "E903")
    ]  # fmt: skip
    assert (folder / "their.log").exists()


def test_an_option_given_as_well_wins(folder: Path) -> None:
    """--max-inflight 1 over the file's 50: with one call in flight the next line of a pipe is E905."""
    with peer(lambda tx: None) as silent:
        (folder / "hub.toml").write_text(
            f"[targets.CORE]\nurl = '{silent.url}'\nmax_inflight = 50\ntimeout = 0.3\n", encoding="utf-8"
        )
        program = [sys.executable, "breaker/relay.py", "--config", str(folder / "hub.toml"), "--max-inflight", "1"]
        program += ["--breaker-log", str(folder / "breaker.log")]
        done = subprocess.run(
            program, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
            input='{"tx_id":"1","target":"CORE"}\n{"tx_id":"2","target":"CORE"}\n',
        )  # fmt: skip
    assert [json.loads(line)["code"] for line in done.stdout.splitlines()] == ["E905", "E901"]


def test_the_relay_does_not_start_with_a_bad_file(folder: Path) -> None:
    """Exit 2 with the faults; a URL on the command line does not go with a file; a bad option is named as one."""
    (folder / "hub.toml").write_text("[targets.CORE]\nurl = 'http://x'\n", encoding="utf-8")
    (folder / "bad.toml").write_text("[targets.CORE]\n", encoding="utf-8")
    for file, options, words in (
        ("bad.toml", [], "targets.CORE.url: it is missing"),
        ("hub.toml", ["--core-url", "http://y"], "--core-url does not go with --config"),
        ("hub.toml", ["--timeout", "0"], "--timeout must be seconds above 0"),
    ):
        done = eaimw("relay", "--config", str(folder / file), *options, "/dev/null")
        assert done.returncode == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr
