"""The capacity of a simulated target: servers, queue, service times; stories, rules and Erlang's formulas."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaimw.sim.capacity import REFUSED, WAITS, Capacity, Station, Work
from eaimw.sim.durations import Duration, Exponential, Fixed, Lognormal
from eaimw.sim.modes import Refused


def station(service: float = 1.0, servers: int | None = 1, queue: int | None = None) -> Station[str]:
    return Station(Capacity(Fixed(service), servers, queue), Random(1))


# Stories.


def test_who_finds_a_server_free_is_worked_on_at_once() -> None:
    """Two servers: the first two are, each for its service time, and the third waits."""
    two = station(1.5, servers=2)
    assert two.arrive("a", 10.0) == Work("a", 11.5)
    assert two.arrive("b", 10.5) == Work("b", 12.0)
    assert two.arrive("c", 11.0) == WAITS
    assert (two.busy, two.waiting) == (2, 1)


def test_who_waits_is_taken_up_in_order_when_a_server_is_free() -> None:
    """First come, first served, from the moment at which the server has ended."""
    one = station()
    one.arrive("a", 0.0)
    assert [one.arrive(who, 0.5) for who in "bc"] == [WAITS, WAITS]
    assert one.ended(1.0) == Work("b", 2.0)
    assert one.ended(2.0) == Work("c", 3.0)
    assert one.ended(3.0) is None
    assert (one.busy, one.waiting) == (0, 0)


def test_beyond_the_queue_is_refused_and_leaves_no_trace() -> None:
    """A queue of one: the second that would wait is refused, and may come again later."""
    one = station(queue=1)
    assert [one.arrive(who, 0.0) for who in "abc"][1:] == [WAITS, REFUSED]
    assert one.ended(1.0) == Work("b", 2.0)
    assert one.arrive("c", 1.0) == WAITS


def test_no_queue_at_all() -> None:
    """With a queue of 0 nobody waits: a free server or a refusal."""
    one = station(queue=0)
    one.arrive("a", 0.0)
    assert one.arrive("b", 0.0) == REFUSED
    assert one.ended(1.0) is None
    assert one.arrive("b", 1.0) == Work("b", 2.0)


def test_without_limit_nobody_waits() -> None:
    """No number of servers: a thousand at once are all worked on."""
    free = station(servers=None, queue=0)
    assert all(free.arrive(str(n), 0.0) == Work(str(n), 1.0) for n in range(1000))


def test_a_caller_that_hangs_up_leaves_the_queue() -> None:
    """It is never worked on, and its place is free again."""
    one = station(queue=2)
    for who in "abc":
        one.arrive(who, 0.0)
    assert one.leave("b") is True
    assert one.leave("b") is False
    assert one.arrive("d", 0.0) == WAITS
    assert [one.ended(1.0), one.ended(2.0), one.ended(3.0)] == [Work("c", 2.0), Work("d", 3.0), None]


def test_the_work_for_a_caller_that_hangs_up_goes_on() -> None:
    """Its server is busy to the end, as with a real back-end after a timeout."""
    one = station()
    one.arrive("a", 0.0)
    assert one.leave("a") is False
    assert one.arrive("b", 0.5) == WAITS
    assert one.ended(1.0) == Work("b", 2.0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Capacity(servers=0), "servers"),
        (lambda: Capacity(servers=True), "servers"),
        (lambda: Capacity(servers=1.0), "servers"),  # type: ignore[arg-type]
        (lambda: Capacity(queue=-1), "queue"),
        (lambda: Fixed(-1), "seconds"),
        (lambda: Fixed(math.nan), "seconds"),
        (lambda: Fixed("1"), "seconds"),  # type: ignore[arg-type]
        (lambda: Exponential(0), "mean"),
        (lambda: Exponential(math.inf), "mean"),
        (lambda: Lognormal(0, 1), "p50"),
        (lambda: Lognormal(2, 1), "p99"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(make: object, named: str) -> None:
    """The message begins with the setting."""
    assert callable(make)
    with pytest.raises(Refused, match=f"^{named} must be"):
        make()


# Laws of chance.


@pytest.mark.parametrize("law", [Fixed(0.02), Exponential(0.02), Lognormal(0.01, 0.2), Lognormal(0.02, 0.02)])
def test_the_mean_is_what_is_drawn_on_average(law: Duration) -> None:
    """Of 200,000 draws within 3 %."""
    chance = Random(5)
    drawn = [law.draw(chance) for _ in range(200_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(law.mean, rel=0.03)
    assert min(drawn) >= 0


def test_a_lognormal_has_the_percentiles_that_were_given() -> None:
    """Half of 200,000 draws within p50 and 99 of 100 within p99, to 3 %."""
    chance = Random(6)
    drawn = sorted(Lognormal(0.05, 0.8).draw(chance) for _ in range(200_000))
    assert drawn[100_000] == pytest.approx(0.05, rel=0.03)
    assert drawn[198_000] == pytest.approx(0.8, rel=0.03)


def test_the_same_seed_draws_the_same() -> None:
    """A run can be repeated."""
    for law in (Exponential(1.0), Lognormal(1.0, 3.0)):
        one, other = Random(7), Random(7)
        assert [law.draw(one) for _ in range(3)] == [law.draw(other) for _ in range(3)]


# A run: callers that come at times and hang up at times.


@dataclass
class Run:
    """What became of each caller, by its number: when its work began; refused; left the queue. busy: server-seconds."""

    begun: dict[int, float] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    busy: float = 0.0

    def carry_out(self, one: Station[int], arrivals: list[float], patience: dict[int, float] | None = None) -> Run:
        """The rules that hold at every moment are checked on the way; one event at a time, ends before arrivals."""
        capacity = one.capacity
        events = [(at, 2, who) for who, at in enumerate(arrivals)]
        events += [(arrivals[who] + wait, 1, who) for who, wait in (patience or {}).items()]
        heapq.heapify(events)
        while events:
            now, kind, who = heapq.heappop(events)
            work = self._step(one, now, kind, who)
            if work is not None:
                assert work.ends >= now
                self.begun[work.who] = now
                self.busy += work.ends - now
                heapq.heappush(events, (work.ends, 0, work.who))
            if capacity.servers is not None:
                assert one.busy <= capacity.servers
                assert one.busy == capacity.servers or not one.waiting, "one waits while a server is free"
            assert capacity.queue is None or one.waiting <= capacity.queue
        assert (one.busy, one.waiting) == (0, 0)
        return self

    def _step(self, one: Station[int], now: float, kind: int, who: int) -> Work[int] | None:
        if kind == 0:
            return one.ended(now)
        if kind == 1:
            if one.leave(who):
                self.gone.add(who)
            return None
        begun = one.arrive(who, now)
        if begun == REFUSED:
            self.refused.add(who)
        return begun if isinstance(begun, Work) else None


times = st.lists(st.integers(0, 40).map(lambda n: n / 4), max_size=60).map(sorted)
laws = st.sampled_from([Fixed(0.0), Fixed(0.5), Fixed(3.0), Exponential(1.0), Lognormal(0.5, 4.0)])


@given(
    times,
    laws,
    st.none() | st.integers(1, 4),
    st.none() | st.integers(0, 4),
    st.dictionaries(st.integers(0, 59), st.integers(0, 12).map(lambda n: n / 4)),
)
def test_everyone_is_served_once_in_order_or_refused_or_has_left(
    arrivals: list[float], law: Duration, servers: int | None, queue: int | None, patience: dict[int, float]
) -> None:
    """Never more than `servers` are worked on, nobody waits while one is free, and nobody overtakes."""
    patience = {who: wait for who, wait in patience.items() if who < len(arrivals)}
    run = Run().carry_out(Station(Capacity(law, servers, queue), Random(1)), arrivals, patience)
    assert run.begun.keys() | run.refused | run.gone == set(range(len(arrivals)))
    assert len(run.begun) + len(run.refused) + len(run.gone) == len(arrivals)
    assert list(run.begun) == sorted(run.begun), "one was overtaken"
    assert all(run.begun[who] >= arrivals[who] for who in run.begun)
    assert servers is not None or list(run.begun.values()) == arrivals


# Erlang's formulas.


def erlang_b(servers: int, load: float) -> float:
    """The share that is refused where nobody may wait; load = rate * mean service time."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked


