"""How a target's circuit comes back, in the hub: its wait, its probes, its ramp; and its modes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scene import Gate, Scene, in_turn, run, run_virtually, takes, virtual_scene

from eaimw.errors import TimedOut
from eaimw.kernel.breaker import State
from eaimw.model import Answer


def opened(**settings: Any) -> Scene:
    """One failure opens it."""
    return Scene(threshold=1, **{"inflight": 10, **settings})


async def wait_of(scene: Scene) -> float:
    """Seconds from now until a probe may pass, found by trying: a hundredth before, there is none."""
    wait: float = scene.hub.targets["CORE"].breaker.wait()
    scene.clock.seconds += wait - 0.01
    assert await scene.codes(1) == ["E904"]
    scene.clock.seconds += 0.01 + 1e-9
    return wait


def unavailable(retry_after: str) -> Answer:
    return Answer(503, b"", retry_after)


# Probes.


def test_three_probes_must_succeed() -> None:
    """probes 3: three pass at once and no more; two good answers leave it half-open, the third closes it."""

    async def story() -> None:
        scene = opened(breaker={"probes": 3})
        scene.core.script = "E500"
        await scene.codes(1)
        scene.clock.seconds += 10
        scene.core.script = gate = Gate()
        probes = [asyncio.create_task(scene.send()) for _ in range(3)]
        await gate.has(3)
        assert await scene.codes(5) == ["E904"] * 5
        gate.open.set()
        assert {reply["code"] for reply in await asyncio.gather(*probes)} == {"0000"}
        assert scene.state == "CLOSED"
        assert scene.hub.targets["CORE"].standing.why == "the last of 3 probes answered 0000"
        assert len(scene.core.calls) == 4

    run(story())


def test_probes_may_go_one_after_the_other() -> None:
    """Half-open after the first and the second, with a place for the next."""

    async def story() -> None:
        scene = opened(breaker={"probes": 3})
        scene.core.script = in_turn(["E500", "0000", "B201", "0000"])
        await scene.codes(1)
        scene.clock.seconds += 10
        states = []
        for _ in range(3):
            await scene.send()
            states.append(scene.state)
        assert states == ["HALF_OPEN", "HALF_OPEN", "CLOSED"]

    run(story())


def test_the_first_failing_probe_reopens() -> None:
    """Two of three are good, the third fails: open, and the wait starts anew."""

    async def story() -> None:
        scene = opened(breaker={"probes": 3})
        scene.core.script = in_turn(["E500", "0000", "0000", "E500"])
        await scene.codes(1)
        scene.clock.seconds += 10
        assert await scene.codes(4) == ["0000", "0000", "E500", "E904"]
        assert await wait_of(scene) == 10

    run(story())


def test_an_impatient_caller_among_probes_frees_its_place() -> None:
    """Three in all, and one was no vote: a fourth call passes, and with three good answers it closes."""

    async def story() -> None:
        scene = opened(breaker={"probes": 3})
        late = TimedOut("late", handed_over=True)
        scene.core.script = in_turn(["E500", "0000", late, "0000", "0000"])
        await scene.codes(1)
        scene.clock.seconds += 10
        await scene.codes(1)
        assert (await scene.send(timeout_ms=100))["code"] == "E901"
        assert scene.state == "HALF_OPEN"
        assert await scene.codes(2) == ["0000"] * 2
        assert scene.state == "CLOSED"

    run(story())


def test_a_probe_may_have_less_time_than_a_call() -> None:
    """timeout 3, probe_timeout 1: a call of 2 s is good; a probe of 2 s fails after 1 s, though its caller had 2."""

    async def story() -> None:
        scene = virtual_scene(threshold=1, breaker={"probe_timeout": 1.0})
        scene.core.script = in_turn([takes(2.0), "E500", takes(2.0), takes(0.9), takes(2.0)])
        assert await scene.codes(2) == ["0000", "E500"]
        await asyncio.sleep(10.0)
        reply = await scene.send(timeout_ms=2000)
        assert (reply["code"], reply["elapsed_ms"]) == ("E901", 1000.0)
        assert scene.state == "OPEN"
        await asyncio.sleep(10.0)
        assert await scene.codes(2) == ["0000"] * 2
        assert scene.state == "CLOSED"

    run_virtually(story())


def test_a_caller_with_less_time_than_a_probe_is_still_impatient() -> None:
    """probe_timeout 1, and the caller's budget is half of it: its end is no vote."""

    async def story() -> None:
        scene = virtual_scene(threshold=1, breaker={"probe_timeout": 1.0})
        scene.core.script = in_turn(["E500", takes(2.0)])
        await scene.codes(1)
        await asyncio.sleep(10.0)
        reply = await scene.send(timeout_ms=500)
        assert (reply["code"], reply["elapsed_ms"], scene.state) == ("E901", 500.0, "HALF_OPEN")

    run_virtually(story())


