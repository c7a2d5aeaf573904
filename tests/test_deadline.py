"""The caller's budget: what it bounds, and what is not begun for it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from scene import Scene, in_turn, run, run_virtually, takes, virtual_scene

from eaimw.config import OpSettings
from eaimw.model import Call
from eaimw.policy import RetrySettings
from eaimw.wire import from_python

# Waits of nothing: what a story says of time is what its target takes.
AT_ONCE = RetrySettings(attempts=3, base=0.0, cap=0.0)
READ = {"BALANCE": OpSettings(read=True)}


class Kept:
    """Notes what each attempt was allowed, in milliseconds, and goes on as told."""

    def __init__(self, script: Any) -> None:
        self.left: list[int] = []
        self._script = script

    async def __call__(self, call: Call) -> Any:
        self.left.append(round((call.deadline - asyncio.get_running_loop().time()) * 1000))
        return await self._script(call)


@pytest.mark.parametrize(("timeout_ms", "code"), [(1, "E906"), (9, "E906"), (10, "0000"), (11, "0000")])
def test_what_cannot_end_is_not_begun(timeout_ms: int, code: str) -> None:
    """min_call 10 ms: with less there is no call, no place and no sample, and it is not worth sending again."""

    async def story() -> None:
        scene = Scene(threshold=1)
        reply = await scene.send(timeout_ms=timeout_ms)
        assert reply["code"] == code
        assert len(scene.core.calls) == reply["attempts"] == (code == "0000")
        if code == "E906":
            assert (reply["outcome"], reply["retryable"], "retry_after_ms" in reply) == ("not_sent", False, False)
            assert (
                reply["message"]
                == f"{timeout_ms} ms are left of the caller's budget, and a call needs 0.01 s: not called"
            )
            scene.core.script = "E500"
            await scene.codes(1)
            assert (await scene.send(timeout_ms=timeout_ms))["code"] == "E906", "said before open is"

    run(story())


def test_too_late_is_said_of_the_caller_and_not_of_the_target() -> None:
    """1,000 callers without time: the circuit stays closed, and a probe's place free."""

    async def story() -> None:
        scene = Scene(threshold=1, inflight=1)
        for _ in range(1000):
            await scene.send(timeout_ms=1)
        assert scene.state == "CLOSED"
        scene.core.script = in_turn(["E500", "0000"])
        await scene.codes(1)
        scene.clock.seconds += 10
        assert (await scene.send(timeout_ms=1))["code"] == "E906"
        assert scene.state == "OPEN"
        assert await scene.codes(1) == ["0000"]

    run(story())


def test_a_budget_that_is_over_begins_nothing_even_where_no_least_is_asked_for() -> None:
    """min_call 0, and a header said that 0 ms are left: E906."""

    async def story() -> None:
        scene = Scene(min_call=0.0)
        transaction = from_python({"tx_id": "T1", "target": "CORE", "timeout_ms": 1})
        reply = await scene.hub.handle(msgspec.structs.replace(transaction, timeout_ms=0))
        assert (reply.code, scene.core.calls) == ("E906", [])
        assert (await scene.hub.handle(transaction)).code == "0000"

    run(story())


def test_half_a_second_of_which_280_ms_are_spent_leaves_220() -> None:
    """The first attempt fails after 280 ms: the second has 220, though the target's timeout is 3 s."""

    async def story() -> None:
        scene = virtual_scene(retry=AT_ONCE, ops=READ)
        scene.core.script = kept = Kept(in_turn([takes(0.28, "E500"), takes(0.1)]))
        reply = await scene.send(op="BALANCE", timeout_ms=500)
        assert (reply["code"], reply["attempts"], reply["elapsed_ms"]) == ("0000", 2, 380.0)
        assert kept.left == [500, 220]

    run_virtually(story())


