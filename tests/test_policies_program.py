"""Policies through the running program: what a target feels, what callers are told, what the breaker log says."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from relayed import Json, Say, from_file, http, ok, peer, tx
from served import eventually, target


def says(code: str) -> Say:
    return http(b'{"code":"%s"}' % code.encode())


def test_retries_cannot_hold_a_target_down(tmp_path: Path) -> None:
    """Three attempts each, and a target that fails all: it sees at most 1.1 times the calls, and ten."""
    section = """
[targets.CORE.breaker]
mode = "off"
[targets.CORE.retry]
attempts = 3
base = 0.001
cap = 0.002
"""
    calls = 300
    with peer(lambda request: says("E500")) as core, from_file(tmp_path, section, core=core.url) as relay:
        for number in range(calls):
            relay.feed(tx(number, idempotency_key=f"K-{number}"))
            relay.come(number + 1)
        replies = relay.replies(calls)
        assert {reply["code"] for reply in replies} == {"E500"}
        extra = core.received.total() - calls
        assert calls * 0.1 <= extra <= calls * 0.1 + 10
        assert sum(reply["attempts"] for reply in replies) == core.received.total()
        assert relay.end() == 0


def test_what_may_not_be_repeated_is_not(tmp_path: Path) -> None:
    """The same target and settings, but no key and an op that nobody has declared: received once each."""
    section = '[targets.CORE.breaker]\nmode = "off"\n[targets.CORE.retry]\nattempts = 3\nbase = 0.001\n'
    with peer(lambda request: says("E500")) as core, from_file(tmp_path, section, core=core.url) as relay:
        relay.feed(*(tx(number, op="PAY") for number in range(5)))
        assert {reply["attempts"] for reply in relay.replies(5)} == {1}
        assert set(core.received.values()) == {1}
        assert relay.end() == 0


def test_denials_never_open_the_ratio_rule(tmp_path: Path) -> None:
    """Sixty of a hundred are denied, a thousand times: the target is healthy, and the log stays empty."""
    section = '[targets.CORE.breaker]\nrules = ["consecutive", "ratio"]\nmin_calls = 10\nfailure_ratio = 0.5\n'

    def denying(request: Json) -> Say:
        return ok(request, "B201" if int(request["tx_id"][2:]) % 10 < 6 else "0000")

    with peer(denying) as core, from_file(tmp_path, section, core=core.url) as relay:
        for begin in range(0, 1000, 10):
            relay.feed(*(tx(number) for number in range(begin, begin + 10)))
            relay.come(begin + 10)
        assert Counter(reply["code"] for reply in relay.replies(1000)) == {"B201": 600, "0000": 400}
        assert relay.end() == 0
        assert relay.log.read_text(encoding="utf-8") == ""


def test_a_slow_target_opens_before_its_calls_time_out(tmp_path: Path) -> None:
    """Each answers after half a second, the timeout is ten: five slow ones are enough."""
    section = """
[defaults]
timeout = 10.0
[targets.CORE.breaker]
rules = ["ratio"]
min_calls = 5
slow_call = 0.2
slow_ratio = 0.8
reset_timeout = 3600
"""
    with target("core") as core, from_file(tmp_path, section, core=core.url) as relay:
        core.ctl(mode="slow", delay_ms=500)
        relay.feed(*(tx(number) for number in range(5)))
        relay.come(5)
        relay.feed(*(tx(number) for number in range(5, 10)))
        assert [reply["code"] for reply in relay.replies(10)] == ["0000"] * 5 + ["E904"] * 5
        assert core.stats()["calls"] == 5
        assert relay.end() == 0
        assert relay.log.read_text(encoding="utf-8").count("|CORE|CLOSED->OPEN") == 1


def test_stuck_calls_open_before_their_timeouts(tmp_path: Path) -> None:
    """Three calls hang and the timeout is a minute: once they have waited longer than slow_call the next is E904."""
    section = """
[defaults]
timeout = 60.0
max_inflight = 3
[targets.CORE.breaker]
slow_call = 0.3
stuck_calls = 3
reset_timeout = 3600
"""
    with target("core") as core, from_file(tmp_path, section, core=core.url) as relay:
        core.ctl(mode="hang")
        began = time.monotonic()
        relay.feed(*(tx(number) for number in range(3)))
        codes: list[str] = []

        def is_open() -> bool:
            relay.feed(tx(f"more-{len(codes)}"))
            codes.append(relay.replies(len(codes) + 1)[-1]["code"])
            return codes[-1] == "E904"

        eventually(is_open, within=30.0)
        assert set(codes[:-1]) <= {"E905"}, "all places are taken, and not yet stuck"
        assert 0.3 <= time.monotonic() - began < 30
        assert relay.log.read_text(encoding="utf-8").count("|CORE|CLOSED->OPEN") == 1
        core.stop()
        assert relay.end() == 0


def test_an_operation_has_its_own_circuit(tmp_path: Path) -> None:
    """Reports fail and are cut off; orders of the same target go on. The log names the operation."""
    section = '[targets.CORE.breaker]\nfail_threshold = 2\nreset_timeout = 3600\nper = "op"\n'

    def failing(request: Json) -> Say:
        return says("E500") if request["op"] == "REPORT" else ok(request)

    with peer(failing) as core, from_file(tmp_path, section, core=core.url) as relay:
        for number, op in enumerate(("REPORT", "REPORT", "REPORT", "ORDER", "REPORT", "ORDER")):
            relay.feed(tx(number, op=op))
            relay.come(number + 1)
        codes = [reply["code"] for reply in relay.replies(6)]
        assert codes == ["E500", "E500", "E904", "0000", "E904", "0000"]
        assert relay.end() == 0
        assert relay.log.read_text(encoding="utf-8").rstrip().endswith("|CORE/REPORT|CLOSED->OPEN")
