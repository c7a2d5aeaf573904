"""A call that outlives its timeout: its caller is answered at once, its place is kept a while; in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from relayed import from_file, lines_of, ok, peer, tx
from test_metrics import samples
from test_sim_world import Json, Tiny, fine, told, world

from eaimw.config import HubSettings, OpSettings, TargetSettings
from eaimw.policy import BreakerSettings, RetrySettings
from eaimw.sim.link import Conditions
from eaimw.sim.world import World

TIMEOUT, HOLD = 1.0, 4.0
JUST_AFTER = 0.1  # seconds; the network needs a few milliseconds


class Core:
    """The hub's CORE, whose target answers when it is told to."""

    def __init__(self, made: World, settings: dict[str, Any]) -> None:
        self.made = made
        self.lines: dict[str, list[Any]] = {}  # connections on which each tx_id was received
        self._settings = settings

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        lines = self.lines

        class Asked(Tiny):
            def on_message_complete(self) -> None:
                self._answer = lambda tx_id: lines.setdefault(tx_id, []).append(self._transport)
                super().on_message_complete()

        host, port = self.made.address("CORE")
        server = await self.made.loop.create_server(lambda: Asked(fine), host, port)
        yield
        server.close()

    def ask(self, tx_id: str, **more: Any) -> asyncio.Task[Json]:
        return asyncio.create_task(self.made.hub.handle_tx({"tx_id": tx_id, "target": "CORE", **more}))

    async def at(self, seconds: float) -> None:
        """Until so many seconds after the start, and what happens then has happened."""
        await asyncio.sleep(seconds + JUST_AFTER - self.made.loop.time())

    def answer(self, tx_id: str, raw: bytes | None = None) -> None:
        """The target answers the transaction, on the connection of its first attempt."""
        self.lines[tx_id][0].write(fine(tx_id) if raw is None else raw)

    def reconfigure(self, **more: Any) -> None:
        target = replace(self.made.hub.targets["CORE"].settings, **more)
        self.made.hub.reconfigure(HubSettings({"CORE": target, "CLAIM": target}))

    @property
    def figures(self) -> tuple[int, int, int]:
        """Calls in flight, places held, late answers."""
        target = self.made.hub.targets["CORE"]
        return target.bulkhead.inflight, target.held, target.late

    @property
    def connections(self) -> dict[str, int]:
        transport: Any = self.made.hub.targets["CORE"].transport
        return dict(transport.connections)


def story(**settings: Any) -> Callable[[Callable[[Core], Awaitable[None]]], None]:
    """Tells it, of a CORE with such settings; when every hold has had its time no place is taken."""

    def tell(teller: Callable[[Core], Awaitable[None]]) -> None:
        given = {"timeout": TIMEOUT, "hold_after_timeout": HOLD, "max_inflight": 3, **settings}
        core = Core(world(**given), given)

        async def served() -> None:
            async with core.served():
                await teller(core)
                await asyncio.sleep(TIMEOUT + HOLD + 1)

        told(core.made, served)

    return tell


def code_of(call: asyncio.Task[Json]) -> str:
    """Of a call that has ended; raises if it has not."""
    return str(call.result()["code"])


def test_the_caller_has_its_answer_at_the_timeout_and_the_place_is_kept() -> None:
    """E901 as ever, unknown; a late answer frees the place, is counted, and its connection is used again."""

    @story()
    async def _(core: Core) -> None:
        first = core.ask("T-1")
        await core.at(TIMEOUT)
        reply = first.result()
        assert (reply["code"], reply["outcome"], reply["attempts"]) == ("E901", "unknown", 1)
        assert reply["elapsed_ms"] == pytest.approx(1000 * TIMEOUT, abs=1)
        assert core.figures == (1, 1, 0)
        await core.at(3.0)
        assert core.figures == (1, 1, 0)
        assert samples(core.made.hub, "eaimw_held", "target") == {("CORE",): 1, ("CLAIM",): 0}
        core.answer("T-1")
        await core.at(3.1)
        assert samples(core.made.hub, "eaimw_late_answers_total", "target") == {("CORE",): 1, ("CLAIM",): 0}
        assert core.figures == (0, 0, 1)
        second = core.ask("T-2")
        await core.at(3.2)
        core.answer("T-2")
        assert (await second)["code"] == "0000"
        assert core.connections == {"opened": 1, "reused": 1, "lost": 0}
        assert core.figures == (0, 0, 1)


