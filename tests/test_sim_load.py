"""Who calls when: the arrival processes of the simulator, seeded, in order, at the rates that they say."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaimw.sim.durations import Exponential, Fixed
from eaimw.sim.load import Bursts, ClosedLoop, Constant, Load, Piece, Poisson, arrivals, chance_of
from eaimw.sim.modes import Refused


def times(process: Constant | Poisson | Bursts, until: float, seed: int = 1) -> list[float]:
    return list(process.times(Random(seed), until))


def test_a_constant_rate_is_even_and_does_not_drift() -> None:
    """Three a second, the last of a long run still on its third."""
    assert times(Constant(4.0), 1.0) == [0.25, 0.5, 0.75]
    assert times(Constant(3.0), 10_000.0)[29_998] == 29_999 / 3


def test_poisson_has_its_rate_and_its_spread() -> None:
    """50,000 gaps: mean 1/rate within 2 %, and a standard deviation as great within 2 %."""
    found = times(Poisson(50.0), 1000.0)
    gaps = [b - a for a, b in pairwise(found)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.02, rel=0.02)
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(0.02, rel=0.02)


def test_bursts_have_the_rate_of_each_piece() -> None:
    """Quiet, a burst, silence, and so again: each piece's count is its own within 5 % over 200 rounds."""
    bursts = Bursts((Piece(1.0, 10.0), Piece(0.5, 200.0), Piece(2.0, 0.0)))
    found = [moment % 3.5 for moment in times(bursts, 700.0)]
    assert sum(at < 1.0 for at in found) == pytest.approx(2000, rel=0.05)
    assert sum(1.0 <= at < 1.5 for at in found) == pytest.approx(20_000, rel=0.05)
    assert not any(at >= 1.5001 for at in found)


def test_bursts_of_one_rate_are_poisson() -> None:
    """Where a piece ends changes nothing: the same draws give the same times."""
    plain = times(Poisson(5.0), 100.0)
    assert times(Bursts((Piece(0.3, 5.0), Piece(0.7, 5.0))), 100.0) == pytest.approx(plain)


processes = st.one_of(
    st.builds(Constant, st.floats(0.1, 100)),
    st.builds(Poisson, st.floats(0.1, 100)),
    st.lists(st.builds(Piece, st.floats(0.01, 5), st.floats(0, 100)), min_size=1, max_size=4)
    .filter(lambda pieces: any(piece.rate > 0 for piece in pieces))
    .map(lambda pieces: Bursts(tuple(pieces))),
)


@given(processes, st.integers(), st.floats(0, 20))
def test_times_rise_and_end_and_are_the_seeds(process: Constant | Poisson | Bursts, seed: int, until: float) -> None:
    """In order, from 0 to before `until`, and the same again from the same seed."""
    found = times(process, until, seed)
    assert found == sorted(found)
    assert all(0 <= at < until for at in found)
    assert times(process, until, seed) == found


def test_a_closed_loop_sends_after_it_was_answered_and_has_thought() -> None:
    """Each caller begins after one think time, so that not all come at once, and goes on after each answer."""
    loop = ClosedLoop(3, Fixed(2.0))
    assert loop.starts(Random(1)) == [2.0, 2.0, 2.0]
    assert loop.again(10.0, Random(1)) == 12.0
    assert ClosedLoop(1).again(10.0, Random(1)) == 10.0
    assert len(set(ClosedLoop(5, Exponential(1.0)).starts(Random(1)))) == 5


def test_loads_are_sent_together_in_order() -> None:
    """Each transaction has its load's name and number, target, op and fields; a closed loop is not among them."""
    core = Load("pay", "CORE", Constant(2.0), "DEPOSIT", {"account": "A-1", "amount": 5})
    claim = Load("ask", "CLAIM", Constant(3.0))
    closed = Load("desk", "CORE", ClosedLoop(4))
    sent = [(a.at, a.load.tx(a.number)) for a in arrivals([core, closed, claim], 1, 1.0)]
    assert sent == [
        (1 / 3, {"tx_id": "ask-1", "target": "CLAIM"}),
        (0.5, {"tx_id": "pay-1", "target": "CORE", "op": "DEPOSIT", "account": "A-1", "amount": 5}),
        (2 / 3, {"tx_id": "ask-2", "target": "CLAIM"}),
    ]


def test_one_more_load_changes_nothing_for_the_others() -> None:
    """Each has a stream of its own: the same seed and name give the same times; another seed gives others."""
    core, claim = Load("core", "CORE", Poisson(5.0)), Load("claim", "CLAIM", Poisson(5.0))
    alone = list(arrivals([core], 3, 50.0))
    assert [arrival for arrival in arrivals([claim, core], 3, 50.0) if arrival.load is core] == alone
    assert [arrival.at for arrival in arrivals([claim], 3, 50.0)] != [arrival.at for arrival in alone]
    assert list(arrivals([core], 4, 50.0)) != alone
    assert chance_of(core, 3).random() == chance_of(core, 3).random()


def test_the_fields_of_a_load_do_not_change_with_the_dict_that_they_came_in() -> None:
    """Records are frozen all through."""
    fields: dict[str, object] = {"amount": 1}
    load = Load("pay", "CORE", Constant(1.0), fields=fields)
    fields["amount"] = 2
    assert load.tx(1)["amount"] == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Constant(0), "rate must be a finite number above 0"),
        (lambda: Poisson(-1), "rate must be"),
        (lambda: Poisson(1e300), "up to 1e\\+06"),
        (lambda: Piece(0, 1), "seconds must be a finite number of at least 0.001"),
        (lambda: Piece(1, -1), "rate must be"),
        (lambda: Bursts(()), "pieces must have one with a rate above 0"),
        (lambda: Bursts((Piece(1, 0),)), "pieces must have one"),
        (lambda: ClosedLoop(0), "callers must be an integer of at least 1"),
        (lambda: ClosedLoop(True), "callers must be"),
        (lambda: Load("a b", "CORE", Constant(1)), "name must be 1 to 100 of"),
        (lambda: Load("a", "CORE", Constant(1), fields={"tx_id": "x"}), "fields must not have tx_id"),
        (lambda: arrivals([Load("a", "CORE", Constant(1)), Load("a", "CLAIM", Constant(1))], 1, 1.0), "name must not"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(make: object, said: str) -> None:
    """The message names the setting, what is allowed and what was found."""
    assert callable(make)
    with pytest.raises(Refused, match=said):
        make()
