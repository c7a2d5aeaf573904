"""What opens a target's circuit, in the hub: shares, slow calls, stuck ones, failures in a row."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scene import Scene, in_turn, run, run_virtually, takes, virtual_scene

from eaimw.errors import TimedOut
from eaimw.kernel.breaker import State
from eaimw.model import Call

RATIO = {"rules": ["ratio"], "min_calls": 20, "failure_ratio": 0.5}


def core_of(scene: Scene) -> Any:
    return scene.hub.targets["CORE"]


@pytest.mark.parametrize("window", [{"window": 10.0}, {"window_calls": 20}], ids=str)
def test_the_ratio_rule_opens_at_the_call_that_fills_its_window(window: dict[str, Any]) -> None:
    """min_calls 20 of which every other one fails: the 20th call opens, the 21st is E904."""

    async def story() -> None:
        scene = Scene(breaker={**RATIO, **window})
        scene.core.script = in_turn(["0000", "E500"] * 50)
        assert await scene.codes(22) == ["0000", "E500"] * 10 + ["E904"] * 2
        assert core_of(scene).standing.why.startswith("10 of 20 calls failed in the last ")

    run(story())


def test_many_failures_in_a_row_are_no_rule_where_ratio_stands_alone() -> None:
    """19 failures, and min_calls is 20: fail_threshold 3 counts for nothing."""

    async def story() -> None:
        scene = Scene(threshold=3, breaker=RATIO)
        scene.core.script = "E500"
        assert await scene.codes(21) == ["E500"] * 20 + ["E904"]

    run(story())


def test_denials_never_open_the_ratio_rule() -> None:
    """600 of 1,000 calls are denied: the target is healthy and says no."""

    async def story() -> None:
        scene = Scene(threshold=5, breaker={**RATIO, "rules": ["consecutive", "ratio"], "min_calls": 10})
        scene.core.script = in_turn(["B201", "B201", "0000", "B201", "0000"] * 200)
        assert set(await scene.codes(1000)) == {"B201", "0000"}
        assert scene.heard.changes == []
        assert len(scene.core.calls) == 1000

    run(story())


def test_a_refusal_of_ours_is_in_no_window() -> None:
    """1 failure and 19 good calls among 100 of E905 and E906: 1 of 20, and not of 120, nor 101."""

    async def story() -> None:
        scene = Scene(inflight=1, breaker={**RATIO, "failure_ratio": 0.05})
        for number in range(100):
            assert (await scene.send(timeout_ms=5))["code"] == "E906"
            scene.core.script = "E500" if number == 5 else "0000"
            if number < 19:
                await scene.send()
        assert scene.state == "CLOSED"
        await scene.send()
        assert core_of(scene).standing.why == "1 of 20 calls failed in the last 10 s"

    run(story())


def test_slow_answers_open_before_there_is_a_timeout() -> None:
    """timeout 3, slow_call 2, all answers take 2.5 s and are good: open after 20 of them, and none is E901."""

    async def story() -> None:
        scene = virtual_scene(inflight=50, breaker={**RATIO, "slow_call": 2.0, "slow_ratio": 0.8})
        scene.core.script = takes(2.5)
        replies = await asyncio.gather(*(scene.send() for _ in range(20)))
        assert {reply["code"] for reply in replies} == {"0000"}
        assert (await scene.send())["code"] == "E904"
        assert core_of(scene).standing.why == "20 of 20 calls took longer than 2 s in the last 10 s"

    run_virtually(story())


STUCK = {"stuck_calls": 5, "slow_call": 1.0}


def test_stuck_calls_open_before_a_timeout_does() -> None:
    """Five hang; 1.1 s later the next caller is E904 and no call is made, while they have 1.9 s left."""

    async def story() -> None:
        scene = virtual_scene(inflight=50, breaker=STUCK)
        scene.core.script = takes(100)
        hanging = [asyncio.create_task(scene.send()) for _ in range(5)]
        await asyncio.sleep(1.0)
        scene.core.script = takes(0.0)
        assert (await scene.send())["code"] == "0000", "exactly slow_call is not longer than it"
        await asyncio.sleep(0.1)
        assert (await scene.send())["code"] == "E904"
        assert not any(task.done() for task in hanging)
        assert core_of(scene).standing.why == "5 calls have been waiting longer than 1 s"
        assert {reply["code"] for reply in await asyncio.gather(*hanging)} == {"E901"}
        assert scene.heard.changes == ["CORE CLOSED->OPEN"], "their timeouts come too late to count"
        assert core_of(scene).circuit.waiting == {}

    run_virtually(story())


def test_one_call_less_is_not_stuck() -> None:
    """Four of five hang, and another is young: all are served."""

    async def story() -> None:
        scene = virtual_scene(threshold=100, inflight=50, breaker=STUCK)
        scene.core.script = takes(100)
        hanging = [asyncio.create_task(scene.send()) for _ in range(4)]
        await asyncio.sleep(2.0)
        young = asyncio.create_task(scene.send())
        await asyncio.sleep(0.5)
        scene.core.script = "0000"
        assert (await scene.send())["code"] == "0000"
        await asyncio.gather(*hanging, young)

    run_virtually(story())


def test_stuck_stands_above_the_limit() -> None:
    """5 places, all with stuck calls: E904 and not E905 for as long as they hang; without the rule E905."""

    async def story() -> None:
        for breaker, code in ((STUCK, "E904"), ({}, "E905")):
            scene = virtual_scene(threshold=100, inflight=5, breaker=breaker)
            scene.core.script = takes(100)
            hanging = [asyncio.create_task(scene.send()) for _ in range(5)]
            await asyncio.sleep(1.5)
            assert await scene.codes(3) == [code] * 3
            await asyncio.gather(*hanging)
            assert scene.at_rest

    run_virtually(story())


def test_no_call_is_stuck_where_none_is_slow() -> None:
    """slow_call 0 says that no call is slow: three young calls do not open a circuit of stuck_calls 3."""

    async def story() -> None:
        scene = virtual_scene(inflight=10, breaker={"stuck_calls": 3})
        scene.core.script = takes(0.5)
        young = [asyncio.create_task(scene.send()) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert (await scene.send())["code"] == "0000"
        assert {reply["code"] for reply in await asyncio.gather(*young)} == {"0000"}

    run_virtually(story())


def test_those_who_hung_before_do_not_open_it_again() -> None:
    """Opened by stuck calls with a long timeout, closed by a probe while they still hang: it stays closed."""

    async def story() -> None:
        scene = virtual_scene(wait=5.0, inflight=50, breaker=STUCK, timeout=60.0)
        scene.core.script = takes(100)
        hanging = [asyncio.create_task(scene.send()) for _ in range(5)]
        await asyncio.sleep(2.0)
        scene.core.script = "0000"
        assert await scene.codes(1) == ["E904"]
        await asyncio.sleep(5.0)
        assert await scene.codes(10) == ["0000"] * 10
        assert scene.state == "CLOSED"
        await asyncio.gather(*hanging)
        assert scene.state == "CLOSED"

    run_virtually(story())


def test_failures_in_a_row_do_not_fade_with_the_window() -> None:
    """A window of 30 s beside fail_threshold 5, one timeout every 19 s: the consecutive rule opens at the 5th."""

    async def story() -> None:
        scene = Scene(threshold=5, breaker={**RATIO, "rules": ["consecutive", "ratio"], "window": 30.0})
        scene.core.script = TimedOut("late", handed_over=True)
        for count in range(1, 6):
            scene.clock.seconds += 19
            assert await scene.codes(1) == ["E901"]
            assert scene.state == ("OPEN" if count == 5 else "CLOSED")
        assert core_of(scene).standing.why == "5 consecutive failures, the last E901: late"

    run(story())


def test_what_was_seen_before_it_opened_counts_no_more_when_it_has_closed() -> None:
    """Opened by 10 of 20; closed by a probe: 19 failures more are not enough, the 20th end is."""

    async def story() -> None:
        scene = Scene(breaker={**RATIO, "window": 60.0})
        scene.core.script = in_turn(["0000", "E500"] * 10 + ["0000"] + ["E500"] * 20)
        await scene.codes(20)
        scene.clock.seconds += 10
        assert await scene.codes(1) == ["0000"]
        assert await scene.codes(21) == ["E500"] * 20 + ["E904"]

    run(story())


def test_a_late_answer_is_in_no_window_of_the_next_time() -> None:
    """20 calls let through before it opened fail after it has closed again: none counts."""

    async def story() -> None:
        scene = virtual_scene(wait=1.0, inflight=50, breaker={**RATIO, "min_calls": 5}, timeout=60.0)
        scene.core.script = takes(20, "E500")
        late = [asyncio.create_task(scene.send()) for _ in range(20)]
        await asyncio.sleep(0)
        scene.core.script = "E500"
        await scene.codes(5)
        await asyncio.sleep(1.0)
        scene.core.script = "0000"
        await scene.codes(1)
        assert {reply["code"] for reply in await asyncio.gather(*late)} == {"E500"}
        assert scene.state == "CLOSED"

    run_virtually(story())


# One circuit for each operation.


def by_op(**settings: Any) -> Scene:
    scene = Scene(threshold=2, breaker={"per": "op", **settings})

    async def fails_reports(call: Call) -> str:
        return "E500" if (call.tx.op or "").startswith("REPORT") else "0000"

    scene.core.script = fails_reports
    return scene


def test_a_failing_report_cuts_no_orders() -> None:
    """REPORT fails and is refused; ORDER, and what has no op, pass; each name stands in log and status."""

    async def story() -> None:
        scene = by_op()
        assert [(await scene.send(op="REPORT"))["code"] for _ in range(3)] == ["E500", "E500", "E904"]
        assert [(await scene.send(op="ORDER"))["code"] for _ in range(3)] == ["0000"] * 3
        assert await scene.codes(3) == ["0000"] * 3
        assert scene.heard.changes == ["CORE/REPORT CLOSED->OPEN"]
        status = core_of(scene).status()
        assert (status["state"], status["ops"]["REPORT"]["state"], status["ops"]["ORDER"]["state"]) == (
            "CLOSED", "OPEN", "CLOSED",
        )  # fmt: skip
        assert status["ops"]["REPORT"]["why"] == "2 consecutive failures, the last E500"
        reply = await scene.send(op="REPORT")
        assert reply["message"].startswith("CORE/REPORT's circuit is open")
        assert str(scene.hub.targets["CLAIM"].standing.state) == "CLOSED"

    run(story())


def test_places_are_the_targets_own_whatever_the_operation() -> None:
    """max_inflight 2 with a circuit for each op: a third operation finds no place."""

    async def story() -> None:
        scene = virtual_scene(inflight=2, breaker={"per": "op"})
        scene.core.script = takes(1.0)
        held = [asyncio.create_task(scene.send(op=op)) for op in ("A", "B")]
        await asyncio.sleep(0.5)
        assert (await scene.send(op="C"))["code"] == "E905"
        await asyncio.gather(*held)

    run_virtually(story())


def test_callers_who_make_up_names_grow_no_memory() -> None:
    """Beyond 100 operations that nobody has declared, further ones share the target's own circuit."""

    async def story() -> None:
        scene = by_op()
        for number in range(500):
            await scene.send(op=f"REPORT-{number}")
        core = core_of(scene)
        assert len(core.circuits) == 101
        assert core.standing.state is State.OPEN, "the 101st and the 102nd have failed in it"
        assert len(core.status()["ops"]) == 100
        assert (await scene.send(op="PAY"))["code"] == "0000", "a routed op is a declared one"
        assert len(core.circuits) == 102

    run(story())
