"""Settings that can be used and make no sense: each rule with a file that trips it, and one at the boundary."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaimw.bounds import MAX_SECONDS
from eaimw.config import HubSettings, OpSettings, TargetSettings
from eaimw.hub_file import hub_of, value_of
from eaimw.policy import MAX_ATTEMPTS, MODES, RULES, SCOPES, BreakerSettings, RetrySettings
from eaimw.sense import Finding, findings
from eaimw.sense.chance import at_least, calls_for

READ = "[ops.GET]\nread = true\n"


def in_file(text: str) -> list[Finding]:
    """What is found in a hub.toml whose CORE has these lines; a table may follow them."""
    file = hub_of(tomllib.loads(f'[targets.CORE]\nurl = "http://core"\n{text}'), Path("hub.toml"))
    return findings(file.settings, file.origins)


def breaker(lines: str, target: str = "") -> str:
    """CORE's lines with those of its breaker."""
    return f"{target}\n[targets.CORE.breaker]\n{lines}\n"


def ratio(lines: str, target: str = "") -> str:
    """As `breaker`, with the ratio rule."""
    return breaker(f'rules = ["ratio"]\n{lines}', target)


def retry(lines: str, target: str = "", ops: str = READ) -> str:
    """CORE's lines with those of its retry, and an operation that may be tried again."""
    return f"{target}\n[targets.CORE.retry]\n{lines}\n{ops}"


