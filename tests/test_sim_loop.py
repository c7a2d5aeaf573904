"""The virtual loop: time jumps, order is fixed, and what cannot go on says so."""

from __future__ import annotations

import asyncio
import math
import random
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypeVar

import pytest

from eaimw.sim.loop import Deadlock, NotSimulated, Runaway, VirtualClock, VirtualLoop

T = TypeVar("T")


def run(story: Callable[[], Coroutine[Any, Any, T]], loop: VirtualLoop | None = None) -> T:
    with asyncio.Runner(loop_factory=lambda: loop or VirtualLoop()) as runner:
        return runner.run(story())


def now() -> float:
    return asyncio.get_running_loop().time()


def test_time_jumps_to_the_next_timer() -> None:
    """Years pass in a moment, and exactly so many of them."""

    async def story() -> float:
        await asyncio.sleep(3 * 365 * 86_400)
        return now()

    assert run(story) == 3 * 365 * 86_400


def test_time_starts_where_it_is_told() -> None:
    """And no time passes where nobody waits."""

    async def story() -> float:
        for _ in range(100):
            await asyncio.sleep(0)
        return now()

    assert run(story, VirtualLoop(start=1000.5)) == 1000.5


def test_timers_of_one_instant_run_in_the_order_in_which_they_were_made() -> None:
    """However many: a heap alone would mix them."""

    async def story() -> list[int]:
        loop = asyncio.get_running_loop()
        ran: list[int] = []
        for number in range(500):
            loop.call_at(7.0, ran.append, number)
            loop.call_at(3.0 + number % 5, lambda: None)
        await asyncio.sleep(8)
        return ran

    assert run(story) == list(range(500))


def test_timers_of_different_instants_run_in_the_order_of_time() -> None:
    """One of the past runs at once, after what is ready."""

    async def story() -> list[str]:
        loop = asyncio.get_running_loop()
        ran: list[str] = []
        loop.call_later(2, ran.append, "second")
        loop.call_later(1, ran.append, "first")
        loop.call_at(-5, ran.append, "past")
        loop.call_soon(ran.append, "ready")
        await asyncio.sleep(3)
        return ran

    assert run(story) == ["ready", "past", "first", "second"]


def test_a_delay_moves_time_however_small_it_is() -> None:
    """Who waits for an instant in steps of what is left of it gets there, though the sum may round down to now."""

    async def story() -> None:
        before = now()
        assert before + 1e-14 == before
        await asyncio.sleep(1e-14)
        assert now() == math.nextafter(before, math.inf)

    run(story, VirtualLoop(start=1000.0))


def test_a_cancelled_timer_moves_no_time() -> None:
    """Time does not go to where nothing happens, and many of them are thrown away in time."""
    loop = VirtualLoop()

    async def story() -> float:
        for _ in range(10_000):
            loop.call_later(1_000, lambda: None).cancel()
        assert len(loop._timers) < 200
        await asyncio.sleep(1)
        return now()

    assert run(story, loop) == 1.0


def test_timers_that_stay_keep_their_order_when_cancelled_ones_are_thrown_out() -> None:
    """Cancelling is no reshuffle."""

    async def story() -> list[int]:
        loop = asyncio.get_running_loop()
        ran: list[int] = []
        for number in range(300):
            timer = loop.call_at(5.0, ran.append, number)
            if number % 3:
                timer.cancel()
        await asyncio.sleep(6)
        return ran

    assert run(story) == list(range(0, 300, 3))


def test_what_asyncio_is_made_of_works() -> None:
    """Timeouts, gather, events, queues, task groups, shields: as on any loop."""

    async def story() -> tuple[object, ...]:
        event, queue = asyncio.Event(), asyncio.Queue[int](1)

        async def late(seconds: float) -> float:
            await asyncio.sleep(seconds)
            return now()

        async def feed() -> None:
            for number in range(3):
                await queue.put(number)
            event.set()

        gathered = await asyncio.gather(late(2), late(1), late(3))
        async with asyncio.TaskGroup() as group:
            group.create_task(feed())
            fed = [await queue.get() for _ in range(3)]
            await event.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(math.inf)
        done, pending = await asyncio.wait({asyncio.ensure_future(late(1)), asyncio.ensure_future(late(9))}, timeout=4)
        for task in pending:
            task.cancel()
        return gathered, fed, now(), len(done), len(pending)

    assert run(story) == ([2.0, 1.0, 3.0], [0, 1, 2], 12.0, 1, 1)


def test_a_deadlock_names_who_waits_and_where() -> None:
    """A finding, and no hanging."""

    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    async def story() -> None:
        await asyncio.gather(asyncio.create_task(waits_for_ever(), name="one that waits"))

    with pytest.raises(Deadlock) as raised:
        run(story)
    assert "one that waits" in str(raised.value)
    assert "waits_for_ever" in str(raised.value)
    assert "locks.py:" in str(raised.value)  # the line in Event.wait


def test_waiting_for_ever_is_a_deadlock() -> None:
    """A timer that never comes wakes nobody."""
    with pytest.raises(Deadlock):
        run(lambda: asyncio.sleep(math.inf))


def test_a_loop_that_runs_away_is_stopped_by_its_events() -> None:
    """The bound on events; the tasks are cleared away all the same."""
    ended = []

    async def story() -> None:
        try:
            while True:
                await asyncio.sleep(0)
        finally:
            ended.append(True)

    with pytest.raises(Runaway, match="more than 1,000 events"):
        run(story, VirtualLoop(max_events=1000))
    assert ended == [True]


