"""A run of the real hub in virtual time: what it records, that it is the same each time, and that nothing is left."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest

from eaimw.app import two_targets
from eaimw.sim.capacity import Capacity
from eaimw.sim.durations import Fixed
from eaimw.sim.forbidden import forbidden
from eaimw.sim.link import Conditions, Way
from eaimw.sim.load import ClosedLoop, Constant, Load, Poisson
from eaimw.sim.modes import Refused, settings_from
from eaimw.sim.play import Backend, Manners, Record, play
from eaimw.sim.timeline import Fault, Timeline

CORE, CLAIM = Load("core", "CORE", Poisson(20.0)), Load("claim", "CLAIM", Constant(10.0))


def ill(mode: str, at: float = 2.0, until: float | None = None, **settings: Any) -> Backend:
    return Backend(timeline=Timeline((Fault(at, settings_from({"mode": mode, **settings}, "normal"), until),)))


def run(core: Backend | None = None, *loads: Load, **options: Any) -> Record:
    """CORE and CLAIM as the command line has them, for six seconds unless told otherwise."""
    settings = two_targets("http://10.0.0.1:80/tx", "http://10.0.0.2:80/tx")
    options = {"seed": 1, "until": 6.0, **options}
    with forbidden():
        return play(settings, {} if core is None else {"CORE": core}, loads or (CORE, CLAIM), **options)


def codes(record: Record, load: Load) -> Counter[str]:
    return Counter(
        json.loads(sent.reply)["code"] if sent.reply is not None else str(sent.lost)
        for sent in record.sent
        if sent.load.name == load.name
    )


def story(record: Record) -> list[tuple[Any, ...]]:
    return [(sent.tx_id, sent.due, sent.answered_at, sent.status, sent.reply, sent.lost) for sent in record.sent]


@pytest.mark.parametrize("door", ["http", "hub"])
def test_a_run_is_recorded_whole(door: Any) -> None:
    """Each transaction with its times and its reply; the hub's counts and the target's books say the same."""
    record = run(door=door)
    assert len(record.sent) == len(record.heard) > 150
    assert codes(record, CLAIM) == {"0000": 59}
    for sent in record.sent:
        assert sent.sent_at is not None
        assert sent.answered_at is not None
        assert sent.due <= sent.sent_at < sent.answered_at
        assert sent.status == (200 if door == "http" else None)
        assert record.books[sent.target][sent.tx_id].executed == 1
    assert sum(record.codes["CORE"].values()) + 59 == len(record.sent)
    assert record.stats["CLAIM"]["calls"] == 59
    assert record.left_over == []


@pytest.mark.parametrize("door", ["http", "hub"])
def test_a_seed_is_a_run(door: Any) -> None:
    """The same to the byte each time, and another with another seed."""
    ways = {"manners": {"core": Manners(repeats=0.2, garbles=0.1, dawdles=0.2, hangs_up=0.1)}}
    backend = Backend(capacity=Capacity(Fixed(0.1), 2, 3), forms={"chunked": 0.2, "cut": 0.1})
    first = run(backend, door=door, **ways)
    assert story(first) == story(run(backend, door=door, **ways)) != story(run(backend, door=door, seed=2, **ways))


def test_faults_come_and_go_by_time() -> None:
    """The circuit opens, and closes again with the first probe after it; its changes are recorded."""
    settings = two_targets("http://10.0.0.1:80/tx", "http://10.0.0.2:80/tx", reset_timeout=1.0)
    record = play(settings, {"CORE": ill("fail", 1.0, 2.5)}, (CORE, CLAIM), seed=1, until=6.0)
    assert [(change.target, str(change.before), str(change.after)) for change in record.changes] == [
        ("CORE", "CLOSED", "OPEN"),
        ("CORE", "OPEN", "HALF_OPEN"),
        ("CORE", "HALF_OPEN", "OPEN"),
        ("CORE", "OPEN", "HALF_OPEN"),
        ("CORE", "HALF_OPEN", "CLOSED"),
    ]
    assert codes(record, CORE).keys() == {"0000", "E500", "E904"}
    assert codes(record, CLAIM) == {"0000": 59}


def test_a_target_that_dies_is_not_there() -> None:
    """Its connections end and nobody listens, until it comes back."""
    record = run(Backend(down=((1.0, 2.0),)), Load("core", "CORE", Constant(2.0)))
    assert codes(record, CORE) == {"0000": 9, "E902": 2}  # at 1.0 and at 1.5


def test_link_conditions_have_their_time() -> None:
    """Each from its time on, for what is written then."""
    slow = Conditions(there=Way(latency=0.25))
    record = run(Backend(conditions=((1.2, slow), (3.2, Conditions()))), Load("one", "CORE", Constant(1.0)))
    took = [round(json.loads(sent.reply or b"")["elapsed_ms"]) for sent in record.sent]
    assert took == [2, 250, 250, 1, 1]


def test_a_closed_loop_waits_for_its_answers() -> None:
    """Two callers, served in turn by one server of half a second: two answers a second."""
    callers = Load("two", "CORE", ClosedLoop(2))
    record = run(Backend(capacity=Capacity(Fixed(0.5), 1)), callers, door="hub")
    assert codes(record, callers) == {"0000": 13}


def test_callers_have_their_manners() -> None:
    """Who hangs up gets nothing; who half-closes, pipelines or dawdles gets its reply; what is garbled gets E400."""
    loads = [Load(name, "CORE", Poisson(5.0)) for name in ("up", "half", "line", "slow", "parts", "bad")]
    manners = {
        "up": Manners(hangs_up=1.0, patience=0.001),
        "half": Manners(half_closes=1.0),
        "line": Manners(pipelines=1.0),
        "slow": Manners(dawdles=1.0),
        "parts": Manners(chunks=1.0),
        "bad": Manners(garbles=1.0),
    }
    backend = Backend(capacity=Capacity(Fixed(0.05)))
    record = run(backend, *loads, manners=manners)
    answers = {load.name: codes(record, load).keys() for load in loads}
    assert answers["up"] == {"hung up"}
    assert answers["half"] == answers["line"] == answers["slow"] == answers["parts"] == {"0000"}
    assert answers["bad"] <= {"E400", "E903"}
    assert record.left_over == []


def test_who_hangs_up_on_the_hub_itself_is_cancelled() -> None:
    """At some instant of the call; its place comes back, and a half-open circuit does not wait for it."""
    manners = {"core": Manners(hangs_up=0.5, patience=0.2)}
    record = run(Backend(capacity=Capacity(Fixed(0.1))), door="hub", manners=manners)
    told = codes(record, CORE)
    assert told.keys() == {"0000", "hung up"}
    assert told["hung up"] > 10
    assert len(record.heard) == len(record.sent) - told["hung up"]
    assert record.left_over == []


@pytest.mark.parametrize(("seconds", "elapsed"), [(0.3, 301), (math.inf, 500)])
def test_a_name_takes_time_to_look_up(seconds: float, elapsed: int) -> None:
    """Within the connect timeout the call goes on; beyond it, E902."""
    settings = two_targets("http://core.bank/tx", "http://10.0.0.2:80/tx")
    record = play(settings, {"CORE": Backend(look_up=seconds)}, [Load("one", "CORE", Constant(1.0))], seed=1, until=1.5)
    told = json.loads(record.sent[0].reply or b"")
    assert round(told["elapsed_ms"]) == elapsed + (told["code"] == "0000")


def test_a_hub_that_goes_down_answers_what_it_has() -> None:
    """What is in flight gets its answer, what comes after it E911 or nobody who listens."""
    for door in ("http", "hub"):
        record = run(ill("slow", delay_ms=1500), door=door, down_at=3.0)
        assert codes(record, CORE)["0000"] > 40
        assert codes(record, CORE)["E911"] > 0
        assert record.left_over == []


def test_samples_are_taken_every_so_often() -> None:
    """Of each target: its circuit, and what is in flight at the hub and at the target."""
    record = run(ill("hang"), sample_every=0.5)
    core = [sample for sample in record.samples if sample.target == "CORE"]
    assert [sample.at for sample in core][:4] == [0.0, 0.5, 1.0, 1.5]
    assert max(sample.inflight for sample in core) == 10
    assert {str(sample.state) for sample in core} == {"CLOSED", "OPEN"}


def test_who_watches_is_called_after_each_step() -> None:
    """And ends the run by raising."""
    steps: list[int] = []
    record = run(until=1.0, watch=lambda stage: lambda: steps.append(len(stage.sent)))
    assert len(steps) > 100
    assert steps == sorted(steps)
    assert steps[-1] == len(record.sent)

    def complain() -> None:
        raise ZeroDivisionError("no more")

    with pytest.raises(ZeroDivisionError, match="no more"):
        run(until=1.0, watch=lambda stage: complain)


def test_what_makes_no_sense_is_refused() -> None:
    """Names that nobody has, forms that do not exist, shares of more than all."""
    with pytest.raises(Refused, match=r"backends must be of CORE, CLAIM; not 'NONE'"):
        play(two_targets(), {"NONE": Backend()}, [CORE], seed=1, until=1.0)
    with pytest.raises(Refused, match=r"manners must be of core; not 'claim'"):
        play(two_targets(), {}, [CORE], seed=1, until=1.0, manners={"claim": Manners()})
    with pytest.raises(Refused, match="forms must be of plain, chunked"):
        Backend(forms={"round": 1.0})
    with pytest.raises(Refused, match="not be more than 1 together"):
        Backend(forms={"cut": 0.6, "chunked": 0.6})
    with pytest.raises(Refused, match=r"down, after the one before must be a finite number above 2; not 1\.5"):
        Backend(down=((1.0, 2.0), (1.5, 3.0)))
    with pytest.raises(Refused, match="hangs_up must be a finite number"):
        Manners(hangs_up=2.0)