# Waits.


def test_each_further_wait_is_longer_up_to_its_maximum() -> None:
    """10, 20, 40, 60, 60; and after it has closed 10 again."""

    async def story() -> None:
        scene = opened(breaker={"reopen_factor": 2.0, "reopen_max": 60.0})
        scene.core.script = "E500"
        waits = []
        for _ in range(5):
            await scene.codes(1)
            waits.append(await wait_of(scene))
        assert waits == pytest.approx([10, 20, 40, 60, 60])
        scene.core.script = in_turn(["0000", "E500"])
        await scene.codes(2)
        assert await wait_of(scene) == pytest.approx(10)

    run(story())


def test_a_wait_is_lengthened_by_chance_by_a_tenth_at_most() -> None:
    """jitter 0.1: each of 100 waits is from 10 to 11 s, and they differ."""

    async def story() -> None:
        scene = opened(breaker={"jitter": 0.1})
        scene.core.script = "E500"
        waits = []
        for _ in range(100):
            await scene.codes(1)
            waits.append(await wait_of(scene))
        assert all(10 <= wait <= 11 for wait in waits)
        assert max(waits) - min(waits) > 0.8

    run(story())


@pytest.mark.parametrize(
    ("says", "wait"),
    [("30", 30), ("60", 60), ("61", 60), ("3600", 60), ("10", 10), ("3", 10), ("0", 10), ("soon", 10), ("-30", 10),
     ("999999", 10), ("Tue, 14 Nov 2023 22:15:30 GMT", 30), ("Tue, 14 Nov 2023 22:14:30 GMT", 10)],
)  # fmt: skip
@pytest.mark.parametrize("more", [{}, {"reopen_factor": 2.0}], ids=["exact", "growing"])
def test_a_retry_after_lengthens_a_wait_and_never_shortens_it(says: str, wait: float, more: dict[str, Any]) -> None:
    """Seconds or a date, at most reopen_max (60); what is senseless is ignored. It is 22:15:00 there."""

    async def story() -> None:
        scene = opened(breaker=more)
        scene.core.script = unavailable(says)
        await scene.codes(1)
        assert await wait_of(scene) == pytest.approx(wait)

    run(story())


def test_a_retry_after_is_of_the_call_that_opens() -> None:
    """Two failures ask for 50 s; the third, which opens, for nothing. A failing probe asks for 25 s and gets them."""

    async def story() -> None:
        scene = Scene(threshold=3)
        scene.core.script = in_turn([unavailable("50"), Answer(200, b'{"code":"E500"}', "50"), "E500"])
        await scene.codes(3)
        assert await wait_of(scene) == 10
        scene.core.script = in_turn([Answer(200, b'{"code":"E500"}', "25")])
        await scene.codes(1)
        assert await wait_of(scene) == 25

    run(story())


# The ramp.


def test_after_closing_the_limit_grows_second_by_second() -> None:
    """max_inflight 10, ramp 9: 1 call in flight at once, 2 after a second, ... 10 after 9; what is more is E905."""

    async def story() -> None:
        scene = virtual_scene(threshold=1, inflight=10, breaker={"ramp": 9.0})
        scene.core.script = in_turn(["E500", "0000"])
        await scene.codes(1)
        await asyncio.sleep(10.0)
        await scene.codes(1)
        scene.core.script = takes(0.5)
        served = []
        for _ in range(11):
            replies = await asyncio.gather(*(scene.send() for _ in range(12)))
            served.append([reply["code"] for reply in replies].count("0000"))
            assert {reply["code"] for reply in replies} == {"0000", "E905"}
            await asyncio.sleep(0.5)
        assert served == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10]
        assert scene.at_rest

    run_virtually(story())


def test_the_ramp_counts_what_was_in_flight_before_it() -> None:
    """Five calls hang while it opens and closes: with a limit of 1 nobody enters until they are gone."""

    async def story() -> None:
        scene = virtual_scene(threshold=1, wait=1.0, inflight=10, breaker={"ramp": 1000.0}, timeout=30.0)
        scene.core.script = takes(20)
        hanging = [asyncio.create_task(scene.send()) for _ in range(5)]
        await asyncio.sleep(0)
        scene.core.script = in_turn(["E500", "0000", "0000"])
        await scene.codes(1)
        await asyncio.sleep(1.0)
        assert await scene.codes(2) == ["0000", "E905"], "the probe passes: it is no call of a closed circuit"
        await asyncio.gather(*hanging)
        assert await scene.codes(1) == ["0000"]

    run_virtually(story())


