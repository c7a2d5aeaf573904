"""What is tried again, when, and for whom."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scene import Gate, Scene, in_turn, run, run_virtually, takes, virtual_scene

from eaimw.config import OpSettings
from eaimw.errors import LocalFault, NoConnection, TimedOut
from eaimw.model import Answer
from eaimw.policy import RetrySettings
from eaimw.wire import from_python

AT_ONCE = RetrySettings(attempts=3, base=0.0, cap=0.0)
OPS = {"BALANCE": OpSettings(read=True), "DEPOSIT": OpSettings(idempotent=True), "PAY": OpSettings()}

LATE = TimedOut("late", handed_over=True)
LATE_UNSENT = TimedOut("late", handed_over=False)
LOST = NoConnection("lost", handed_over=True)
REFUSED = NoConnection("refused", handed_over=False)


def scene_of(retry: RetrySettings = AT_ONCE, **settings: Any) -> Scene:
    """Nothing opens its circuit unless asked to."""
    return virtual_scene(**{"threshold": 1_000, "retry": retry, "ops": OPS, **settings})


def tokens(scene: Scene) -> Any:
    return scene.hub.targets["CORE"].budget.tokens


# What may be tried again.


@pytest.mark.parametrize(
    "fields", [{"op": "BALANCE"}, {"op": "DEPOSIT"}, {"op": "PAY", "idempotency_key": "K"}], ids=str
)
@pytest.mark.parametrize(
    "script", ["E500", LATE, LATE_UNSENT, LOST, REFUSED, Answer(503, b""), Answer(200, b"<html>")], ids=repr
)
def test_a_failure_is_tried_again_where_that_does_no_harm(fields: dict[str, str], script: Any) -> None:
    """Declared read or idempotent, or sent with an idempotency key: after E500, E901 and E902, three times in all."""

    async def story() -> None:
        scene = scene_of()
        scene.core.script = script
        assert (await scene.send(**fields))["attempts"] == 3
        assert [len(scene.core.calls), tokens(scene)] == [3, pytest.approx(8, abs=0.1)]
        scene.core.script = in_turn([script, "0000"])
        reply = await scene.send(**fields)
        assert (reply["code"], reply["outcome"], reply["attempts"]) == ("0000", "done", 2)

    run_virtually(story())


@pytest.mark.parametrize("fields", [{"op": "PAY"}, {"op": "UNKNOWN"}, {}], ids=str)
@pytest.mark.parametrize(
    ("script", "attempts"),
    [("E500", 1), (LATE, 1), (LATE_UNSENT, 1), (LOST, 1), (REFUSED, 3), (Answer(503, b""), 1)],
    ids=repr,
)
def test_anything_else_only_where_it_was_not_sent(fields: dict[str, str], script: Any, attempts: int) -> None:
    """A write is tried again after E902 alone, and only with not_sent."""

    async def story() -> None:
        scene = scene_of()
        scene.core.script = script
        assert (await scene.send(**fields))["attempts"] == attempts

    run_virtually(story())


@pytest.mark.parametrize(
    "script",
    ["0000", "B201", "E400", "E501", "ZZZZ", "E903", "E904", "E905", "E999", Answer(400, b"<html>"), Answer(404, b""),
     Answer(499, b'{"code":"E500"}'), Answer(403, b'{"code":"B201"}'), LocalFault("no descriptor", handed_over=False),
     Answer(200, b'{"code":"E901","outcome":"done"}'), Answer(200, b'{"code":"E902","outcome":"accepted"}'),
     KeyError("x")],
    ids=repr,
)  # fmt: skip
def test_what_is_no_failure_of_the_target_is_final(script: Any) -> None:
    """An answer, a denial, a 4xx, a lack of our own, and what a hub behind this one knows to be done."""

    async def story() -> None:
        scene = scene_of()
        scene.core.script = script
        assert (await scene.send(op="BALANCE", idempotency_key="K"))["attempts"] == 1
        assert (len(scene.core.calls), tokens(scene) >= 10) == (1, True)

    run_virtually(story())


def test_too_many_requests_is_a_failure_like_any() -> None:
    """429 is the one 4xx that may pass: tried again."""

    async def story() -> None:
        scene = scene_of()
        scene.core.script = in_turn([Answer(429, b""), "0000"])
        assert (await scene.send(op="BALANCE"))["code"] == "0000"

    run_virtually(story())


def test_off_by_default() -> None:
    """attempts 1: a read that fails is answered with its failure."""

    async def story() -> None:
        scene = Scene(ops=OPS)
        scene.core.script = REFUSED
        assert (await scene.send(op="BALANCE"))["attempts"] == 1

    run(story())


# Order is behaviour: each attempt asks the breaker and the bulkhead anew.


def test_an_open_circuit_is_not_hammered() -> None:
    """5 attempts. OPEN at the start: one answer at once, no call, no token."""

    async def story() -> None:
        scene = scene_of(RetrySettings(attempts=5, base=0.5), threshold=1)
        scene.hub.targets["CORE"].breaker.record_failure()
        reply = await scene.send(op="BALANCE")
        assert (reply["code"], reply["attempts"], reply["elapsed_ms"]) == ("E904", 0, 0.0)
        assert (scene.core.calls, tokens(scene)) == ([], 10)

    run_virtually(story())


def test_a_failing_probe_stays_one_call() -> None:
    """5 attempts. HALF_OPEN with a failing target: one call, whose error is the answer; the token is back."""

    async def story() -> None:
        scene = scene_of(RetrySettings(attempts=5), threshold=1)
        scene.hub.targets["CORE"].breaker.record_failure()
        await asyncio.sleep(10.0)
        scene.core.script = "E500"
        reply = await scene.send(op="BALANCE")
        assert (reply["code"], reply["attempts"], len(scene.core.calls)) == ("E500", 1, 1)
        assert (scene.state, tokens(scene)) == ("OPEN", pytest.approx(10.1))

    run_virtually(story())


def test_the_attempt_that_opens_is_the_last() -> None:
    """fail_threshold 2 and 5 attempts: the second opens, no third is made."""

    async def story() -> None:
        scene = scene_of(RetrySettings(attempts=5), threshold=2)
        scene.core.script = "E500"
        reply = await scene.send(op="BALANCE")
        assert (reply["code"], reply["attempts"], len(scene.core.calls)) == ("E500", 2, 2)
        core = scene.hub.targets["CORE"]
        assert core.attempts_by_kind == {"first": 1, "retry": 1}

    run_virtually(story())


def test_who_waits_to_try_again_holds_no_place() -> None:
    """One place, Retry-After 2: while the one waits, four others are served one after the other in its place."""

    async def story() -> None:
        scene = scene_of(inflight=1)
        scene.core.script = in_turn([Answer(503, b"", "2"), *[takes(0.4)] * 4, "0000"])
        waiting = asyncio.create_task(scene.send(op="BALANCE"))
        await asyncio.sleep(0.1)
        assert scene.at_rest
        assert await scene.codes(4) == ["0000"] * 4
        reply = await waiting
        assert (reply["code"], reply["attempts"], reply["elapsed_ms"]) == ("0000", 2, 2000.0)

    run_virtually(story())


def test_a_further_attempt_without_a_place_ends_it() -> None:
    """The place is taken when it comes back: the first error is the answer, and the token is back."""

    async def story() -> None:
        scene = scene_of(inflight=1)
        scene.core.script = in_turn([Answer(503, b"", "2"), gate := Gate()])
        waiting = asyncio.create_task(scene.send(op="BALANCE"))
        await asyncio.sleep(0.1)
        held = asyncio.create_task(scene.send())
        reply = await waiting
        assert (reply["code"], reply["attempts"], tokens(scene)) == ("E500", 1, pytest.approx(10.1))
        gate.open.set()
        await held

    run_virtually(story())


def test_one_transaction_of_three_attempts_is_counted_as_one() -> None:
    """Transactions 1, attempts 3, of which 2 were retries; each attempt is a sample and a call that took its time."""

    async def story() -> None:
        scene = scene_of()
        scene.core.script = in_turn(["E500", "E500", "0000"])
        reply = await scene.send(op="BALANCE")
        core = scene.hub.targets["CORE"]
        assert (reply["attempts"], dict(core.codes)) == (3, {"0000": 1})
        assert core.attempts_by_kind == {"first": 1, "retry": 2}
        assert sum(core.figures.counts) == 3

    run_virtually(story())


# Honest to the end.


@pytest.mark.parametrize(
    ("scripts", "code", "outcome", "retryable"),
    [
        ([LATE, REFUSED, REFUSED], "E902", "unknown", False),
        ([REFUSED, LATE, REFUSED], "E902", "unknown", False),
        ([REFUSED, REFUSED, REFUSED], "E902", "not_sent", True),
        ([REFUSED, REFUSED, LATE], "E901", "unknown", False),
        (["E500", Answer(200, b'{"code":"E904","outcome":"not_sent"}')], "E904", "unknown", False),
        ([LATE, "B201"], "B201", "done", False),
        ([LATE, "0000"], "0000", "done", False),
        ([REFUSED, KeyError("x")], "E500", "unknown", False),
        ([LATE, LocalFault("no descriptor", handed_over=False)], "E902", "unknown", False),
    ],
    ids=str,
)
def test_the_outcome_is_no_more_certain_than_all_attempts(
    scripts: list[Any], code: str, outcome: str, retryable: bool
) -> None:
    """not_sent only if none may have been received; what the target has answered is done."""

    async def story() -> None:
        scene = scene_of()
        scene.core.script = in_turn(scripts)
        reply = await scene.send(op="BALANCE")
        assert (reply["code"], reply["outcome"], reply["retryable"], reply["attempts"]) == (
            code, outcome, retryable, len(scripts),
        )  # fmt: skip

    run_virtually(story())


def test_the_access_log_hears_of_all_attempts() -> None:
    """left: a byte of any attempt has left; state: when the attempt that is answered for was decided."""
    heard: list[Any] = []

    class Log:
        def answered(self, reply: Any, call: Any) -> None:
            heard.append((reply.code, call.has_left, str(call.state)))

    async def story() -> None:
        scene = scene_of(access_log=Log())
        scene.core.script = in_turn([LATE, REFUSED, REFUSED])
        await scene.send(op="BALANCE")
        scene = scene_of(threshold=1, access_log=Log())
        scene.core.script = "E500"
        await scene.send(op="BALANCE")

    run_virtually(story())
    assert heard == [("E902", True, "CLOSED"), ("E500", True, "CLOSED")]


# Who has gone.


class Leaving:
    """A caller who hangs up at some time."""

    has_gone = False


@pytest.mark.parametrize("leaves_at", [0.0, 1.0])
def test_nobody_is_tried_again_for(leaves_at: float) -> None:
    """Gone during the first attempt, or while it waits: no second attempt, and the token is back."""

    async def story() -> None:
        scene = scene_of()
        scene.core.script = takes(0.5, Answer(503, b"", "2"))
        caller = Leaving()
        answer = scene.hub.begin(from_python({"tx_id": "T1", "target": "CORE", "op": "BALANCE"}), caller=caller)
        assert asyncio.iscoroutine(answer)
        task = asyncio.create_task(answer)
        await asyncio.sleep(leaves_at)
        caller.has_gone = True
        reply = await task
        assert (reply.code, reply.attempts, tokens(scene)) == ("E500", 1, pytest.approx(10.1))

    run_virtually(story())


@pytest.mark.parametrize(("after", "left"), [(0.1, 10.0), (1.0, 10.1), (2.7, 9.1)])
def test_a_cancelled_task_gives_back_what_it_has_not_used(after: float, left: float) -> None:
    """In the first attempt, in the wait (the token is back), in the second attempt (it was used)."""

    async def story() -> None:
        scene = scene_of(inflight=1)
        scene.core.script = takes(0.5, Answer(503, b"", "2"))
        task = asyncio.create_task(scene.send(op="BALANCE"))
        await asyncio.sleep(after)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (tokens(scene), scene.at_rest) == (pytest.approx(left), True)
        scene.core.script = "0000"
        assert await scene.codes(1) == ["0000"]

    run_virtually(story())
