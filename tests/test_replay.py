"""What other settings would have done: records written by hand, whose right figures are computed by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from relayed import Json, relay, tx
from served import target
from test_access_log import records

from eaimw.cli import main
from eaimw.config import HubSettings, TargetSettings
from eaimw.kernel.breaker import State
from eaimw.policy import BreakerSettings
from eaimw.sim.studies import recording
from eaimw.sim.studies.hindsight import Opening, answers_of, openings_met
from eaimw.sim.studies.recording import Past
from eaimw.sim.studies.replay import Replayed
from eaimw.sim.studies.replay import replay as replay_of

URL = "http://127.0.0.1:9201/tx"
# seconds -> that time of the day
TIME = "2026-11-29T{:02.0f}:{:02.0f}:{:09.6f}+00:00"


def line(at: float, code: str = "0000", took: float | None = 0.1, **more: Any) -> Json:
    """A line of a record. took: seconds of its call; None: it was refused."""
    sample = "none" if took is None else "failure" if code in ("E500", "E901", "E902") else "success"
    state = "OPEN" if code == "E904" else "CLOSED"
    outcome = "not_sent" if took is None else "unknown" if sample == "failure" else "done"
    return {
        "time": TIME.format(at // 3600, at % 3600 // 60, at % 60), "target": "CORE", "op": "PAY", "timeout_ms": None,
        "code": code, "outcome": outcome, "duration": took, "sample": sample, "state": state, **more,
    }  # fmt: skip


def refused(at: float, code: str = "E904", **more: Any) -> Json:
    return line(at, code, None, **more)


class Files:
    """A folder with what `eaimw sim replay` takes."""

    def __init__(self, folder: Path) -> None:
        self.record = folder / "record.jsonl"
        self.config = folder / "hub.toml"

    def run(self, lines: Sequence[Json | str], *options: str, settings: str = "", more: str = "") -> Result:
        """The command. settings: of CORE."""
        texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
        self.record.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        self.config.write_text(f"[targets.CORE]\nurl = '{URL}'\n{settings}\n{more}", encoding="utf-8")
        return CliRunner().invoke(main, ["sim", "replay", str(self.record), "--config", str(self.config), *options])

    def found(self, lines: Sequence[Json | str], settings: str = "", more: str = "") -> Json:
        result = self.run(lines, "--json", settings=settings, more=more)
        assert result.exit_code == 0, result.output
        found: Json = json.loads(result.output)
        return found

    def replayed(self, lines: Sequence[Json | str], settings: str = "") -> Json:
        """CORE's row."""
        (row,) = self.found(lines, settings)["rows"]
        return {name: value for name, value in row.items() if name != "target"}

    def as_it_was(self, lines: Sequence[Json | str], settings: str = "") -> Json:
        (row,) = self.found(lines, settings)["beside"][0]["rows"]
        return {name: value for name, value in row.items() if name != "target"}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def row(transactions: int, **more: Any) -> Json:
    """The figures of a target to which nothing happened, but for those."""
    quiet = {"transactions": transactions, "openings": 0, "open_s": 0, "good_refused": 0, "bad_through": 0}
    return {**quiet, "notice_s": None, "E904": 0, "E905": 0, "assumed": 0, **more}


# One every second, 0.1 s each; from second 5 to 14 the target fails; nothing was ever refused.
OUTAGE = [line(at, "E500" if 5 <= at < 15 else "0000") for at in range(30)]


# Stories


def test_a_lower_threshold_would_have_opened(files: Files) -> None:
    """Opens at 7.1 by the failures of 5.1, 6.1 and 7.1; its probes are 12, which fails at 12.1, and 17, which is good.

    Refused are 8 to 11 and 13 to 16, of which 15 and 16 would have been good; 5, 6, 7 and 12 were let through.
    """
    settings = "[targets.CORE.breaker]\nfail_threshold = 3\nreset_timeout = 4"
    assert files.replayed(OUTAGE, settings) == row(
        30, openings=1, open_s=10.0, good_refused=2, bad_through=4, notice_s=2.0, E904=8
    )
    assert files.as_it_was(OUTAGE, settings) == row(30, bad_through=10)