def test_a_ramp_stands_above_the_breaker_and_within_the_limit() -> None:
    """What it refuses holds no place: 10 refused, one in flight. It narrows no probes, also where it has been begun."""

    async def story() -> None:
        scene = virtual_scene(threshold=1, inflight=10, breaker={"ramp": 90.0, "probes": 3})
        scene.core.script = in_turn([*["E500", *[takes(0.5)] * 3] * 2, takes(2.5)])
        for _ in range(2):
            await scene.codes(1)
            await asyncio.sleep(10.0)
            probes = await asyncio.gather(*(scene.send() for _ in range(3)))
            assert [reply["code"] for reply in probes] == ["0000"] * 3
        held = asyncio.create_task(scene.send())
        await asyncio.sleep(0)
        assert await scene.codes(10) == ["E905"] * 10
        assert scene.hub.targets["CORE"].bulkhead.inflight == 1
        reply = await scene.send()
        assert reply["message"].startswith("CORE has closed 0.0 s ago, and so far 1 calls may be in flight")
        await held
        assert scene.at_rest

    run_virtually(story())


# Modes.


def test_shadow_refuses_nobody_and_counts_whom_it_would_have() -> None:
    """A dead target: all 20 calls are made; 3 open it, and 17 would have been refused; it has no ramp."""

    async def story() -> None:
        scene = Scene(threshold=3, breaker={"mode": "shadow", "ramp": 60.0})
        scene.core.script = "E500"
        assert await scene.codes(20) == ["E500"] * 20
        core = scene.hub.targets["CORE"]
        assert (core.circuit.would_refuse, core.standing.state, len(scene.core.calls)) == (17, State.OPEN, 20)
        scene.clock.seconds += 10
        scene.core.script = "0000"
        assert await scene.codes(5) == ["0000"] * 5
        assert scene.heard.changes == ["CORE CLOSED->OPEN", "CORE OPEN->HALF_OPEN", "CORE HALF_OPEN->CLOSED"]
        assert core.circuit.would_refuse == 17

    run(story())


def test_shadow_takes_no_time_from_a_probe() -> None:
    """probe_timeout 1 is for a breaker that decides: in shadow a call of 2 s gets its answer."""

    async def story() -> None:
        scene = virtual_scene(threshold=1, breaker={"mode": "shadow", "probe_timeout": 1.0})
        scene.core.script = in_turn(["E500", takes(2.0)])
        await scene.codes(1)
        await asyncio.sleep(10.0)
        reply = await scene.send()
        assert (reply["code"], reply["elapsed_ms"], scene.state) == ("0000", 2000.0, "CLOSED")

    run_virtually(story())


def test_shadow_watches_stuck_calls_too() -> None:
    """They would have opened it: the next one goes through, and is counted."""

    async def story() -> None:
        scene = virtual_scene(inflight=9, breaker={"mode": "shadow", "stuck_calls": 2, "slow_call": 1.0})
        scene.core.script = takes(2.5)
        first = [asyncio.create_task(scene.send()) for _ in range(2)]
        await asyncio.sleep(1.5)
        assert (await scene.send())["code"] == "0000"
        await asyncio.gather(*first)
        core = scene.hub.targets["CORE"]
        assert (core.circuit.would_refuse, core.standing.why) == (1, "2 calls have been waiting longer than 1 s")

    run_virtually(story())


def test_held_open_refuses_everybody_and_says_why() -> None:
    """No call and no place; it does not end by itself, so it names no probe."""

    async def story() -> None:
        scene = opened(breaker={"mode": "open"})
        scene.clock.seconds += 1000
        reply = await scene.send()
        assert (reply["code"], reply["outcome"], reply["attempts"]) == ("E904", "not_sent", 0)
        assert "held open by its settings" in reply["message"]
        assert 1000 <= reply["retry_after_ms"] <= 1500
        status = scene.hub.targets["CORE"].status()
        assert (status["state"], status["next_probe_in"]) == ("OPEN", None)
        assert scene.core.calls == []

    run(story())


def test_off_there_is_no_breaker() -> None:
    """1,000 failures: all are called, the limit holds, and it is said to be closed."""

    async def story() -> None:
        scene = opened(breaker={"mode": "off", "probe_timeout": 1.0, "ramp": 9.0}, inflight=1)
        scene.core.script = "E500"
        assert await scene.codes(1000) == ["E500"] * 1000
        scene.core.script = gate = Gate()
        held = asyncio.create_task(scene.send())
        await gate.has(1)
        assert await scene.codes(1) == ["E905"]
        gate.open.set()
        await held
        assert scene.hub.targets["CORE"].standing.state is State.CLOSED
        assert scene.heard.changes == []

    run(story())
