"""Coroutines that run without a task: begun at once, gone on with at once, and whatever ends them is told once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hubs import run_alone

from eaimw.adapters.drive import Drive, Waiter


class Ended:
    """What a Drive was told at its end."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, BaseException | None]] = []

    def __call__(self, value: Any, problem: BaseException | None) -> None:
        self.told.append((value, problem))


def run(story: Coroutine[Any, Any, None]) -> None:
    run_alone("asyncio", lambda: story)


def test_what_waits_for_nothing_has_ended_when_it_is_made() -> None:
    """Its result is told before the loop turns."""

    async def story() -> None:
        async def answer() -> str:
            return "0000"

        ended = Ended()
        Drive(answer(), ended)
        assert ended.told == [("0000", None)]

    run(story())


def test_a_waiter_that_is_settled_goes_on_in_the_same_turn() -> None:
    """Through several coroutines, and once more after that."""

    async def story() -> None:
        waiters: list[Waiter[int]] = [Waiter(), Waiter()]

        async def inner(waiter: Waiter[int]) -> int:
            return await waiter + 1

        async def outer() -> int:
            return await inner(waiters[0]) + await inner(waiters[1])

        ended = Ended()
        Drive(outer(), ended)
        assert ended.told == []
        waiters[0].settle(10)
        assert ended.told == []
        waiters[1].settle(20)
        assert ended.told == [(32, None)]

    run(story())


def test_a_waiter_that_was_settled_before_is_not_waited_for() -> None:
    """What awaits it goes on at once, as with any future that is done."""

    async def story() -> None:
        waiter: Waiter[str] = Waiter()
        waiter.settle("there")

        async def ask() -> str:
            return await waiter

        ended = Ended()
        Drive(ask(), ended)
        assert ended.told == [("there", None)]

    run(story())


def test_a_waiter_that_fails_raises_where_it_is_waited_for() -> None:
    """The coroutine may turn it into an answer; what it does not catch is told at the end."""

    async def story() -> None:
        caught: Waiter[str] = Waiter()
        uncaught: Waiter[str] = Waiter()

        async def ask() -> str:
            try:
                await caught
            except ValueError as problem:
                return str(problem) + await uncaught
            return "nothing was raised"

        ended = Ended()
        Drive(ask(), ended)
        caught.fail(ValueError("first"))
        assert ended.told == []
        problem = KeyError("second")
        uncaught.fail(problem)
        assert ended.told == [(None, problem)]

    run(story())


def test_other_futures_are_waited_for_as_a_task_does() -> None:
    """A task within, which may have a limit of time of its own; the coroutine itself has no current task."""

    async def story() -> None:
        async def limited() -> str:
            async with asyncio.timeout(5):
                await asyncio.sleep(0)
                return "connected"

        async def ask() -> tuple[str, object]:
            return await asyncio.get_running_loop().create_task(limited()), asyncio.current_task()

        ended = Ended()
        Drive(ask(), ended)
        while not ended.told:
            await asyncio.sleep(0)
        assert ended.told == [(("connected", None), None)]

    run(story())


def test_a_part_that_is_cancelled_is_told_and_leaves_the_loop_in_peace() -> None:
    """As when the loop ends and cancels all tasks."""

    async def story() -> None:
        part = asyncio.get_running_loop().create_task(asyncio.sleep(3600))

        async def ask() -> None:
            await part

        ended = Ended()
        Drive(ask(), ended)
        await asyncio.sleep(0)
        part.cancel()
        while not ended.told:
            await asyncio.sleep(0)
        ((value, problem),) = ended.told
        assert value is None
        assert isinstance(problem, asyncio.CancelledError)

    run(story())


def test_a_task_may_wait_for_a_waiter_too() -> None:
    """As the relay of lines and the callers from Python do; given up on, it takes no answer any more."""

    async def story() -> None:
        waiter: Waiter[str] = Waiter()

        async def ask(whom: Waiter[str]) -> str:
            return await whom

        task = asyncio.create_task(ask(waiter))
        await asyncio.sleep(0)
        waiter.settle("answer")
        assert await task == "answer"

        late: Waiter[str] = Waiter()
        given_up = asyncio.create_task(ask(late))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        late.settle("too late")
        late.fail(ValueError("too late as well"))
        assert late.cancelled()

    run(story())
