"""How long a retry waits, and how many there may be."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from scene import Scene, in_turn, run_virtually, takes, virtual_scene

from eaimw.config import OpSettings
from eaimw.errors import NoConnection, TimedOut
from eaimw.model import Answer
from eaimw.policy import RetrySettings

OPS = {"BALANCE": OpSettings(read=True)}


def scene_of(retry: RetrySettings, **settings: Any) -> Scene:
    return virtual_scene(**{"threshold": 10**9, "retry": retry, "ops": OPS, **settings})


def test_waits_are_by_chance_up_to_the_doubled_base() -> None:
    """base 0.1, cap 0.3: before the 2nd, 3rd, 4th and 5th attempt at most 0.1, 0.2, 0.3 and 0.3 s, and they vary."""

    async def story() -> None:
        scene = scene_of(RetrySettings(attempts=5, base=0.1, cap=0.3, budget_ratio=1.0, budget_min=100))
        times: list[float] = []

        async def script(call: Any) -> str:
            times.append(asyncio.get_running_loop().time())
            return "E500" if call.attempts < 5 else "0000"

        scene.core.script = script
        waits = []
        for _ in range(20):
            times.clear()
            await scene.send(op="BALANCE")
            waits.append([after - before for before, after in pairwise(times)])
        for most, found in zip((0.1, 0.2, 0.3, 0.3), zip(*waits, strict=True), strict=True):
            assert 0.7 * most < max(found) <= most + 1e-9
            assert min(found) < 0.3 * most

    run_virtually(story())


QUICK = RetrySettings(attempts=2, base=0.0, cap=0.0)


@pytest.mark.parametrize(
    ("says", "timeout_ms", "attempts", "elapsed_ms"),
    [
        ("2", None, 2, 2000.0),
        ("Thu, 01 Jan 2026 00:00:02 GMT", None, 2, 2000.0),
        ("Thursday, 01-Jan-26 00:00:02 GMT", None, 2, 2000.0),
        ("Thu Jan  1 00:00:02 2026", None, 2, 2000.0),
        ("Wed, 31 Dec 2025 23:59:00 GMT", None, 2, 0.0),
        ("0", None, 2, 0.0),
        ("in a while", None, 2, 0.0),
        ("-2", None, 2, 0.0),
        ("2.5", None, 2, 0.0),
        ("99999999", None, 2, 0.0),
        ("2", 3000, 2, 2000.0),
        ("2", 2010, 2, 2000.0),
        ("2", 2009, 1, 0.0),
        ("2", 1000, 1, 0.0),
        ("86400", 3_600_000, 1, 0.0),
        ("3600", None, 1, 0.0),
    ],
)
def test_retry_after_is_honoured_if_the_deadline_allows(
    says: str, timeout_ms: int | None, attempts: int, elapsed_ms: float
) -> None:
    """Seconds or a date; else there is no retry, at once; what is senseless is ignored. Without a budget, no hour."""

    async def story() -> None:
        scene = scene_of(QUICK)
        scene.core.script = in_turn([Answer(503, b'{"code":"E500"}', says), "0000"])
        fields: dict[str, Any] = {} if timeout_ms is None else {"timeout_ms": timeout_ms}
        reply = await scene.send(op="BALANCE", **fields)
        assert (reply["attempts"], reply["elapsed_ms"]) == (attempts, elapsed_ms)
        assert reply["code"] == ("0000" if attempts == 2 else "E500")
        assert scene.hub.targets["CORE"].budget.tokens == pytest.approx(10.1 if attempts == 1 else 9.1)

    run_virtually(story())


def test_a_retry_after_is_of_the_last_answer() -> None:
    """The first asked for 2 s, the second timed out and asked for nothing: the third comes at once."""

    async def story() -> None:
        scene = scene_of(RetrySettings(attempts=3, base=0.0, cap=0.0))
        scene.core.script = in_turn([Answer(503, b"", "2"), TimedOut("late", handed_over=True), "0000"])
        reply = await scene.send(op="BALANCE")
        assert (reply["attempts"], reply["elapsed_ms"]) == (3, 2000.0)

    run_virtually(story())


# The budget.


@pytest.mark.parametrize("dead", ["E500", TimedOut("late", handed_over=True)], ids=str)
@pytest.mark.parametrize("calls", [1, 10, 1000])
def test_a_dead_target_sees_a_tenth_more_and_ten(dead: Any, calls: int) -> None:
    """3 attempts: at most 1.1 x calls + 10 reach it, and those that the tokens allow do."""

    async def story() -> None:
        scene = scene_of(RetrySettings(attempts=3, base=0.0, cap=0.0))
        scene.core.script = dead
        for _ in range(calls):
            await scene.send(op="BALANCE")
        assert len(scene.core.calls) <= 1.1 * calls + 10
        assert len(scene.core.calls) == min(3 * calls, calls + calls // 10 + 10)

    run_virtually(story())


def test_who_refuses_connections_earns_nothing() -> None:
    """A first attempt that has not left the hub: 1,000 calls, 10 attempts more."""

    async def story() -> None:
        scene = scene_of(RetrySettings(attempts=3, base=0.0, cap=0.0))
        scene.core.script = NoConnection("refused", handed_over=False)
        for _ in range(1000):
            await scene.send()
        assert len(scene.core.calls) == 1010
        assert scene.hub.targets["CORE"].attempts_by_kind == {"first": 1000, "retry": 10}

    run_virtually(story())


def test_a_storm_of_callers_at_once_shares_one_budget() -> None:
    """500 in flight together, all failing, each with 5 attempts: not one more than 1.1 x 500 + 10."""

    async def story() -> None:
        scene = scene_of(RetrySettings(attempts=5), inflight=1000)
        scene.core.script = takes(0.5, "E500")
        replies = await asyncio.gather(*(scene.send(op="BALANCE") for _ in range(500)))
        assert len(scene.core.calls) == sum(reply["attempts"] for reply in replies) == 560
        assert scene.hub.targets["CORE"].budget.tokens == 0
        assert scene.at_rest

    run_virtually(story())


def test_targets_do_not_share_a_budget() -> None:
    """CORE has used its tokens up: CLAIM still has its own."""

    async def story() -> None:
        scene = scene_of(QUICK)
        scene.core.script = "E500"
        for _ in range(20):
            await scene.send(op="BALANCE")
        scene.transports["CLAIM"].script = in_turn(["E500", "0000"])
        assert (await scene.send("CLAIM", op="BALANCE"))["attempts"] == 2

    run_virtually(story())


def test_without_a_token_the_first_error_is_the_answer() -> None:
    """budget_min 0: nothing is tried again till ten first attempts have earned one."""

    async def story() -> None:
        scene = scene_of(RetrySettings(attempts=2, base=0.0, cap=0.0, budget_min=0))
        scene.core.script = "E500"
        assert [(await scene.send(op="BALANCE"))["attempts"] for _ in range(11)] == [1] * 9 + [2, 1]

    run_virtually(story())
