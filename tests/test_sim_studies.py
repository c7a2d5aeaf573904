"""The studies of `eaimw sim`: the numbers that theory gives, the same at every run, in a moment, from nothing real."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner

from eaimw.cli import main
from eaimw.cli.sim.printing import table_lines
from eaimw.sense.chance import opens_per_day, threshold_for
from eaimw.sim.chance import stream
from eaimw.sim.findings import Findings
from eaimw.sim.forbidden import forbidden
from eaimw.sim.modes import Refused
from eaimw.sim.studies import amplify, backlog, cascade, recover, size, synchrony

STUDIES = {
    "cascade": lambda seed: cascade.study(seed),
    "backlog": lambda seed: backlog.study(seed),
    "amplify": lambda seed: amplify.study(seed, 3, 3),
    "synchrony": lambda seed: synchrony.study(seed),
    "recover": lambda seed: recover.study(seed),
    "size": lambda seed: size.study(seed, 100.0, 0.1, 0.01),
}
OPTIONS = {name: ["--rate", "100", "--latency", "0.1"] if name == "size" else [] for name in STUDIES}


@cache
def found(name: str) -> Findings:
    """What the study finds with seed 1."""
    return STUDIES[name](1)


def rows(name: str) -> list[dict[str, Any]]:
    return found(name).table.records()


def without_seed(findings: Findings) -> Findings:
    return replace(findings, seed=0)


def beside(name: str, number: int) -> list[dict[str, Any]]:
    return [*found(name).beside[number].records()]


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["sim", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


# What holds for all of them.


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_the_same_at_every_run(name: str) -> None:
    """It reads no clock, draws no chance but from its seed, and takes less than 5 s of a processor."""
    first = found(name)
    began = time.process_time()
    with forbidden():
        again = STUDIES[name](1)
    assert time.process_time() - began < 5
    assert again == first


@pytest.mark.parametrize("name", STUDIES)
def test_json_has_what_the_table_has(name: str) -> None:
    """Row by row the same figures, and a kind for each."""
    as_json = json.loads(printed(name, *OPTIONS[name], "--json"))
    assert as_json == found(name).record()
    lines = table_lines(found(name).table)
    assert re.split(" {2,}", lines[0].strip()) == list(as_json["rows"][0])
    end = 1 + len(as_json["rows"])
    assert lines[end].startswith(("modelled: ", "simulated: "))  # where they come from; it may take several lines
    for row, line in zip(as_json["rows"], lines[1:end], strict=True):
        shown = [cell.replace(",", "") for cell in re.split(" {2,}", line.strip())]
        for figure, cell in zip(row.values(), shown, strict=True):
            if isinstance(figure, str):
                assert cell == figure.replace(",", "")
            else:
                assert cell == "-" if figure is None else float(cell) == figure
    figures = [name for name, cell in as_json["rows"][0].items() if not isinstance(cell, str)]
    assert list(as_json["kind"]) == figures
    assert set(as_json["kind"].values()) <= {"modelled", "simulated"}


@pytest.mark.parametrize("name", ["cascade", "backlog", "amplify"])
def test_where_nothing_is_left_to_chance_the_seed_changes_nothing(name: str) -> None:
    """As the help of these says."""
    assert without_seed(STUDIES[name](2)) == without_seed(found(name))


@pytest.mark.parametrize("name", ["synchrony", "recover", "size"])
def test_another_seed_is_another_run(name: str) -> None:
    """Where chance plays a part."""
    assert without_seed(STUDIES[name](2)) != without_seed(found(name))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["cascade", "--seed", "-1"], "-1 is not in the range"),
        (["backlog", "--seed", "one"], "'one' is not a valid integer"),
        (["amplify", "--layers", "6"], "6 is not in the range 1<=x<=5"),
        (["amplify", "--attempts", "0"], "0 is not in the range 1<=x<=5"),
        (["amplify", "--layers", "2.5"], "'2.5' is not a valid integer"),
        (["size", "--latency", "1"], "Missing option '--rate'"),
        (["size", "--rate", "0", "--latency", "1"], "--rate must be a finite number above 0 up to 10000; not 0.0"),
        (["size", "--rate", "nan", "--latency", "1"], "--rate must be a finite number above 0 up to 10000; not nan"),
        (["size", "--rate", "1", "--latency", "inf"], "--latency must be a finite number above 0 up to 60; not inf"),
        (["size", "--rate", "100", "--latency", "6"], "--rate times latency must be at most 500 calls in flight"),
        (["size", "--rate", "1", "--latency", "1", "--refusals", "1"], "--refusals must be a finite number"),
    ],
)
def test_a_bad_option_gets_a_sentence(arguments: list[str], sentence: str) -> None:
    """With what was found and what is allowed, and exit status 2."""
    done = CliRunner().invoke(main, ["sim", *arguments])
    assert done.exit_code == 2
    assert sentence in done.stderr


# Cascade.


def test_each_layer_of_protection_keeps_what_it_is_for() -> None:
    """A timeout keeps the callers, a breaker the target, a bulkhead the first moment; all good answers stay good."""
    nothing, timeout, breaker, bulkhead = rows("cascade")
    for row in (nothing, timeout, breaker, bulkhead):
        assert row["sent"] == 1200
        assert row["ok"] + row["timeout"] + row["circuit_open"] + row["bulkhead_full"] == row["sent"]
        assert row["calls"] == row["ok"] + row["timeout"]
        assert row["ok_within_1s"] == 300
    assert (nothing["ok"], nothing["p50_ms"]) == (1200, 4001)
    assert nothing["last_s"] == pytest.approx(3 + 900 / 32 * 4, rel=0.05)
    assert (timeout["ok"], timeout["timeout"], timeout["p50_ms"]) == (300, 900, 300)
    assert (breaker["ok"], breaker["p50_ms"]) == (300, 0)
    assert bulkhead["bulkhead_full"] > 0 == breaker["bulkhead_full"]
    assert timeout["last_s"] < 12.5


def test_the_published_figures_stand_beside_ours() -> None:
    """As they are given, and what comes out of their own code."""
    published, rebuilt = found("cascade").beside
    assert [(row["ok"], row["timeout"], row["p50_ms"], row["p99_ms"]) for row in published.records()] == [
        (302, None, 4012, 4088),
        (300, None, 301, 312),
        (300, 62, 0, 301),
        (300, 22, 0, 118),
    ]
    assert [(row["timeout"], row["circuit_open"]) for row in rebuilt.records()] == [(47, 829), (26, 810)]
    assert set(published.kinds().values()) == {"published"}


def test_the_published_breaker_gives_the_figures_of_its_own_code() -> None:
    """Half of the last 20 calls, three probes after 2 s: timeouts within one of those, with and without a bulkhead."""
    _, rebuilt = found("cascade").beside
    ours = {row["name"]: row for row in rows("cascade")}
    for theirs in rebuilt.records():
        assert abs(ours[theirs["name"]]["timeout"] - theirs["timeout"]) <= 1


# Backlog.


def test_the_fluid_model_has_the_figures_of_theory() -> None:
    """2,400 wait at 120 s and none at 240 s; with further attempts 7,200 and 12,000, and never none."""
    model = {row["t_s"]: (row["model"], row["model_extra"]) for row in rows("backlog")}
    assert model[120] == (2400, 7200)
    assert model[240] == (0, 9600)
    assert model[360] == (0, 12_000)


def test_discrete_events_are_within_a_twentieth_of_the_fluid_model() -> None:
    """Where none wait, none do."""
    for row in rows("backlog"):
        assert row["events"] == pytest.approx(row["model"], rel=0.05)
        assert row["events_extra"] == pytest.approx(row["model_extra"], rel=0.05)


def test_nothing_waits_at_the_hub() -> None:
    """Never more in it than max-inflight, and what would have waited has been refused."""
    seen = [row for row in rows("backlog") if row["hub_inflight"] is not None]
    assert [row["t_s"] for row in seen] == [0, 60, 120, 180]
    assert max(row["hub_inflight"] for row in seen) <= backlog.MAX_INFLIGHT
    assert seen[2]["hub_inflight"] + seen[2]["hub_refused"] == pytest.approx(2400, abs=2)
    assert seen[3]["hub_refused"] - seen[2]["hub_refused"] <= 1


# Amplify.


def test_attempts_of_three_layers_multiply() -> None:
    """1, 3, 9, 27, by arithmetic and in hubs; 3 where one layer retries; and an open circuit ends it."""
    table = rows("amplify")
    assert [row["model"] for row in table] == [row["hubs"] for row in table] == [1, 3, 9, 27]
    assert [row["model_one"] for row in table] == [row["hubs_one"] for row in table] == [1, 1, 1, 3]
    assert table[-1]["hubs_breakers"] == 5


@pytest.mark.parametrize(("layers", "attempts"), [(1, 1), (1, 5), (5, 1), (2, 4), (4, 2)])
def test_any_layers_and_attempts_multiply(layers: int, attempts: int) -> None:
    """As many rows as depths; attempts to the power of layers at the target."""
    table = amplify.study(1, layers, attempts).table.records()
    assert [row["hubs"] for row in table] == [attempts**depth for depth in range(layers + 1)]
    assert table[-1]["hubs_one"] == attempts


# Synchrony.


def test_who_waits_the_same_comes_at_the_same_time() -> None:
    """Fixed wait and backoff come all at once each time: 1,000, and 60 fewer; jitter spreads them."""
    table = {row["name"]: row for row in rows("synchrony")}
    together = sum(range(1000, 0, -60))
    for name in ("fixed wait", "exponential backoff"):
        assert table[name]["peak_100ms"] == 1000
        assert table[name]["calls"] == table[name]["target_calls"] == together
    assert table["fixed wait"]["all_served_s"] == pytest.approx(17.2)
    assert table["full jitter"]["peak_100ms"] < 250
    assert table["full jitter"]["calls"] < together / 3
    assert 4 < table["full jitter"]["all_served_s"] < 17.2


def test_the_hubs_refusals_spread_the_callers_and_spare_the_target() -> None:
    """Each caller reaches the target once."""
    row = rows("synchrony")[-1]
    assert row["target_calls"] == 1000
    assert row["peak_100ms"] < 300
    assert 4 < row["all_served_s"] < 10


def test_backoff_grows_to_its_bound() -> None:
    """1, 2, 4, 8, 16, 30, 30 s, however often; full jitter stays below."""
    waits = [synchrony.backoff(attempt, stream(1, "callers")) for attempt in (1, 2, 3, 4, 5, 6, 7, 10_000)]
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert 0 <= synchrony.full_jitter(3, stream(1, "callers")) < 4


# Recover.


def test_one_probe_and_a_limit_spare_a_target_that_comes_back() -> None:
    """Without a breaker it is tried a thousand times while it is down, and refuses what comes in its first second."""
    table = {row["name"]: row for row in rows("recover")}
    nothing, breaker, both = table["no breaker"], table["breaker"], table["breaker, max-inflight"]
    assert nothing["tried_down"] > 1000
    assert nothing["refused_1s"] > 100
    # 5 failures, or a few more on their way, and a probe each second.
    assert breaker["tried_down"] == both["tried_down"] <= 10
    assert both["refused_1s"] == 0
    assert both["calls_1s"] < nothing["calls_1s"] / 2
    assert both["served_1s"] > breaker["served_1s"]
    assert both["all_served_s"] < breaker["all_served_s"]
    for row in table.values():
        assert row["served_1s"] + row["refused_1s"] <= row["calls_1s"]
        assert row["peak_100ms"] <= row["calls_1s"]
        assert 0 <= row["first_ok_s"] < 1


# Size.


@pytest.mark.parametrize(
    ("servers", "load", "share"),
    [(1, 1.0, 0.5), (2, 1.0, 0.2), (3, 2.0, 4 / 19), (10, 10.0, 0.21458), (18, 10.0, 0.00714), (500, 400.0, 0.0)],
)
def test_erlangs_formula(servers: int, load: float, share: float) -> None:
    """The values of its published tables."""
    assert size.erlang_b(servers, load) == pytest.approx(share, abs=5e-6)


@pytest.mark.parametrize(("load", "refusals"), [(0.001, 0.01), (1.0, 0.01), (10.0, 0.01), (10.0, 0.001), (150.0, 0.05)])
def test_the_smallest_is_the_smallest(load: float, refusals: float) -> None:
    """One place fewer refuses too many; and by simulation it is about the same."""
    least = size.smallest_by_erlang(load, refusals)
    assert size.erlang_b(least, load) < refusals
    assert least == 1 or size.erlang_b(least - 1, load) >= refusals
    crowd = size.Crowd(1, load)
    simulated = size.smallest_by_simulation(crowd, refusals, near=max(1, least - 3))
    assert crowd.refused(simulated) < refusals
    assert abs(simulated - least) <= 1


def test_three_ways_to_a_max_inflight() -> None:
    """Little's 10 would refuse a fifth; Erlang's 18 and the simulation's agree; the hub refuses what they say."""
    (row,) = rows("size")
    assert (row["little"], row["erlang_b"], row["simulation"]) == (10, 18, 18)
    little, erlang = beside("size", 0)
    assert little["erlang_b"] == pytest.approx(little["bulkhead"], rel=0.05)
    assert little["erlang_b"] == pytest.approx(0.21458)
    assert erlang["max_inflight"] == 18
    for way in ("erlang_b", "bulkhead", "hub"):
        assert 0.004 < erlang[way] < 0.01, way


@pytest.mark.parametrize("rate", [0.01, 1.0, 100.0, 10_000.0])
@pytest.mark.parametrize("share", size.FAILURES)
def test_chance_alone_opens_less_than_once_a_day(rate: float, share: float) -> None:
    """And with a threshold of one less, more often."""
    threshold = threshold_for(rate, share)
    assert opens_per_day(rate, share, threshold) < 1
    assert threshold == 1 or opens_per_day(rate, share, threshold - 1) >= 1


@pytest.mark.parametrize(("rate", "seconds"), [(0.01, 60), (20.0, 50), (100.0, 10), (1000.0, 1), (10_000.0, 1)])
def test_a_thousandth_of_the_calls_are_probes(rate: float, seconds: float) -> None:
    """Within 1 s and a minute."""
    assert size.reset_for(rate) == pytest.approx(seconds)


def test_the_study_itself_refuses_what_is_out_of_range() -> None:
    """From Python as from the command line."""
    with pytest.raises(Refused, match="rate times latency"):
        size.study(1, 10_000.0, 1.0, 0.01)