def test_a_budget_for_two_attempts_has_no_third() -> None:
    """500 ms: the first takes 300, so the second has 200; it takes them, and the third is not made."""

    async def story() -> None:
        scene = virtual_scene(threshold=2, retry=AT_ONCE, ops=READ)
        scene.core.script = kept = Kept(in_turn([takes(0.3, "E500"), takes(5.0)]))
        reply = await scene.send(op="BALANCE", timeout_ms=500)
        assert (reply["code"], reply["attempts"], reply["elapsed_ms"]) == ("E901", 2, 500.0)
        assert kept.left == [500, 200]
        assert scene.state == "CLOSED", "the second was cut by its caller's budget: no sample"

    run_virtually(story())


def test_with_less_than_a_call_needs_there_is_no_other_attempt() -> None:
    """495 of 500 ms are spent: the first error is the answer, and the token is still there."""

    async def story() -> None:
        scene = virtual_scene(retry=AT_ONCE, ops=READ)
        scene.core.script = takes(0.495, "E500")
        reply = await scene.send(op="BALANCE", timeout_ms=500)
        assert (reply["code"], reply["attempts"], reply["elapsed_ms"]) == ("E500", 1, 495.0)
        assert scene.hub.targets["CORE"].budget.tokens == pytest.approx(10.1)

    run_virtually(story())


def test_a_wait_that_took_longer_than_it_should_begins_nothing() -> None:
    """The loop was busy: when it is this call's turn again its budget is over. No second attempt, no token spent."""

    async def story() -> None:
        scene = Scene(retry=AT_ONCE, ops=READ)

        async def script(call: Call) -> str:
            asyncio.get_running_loop().call_soon(vars(scene.clock).update, {"seconds": 100.495})
            return "E500"

        scene.core.script = script
        reply = await scene.send(op="BALANCE", timeout_ms=500)
        assert (reply["code"], reply["attempts"], reply["elapsed_ms"]) == ("E500", 1, 495.0)
        assert scene.hub.targets["CORE"].budget.tokens == pytest.approx(10.1)

    run(story())


def test_each_attempt_has_the_targets_timeout_of_its_own() -> None:
    """No budget: three attempts of 3 s each, all samples."""

    async def story() -> None:
        scene = virtual_scene(threshold=3, retry=AT_ONCE, ops=READ)
        scene.core.script = kept = Kept(takes(10.0))
        reply = await scene.send(op="BALANCE")
        assert (reply["code"], reply["attempts"], reply["elapsed_ms"]) == ("E901", 3, 9000.0)
        assert (kept.left, scene.state) == ([3000] * 3, "OPEN")

    run_virtually(story())


@pytest.mark.parametrize(
    ("op", "timeout_ms", "left", "is_sample"),
    [
        ("BALANCE", None, 2000, True),
        ("BALANCE", 2500, 2000, True),
        ("BALANCE", 2000, 2000, True),
        ("BALANCE", 1500, 1500, False),
        ("LONG", None, 3000, True),
        ("OTHER", None, 3000, True),
        (None, None, 3000, True),
        (None, 2999, 2999, False),
    ],
)
def test_an_operation_narrows_what_its_target_allows(
    op: str | None, timeout_ms: int | None, left: int, is_sample: bool
) -> None:
    """BALANCE has 2 s, LONG may not widen 3 to 5. Whose patience ended decides whether it is a sample."""

    async def story() -> None:
        ops = {"BALANCE": OpSettings(timeout=2.0), "LONG": OpSettings(timeout=5.0)}
        scene = virtual_scene(threshold=1, ops=ops)
        scene.core.script = kept = Kept(takes(10.0))
        fields: dict[str, Any] = {"op": op, "timeout_ms": timeout_ms}
        reply = await scene.send(**{name: value for name, value in fields.items() if value is not None})
        assert (reply["code"], reply["elapsed_ms"], kept.left) == ("E901", left, [left])
        assert scene.state == ("OPEN" if is_sample else "CLOSED")

    run_virtually(story())