def erlang_c(servers: int, load: float) -> float:
    """The share that must wait where everybody may."""
    blocked = erlang_b(servers, load)
    return blocked / (1 - load / servers * (1 - blocked))


def poisson(rate: float, count: int) -> list[float]:
    chance, now, found = Random(11), 0.0, []
    for _ in range(count):
        now += chance.expovariate(rate)
        found.append(now)
    return found


CALLS = 100_000


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (4, 3.0), (10, 7.0)])
def test_erlang_c(servers: int, load: float) -> None:
    """Share that waits, mean wait and utilisation of 100,000 calls agree with the formulas: within 5, 10 and 2 %."""
    arrivals = poisson(load, CALLS)
    run = Run().carry_out(Station(Capacity(Exponential(1.0), servers), Random(12)), arrivals)
    waits = [run.begun[who] - arrivals[who] for who in range(CALLS)]
    must_wait = erlang_c(servers, load)
    assert sum(wait > 0 for wait in waits) / CALLS == pytest.approx(must_wait, rel=0.05)
    assert sum(waits) / CALLS == pytest.approx(must_wait / (servers - load), rel=0.10)
    assert run.busy / (servers * arrivals[-1]) == pytest.approx(load / servers, rel=0.02)


@pytest.mark.parametrize("law", [Exponential(1.0), Fixed(1.0), Lognormal(0.5, 4.0)])
@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (4, 3.0), (10, 12.0)])
def test_erlang_b(servers: int, load: float, law: Duration) -> None:
    """The share refused without a queue is the formula's within 5 %, whatever the law of the service times."""
    arrivals = poisson(load / law.mean, CALLS)
    run = Run().carry_out(Station(Capacity(law, servers, 0), Random(13)), arrivals)
    assert len(run.refused) / CALLS == pytest.approx(erlang_b(servers, load), rel=0.05)
