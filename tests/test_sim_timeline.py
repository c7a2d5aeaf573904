"""When a simulated target is ill: the settings in force at each moment of a run."""

from __future__ import annotations

import math
import tomllib
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaimw.sim.modes import Refused, settings_from
from eaimw.sim.timeline import NORMAL, Fault, Timeline

SLOW = settings_from({"mode": "slow", "delay_ms": 4000}, "normal")
FAIL = settings_from({"mode": "fail"}, "normal")


def test_a_fault_begins_and_ends() -> None:
    """In force from `at`, that moment included, to `until`, that moment not; normal before and after."""
    timeline = Timeline((Fault(3.0, SLOW, 8.0),))
    assert [timeline.at(t) for t in (0.0, 2.999, 3.0, 7.999, 8.0, 1e9)] == [NORMAL, NORMAL, SLOW, SLOW, NORMAL, NORMAL]
    assert [timeline.next_change(t) for t in (0.0, 2.0, 3.0, 7.0, 8.0)] == [3.0, 3.0, 8.0, 8.0, math.inf]


def test_without_until_a_fault_lasts_to_the_next_one_or_the_end() -> None:
    """The order in which they are given does not matter."""
    timeline = Timeline((Fault(5.0, FAIL), Fault(2.0, SLOW)))
    assert [timeline.at(t) for t in (1.0, 2.0, 4.9, 5.0, 1e9)] == [NORMAL, SLOW, SLOW, FAIL, FAIL]


def test_a_target_that_is_ill_from_the_start() -> None:
    """A fault at 0 leaves no moment of health, and one may follow another without a gap."""
    timeline = Timeline((Fault(0, SLOW, 1.0), Fault(1.0, FAIL, 2.0)))
    assert [timeline.at(t) for t in (-1.0, 0.0, 0.9, 1.0, 2.0)] == [SLOW, SLOW, SLOW, FAIL, NORMAL]
    assert timeline.changes == ((0, SLOW), (1.0, FAIL), (2.0, NORMAL))


def test_no_faults() -> None:
    """Normal for ever."""
    assert (Timeline().at(5.0), Timeline().next_change(0.0)) == (NORMAL, math.inf)


def test_records_do_not_change() -> None:
    """A run cannot alter what it was made from."""
    with pytest.raises(FrozenInstanceError):
        Timeline().faults = ()  # type: ignore[misc]


def test_from_toml() -> None:
    """The table of a file becomes the same records."""
    text = """
        [[targets.CORE.faults]]
        at = 3.0
        until = 8
        mode = "slow"
        delay_ms = 4000

        [[targets.CORE.faults]]
        at = 10
        mode = "fail"
    """
    tables = tomllib.loads(text)["targets"]["CORE"]["faults"]
    assert Timeline.of(tables) == Timeline((Fault(3.0, SLOW, 8), Fault(10, FAIL)))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({}, "array of tables"),
        ("slow", "array of tables"),
        ([3], "fault 1: it must be a table"),
        ([{"mode": "fail"}], "fault 1: at is missing"),
        ([{"at": 1.0}], "fault 1: mode is missing"),
        ([{"at": 1.0, "mode": "fail"}, {"at": 2.0, "mode": "sick"}], "fault 2: mode must be one of normal"),
        ([{"at": 1.0, "mode": "fail", "rate": 1}], "fault 1: mode fail takes"),
        ([{"at": -1.0, "mode": "fail"}], "fault 1: at must be a finite number of at least 0"),
        ([{"at": "3", "mode": "fail"}], "fault 1: at must be"),
        ([{"at": True, "mode": "fail"}], "fault 1: at must be"),
        ([{"at": math.nan, "mode": "fail"}], "fault 1: at must be"),
        ([{"at": 3.0, "until": 3.0, "mode": "fail"}], "fault 1: until must be a finite number above 3"),
        ([{"at": 1, "until": 3, "mode": "fail"}, {"at": 2, "mode": "slow"}], "2 lies in the one at 1"),
        ([{"at": 1, "mode": "fail"}, {"at": 1, "mode": "slow"}], "1 lies in the one at 1"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(wanted: object, said: str) -> None:
    """Which fault, which field, what was found and what is allowed."""
    with pytest.raises(Refused) as refusal:
        Timeline.of(wanted)
    assert said in str(refusal.value)


@given(st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(1, 5)), max_size=6), st.integers(-2, 40))
def test_nothing_changes_before_the_next_change(rows: list[tuple[int, int | None]], moment: int) -> None:
    """From any moment on the settings stay to the next change, and there others are in force (or the same anew)."""
    faults = tuple(Fault(at, SLOW, None if lasts is None else at + lasts) for at, lasts in rows)
    try:
        timeline = Timeline(faults)
    except Refused:
        return
    following = timeline.next_change(moment)
    assert following > moment
    assert timeline.at(math.nextafter(following, -math.inf)) == timeline.at(moment)
    begun = [(at, lasts) for at, lasts in rows if at <= max(moment, 0)]
    at, lasts = max(begun, default=(0, 0))
    assert timeline.at(moment) == (SLOW if begun and (lasts is None or max(moment, 0) < at + lasts) else NORMAL)
