"""How large max-inflight, the breaker's threshold and its reset timeout should be for a target.

Calls come as a Poisson process of a rate and keep their place for an exponentially distributed latency. The load is
their product, the places that are taken on average (Little's law: L = lambda W; J. D. C. Little, 1961). How many find
no place of N is Erlang's loss formula B (A. K. Erlang, 1917), which for a Poisson process depends on the latency's mean
alone. The same is counted with the hub's own bulkhead, and at the whole hub.
"""

from __future__ import annotations

import heapq
import math
from itertools import accumulate

from eaimw import codes
from eaimw.config import HubSettings, TargetSettings
from eaimw.kernel.bulkhead import Bulkhead
from eaimw.sense.chance import FAILURES_TAKEN, opens_per_day, threshold_for
from eaimw.sim.capacity import Capacity
from eaimw.sim.chance import stream
from eaimw.sim.durations import Exponential, check_number
from eaimw.sim.findings import Column, Findings, Table
from eaimw.sim.link import Conditions, Way
from eaimw.sim.load import Load, Poisson
from eaimw.sim.modes import Refused
from eaimw.sim.play import Backend, play
from eaimw.sim.studies.one_target import NAME, NO_BREAKER, NO_TIMEOUT, URL

MOST_RATE = 10_000.0  # a second
MOST_LATENCY = 60.0  # seconds
MOST_LOAD = 500.0
LEAST_REFUSALS = 0.001
ARRIVALS, HUB_ARRIVALS = 60_000, 5000  # that are counted
WARM_UP = 5  # times the load: so many arrivals that are not, while places fill

FAILURES = (0.01, 0.05, 0.1, 0.2)  # shares of calls that fail though the target is well enough to be called
PROBES = 0.001  # share of the calls that may be spent on probes of a target that is down
LEAST_RESET, MOST_RESET = 1.0, 60.0  # seconds

COLUMNS = (
    Column("little", "modelled"),
    Column("erlang_b", "modelled"),
    Column("simulation", "simulated"),
    Column("fail_threshold", "modelled"),
    Column("reset_timeout_s", "modelled", 1),
)
REFUSED_COLUMNS = (
    Column("max_inflight"),
    Column("erlang_b", "modelled", 5),
    Column("bulkhead", "simulated", 5),
    Column("hub", "simulated", 5),
)
THRESHOLD_COLUMNS = (
    Column("failing", None, 2),
    Column("fail_threshold", "modelled"),
    Column("opens_per_day", "modelled", 3),
    Column("notices_in_s", "modelled", 3),
)
BREAKER_NOTE = (
    "fail_threshold: the least with which chance alone opens the circuit less than once a day, where "
    f"{FAILURES_TAKEN:.0%} of the calls fail (rate, times seconds of a day, times the share that does not fail, times "
    "the share that fails to the power of the threshold). reset_timeout_s: such that of the calls of a target that is "
    f"down 1 in {1 / PROBES:,.0f} is spent as a probe; at least {LEAST_RESET:g} s, so that it is left alone, and at "
    f"most {MOST_RESET:g} s, so that one that is back is not kept waiting."
)


def study(seed: int, rate: float, latency: float, refusals: float) -> Findings:
    """The settings for a rate per second, a mean latency in seconds, and the share of calls that may be refused.

    Raises Refused for what is out of range.
    """
    check_number("rate", rate, above=0, most=MOST_RATE)
    check_number("latency", latency, above=0, most=MOST_LATENCY)
    check_number("refusals", refusals, least=LEAST_REFUSALS, most=0.5)
    load = rate * latency
    if load > MOST_LOAD:
        raise Refused(f"rate times latency must be at most {MOST_LOAD:,.0f} calls in flight; not {load:,.6g}")
    little, erlang = littles_law(load), smallest_by_erlang(load, refusals)
    crowd = Crowd(seed, load)
    simulated = smallest_by_simulation(crowd, refusals, erlang)
    threshold, reset = threshold_for(rate, FAILURES_TAKEN), reset_for(rate)
    table = Table(COLUMNS, ((little, erlang, simulated, threshold, reset),))
    at_hub = {simulated: through_hub(seed, rate, latency, simulated)}
    refused = Table(
        REFUSED_COLUMNS,
        tuple((n, erlang_b(n, load), crowd.refused(n), at_hub.get(n)) for n in sorted({little, erlang, simulated})),
        "The share of calls that each of these max-inflights refuses (E905):",
    )
    thresholds = Table(
        THRESHOLD_COLUMNS,
        tuple((share, n := threshold_for(rate, share), opens_per_day(rate, share, n), n / rate) for share in FAILURES),
        "The threshold by the share of calls that fail by chance, and in how many seconds that many calls are sent:",
    )
    size_note = (
        f"little: the mean of calls in flight at {rate:g}/s of {latency:g} s each, {load:g}, rounded up. erlang_b and "
        f"simulation: the smallest max-inflight that refuses less than {refusals:g} of the calls; the simulation is of "
        f"the hub's own bulkhead and {ARRIVALS:,} calls. hub: the whole hub before a simulated target, with "
        f"{HUB_ARRIVALS:,} calls, so it scatters more. The calls come independently of each other and their times are "
        "exponential; calls that come in bursts need more."
    )
    return Findings("size", seed, table, (size_note, BREAKER_NOTE), (refused, thresholds))