def test_a_late_answer_tells_the_breaker_nothing() -> None:
    """The call has failed, once; a good answer after it does not make the failures in a row any fewer."""

    @story(breaker=BreakerSettings(2))
    async def _(core: Core) -> None:
        core.ask("T-1")
        await core.at(TIMEOUT)
        core.answer("T-1")
        await core.at(1.5)
        assert core.figures == (0, 0, 1)
        core.ask("T-2")
        await core.at(3.0)
        assert str(core.made.hub.targets["CORE"].breaker.state) == "OPEN"
        core.answer("T-2")
        await core.at(3.5)
        assert str(core.made.hub.targets["CORE"].breaker.state) == "OPEN"
        assert sum(core.made.hub.targets["CORE"].figures.counts) == 2


def test_the_hold_ends_at_its_limit() -> None:
    """Then the connection is ended, and nothing is late."""

    @story()
    async def _(core: Core) -> None:
        core.ask("T-1")
        await core.at(TIMEOUT + HOLD - 0.2)
        assert core.figures == (1, 1, 0)
        assert not core.lines["T-1"][0].is_closing()
        await core.at(TIMEOUT + HOLD)
        assert core.figures == (0, 0, 0)
        assert core.lines["T-1"][0].is_closing()


@pytest.mark.parametrize(
    ("budget", "held_until"), [(3000, 3.0), (1500, 1.5), (60_000, TIMEOUT + HOLD), (1000, None), (500, None)]
)
def test_the_callers_budget_bounds_the_hold(budget: int, held_until: float | None) -> None:
    """It is the nearer limit; where it is what ended the call there is no hold at all."""

    @story()
    async def _(core: Core) -> None:
        call = core.ask("T-1", timeout_ms=budget)
        await core.at(min(TIMEOUT, budget / 1000))
        assert code_of(call) == "E901"
        if held_until is None:
            assert core.figures == (0, 0, 0)
            return
        await core.at(held_until - 0.2)
        assert core.figures == (1, 1, 0)
        await core.at(held_until)
        assert core.figures == (0, 0, 0)


def test_without_the_setting_nothing_is_held() -> None:
    """The place is free at the timeout, and the connection is ended."""

    @story(hold_after_timeout=0.0)
    async def _(core: Core) -> None:
        core.ask("T-1")
        await core.at(TIMEOUT)
        assert core.figures == (0, 0, 0)
        assert core.lines["T-1"][0].is_closing()


def test_one_place_stays_free_for_the_probe() -> None:
    """Three calls of three time out: two places are held, the third is the probe's, which closes the circuit."""

    @story(breaker=BreakerSettings(3, 1.0))
    async def _(core: Core) -> None:
        calls = [core.ask(f"T-{number}") for number in range(3)]
        await core.at(TIMEOUT)
        assert [code_of(call) for call in calls] == ["E901"] * 3
        assert core.figures == (2, 2, 0)
        assert sum(lines[0].is_closing() for lines in core.lines.values()) == 1
        await core.at(2.1)
        probe = core.ask("T-probe")
        await core.at(2.2)
        core.answer("T-probe")
        assert (await probe)["code"] == "0000"
        assert str(core.made.hub.targets["CORE"].breaker.state) == "CLOSED"
        assert core.figures == (2, 2, 0)
        first, second = core.ask("T-8"), core.ask("T-9")
        await core.at(2.3)
        assert code_of(second) == "E905"
        core.answer("T-8")
        assert (await first)["code"] == "0000"


def test_with_one_place_nothing_is_held() -> None:
    """It is the probe's."""

    @story(max_inflight=1)
    async def _(core: Core) -> None:
        core.ask("T-1")
        await core.at(TIMEOUT)
        assert core.figures == (0, 0, 0)


