"""The policies of hub.toml: every key of its tables, good and bad, from the file to the records and back."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from commands import eaimw
from hub_files import GOOD, faults, read

from eaimw.config import TargetSettings
from eaimw.errors import SettingsError
from eaimw.hub_file import KEYS, value_of, with_options
from eaimw.policy import BreakerSettings, RetrySettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_the_command_line_wins_in_every_table(folder: Path) -> None:
    """Of a target's tables only what is given changes; a list too, and as the file would have it."""
    file = read(folder, GOOD)
    given = with_options(file, {"retry.attempts": 5, "breaker.rules": ["consecutive"], "min_call": 0.5})
    for name, before in file.settings.targets.items():
        after = given.settings.targets[name]
        assert after == replace(
            before,
            min_call=0.5,
            breaker=replace(before.breaker, rules=("consecutive",)),
            retry=replace(before.retry, attempts=5),
        )
        changed = {key for key in KEYS if given.origins[name][key] == "command line"}
        assert changed == {"retry.attempts", "breaker.rules", "min_call"}
    with pytest.raises(SettingsError, match="attempts must be an integer from 1 to 10, not 11"):
        with_options(file, {"retry.attempts": 11})


def test_every_setting_has_its_key() -> None:
    """What TargetSettings and BreakerSettings have can be written in the file."""
    target = TargetSettings("http://x")
    given = {key: value_of(target, key) for key in KEYS}
    assert given == {
        "url": "http://x",
        "timeout": 3.0,
        "max_inflight": 10,
        "connect_timeout": 0.5,
        "ca_file": None,
        "code_field": "code",
        "hold_after_timeout": 0.0,
        "min_call": 0.01,
        "expected_rate": 0.0,
        "expected_latency": 0.0,
        "expected_p99": 0.0,
        "upstream_attempts": 1,
        "downstream_attempts": 1,
        **{f"breaker.{each.name}": getattr(BreakerSettings(), each.name) for each in fields(BreakerSettings)},
        **{f"retry.{each.name}": getattr(RetrySettings(), each.name) for each in fields(RetrySettings)},
    }
    assert len(KEYS) == 13 + 18 + 5


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("hold_after_timeout", "-1", "a number of seconds from 0 to 3,600 (0: none)"),
        ("min_call", "true", "a number of seconds from 0 to 3,600"),
        ("expected_rate", "2e6", "a number of calls a second from 0 to 1,000,000 (0: not known)"),
        ("expected_p99", "inf", "a number of seconds from 0 to 3,600 (0: not known)"),
        ("upstream_attempts", "0", "an integer from 1 to 1,000"),
        ("breaker.rules", "'ratio'", "a list of one or both of consecutive, ratio"),
        ("breaker.rules", "[]", "a list of one or both of consecutive, ratio"),
        ("breaker.rules", "['consecutive', 'rate']", "a list of one or both of consecutive, ratio"),
        ("breaker.rules", "[['ratio']]", "a list of one or both of consecutive, ratio"),
        ("breaker.window", "0", "seconds above 0, at most 3,600"),
        ("breaker.window_calls", "100_001", "an integer from 0 to 100,000 (0: `window` counts)"),
        ("breaker.min_calls", "20.0", "an integer from 1 to 100,000"),
        ("breaker.failure_ratio", "50", "a share above 0, at most 1"),
        ("breaker.slow_ratio", "0", "a share above 0, at most 1"),
        ("breaker.stuck_calls", "-1", "an integer from 0 to 100,000 (0: off)"),
        ("breaker.probes", "0", "an integer from 1 to 1,000"),
        ("breaker.reopen_factor", "0.5", "a number from 1 to 100"),
        ("breaker.reopen_max", "nan", "a number of seconds of 0 or more"),
        ("breaker.jitter", "1.1", "a number from 0 to 1"),
        ("breaker.mode", "'Normal'", "one of normal, shadow, open, off"),
        ("breaker.per", "['op']", "one of target, op"),
        ("retry.attempts", "11", "an integer from 1 to 10"),
        ("retry.cap", "3601", "a number of seconds from 0 to 3,600"),
        ("retry.budget_ratio", "'0.1'", "a number from 0 to 1"),
        ("retry.budget_min", "101", "an integer from 0 to 100"),
    ],
)
@pytest.mark.parametrize("place", ["defaults", "targets.A"])
def test_a_bad_value_of_a_policy_is_told_with_what_is_allowed(
    folder: Path, place: str, key: str, value: str, allowed: str
) -> None:
    """In the target's tables as in those of [defaults], and nothing else is."""
    lines = {"defaults": "", "targets.A": "url = 'http://x'\n"}
    lines[place] += f"{key} = {value}\n"
    (fault,) = faults(folder, "".join(f"[{table}]\n{text}" for table, text in lines.items()))
    assert fault.startswith(f"{place}.{key}: it is ")
    assert fault.endswith(f"; it must be {allowed}")


def test_rules_are_a_set_in_their_own_order(folder: Path) -> None:
    """Twice the same is once, and which stands first does not matter."""
    for rules in ('["ratio", "consecutive"]', '["consecutive", "ratio", "ratio"]'):
        file = read(folder, f"[targets.A]\nurl = 'http://x'\nbreaker.rules = {rules}\n")
        assert file.settings.targets["A"].breaker.rules == ("consecutive", "ratio")


def test_a_table_keeps_what_the_other_says(folder: Path) -> None:
    """Of one table part from [defaults], part from the target's own."""
    text = "[defaults.retry]\nattempts = 3\nbase = 1\n[targets.A]\nurl = 'http://x'\n[targets.A.retry]\nbase = 0.5\n"
    file = read(folder, text)
    assert file.settings.targets["A"].retry == RetrySettings(attempts=3, base=0.5)
    assert (file.origins["A"]["retry.attempts"], file.origins["A"]["retry.base"]) == ("defaults", "targets.A")


def test_config_prints_every_key_so_that_it_can_be_read_again(folder: Path) -> None:
    """Each with another value than is built in; a list is a list."""
    text = """
[targets.CORE]
url = "https://core"
timeout = 2.5
max_inflight = 7
connect_timeout = 0.25
ca_file = "ca.pem"
code_field = "a.b"
hold_after_timeout = 1
min_call = 0.5
expected_rate = 0.1
expected_latency = 1e-6
expected_p99 = 0.001
upstream_attempts = 2
downstream_attempts = 3
[targets.CORE.breaker]
fail_threshold = 4
reset_timeout = 1e100
rules = ["consecutive", "ratio"]
window = 20
window_calls = 30
min_calls = 5
failure_ratio = 0.25
slow_call = 1.5
slow_ratio = 1
stuck_calls = 6
probes = 2
probe_timeout = 0.75
reopen_factor = 1.5
reopen_max = 1000
jitter = 0.1
ramp = 8
mode = "shadow"
per = "op"
[targets.CORE.retry]
attempts = 2
base = 0.2
cap = 1
budget_ratio = 0.05
budget_min = 0
[ops.GET]
read = true
idempotent = true
timeout = 1
"""
    first = read(folder, text)
    plain = TargetSettings("http://x")
    core = first.settings.targets["CORE"]
    assert [key for key in KEYS if value_of(core, key) == value_of(plain, key)] == []
    printed = eaimw("config", str(folder / "hub.toml")).stdout
    assert 'breaker.rules = ["consecutive", "ratio"]  # targets.CORE\n' in printed
    assert read(folder, printed).settings == first.settings