def test_a_smaller_bulkhead_would_have_refused(files: Files) -> None:
    """Of five within 0.4 s that take a second the first two have the places; at 1.0 exactly the first one is free."""
    lines = [line(at, took=1.0) for at in (0.0, 0.1, 0.2, 0.3, 0.4, 1.0)]
    assert files.replayed(lines, "max_inflight = 2") == row(6, good_refused=3, E905=3)


def test_a_shorter_timeout_would_have_cut(files: Files) -> None:
    """The call of 2 s ends at 1.5 and opens; of the two refused then the one of 2 s would not have been good."""
    lines = [line(0, took=2.0), line(3, took=0.1), line(4, took=2.0)]
    settings = "timeout = 1.5\n[targets.CORE.breaker]\nfail_threshold = 1\nreset_timeout = 100"
    assert files.replayed(lines, settings) == row(
        3, openings=1, open_s=2.5, good_refused=1, bad_through=1, notice_s=0.0, E904=2
    )


def test_an_opening_of_an_operation_is_one_of_its_target(files: Files) -> None:
    """With a circuit for each operation the figures are the same, where there is but one operation."""
    settings = "[targets.CORE.breaker]\nfail_threshold = 3\nreset_timeout = 4"
    assert files.replayed(OUTAGE, settings + '\nper = "op"') == files.replayed(OUTAGE, settings)


def test_nothing_is_tried_again(files: Files) -> None:
    """What a further attempt would have met, no record tells: settings that retry give what the others give."""
    lines = [line(at, "E902", outcome="not_sent") for at in range(4)]
    assert files.replayed(lines, "[targets.CORE.retry]\nattempts = 3") == row(4, bad_through=4)


def test_what_was_refused_is_assumed_to_be_as_the_nearest_call(files: Files) -> None:
    """3 is nearer to 0 and 3.5 as near to both, so good; 5 and 6 are nearer to 7, which failed."""
    lines = [line(0), refused(3), refused(3.5), refused(5), refused(6), line(7, "E500", state="HALF_OPEN")]
    settings = "[targets.CORE.breaker]\nfail_threshold = 100"
    assert files.replayed(lines, settings) == row(6, bad_through=3, assumed=4)
    was = files.as_it_was(lines, settings)
    assert {name: was[name] for name in ("good_refused", "bad_through", "E904", "assumed")} == {
        "good_refused": 2, "bad_through": 1, "E904": 4, "assumed": 4,
    }  # fmt: skip


def test_a_call_that_was_cut_and_has_longer_now_never_ends(files: Files) -> None:
    """It has its place for 3 s instead of one, so that the next one finds none; and is counted as assumed."""
    lines = [line(0, "E901", 1.0), line(2), line(3.5)]
    assert files.replayed(lines, "timeout = 3\nmax_inflight = 1") == row(
        3, good_refused=1, bad_through=1, E905=1, assumed=1
    )
    assert files.replayed(lines, "timeout = 1\nmax_inflight = 1") == row(3, bad_through=1)


def test_a_callers_own_budget_is_no_failure_of_the_target(files: Files) -> None:
    """With any timeout of the target's it cuts its call after as long, and opens nothing."""
    lines = [line(0, "E901", 0.5, timeout_ms=500, sample="none"), line(1)]
    assert files.replayed(lines, "[targets.CORE.breaker]\nfail_threshold = 1") == row(2)


def test_a_lack_of_the_hubs_own_is_no_failure_of_the_target(files: Files) -> None:
    """Such as an E902 for want of a descriptor."""
    lines = [line(0, "E902", 0.5, sample="none", outcome="not_sent"), line(1)]
    assert files.replayed(lines, "[targets.CORE.breaker]\nfail_threshold = 1") == row(2)