ENDS: dict[str, Callable[[Any], object]] = {
    "the target ends the connection": lambda line: line.close(),
    "the target resets it": lambda line: line.abort(),
    "no HTTP": lambda line: line.write(b"what is this\r\n\r\n"),
    "half an answer, and the end": lambda line: (line.write(fine("T-1")[:-1]), line.close()),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_is_no_answer_ends_the_hold(case: str) -> None:
    """The place is free, and nothing is counted as late."""

    @story()
    async def _(core: Core) -> None:
        core.ask("T-1")
        await core.at(TIMEOUT)
        assert core.figures == (1, 1, 0)
        ENDS[case](core.lines["T-1"][0])
        await core.at(1.5)
        assert core.figures == (0, 0, 0)


def test_half_an_answer_goes_on_being_waited_for() -> None:
    """What had begun before the timeout and ends after it is late; an answer that says it is the last one too."""

    @story()
    async def _(core: Core) -> None:
        core.ask("T-1")
        await core.at(0.5)
        core.answer("T-1", fine("T-1")[:20])
        await core.at(TIMEOUT)
        core.answer("T-1", fine("T-1")[20:])
        await core.at(1.2)
        assert core.figures == (0, 0, 1)
        core.ask("T-2")
        await core.at(2.3)
        assert core.figures == (1, 1, 1)
        core.answer("T-2", fine("T-2").replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        await core.at(2.5)
        assert core.figures == (0, 0, 2)
        assert core.lines["T-2"][0].is_closing()


def test_a_connection_that_was_not_had_is_not_held() -> None:
    """Nothing was handed over: the target is at work on nothing."""

    @story(connect_timeout=10.0)
    async def _(core: Core) -> None:
        core.made.link("CORE").conditions = Conditions(connect="swallow")
        call = core.ask("T-1")
        await core.at(TIMEOUT)
        assert (call.result()["code"], call.result()["outcome"]) == ("E901", "not_sent")
        assert core.figures == (0, 0, 0)


def test_closing_the_hub_ends_holds() -> None:
    """At once: the connection is ended and the place is back; what times out after that is not held."""

    @story()
    async def _(core: Core) -> None:
        core.ask("T-1")
        await core.at(0.5)
        last = core.ask("T-2")
        await core.at(TIMEOUT)
        assert core.figures == (2, 1, 0)
        began = core.made.loop.time()
        await core.made.hub.close()
        assert core.made.loop.time() - began < 0.1
        assert (await last)["code"] == "E902"
        assert core.figures == (0, 0, 0)


def test_a_caller_that_is_cancelled_at_the_timeout_leaves_nothing_behind() -> None:
    """Between the end of its call and its own task's turn: the hold goes on, and ends."""

    @story()
    async def _(core: Core) -> None:
        call = core.ask("T-1")
        transport: Any = core.made.hub.targets["CORE"].transport
        hold = transport._hold

        def hold_and_cancel(*given: Any) -> None:
            hold(*given)
            call.cancel()

        transport._hold = hold_and_cancel
        with pytest.raises(asyncio.CancelledError):
            await call
        await core.at(1.2)
        assert core.figures == (1, 1, 0)
        core.answer("T-1")
        await core.at(1.5)
        assert core.figures == (0, 0, 1)


def test_another_attempt_while_the_first_is_held_has_a_place_of_its_own() -> None:
    """Two places; the caller has the second attempt's answer, and the first one's comes late."""

    @story(retry=RetrySettings(attempts=2, base=0.0))
    async def _(core: Core) -> None:
        call = core.ask("T-1", idempotency_key="K")
        await core.at(TIMEOUT)
        assert core.figures == (2, 1, 0)
        first, second = core.lines["T-1"]
        second.write(fine("T-1"))
        await core.at(1.2)
        reply = call.result()
        assert (reply["code"], reply["attempts"]) == ("0000", 2)
        assert core.figures == (1, 1, 0)
        first.write(fine("T-1"))
        await core.at(1.4)
        assert core.figures == (0, 0, 1)


def test_two_attempts_may_be_held_at_once() -> None:
    """Each has a hold of its own, and each ends by itself."""

    @story(retry=RetrySettings(attempts=2, base=0.0))
    async def _(core: Core) -> None:
        call = core.ask("T-1", idempotency_key="K")
        await core.at(2 * TIMEOUT)
        assert (call.result()["code"], call.result()["attempts"]) == ("E901", 2)
        assert core.figures == (2, 2, 0)
        core.lines["T-1"][1].write(fine("T-1"))
        await core.at(3.0)
        assert core.figures == (1, 1, 1)
        await core.at(TIMEOUT + HOLD)
        assert core.figures == (0, 0, 1)


def test_a_held_call_takes_no_place_of_the_ramp() -> None:
    """Where the ramp allows one call, there is one though another is held: what is over could else keep all out."""

    @story(max_inflight=10, breaker=BreakerSettings(2, 0.0, ramp=1000.0))
    async def _(core: Core) -> None:
        for number in range(2):
            failing = core.ask(f"T-{number}")
            await core.at(0.2 * number)
            core.lines[f"T-{number}"][0].abort()
            assert (await failing)["code"] == "E902"
        probe = core.ask("T-2")
        await core.at(0.5)
        core.answer("T-2")
        assert (await probe)["code"] == "0000"
        core.ask("T-3")
        await core.at(2.0)
        assert core.figures == (1, 1, 0)
        last = core.ask("T-4")
        await core.at(2.2)
        assert (await core.ask("T-5"))["code"] == "E905"
        core.answer("T-4")
        assert (await last)["code"] == "0000"


def test_other_settings_keep_holds_and_counts() -> None:
    """A new transport takes over: the hold goes on until its answer, which is counted; its connection is not kept."""

    @story()
    async def _(core: Core) -> None:
        core.ask("T-1")
        await core.at(TIMEOUT)
        before: Any = core.made.hub.targets["CORE"].transport
        core.reconfigure(max_inflight=5)
        assert core.made.hub.targets["CORE"].transport is not before
        assert before.is_busy
        assert core.figures == (1, 1, 0)
        core.answer("T-1")
        await core.at(1.2)
        assert not before.is_busy
        assert core.figures == (0, 0, 1)
        assert core.lines["T-1"][0].is_closing()


def test_a_call_under_way_at_other_settings_is_held_in_its_time() -> None:
    """With the limit of the new settings for how many; the hub's end finds it."""

    @story()
    async def _(core: Core) -> None:
        core.ask("T-1")
        core.ask("T-2")
        await core.at(0.5)
        core.reconfigure(max_inflight=2)
        await core.at(TIMEOUT)
        assert core.figures == (1, 1, 0)
        await core.made.hub.close()
        assert core.figures == (0, 0, 0)


def test_fewer_places_leave_one_free_at_once() -> None:
    """Three are held, and then there shall be two: two holds end, the oldest, so that a call finds a place."""

    @story(max_inflight=4)
    async def _(core: Core) -> None:
        for number in range(3):
            core.ask(f"T-{number}")
        await core.at(TIMEOUT)
        assert core.figures == (3, 3, 0)
        core.reconfigure(max_inflight=2)
        assert core.figures == (1, 1, 0)
        await core.at(1.1)
        assert [core.lines[f"T-{number}"][0].is_closing() for number in range(3)] == [True, True, False]
        call = core.ask("T-9")
        await core.at(1.2)
        core.answer("T-9")
        assert (await call)["code"] == "0000"


def test_places_and_connections_never_exceed_the_limit() -> None:
    """A hundred calls at random moments, some answered late: what is open, idle, held and under way stays within it."""

    @story(max_inflight=4)
    async def _(core: Core) -> None:
        transport: Any = core.made.hub.targets["CORE"].transport
        chance = core.made.make_random("calls")
        most = 0
        for number in range(300):
            core.ask(f"T-{number}")
            await asyncio.sleep(0.3 * chance.random())
            for tx_id, lines in core.lines.items():
                if not lines[0].is_closing() and chance.random() < 0.1:
                    core.answer(tx_id)
                    lines[0] = Ended
            inflight, held, _ = core.figures
            pool = len(transport._idle) + len(transport._busy) + len(transport._held) + len(transport._connecting)
            assert held == len(transport._held) <= 3
            assert held <= inflight <= 4
            assert pool <= 4
            most = max(most, held)
        assert most == 3
        assert core.figures[2] > 5
        await asyncio.sleep(TIMEOUT + HOLD + 1)
        assert core.figures[:2] == (0, 0)


class Ended:
    """In place of a connection whose answer was given."""

    @staticmethod
    def is_closing() -> bool:
        return True


def test_an_op_with_a_shorter_timeout_is_held_from_its_own() -> None:
    """The hold begins where the call ended."""
    settings = TargetSettings("http://10.0.0.1:9201/tx", timeout=TIMEOUT, hold_after_timeout=HOLD)
    made = World(HubSettings({"CORE": settings}, {}, {"PAY": OpSettings(timeout=0.3)}))
    core = Core(made, {})

    async def served() -> None:
        async with core.served():
            call = core.ask("T-1", op="PAY")
            await core.at(0.3)
            assert code_of(call) == "E901"
            assert core.figures == (1, 1, 0)
            await core.at(0.3 + HOLD)
            assert core.figures == (0, 0, 0)

    told(made, served)


def test_lines_of_a_file_wait_for_places_that_are_held(tmp_path: Path) -> None:
    """A file's lines wait until the target has room, of which a held place is none: no line is E905."""
    lines = [tx(number) for number in range(300)]
    (tmp_path / "lines.jsonl").write_bytes(lines_of(lines))
    slow = {"T-0", "T-1", "T-2", "T-3"}
    with peer(lambda request: None if request["tx_id"] in slow else ok(request)) as core:
        section = "[defaults]\ntimeout = 0.2\nhold_after_timeout = 0.5\nmax_inflight = 4\n"
        with from_file(tmp_path, section, str(tmp_path / "lines.jsonl"), core=core.url) as running:
            assert running.wait() == 0
            codes = Counter(reply["code"] for reply in running.all_replies())
    assert codes == {"0000": 296, "E901": 4}