def littles_law(load: float) -> int:
    """Places that are taken on average, rounded up."""
    return math.ceil(round(load, 9))


def erlang_b(servers: int, load: float) -> float:
    """The share of calls that find all places taken, by the recursion that no size overflows."""
    share = 1.0
    for n in range(1, servers + 1):
        share = load * share / (n + load * share)
    return share


def smallest_by_erlang(load: float, refusals: float) -> int:
    """The fewest places with which less than this share is refused."""
    share, n = 1.0, 0
    while share >= refusals:
        n += 1
        share = load * share / (n + load * share)
    return n


class Crowd:
    """Calls of one load, the same for each max-inflight that is tried. Time is counted in mean latencies."""

    def __init__(self, seed: int, load: float) -> None:
        chance = stream(seed, "calls")
        self._refused: dict[int, float] = {}
        self._warm_up = math.ceil(WARM_UP * load)
        count = ARRIVALS + self._warm_up
        self._times = list(accumulate(chance.expovariate(load) for _ in range(count)))
        self._stays = [chance.expovariate(1.0) for _ in range(count)]

    def refused(self, max_inflight: int) -> float:
        """The share of them that the hub's bulkhead refuses."""
        if max_inflight not in self._refused:
            self._refused[max_inflight] = self._count(max_inflight) / ARRIVALS
        return self._refused[max_inflight]

    def _count(self, max_inflight: int) -> int:
        bulkhead = Bulkhead(max_inflight)
        ends: list[float] = []
        refused = 0
        for number, (now, stay) in enumerate(zip(self._times, self._stays, strict=True)):
            while ends and ends[0] <= now:
                heapq.heappop(ends)
                bulkhead.release()
            if bulkhead.acquire():
                heapq.heappush(ends, now + stay)
            elif number >= self._warm_up:
                refused += 1
        return refused


def smallest_by_simulation(crowd: Crowd, refusals: float, near: int) -> int:
    """As `smallest_by_erlang`, looked for around a number that must be about right."""
    n = near
    while crowd.refused(n) >= refusals:
        n += 1
    while n > 1 and crowd.refused(n - 1) < refusals:
        n -= 1
    return n


def through_hub(seed: int, rate: float, latency: float, max_inflight: int) -> float:
    """The share of calls that the whole hub refuses, before a target without a bound of its own."""
    warm_up = WARM_UP * rate * latency
    target = TargetSettings(URL, timeout=NO_TIMEOUT, breaker=NO_BREAKER, max_inflight=max_inflight)
    at_once = Way(latency=0.0)  # what a call takes is the target's time alone
    backend = Backend(
        capacity=Capacity(Exponential(latency)), conditions=((0.0, Conditions(there=at_once, back=at_once)),)
    )
    until = (HUB_ARRIVALS + warm_up) / rate
    load = Load("calls", NAME, Poisson(rate))
    record = play(HubSettings({NAME: target}), {NAME: backend}, [load], seed=seed, until=until, door="hub")
    counted = [heard.reply.code for heard in record.heard if heard.call and heard.call.started >= warm_up / rate]
    return counted.count(codes.FULL) / len(counted)


def reset_for(rate: float) -> float:
    """Seconds between probes such that they are PROBES of the calls, within bounds."""
    return min(MOST_RESET, max(LEAST_RESET, 1 / (PROBES * rate)))