@pytest.mark.parametrize("code", ["0000", "B201", "E500", "E902", "E904", "X123"])
@pytest.mark.parametrize("field", ["code", "outcome.code", "header.result_code"])
def test_a_code_comes_back_wherever_it_stands(code: str, field: str) -> None:
    """Of the target's own, as it was recorded; a hub behind it says its outcome too."""
    past = Past(0.0, "CORE", None, None, code, "unknown", 0.1, "success", None)
    settings = HubSettings({"CORE": TargetSettings(URL, code_field=field)})
    (after,) = replay_of([past], [past], settings).transactions
    assert (after.code, after.took) == (code, 0.1)


def test_targets_have_rows_of_their_own(files: Files) -> None:
    """In the order of the configuration, with the same columns as it was."""
    found = files.found(
        [*OUTAGE, *(line(at, target="CLAIM") for at in range(40))], more=f"[targets.CLAIM]\nurl = '{URL}'"
    )
    for rows in (found["rows"], found["beside"][0]["rows"]):
        assert [each["target"] for each in rows] == ["CORE", "CLAIM"]
        assert [each["transactions"] for each in rows] == [30, 40]
    assert list(found["kind"]) == list(found["beside"][0]["kind"]) == list(row(0))
    assert set(found["kind"].values()) == {"simulated"}
    assert found["beside"][0]["kind"]["good_refused"] == "modelled"


def test_what_no_settings_would_have_served_is_left_out_and_said(files: Files) -> None:
    """Malformed, for no target, of a target that is not tried, and of one that was never called."""
    lines = [
        line(0), refused(1, "E400", target=None, state=None), refused(2, "E903", target="NO", state=None),
        line(3, target="LEDGER"), refused(4, target="CLAIM"),
    ]  # fmt: skip
    found = files.found(lines, more=f"[targets.CLAIM]\nurl = '{URL}'")
    assert [each["transactions"] for each in found["rows"]] == [1]
    assert found["notes"][-1] == (
        "Left out: 2 that no settings would have served (E400, E903, E911 and the like); "
        "1 of targets that the configuration does not have; those of CLAIM (1), none of which was called."
    )


# The openings of a record


def pasts(*lines: Json) -> list[Past]:
    """As they are read, seconds from midnight."""
    return [
        Past(
            float(each["time"][11:13]) * 3600 + float(each["time"][14:16]) * 60 + float(each["time"][17:26]),
            each["target"], each["op"], each["timeout_ms"], each["code"], each["outcome"], each["duration"],
            each["sample"], None if each["state"] is None else State(each["state"]),
        )
        for each in lines
    ]  # fmt: skip


PROBE: Json = {"state": "HALF_OPEN"}


@pytest.mark.parametrize(
    ("lines", "openings"),
    [
        ([line(0), line(1)], []),
        ([line(0, "E500"), line(1, "E500"), refused(2), line(5, **PROBE), line(6)], [Opening(1.1, 5.1)]),
        ([line(0, "E500"), refused(2), line(5, "E500", **PROBE), refused(6)], [Opening(0.1, 9)]),
        ([line(0, "E500"), line(5, **PROBE), line(6, "E500"), line(7, "E500", **PROBE)], [(0.1, 5.1), (6.1, 9)]),
        ([line(0, "E500"), line(5, took=1.0, **PROBE), refused(5.5, **PROBE), line(7)], [Opening(0.1, 6)]),
        ([line(0, "E500"), refused(1), line(2)], [Opening(0.1, 2)]),
        ([refused(1), line(5, **PROBE), line(6)], [Opening(1, 5.1)]),
        ([line(0, "E500"), refused(1), line(1.0001), refused(1.1)], [Opening(0.1, 9)]),
        ([line(0), refused(1, "E911", state=None), line(2)], []),
    ],
    ids=[
        "none", "one", "a failed probe is part of it", "two that only their probes met", "refused beside the probe",
        "its probe is missing", "it was open at the start", "an order mixed up by rounding", "no state",
    ],
)  # fmt: skip
def test_openings_are_seen_by_those_who_met_them(lines: list[Json], openings: list[Opening]) -> None:
    """From the last failure before the first of them to the end of the good probe, or to the end."""
    assert openings_met(pasts(*lines), 9.0) == openings