def test_a_loop_that_runs_away_is_stopped_by_its_time() -> None:
    """The bound on virtual time, counted from the start."""

    async def story() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(Runaway, match=r"beyond 160\.0"):
        run(story, VirtualLoop(start=100, max_time=60))


def test_each_event_may_be_charged_time() -> None:
    """A processor that is not infinitely fast: timers that fall due meanwhile run in between."""
    loop = VirtualLoop(charge=0.001)

    async def story() -> tuple[float, list[float]]:
        rung: list[float] = []
        loop.call_later(0.0105, lambda: rung.append(round(now(), 6)))
        for _ in range(30):
            await asyncio.sleep(0)
        return round(now(), 6), rung

    # Due at 0.0105, taken up at 0.011, and one event was ready before it.
    assert run(story, loop) == (0.031, [0.012])


def test_a_charge_without_end_is_a_runaway() -> None:
    """Charged time counts towards the bound."""

    async def story() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Runaway, match="beyond 1"):
        run(story, VirtualLoop(charge=0.1, max_time=1))


def test_every_step_can_be_looked_at() -> None:
    """The hook is called after each event; what it raises ends the run there."""
    loop = VirtualLoop()
    state = {"steps": 0, "broken": False}

    def look() -> None:
        state["steps"] += 1
        assert not state["broken"], "an invariant"

    async def story() -> None:
        loop.on_step = look
        await asyncio.sleep(1)
        assert state["steps"] > 0
        state["broken"] = True
        await asyncio.sleep(1)
        raise AssertionError("not reached")

    with pytest.raises(AssertionError, match="an invariant"):
        run(story, loop)
    assert loop.time() == 1.0


def steps(seed: int) -> list[tuple[float, int]]:
    """What fifty tasks do that all draw from one stream."""
    chance = random.Random(seed)
    done: list[tuple[float, int]] = []

    async def work(number: int) -> None:
        for _ in range(20):
            await asyncio.sleep(chance.choice([0, 0.1, chance.random()]))
            done.append((now(), number))

    async def story() -> None:
        await asyncio.gather(*(work(number) for number in range(50)))

    run(story)
    return done


def test_the_same_seed_takes_the_same_steps() -> None:
    """In the same order, to the last digit of the time."""
    assert steps(3) == steps(3) != steps(4)


@pytest.mark.parametrize(
    "wish",
    [
        lambda loop: loop.run_in_executor(None, print),
        lambda loop: asyncio.to_thread(print),
        lambda loop: loop.getaddrinfo("localhost", 80),
        lambda loop: loop.getnameinfo(("127.0.0.1", 80)),
        lambda loop: loop.add_reader(0, print),
        lambda loop: loop.add_writer(0, print),
        lambda loop: loop.add_signal_handler(15, print),
        lambda loop: loop.sock_recv(None, 1),
        lambda loop: loop.sock_connect(None, ("127.0.0.1", 80)),
        lambda loop: loop.create_datagram_endpoint(asyncio.DatagramProtocol),
        lambda loop: loop.create_unix_server(asyncio.Protocol, "x"),
        lambda loop: loop.connect_read_pipe(asyncio.Protocol, None),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true"),
        lambda loop: loop.create_connection(asyncio.Protocol, "127.0.0.1", 80),
        lambda loop: loop.create_server(asyncio.Protocol, "127.0.0.1", 80),
    ],
)
def test_what_is_of_the_world_is_not_simulated(wish: Callable[[Any], Any]) -> None:
    """Each says so, and no `except Exception` can swallow it."""

    async def story() -> None:
        try:
            answer = wish(asyncio.get_running_loop())
            if isinstance(answer, Awaitable):
                await answer
        except Exception:
            pytest.fail("swallowed")

    with pytest.raises(NotSimulated):
        run(story)


def test_another_thread_cannot_come_in() -> None:
    """There is but one; a signal handler or a finalizer of its own may."""
    said: list[BaseException] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()

        def intrude() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except NotSimulated as problem:
                said.append(problem)

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        done = loop.create_future()
        loop.call_soon_threadsafe(done.set_result, None)
        await done

    run(story)
    assert len(said) == 1


def test_no_time_is_no_time() -> None:
    """NaN would break the order of all timers."""

    async def story() -> None:
        asyncio.get_running_loop().call_at(math.nan, print)

    with pytest.raises(ValueError, match="NaN"):
        run(story)


def test_it_opens_nothing() -> None:
    """No descriptor of this process, not even for itself."""
    with socket.socket() as before:
        lowest = before.fileno()
    loop = VirtualLoop()
    with socket.socket() as after:
        assert after.fileno() == lowest
    loop.close()


def test_a_closed_loop_takes_nothing() -> None:
    """As any loop."""
    loop = VirtualLoop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(print)
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_later(1, print)


def test_both_clocks_follow_the_loop() -> None:
    """The monotonic one is the loop's time, the wall's goes on from the epoch, in UTC."""
    loop = VirtualLoop()
    epoch = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=9)))
    clock = VirtualClock(loop, epoch)

    async def story() -> tuple[float, float, datetime]:
        await asyncio.sleep(86_400.25)
        return clock.monotonic(), clock.time(), clock.now()

    expected = datetime(2026, 3, 2, 3, 0, 0, 250_000, tzinfo=UTC)
    assert run(story, loop) == (86_400.25, expected.timestamp(), expected)
    with pytest.raises(ValueError, match="time zone"):
        VirtualClock(loop, datetime(2026, 1, 1))