# Key, level, words of the reason, what trips the rule, and what just does not.
CASES = [
    # A circuit that opens by chance, or never.
    (
        "breaker.fail_threshold", "warning", "5 in a row come 1.026 times a day at 40/s, and all of them within 0.125",
        "expected_rate = 40", "expected_rate = 38",
    ),
    (
        "breaker.fail_threshold", "warning", "is noticed after 61 s",
        breaker("fail_threshold = 61", "expected_rate = 1"), breaker("fail_threshold = 60", "expected_rate = 1"),
    ),
    (
        "breaker.fail_threshold", "error", "is noticed after 86,401 s",
        breaker("fail_threshold = 86_401", "expected_rate = 1"), breaker("fail_threshold = 60", "expected_rate = 1"),
    ),
    (
        "breaker.min_calls", "error", "the window holds 19 calls (window_calls), so the ratio rule can never decide",
        ratio("window_calls = 19\nmin_calls = 20"), ratio("window_calls = 20\nmin_calls = 20"),
    ),
    (
        "breaker.min_calls", "error", "at 1/s a window of 10 s holds 10 calls on average, so the ratio rule can never",
        ratio("window = 10\nmin_calls = 20", "expected_rate = 1"), ratio("window = 20", "expected_rate = 1"),
    ),
    (
        "breaker.min_calls", "warning", "holds 15 calls on average, so the ratio rule can only now and then decide",
        ratio("window = 15\nmin_calls = 20", "expected_rate = 1"), ratio("window = 20", "expected_rate = 1"),
    ),
    (
        "breaker.min_calls", "error", "at most 4 calls end within 10 s (1 in flight, 3 s each)",
        ratio("min_calls = 5", "max_inflight = 1"), ratio("min_calls = 4", "max_inflight = 1"),
    ),
    (
        "breaker.min_calls", "error", "at most 2 calls end within 10 s (1 in flight, 6 s each)",
        ratio("min_calls = 3", "max_inflight = 1\nhold_after_timeout = 3"),
        ratio("min_calls = 2", "max_inflight = 1\nhold_after_timeout = 3"),
    ),
    (
        "breaker.min_calls", "warning", "5 of 10 calls are enough to open the circuit; where 5% of the calls fail by",
        ratio("min_calls = 10", "expected_rate = 50"), ratio("min_calls = 19", "expected_rate = 50"),
    ),
    (
        "breaker.failure_ratio", "warning", "may fail 5% of its calls",
        ratio("failure_ratio = 0.05"), ratio("failure_ratio = 0.06"),
    ),
    (
        "breaker.stuck_calls", "error", "no more than 10 calls are ever in flight",
        breaker("stuck_calls = 11\nslow_call = 1"), breaker("stuck_calls = 10\nslow_call = 1"),
    ),
    (
        "breaker.stuck_calls", "error", "slow_call is 0, so no call counts as stuck",
        breaker("stuck_calls = 5"), breaker("stuck_calls = 5\nslow_call = 0.1"),
    ),
    (
        "breaker.slow_call", "error", "timeout ends a call after 3 s, so none can be slow before it has failed",
        ratio("slow_call = 3"), ratio("slow_call = 2.9"),
    ),
    (
        "breaker.slow_call", "warning", "so a usual call is slow",
        ratio("slow_call = 0.5", "expected_latency = 0.5"), ratio("slow_call = 0.6", "expected_latency = 0.5"),
    ),
    # One that does not close again.
    (
        "breaker.reset_timeout", "warning", "is refused for up to 3,601 s (1 h)",
        breaker("reset_timeout = 3601"), breaker("reset_timeout = 3600"),
    ),
    (
        "breaker.reset_timeout", "error", "is refused for up to 1,000,000 s",
        breaker("reset_timeout = 1e6"), breaker("reset_timeout = 3600"),
    ),
    (
        "breaker.reopen_max", "error", "is refused for up to 90,000 s (25 h)",
        breaker("reopen_factor = 2\nreopen_max = 90_000"), breaker("reopen_factor = 2\nreopen_max = 3600"),
    ),
    (
        "breaker.reopen_max", "warning", "reset_timeout is 60 s already, so reopen_factor lengthens nothing",
        breaker("reopen_factor = 2\nreset_timeout = 60"), breaker("reopen_factor = 2\nreset_timeout = 59"),
    ),
    (
        "breaker.reopen_factor", "warning", "2 times 0 is 0",
        breaker("reopen_factor = 2\nreset_timeout = 0", "timeout = 3"), breaker("reopen_factor = 2\nreset_timeout = 3"),
    ),
    (
        "breaker.reset_timeout", "warning", "it is shorter than timeout (10.1 s)",
        "timeout = 10.1", "timeout = 10",
    ),
    (
        "breaker.probe_timeout", "error", "so a usual probe fails and the circuit never closes",
        breaker("probe_timeout = 0.4", "expected_latency = 0.5"),
        breaker("probe_timeout = 0.5", "expected_latency = 0.5"),
    ),
    (
        "breaker.probe_timeout", "warning", "timeout ends every call after 3 s, so it has no effect",
        breaker("probe_timeout = 3.1"), breaker("probe_timeout = 3"),
    ),
    ("breaker.mode", "warning", "every call is refused (E904)", breaker('mode = "open"'), breaker('mode = "shadow"')),
    # Timeouts.
    ("timeout", "error", "so every usual call fails", "expected_latency = 3.1", "expected_latency = 3"),
    ("timeout", "warning", "it is 1.875 times expected_p99 (1.6 s)", "expected_p99 = 1.6", "expected_p99 = 1.5"),
    ("timeout", "warning", "it is 6 times expected_p99 (0.5 s)", "expected_p99 = 0.5", "expected_p99 = 0.6"),
    (
        "expected_p99", "warning", "it is less than expected_latency (1.1 s)",
        "expected_p99 = 1\nexpected_latency = 1.1", "expected_p99 = 1\nexpected_latency = 1",
    ),
    ("connect_timeout", "warning", "timeout ends the whole call after 0.4 s", "timeout = 0.4", "timeout = 0.5"),
    (
        "min_call", "error", "a call may take at most (timeout, 3 s) is refused (E906)",
        "min_call = 3", "min_call = 2.9",
    ),
    # Places.
    (
        "max_inflight", "error", "at 101/s of 0.1 s each 10.1 calls are in flight on average (Little's law)",
        breaker("fail_threshold = 9", "expected_rate = 101\nexpected_latency = 0.1"),
        breaker("fail_threshold = 9", "expected_rate = 100\nexpected_latency = 0.1"),
    ),
    (
        "max_inflight", "warning", "at 11/s 11 calls are in flight while they take 1 s each (expected_p99)",
        "expected_rate = 11\nexpected_p99 = 1", "expected_rate = 10\nexpected_p99 = 1",
    ),
    (
        "max_inflight", "warning", "at 10/s even slow calls keep 10 places",
        "expected_rate = 10\nexpected_p99 = 1\nmax_inflight = 101",
        "expected_rate = 10\nexpected_p99 = 1\nmax_inflight = 100",
    ),
    # Retries.
    (
        "retry.attempts", "warning", "3 attempts of 30 s and waits of 0.3 s take up to 90.3 s; a caller who gives no",
        retry("attempts = 3", "timeout = 30\nbreaker.reset_timeout = 30"), retry("attempts = 3", "timeout = 9"),
    ),
    (
        "retry.attempts", "warning", "take up to 60.1 s",
        retry("attempts = 2\nbase = 0.1", "timeout = 30\nbreaker.reset_timeout = 30"),
        retry("attempts = 2\nbase = 0.1", "timeout = 29.95\nbreaker.reset_timeout = 30"),
    ),
    (
        "retry.attempts", "error", "no caller's timeout_ms is above 3,600 s",
        retry("attempts = 3\nbase = 3600\ncap = 3600"), retry("attempts = 3\nbase = 20\ncap = 20"),
    ),
    (
        "retry.attempts", "warning", "no operation that goes to this target is read or idempotent",
        retry("attempts = 2", ops="[ops.PAY]\n"), retry("attempts = 2", ops="[ops.PAY]\nidempotent = true\n"),
    ),
    (
        "retry.budget_ratio", "error", "nothing is ever tried again",
        retry("attempts = 2\nbudget_ratio = 0\nbudget_min = 0"), retry("attempts = 2\nbudget_min = 0"),
    ),
    (
        "retry.budget_ratio", "warning", "after budget_min (10) attempts nothing is tried again",
        retry("attempts = 2\nbudget_ratio = 0"), retry("attempts = 2\nbudget_ratio = 0.01"),
    ),
    (
        "retry.budget_ratio", "warning", "a target that is down gets up to 1.2 times its load",
        retry("attempts = 2\nbudget_ratio = 0.2"), retry("attempts = 2\nbudget_ratio = 0.1"),
    ),
    ("retry.base", "warning", "without a wait", retry("attempts = 2\nbase = 0"), retry("attempts = 2\nbase = 0.01")),
    ("retry.cap", "warning", "without a wait", retry("attempts = 2\ncap = 0"), retry("attempts = 2\ncap = 0.1")),
    (
        "retry.base", "warning", "no wait is above cap (2 s)",
        retry("attempts = 2\nbase = 2.1"), retry("attempts = 2\nbase = 2"),
    ),
    (
        "retry.attempts", "warning", "3 x 3 x 3 = 27 calls (the caller, this hub, the target's side) may come of one",
        retry("attempts = 3", "upstream_attempts = 3\ndownstream_attempts = 3"), retry("attempts = 3"),
    ),
    (
        "upstream_attempts", "warning", "2 x 1 x 2 = 4 calls",
        "upstream_attempts = 2\ndownstream_attempts = 2", "downstream_attempts = 4",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("key", "level", "words", "trips", "is_well"), CASES)
def test_each_rule_finds_what_it_is_for(key: str, level: str, words: str, trips: str, is_well: str) -> None:
    """With level, key, value, the numbers and a remedy; and just inside its boundary it finds nothing."""
    (found,) = (finding for finding in in_file(trips) if words in finding.reason)
    assert (found.level, found.key) == (level, f"targets.CORE.{key}")
    assert found.remedy
    target = hub_of(tomllib.loads(f'[targets.CORE]\nurl = "http://core"\n{trips}'), Path("x")).settings.targets["CORE"]
    assert found.value == value_of(target, key)
    assert in_file(is_well) == []


def test_the_attempts_of_all_layers_are_told_with_their_rate() -> None:
    """3 x 3 x 3 = 27, so at 100/s up to 2,700 calls/s."""
    text = "expected_rate = 100\nupstream_attempts = 3\ndownstream_attempts = 3"
    assert any("27 calls" in found.reason and "at 100/s up to 2,700 calls/s" in found.reason
               for found in in_file(retry("attempts = 3", text)))  # fmt: skip


@pytest.mark.parametrize(
    ("trips", "is_well", "words"),
    [
        (breaker("min_calls = 20\nfailure_ratio = 0.5"), ratio("min_calls = 20\nfailure_ratio = 0.5"), 'no "ratio"'),
        (breaker("window_calls = 50"), ratio("window_calls = 50"), 'rules has no "ratio"'),
        (breaker("slow_call = 2"), ratio("slow_call = 2"), "and stuck_calls is 0"),
        (breaker("slow_call = 2"), breaker("slow_call = 2\nstuck_calls = 5"), "and stuck_calls is 0"),
        (ratio("fail_threshold = 3"), breaker("fail_threshold = 3"), 'rules has no "consecutive"'),
        (ratio("window = 5\nwindow_calls = 50"), ratio("window = 10"), "window_calls is not 0"),
        (ratio("slow_ratio = 0.8"), ratio("slow_ratio = 0.8\nslow_call = 1"), "slow_call is 0"),
        (breaker("reopen_max = 30"), breaker("reopen_max = 30\nreopen_factor = 2"), "reopen_factor is 1"),
        (retry("cap = 1"), retry("cap = 1\nattempts = 2"), "attempts is 1"),
        (breaker("min_calls = 5"), breaker('min_calls = 5\nmode = "off"'), 'no "ratio"'),
    ],
)
def test_what_is_written_and_does_nothing_is_told(trips: str, is_well: str, words: str) -> None:
    """Also if it is the value that is built in: whoever wrote it expects something of it."""
    found = in_file(trips)
    assert found
    assert {finding.level for finding in found} == {"warning"}
    assert all(words in finding.reason for finding in found)
    assert in_file(is_well) == []


def test_each_such_key_is_told_once_where_it_is_written() -> None:
    """Not at the targets that have it from [defaults]; and not if one of them asks for it."""
    text = 'url = "http://core"\n[targets.CLAIM]\nurl = "http://claim"\n[defaults.breaker]\nmin_calls = 30\n'
    text = f"[targets.CORE]\n{text}"

    def keys(text: str) -> list[str]:
        file = hub_of(tomllib.loads(text), Path("hub.toml"))
        return [finding.key for finding in findings(file.settings, file.origins)]

    assert keys(text) == ["defaults.breaker.min_calls"]
    assert keys(f'{text}[targets.CLAIM.breaker]\nrules = ["ratio"]\n') == []


def test_an_op_can_only_narrow_its_target() -> None:
    """A longer timeout than that of all it may go to has no effect; one below min_call refuses callers in a hurry."""
    op = '[targets.SLOW]\nurl = "http://slow"\ntimeout = 9\n[ops.GET]\ntimeout = '
    assert in_file(f"{op}9") == []
    assert [(found.level, found.key) for found in in_file(f"{op}9.1")] == [("warning", "ops.GET.timeout")]
    routed = in_file(f'{op}9\n[routes]\nGET = "CORE"')
    assert [found.reason for found in routed] == ["the timeout of CORE is 3 s, so it has no effect"]
    refused = in_file("min_call = 0.5\n[ops.GET]\ntimeout = 0.5")
    assert [(found.level, found.key) for found in refused] == [("error", "ops.GET.timeout")]
    assert in_file("min_call = 0.5\n[ops.GET]\ntimeout = 0.6") == []


def test_an_op_of_another_target_makes_no_retry_sensible() -> None:
    """What is routed elsewhere is not tried again here."""
    elsewhere = '[targets.CLAIM]\nurl = "http://claim"\n[routes]\nGET = "CLAIM"\n'
    (found,) = in_file(retry("attempts = 2", ops=READ + elsewhere))
    assert "no operation that goes to this target" in found.reason


def test_a_breaker_that_is_off_has_no_findings() -> None:
    """What would be senseless of it does nothing."""
    lines = "stuck_calls = 500\nreset_timeout = 0\nprobe_timeout = 0.1"
    assert len(in_file(ratio(lines, "expected_latency = 1"))) == 4
    assert in_file(ratio(f'{lines}\nmode = "off"', "expected_latency = 1")) == []


def test_a_ratio_that_no_window_makes_certain_is_told_to_rise() -> None:
    """More calls than a window can hold are no remedy."""
    for share in (0.051, math.nextafter(0.05, 1)):
        (found,) = in_file(ratio(f"failure_ratio = {share}\nwindow = 3600", "expected_rate = 30"))
        assert (found.key, found.remedy) == ("targets.CORE.breaker.min_calls", "set failure_ratio to 0.2 or more")


def test_what_is_built_in_is_sensible() -> None:
    """Nothing is found in settings from Python either, until one is changed."""
    assert findings(HubSettings({"CORE": TargetSettings("http://core")})) == []
    idle = TargetSettings("http://core", breaker=BreakerSettings(min_calls=30))
    (found,) = findings(HubSettings({"CORE": idle}))
    assert (found.key, found.value, found.origin) == ("targets.CORE.breaker.min_calls", 30, "targets.CORE")


def test_chance_is_that_of_independent_calls() -> None:
    """The binomial tail of a table, and enough calls by Chernoff's bound."""
    assert at_least(1, 2, 0.05) == pytest.approx(0.0975)
    assert at_least(5, 10, 0.05) == pytest.approx(6.369e-5, rel=1e-3)
    assert at_least(10, 10, 0.5) == pytest.approx(1 / 1024)
    for ratio in (0.1, 0.5, 1.0):
        calls = calls_for(50, ratio, 0.05)
        assert 50 * 86_400 * at_least(max(1, round(ratio * calls)), calls, 0.05) < 1


SECONDS = st.floats(0, MAX_SECONDS)
SOME = st.floats(0, MAX_SECONDS, exclude_min=True)
SHARE = st.floats(0, 1, exclude_min=True)
COUNT = st.integers(0, 100_000)
breakers = st.builds(
    BreakerSettings,
    fail_threshold=st.integers(1, 10**400),
    reset_timeout=st.floats(0, 1e308),
    rules=st.lists(st.sampled_from(RULES), min_size=1),
    window=SOME,
    window_calls=COUNT,
    min_calls=st.integers(1, 100_000),
    failure_ratio=SHARE,
    slow_call=SECONDS,
    slow_ratio=SHARE,
    stuck_calls=COUNT,
    probe_timeout=SECONDS,
    reopen_factor=st.floats(1, 100),
    reopen_max=st.floats(0, 1e308),
    mode=st.sampled_from(MODES),
    per=st.sampled_from(SCOPES),
)
retries = st.builds(
    RetrySettings,
    attempts=st.integers(1, MAX_ATTEMPTS),
    base=SECONDS,
    cap=SECONDS,
    budget_ratio=st.floats(0, 1),
    budget_min=st.integers(0, 100),
)
targets = st.builds(
    TargetSettings,
    st.just("http://core"),
    timeout=SOME,
    max_inflight=st.integers(1, 100_000),
    breaker=breakers,
    connect_timeout=SOME,
    hold_after_timeout=SECONDS,
    min_call=SECONDS,
    retry=retries,
    expected_rate=st.floats(0, 1e6),
    expected_latency=SECONDS,
    expected_p99=SECONDS,
    upstream_attempts=st.integers(1, 1000),
    downstream_attempts=st.integers(1, 1000),
)


@given(targets, st.builds(OpSettings, st.booleans(), st.booleans(), SECONDS))
def test_whatever_can_be_set_can_be_judged(target: TargetSettings, op: OpSettings) -> None:
    """No valid settings make it raise, and each finding says what it must."""
    for found in findings(HubSettings({"CORE": target}, ops={"GET": op})):
        assert found.level in ("error", "warning")
        assert found.key.startswith(("targets.CORE.", "ops.GET."))
        assert found.reason
        assert found.remedy