# An access log


def accessed(at: float, code: str = "0000", elapsed_ms: float = 100.0, attempts: int = 1) -> Json:
    """at: when it was taken."""
    answered = TIME.format(0, 0, at + elapsed_ms / 1000)
    return {
        "time": answered, "tx_id": "T-1", "target": "CORE", "op": None, "code": code, "outcome": "done",
        "attempts": attempts, "elapsed_ms": elapsed_ms, "left": True,
        "state": "OPEN" if code == "E904" else "CLOSED",
    }  # fmt: skip


def test_an_access_log_will_do(files: Files) -> None:
    """The outage of the first story, and one that was refused; said to be from one."""
    lines = [accessed(at, "E500" if 5 <= at < 15 else "0000") for at in range(30)]
    settings = "[targets.CORE.breaker]\nfail_threshold = 3\nreset_timeout = 4"
    assert files.replayed(lines, settings) == files.replayed(OUTAGE, settings)
    assert files.found(lines, settings)["notes"][4].startswith("From an access log: ")
    assert files.replayed([accessed(0), accessed(1, "E904", 0.0, 0)]) == row(2, assumed=1)


# What is no record


def without(field: str) -> Json:
    return {name: value for name, value in line(1).items() if name != field}


ROOM = "a string of 1 to 64 of A-Z a-z 0-9 _ . -, or null"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{", "it is not JSON: "),
        ("\N{REPLACEMENT CHARACTER}", "it is not JSON: "),
        ("[" * 3_000, "it is not JSON: "),
        ("7", "it is 7; it must be a JSON object"),
        (without("duration"), "duration is missing; a line of a record has time, target, op, timeout_ms, code, "),
        ({**line(1), "time": "today"}, "time is 'today'; it must be a time as 2026-11-29T20:51:03.123456+00:00"),
        ({**line(1), "time": "2026-11-29T20:51:03"}, "time is '2026-11-29T20:51:03'; it must be a time as"),
        ({**line(1), "target": "CO RE"}, f"target is 'CO RE'; it must be {ROOM}"),
        ({**line(1), "op": 5}, f"op is 5; it must be {ROOM}"),
        ({**line(1), "timeout_ms": -1}, "timeout_ms is -1; it must be an integer from 0 to 3,600,000, or null"),
        ({**line(1), "code": "0"}, "code is '0'; it must be a string of four of A-Z 0-9"),
        ({**line(1), "code": "0000\n"}, "code is '0000\\n'; it must be a string of four of A-Z 0-9"),
        ({**line(1), "outcome": "fine"}, "outcome is 'fine'; it must be one of done, not_sent, unknown, accepted"),
        ({**line(1), "duration": -1}, "duration is -1; it must be seconds from 0 to 1,000,000, or null where no call"),
        ({**line(1), "sample": None}, "sample is null; it must be one of success, failure, none"),
        ({**line(1), "state": "AJAR"}, "state is 'AJAR'; it must be one of CLOSED, OPEN, HALF_OPEN, or null"),
        ("x" * 5_000, "it has more than 4,096 bytes; no line of a record does"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_a_bad_line_is_named(files: Files, bad: Json | str, why: str) -> None:
    """Status 2, with the file, its number, the field, what was found and what is allowed; blank lines count."""
    result = files.run([line(0), "", bad, line(2)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{files.record} line 3: {why}")


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("attempts", -1, "attempts is -1; it must be an integer of at least 0"),
        ("elapsed_ms", "1", "elapsed_ms is '1'; it must be milliseconds from 0 to 1,000,000,000"),
    ],
)
def test_a_bad_line_of_an_access_log_is_named(files: Files, field: str, value: object, why: str) -> None:
    """By its own fields."""
    result = files.run([accessed(0), {**accessed(1), field: value}])
    assert (result.exit_code, result.stderr) == (2, f"{files.record} line 2: {why}\n")


def test_nothing_to_replay_is_said(files: Files) -> None:
    """Status 2 for an empty file, and for one whose targets are not those of the configuration."""
    for lines in ([], [line(0, target="LEDGER")], [refused(0)]):
        result = files.run(lines)
        assert result.exit_code == 2
        assert result.stderr == f"{files.record}: no call in it is of a target of the configuration (CORE)\n"


def test_a_file_that_is_not_there_is_said(files: Files) -> None:
    """Status 1, for the record as for the configuration."""
    files.run([line(0)])
    files.record.unlink()
    command = ["sim", "replay", str(files.record), "--config", str(files.config)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert result.stderr == (
        f"{files.record} cannot be read: No such file or directory; "
        "name a file that `eaimw relay --record` has written\n"
    )
    files.config.unlink()
    assert CliRunner().invoke(main, command).exit_code == 1


def test_what_is_too_much_is_said(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 2: memory and virtual time have bounds."""
    monkeypatch.setattr(recording, "MAX_TRANSACTIONS", 2)
    monkeypatch.setattr(recording, "MAX_SPAN", 3_600.0)
    result = files.run([line(0), line(1), line(2)])
    assert (result.exit_code, result.stderr) == (
        2, f"{files.record} line 3: 2 transactions are the most; split the file\n"
    )  # fmt: skip
    result = files.run([line(0), line(86_399)])
    assert (result.exit_code, result.stderr) == (2, f"{files.record}: its transactions span 1 days; at most 0 can be\n")


# Repeatable, and true to the real one


def test_one_file_is_one_answer(files: Files) -> None:
    """To the byte; another seed draws other waits for those who are refused, which change no figure."""
    lines = [*OUTAGE, *(line(at, took=2.0) for at in range(30, 40))]
    settings = "max_inflight = 1\n[targets.CORE.breaker]\nfail_threshold = 3\nreset_timeout = 4"
    printed = [files.run(lines, "--seed", seed, settings=settings).stdout for seed in ("7", "7", "8")]
    assert printed[0] == printed[1] == printed[2]
    assert "E904" in printed[0]


def test_a_day_takes_a_moment(files: Files) -> None:
    """20,000 transactions, with an outage, in less than 6 s of this processor, so 100,000 in less than 30 s."""
    lines = [line(at * 4.3, "E500" if 5_000 <= at < 7_000 else "0000") for at in range(20_000)]
    began = time.process_time()
    assert files.replayed(lines)["openings"] == 1
    assert time.process_time() - began < 6


SOME_TIME = st.integers(0, 3_000).map(lambda tenths: tenths / 10)
CALLS = st.lists(
    st.tuples(SOME_TIME, st.integers(1, 30).map(lambda tenths: tenths / 10), st.sampled_from(["0000", "B201", "E500"])),
    min_size=1,
    max_size=60,
)


def as_recorded(calls: Sequence[tuple[float, float, str]]) -> list[Past]:
    return [
        Past(at, "CORE", None, None, code, "done", took, "failure" if code == "E500" else "success", State.CLOSED)
        for at, took, code in sorted(calls)
    ]


def replayed_with(was: Sequence[Past], threshold: int, rest: float, inflight: int) -> Replayed:
    settings = TargetSettings(URL, max_inflight=inflight, breaker=BreakerSettings(threshold, rest))
    answers = answers_of(was)
    assert answers is not None
    return replay_of(was, answers, HubSettings({"CORE": settings}))


@settings(deadline=None)
@given(CALLS)
def test_where_nothing_can_open_or_be_full_nothing_is_refused(calls: list[tuple[float, float, str]]) -> None:
    """A threshold and a limit beyond all: every transaction is as it was."""
    was = as_recorded(calls)
    then = replayed_with(was, 1_000, 10.0, 1_000)
    assert [(each.code, each.at) for each in then.transactions] == [(each.code, each.at) for each in was]
    assert [each.took for each in then.transactions] == pytest.approx([each.took for each in was], abs=1e-6)
    assert then.openings == {"CORE": []}


@settings(deadline=None)
@given(CALLS, st.integers(1, 5), st.integers(0, 200), st.integers(1, 5))
def test_a_replay_of_a_replay_is_the_same(
    calls: list[tuple[float, float, str]], threshold: int, rest: int, inflight: int
) -> None:
    """With the same settings: the same calls, refusals and openings; and the record shows all openings."""
    last = (1_000.0, 0.1, "0000")  # so that no opening is met by nobody
    first = replayed_with(as_recorded([*calls, last]), threshold, rest / 10, inflight)
    was = [msgspec.structs.replace(past, took=past.took and round(past.took, 6)) for past in first.transactions]
    second = replayed_with(was, threshold, rest / 10, inflight)
    assert [(each.code, each.state) for each in second.transactions] == [(each.code, each.state) for each in was]
    assert second.openings == first.openings
    met = openings_met(was, was[-1].at)
    assert len(met) == len(first.openings["CORE"])
    for seen, real in zip(met, first.openings["CORE"], strict=True):
        meeting = min(past.at for past in was if past.at >= real.began and past.state is not State.CLOSED)
        assert real.began - 1e-6 <= seen.began <= meeting + 1e-6
        assert seen.ended == pytest.approx(real.ended)


def test_a_recorded_run_replayed_with_its_settings_is_that_run(tmp_path: Path) -> None:
    """An outage through the relay against CORE: as many openings as the breaker log has, as many refused by the limit.

    Calls begin and end some microseconds apart from the real ones, so that the probe may be the transaction before or
    after the one that it was: E904 may differ by one for each probe.
    """
    record = tmp_path / "record.jsonl"
    options = ("--fail-threshold", "3", "--reset-timeout", "0.05", "--max-inflight", "4", "--record", str(record))
    with target("core") as core, relay(*options, core=core.url) as running:
        sent = 0

        def send(count: int, each: int = 1) -> None:
            nonlocal sent
            for _ in range(count):
                running.feed(*(tx(sent + number) for number in range(each)))
                sent += each
                running.come(sent)

        def until(code: str) -> None:
            """One after another, until one is answered so."""
            while True:
                send(1)
                if json.loads(running.lines[-1])["code"] == code:
                    return

        send(20)
        for _ in range(2):
            core.ctl(mode="fail")
            until("E904")
            until("E500")  # a probe
            core.ctl(mode="normal")
            until("0000")
        core.ctl(mode="slow", delay_ms=200)
        send(2, each=10)
        assert running.end() == 0
        changes = [change.rpartition("|")[2] for change in running.log.read_text().splitlines()]
    lines = records(record)
    probes = sum(each["state"] == "HALF_OPEN" and each["duration"] is not None for each in lines)
    assert len(lines) == sent
    config = tmp_path / "hub.toml"
    config.write_text(
        f"[targets.CORE]\nurl = '{URL}'\nmax_inflight = 4\n[targets.CORE.breaker]\nfail_threshold = 3\n"
        "reset_timeout = 0.05\n",
        encoding="utf-8",
    )
    result = CliRunner().invoke(main, ["sim", "replay", str(record), "--config", str(config), "--json"])
    found = json.loads(result.output)
    (then,), (was,) = found["rows"], found["beside"][0]["rows"]
    assert was["openings"] == then["openings"] == changes.count("CLOSED->OPEN") == 2
    assert was["E905"] == then["E905"] == 12
    assert was["E904"] == sum(each["code"] == "E904" for each in lines) > 0
    assert abs(then["E904"] - was["E904"]) <= probes
    assert then["open_s"] == pytest.approx(was["open_s"], abs=0.2)
    assert then["transactions"] == was["transactions"] == sent
