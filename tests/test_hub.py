"""The hub over a fake transport and a fake clock: what each layer does, and why their order is what it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scene import Gate, Scene, run

from eaimw.config import HubSettings, TargetSettings
from eaimw.errors import CallFailed, LocalFault, NoConnection, SettingsError, TimedOut
from eaimw.layers import Breaker, Deadline, HeldOpen, InflightLimit, OpenCircuit, RampLimit, Shadow, Stuck, Waiting
from eaimw.model import Answer
from eaimw.policy import BreakerSettings
from eaimw.retry import Retry
from eaimw.stack import PER_ATTEMPT, PER_CALL
from eaimw.target import MAX_CODES

# Routing.


def test_each_transaction_goes_to_its_target() -> None:
    """By target; by the op's route where no target is named; target wins."""

    async def story() -> None:
        scene = Scene()
        assert (await scene.send("CLAIM"))["target"] == "CLAIM"
        assert (await scene.hub.handle_tx({"tx_id": "A", "op": "PAY"}))["target"] == "CORE"
        assert (await scene.hub.handle_tx({"tx_id": "B", "op": "PAY", "target": "CLAIM"}))["target"] == "CLAIM"
        assert [len(t.calls) for t in scene.transports.values()] == [1, 2]

    run(story())


def test_no_target_and_no_route_is_e903() -> None:
    """Not sent, not worth sending again, says what there is; names are exact in case."""

    async def story() -> None:
        scene = Scene()
        for tx in ({"tx_id": "A", "target": "core"}, {"tx_id": "A", "op": "NOPE"}):
            reply = await scene.hub.handle_tx(tx)
            assert (reply["code"], reply["outcome"], reply["retryable"]) == ("E903", "not_sent", False)
            assert "CORE, CLAIM" in reply["message"]
            assert reply["attempts"] == 0
            assert "retry_after_ms" not in reply
        assert scene.hub.untargeted == {"E903": 2}

    run(story())


def test_a_bad_transaction_is_e400_and_the_next_is_served() -> None:
    """tx_id null where it cannot be read; counted without a target."""

    async def story() -> None:
        scene = Scene()
        reply = await scene.hub.handle_tx({"target": "CORE"})
        assert (reply["tx_id"], reply["code"], reply["outcome"], reply["retryable"]) == (
            None,
            "E400",
            "not_sent",
            False,
        )
        assert (await scene.send())["code"] == "0000"
        assert scene.hub.untargeted == {"E400": 1}

    run(story())


# The breaker.


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("E500", "E500"),
        (Answer(503, b"<html>"), "E500"),
        (Answer(200, b"<html>"), "E500"),
        (Answer(429, b'{"code":"0000"}'), "E500"),
        (Answer(200, b'{"code":"E901"}'), "E901"),
        (Answer(200, b'{"code":"E902"}'), "E902"),
        (TimedOut("late", handed_over=True), "E901"),
        (NoConnection("refused", handed_over=False), "E902"),
    ],
    ids=str,
)
def test_failures_open_the_circuit(script: Any, code: str) -> None:
    """E500, E901, E902, whoever says so: the threshold-th opens, then nothing reaches the target."""

    async def story() -> None:
        scene = Scene(threshold=3)
        scene.core.script = script
        assert await scene.codes(5) == [code, code, code, "E904", "E904"]
        assert len(scene.core.calls) == 3
        assert scene.heard.changes == ["CORE CLOSED->OPEN"]

    run(story())


@pytest.mark.parametrize("code", ["B201", "B299", "E400", "E501", "E903", "E904", "E905", "E999", "ZZZZ"])
def test_answers_never_open_it(code: str) -> None:
    """Denials, unknown codes and a hub's refusals show a target that answers."""

    async def story() -> None:
        scene = Scene(threshold=1)
        scene.core.script = code
        assert await scene.codes(20) == [code] * 20
        assert scene.state == "CLOSED"

    run(story())


def test_a_denied_probe_closes_the_circuit() -> None:
    """HALF_OPEN; the probe's answer is a business denial: the target answered."""

    async def story() -> None:
        scene = Scene(threshold=1)
        scene.core.script = "E500"
        await scene.codes(1)
        scene.core.script = "B201"
        scene.clock.seconds += 10
        assert await scene.codes(2) == ["B201", "B201"]
        assert scene.heard.changes == ["CORE CLOSED->OPEN", "CORE OPEN->HALF_OPEN", "CORE HALF_OPEN->CLOSED"]

    run(story())


def test_half_open_lets_one_probe_through() -> None:
    """While the probe is out every other one is E904 at once; a failing probe opens again."""

    async def story() -> None:
        scene = Scene(threshold=1, inflight=10)
        scene.core.script = "E500"
        await scene.codes(1)
        scene.clock.seconds += 10
        scene.core.script = gate = Gate("E500")
        probe = asyncio.create_task(scene.send())
        await gate.has(1)
        assert await scene.codes(5) == ["E904"] * 5
        gate.open.set()
        assert (await probe)["code"] == "E500"
        assert scene.state == "OPEN"
        assert len(scene.core.calls) == 2
        assert scene.at_rest

    run(story())


def test_e904_says_when_to_come_again() -> None:
    """At least the time until the probe, at most half as much again; spread, so that callers do not come together."""

    async def story() -> None:
        scene = Scene(threshold=1, wait=10)
        scene.core.script = "E500"
        await scene.codes(1)
        scene.clock.seconds += 4
        replies = [await scene.send() for _ in range(50)]
        waits = [reply["retry_after_ms"] for reply in replies]
        assert all(6000 <= wait <= 9000 for wait in waits)
        assert len(set(waits)) > 20
        assert {(r["outcome"], r["retryable"], r["attempts"]) for r in replies} == {("not_sent", True, 0)}

    run(story())


# The bulkhead.


def test_a_full_target_refuses_at_once_and_never_queues() -> None:
    """max-inflight 1 and occupied; 99 more are all E905, the circuit stays CLOSED with count 0, one call was made."""

    async def story() -> None:
        scene = Scene(threshold=5, inflight=1)
        scene.core.script = gate = Gate()
        first = asyncio.create_task(scene.send())
        await gate.has(1)
        replies = [await scene.send() for _ in range(99)]
        assert {(r["code"], r["outcome"], r["retryable"], r["attempts"]) for r in replies} == {
            ("E905", "not_sent", True, 0)
        }
        assert all(1000 <= reply["retry_after_ms"] <= 1500 for reply in replies)
        assert (scene.state, scene.hub.targets["CORE"].breaker.failures) == ("CLOSED", 0)
        gate.open.set()
        assert (await first)["code"] == "0000"
        assert len(scene.core.calls) == 1
        assert scene.at_rest

    run(story())


def test_a_full_target_leaves_the_other_alone() -> None:
    """CORE has no place left and its circuit opens; CLAIM is served throughout."""

    async def story() -> None:
        scene = Scene(threshold=1, inflight=1)
        scene.core.script = gate = Gate("E500")
        first = asyncio.create_task(scene.send())
        await gate.has(1)
        assert await scene.codes(3, "CLAIM") == ["0000"] * 3
        gate.open.set()
        await first
        assert await scene.codes(1) == ["E904"]
        assert await scene.codes(3, "CLAIM") == ["0000"] * 3
        assert str(scene.hub.targets["CLAIM"].breaker.state) == "CLOSED"

    run(story())


# Order is behaviour.


def test_the_order_of_the_stack() -> None:
    """Outermost first, each with its reason."""
    assert [layer.make for layer in PER_CALL] == [Deadline, Retry]
    assert [layer.make for layer in PER_ATTEMPT] == [
        HeldOpen, Stuck, OpenCircuit, InflightLimit, RampLimit, Breaker, Shadow, Waiting,
    ]  # fmt: skip
    assert all(len(layer.why) > 20 for layer in (*PER_CALL, *PER_ATTEMPT))


def test_what_is_not_asked_for_is_not_there() -> None:
    """A target with plain settings has four layers and no other."""
    settings = TargetSettings("http://h/tx")
    wanted = [layer.make for layer in (*PER_CALL, *PER_ATTEMPT) if layer.is_wanted(settings)]
    assert wanted == [Deadline, OpenCircuit, InflightLimit, Breaker]


def test_open_is_said_before_full() -> None:
    """Occupied and OPEN, not due: E904, not E905."""

    async def story() -> None:
        scene = Scene(threshold=1, inflight=1)
        scene.core.script = gate = Gate()
        held = asyncio.create_task(scene.send())
        await gate.has(1)
        scene.hub.targets["CORE"].breaker.record_failure()
        assert await scene.codes(1) == ["E904"]
        gate.open.set()
        await held

    run(story())


def test_a_due_probe_without_a_place_has_used_nothing_up() -> None:
    """Occupied, OPEN and due: E905; the next one with a free place is the probe."""

    async def story() -> None:
        scene = Scene(threshold=1, inflight=1)
        scene.core.script = gate = Gate()
        held = asyncio.create_task(scene.send())
        await gate.has(1)
        scene.hub.targets["CORE"].breaker.record_failure()
        scene.clock.seconds += 10
        assert await scene.codes(3) == ["E905"] * 3
        assert scene.state == "OPEN"
        gate.open.set()
        await held
        assert await scene.codes(1) == ["0000"]
        assert scene.heard.changes[-2:] == ["CORE OPEN->HALF_OPEN", "CORE HALF_OPEN->CLOSED"]

    run(story())


# The deadline.


@pytest.mark.parametrize(("timeout_ms", "budget"), [(None, 3.0), (500, 0.5), (3000, 3.0), (10_000, 3.0)])
def test_the_nearer_budget_bounds_the_call(timeout_ms: int | None, budget: float) -> None:
    """The caller's timeout_ms or the target's timeout, whichever is nearer."""

    async def story() -> None:
        scene = Scene()
        fields: dict[str, Any] = {} if timeout_ms is None else {"timeout_ms": timeout_ms}
        await scene.send(**fields)
        call = scene.core.calls[0]
        assert call.deadline - call.started == pytest.approx(budget)

    run(story())


def test_an_impatient_caller_opens_no_circuit_for_others() -> None:
    """A call cut by the caller's own shorter budget is E901, and no sample; a refused connection in it is one."""

    async def story() -> None:
        scene = Scene(threshold=1)
        scene.core.script = TimedOut("late", handed_over=True)
        for _ in range(5):
            assert (await scene.send(timeout_ms=100))["code"] == "E901"
        assert scene.state == "CLOSED"
        assert (await scene.send(timeout_ms=3000))["code"] == "E901"
        assert scene.state == "OPEN"
        scene = Scene(threshold=1)
        scene.core.script = NoConnection("refused", handed_over=False)
        await scene.send(timeout_ms=100)
        assert scene.state == "OPEN"

    run(story())


def test_what_the_hub_lacks_is_no_sample() -> None:
    """The hub was closed, or has no descriptor left: E902 with what is known, and no circuit opens for it."""

    async def story() -> None:
        scene = Scene(threshold=1)
        for handed_over, outcome in ((False, "not_sent"), (True, "unknown")):
            scene.core.script = LocalFault("too many open files", handed_over=handed_over)
            reply = await scene.send()
            assert (reply["code"], reply["outcome"]) == ("E902", outcome)
        assert scene.state == "CLOSED"
        assert scene.at_rest

    run(story())


def test_a_wait_beyond_all_numbers_is_still_a_refusal() -> None:
    """reset_timeout may be any finite number: E904, with the longest wait that every JSON reader takes exactly."""

    async def story() -> None:
        scene = Scene(threshold=1, wait=1.7e308)
        scene.core.script = "E500"
        await scene.codes(1)
        reply = await scene.send()
        assert (reply["code"], reply["outcome"], reply["retry_after_ms"]) == ("E904", "not_sent", 2**53 - 1)
        assert scene.heard.faults == []

    run(story())


def test_a_probe_whose_call_never_ends_loses_its_place() -> None:
    """Each breaker of the hub has a lease for its probe, longer than any call: a lost permit strands nothing."""

    async def story() -> None:
        scene = Scene(threshold=1)
        breaker = scene.hub.targets["CORE"].breaker
        breaker.record_failure()
        scene.clock.seconds += 10
        assert breaker.allow()  # and never reports
        scene.clock.seconds += 3.0
        assert await scene.codes(1) == ["E904"], "a call may take as long as its timeout"
        scene.clock.seconds += 1.0
        assert await scene.codes(1) == ["0000"]

    run(story())


def test_an_impatient_probe_is_no_vote() -> None:
    """HALF_OPEN; the probe is cut by its caller's budget: its place is free for the next."""

    async def story() -> None:
        scene = Scene(threshold=1)
        scene.core.script = "E500"
        await scene.codes(1)
        scene.clock.seconds += 10
        scene.core.script = TimedOut("late", handed_over=True)
        assert (await scene.send(timeout_ms=100))["code"] == "E901"
        assert scene.state == "HALF_OPEN"
        scene.core.script = "0000"
        assert await scene.codes(1) == ["0000"]
        assert scene.state == "CLOSED"

    run(story())


# Outcomes.


@pytest.mark.parametrize(
    ("script", "code", "outcome", "retryable"),
    [
        (TimedOut("late", handed_over=True), "E901", "unknown", False),
        (TimedOut("late", handed_over=False), "E901", "not_sent", True),
        (NoConnection("lost", handed_over=True), "E902", "unknown", False),
        (NoConnection("refused", handed_over=False), "E902", "not_sent", True),
        (Answer(200, b"<html>"), "E500", "unknown", False),
        ("E500", "E500", "unknown", False),
        ("0000", "0000", "done", False),
        ("B201", "B201", "done", False),
        ("E400", "E400", "done", False),
        ("E999", "E999", "unknown", False),
        (Answer(503, b'{"code":"E904","outcome":"not_sent"}'), "E904", "not_sent", True),
        (Answer(200, b'{"code":"E903","outcome":"not_sent"}'), "E903", "not_sent", False),
        (Answer(200, b'{"code":"E901","outcome":"done"}'), "E901", "done", False),
    ],
    ids=str,
)
def test_the_outcome_is_never_more_certain_than_the_hub(script: Any, code: str, outcome: str, retryable: bool) -> None:
    """Each way a call can end, with what is known of it; a call was tried, so attempts is 1."""

    async def story() -> None:
        scene = Scene()
        scene.core.script = script
        reply = await scene.send()
        assert (reply["code"], reply["outcome"], reply["retryable"], reply["attempts"]) == (code, outcome, retryable, 1)

    run(story())


def test_data_of_an_e500_is_shown() -> None:
    """The target's object, also where it says or is a system error."""

    async def story() -> None:
        scene = Scene()
        scene.core.script = Answer(500, b'{"code":"E500","why":"disk"}')
        assert (await scene.send())["data"] == {"code": "E500", "why": "disk"}
        scene.core.script = Answer(200, b"<html>")
        assert "data" not in await scene.send()

    run(story())


def test_unknown_codes_are_counted_and_bounded() -> None:
    """Passed on; counted; beyond 100 distinct ones together as `other`."""

    async def story() -> None:
        scene = Scene()
        for number in range(MAX_CODES + 50):
            scene.core.script = f"X{number:03}"
            assert (await scene.send())["code"] == f"X{number:03}"
        target = scene.hub.targets["CORE"]
        assert target.unknown_codes == MAX_CODES + 50
        assert len(target.codes) == MAX_CODES + 1
        assert target.codes["other"] == 50
        assert sum(target.codes.values()) == MAX_CODES + 50

    run(story())


# What nobody foresaw.


@pytest.mark.parametrize("problem", [KeyError("x"), RuntimeError("boom"), RecursionError(), MemoryError()], ids=repr)
def test_a_fault_of_the_hub_is_one_e500(problem: Exception) -> None:
    """The caller gets its one reply, unknown; place and permit come back; it is no sample; duty is told."""

    async def story() -> None:
        scene = Scene(threshold=1, inflight=1)
        scene.core.script = problem
        for _ in range(3):
            reply = await scene.send()
            assert (reply["code"], reply["outcome"]) == ("E500", "unknown")
            assert "Traceback" not in reply["message"]
        assert scene.state == "CLOSED"
        assert scene.at_rest
        assert len(scene.heard.faults) == 3
        scene.core.script = "0000"
        assert await scene.codes(1) == ["0000"]

    run(story())


def test_a_foreseen_kind_that_nobody_expected_is_still_one_reply() -> None:
    """A bare CallFailed, which no transport should raise, is an E500 as well."""

    async def story() -> None:
        scene = Scene()
        scene.core.script = CallFailed("?", handed_over=True)
        assert (await scene.send())["code"] == "E500"
        assert scene.at_rest

    run(story())


@pytest.mark.parametrize("state", ["CLOSED", "HALF_OPEN"])
def test_a_cancelled_call_gives_everything_back(state: str) -> None:
    """The caller's task is cancelled: CancelledError goes on; place and permit (also a probe's) are free, no vote."""

    async def story() -> None:
        scene = Scene(threshold=1, inflight=1)
        if state == "HALF_OPEN":
            scene.core.script = "E500"
            await scene.codes(1)
            scene.clock.seconds += 10
        scene.core.script = gate = Gate()
        task = asyncio.create_task(scene.send())
        await gate.has(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert scene.state == state
        assert scene.at_rest
        scene.core.script = "0000"
        assert await scene.codes(1) == ["0000"]
        assert scene.state == "CLOSED"

    run(story())


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_program_gives_everything_back_too(kind: type[BaseException]) -> None:
    """KeyboardInterrupt and its like pass through, with place and permit returned."""
    scene = Scene(threshold=1, inflight=1)
    scene.core.script = kind()
    coroutine = scene.send()
    with pytest.raises(kind):
        coroutine.send(None)
    assert scene.at_rest
    assert scene.state == "CLOSED"


# Going down.


def test_going_down_refuses_what_is_new_and_finishes_what_is_under_way() -> None:
    """In flight gets its answer; new ones are E911, retryable elsewhere; close() ends the transports."""

    async def story() -> None:
        scene = Scene()
        scene.core.script = gate = Gate()
        under_way = asyncio.create_task(scene.send())
        await gate.has(1)
        scene.hub.go_down()
        reply = await scene.send()
        assert (reply["code"], reply["outcome"], reply["retryable"]) == ("E911", "not_sent", True)
        assert 1000 <= reply["retry_after_ms"] <= 1500
        gate.open.set()
        assert (await under_way)["code"] == "0000"
        await scene.hub.close()
        assert all(transport.is_closed for transport in scene.transports.values())

    run(story())


def test_every_transaction_is_counted_once() -> None:
    """The sum of the counts is the number of transactions handed in, whatever became of them."""

    async def story() -> None:
        scene = Scene(threshold=2, inflight=1)
        scripts: list[Any] = ["0000", "B201", "E500", "E500", "0000", KeyError("x"), TimedOut("", handed_over=True)]
        for turn in range(100):
            scene.core.script = scripts[turn % len(scripts)]
            scene.clock.seconds += turn % 7
            await scene.send(("CORE", "CLAIM", "NONE")[turn % 3])
            await scene.hub.handle_tx({"tx_id": "bad one"})
        counted = sum(sum(target.codes.values()) for target in scene.hub.targets.values())
        assert counted + sum(scene.hub.untargeted.values()) == 200
        assert scene.at_rest

    run(story())


def test_the_snapshot_tells_each_target() -> None:
    """State, in-flight and counts by name."""

    async def story() -> None:
        scene = Scene(threshold=1)
        scene.core.script = "E500"
        await scene.codes(2)
        snapshot = scene.hub.snapshot()
        assert snapshot["CORE"]["state"] == "OPEN"
        assert snapshot["CORE"]["codes"] == {"E500": 1, "E904": 1}
        assert snapshot["CORE"]["changes"] == {
            "CLOSED->OPEN": 1,
            "OPEN->HALF_OPEN": 0,
            "HALF_OPEN->CLOSED": 0,
            "HALF_OPEN->OPEN": 0,
        }
        assert snapshot["CLAIM"]["state"] == "CLOSED"

    run(story())


def test_what_one_target_draws_changes_nothing_for_another() -> None:
    """Each has its own stream of chance: CLAIM's waits are the same whatever CORE drew."""

    async def waits(core_draws: int) -> list[int]:
        scene = Scene(threshold=1)
        for name in ("CORE", "CLAIM"):
            scene.transports[name].script = "E500"
            await scene.codes(1, name)
        await scene.codes(core_draws)
        return [(await scene.send("CLAIM"))["retry_after_ms"] for _ in range(5)]

    async def story() -> None:
        assert await waits(0) == await waits(17)

    run(story())


# Settings.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timeout", 0),
        ("timeout", -1.0),
        ("timeout", float("nan")),
        ("timeout", 3600.1),
        ("timeout", True),
        ("timeout", "3"),
        ("connect_timeout", 0),
        ("max_inflight", 0),
        ("max_inflight", 100_001),
        ("max_inflight", 2.0),
        ("max_inflight", True),
        ("url", "ftp://x"),
        ("url", "http://"),
        ("url", "http://h:99999/"),
        ("url", "http://u:p@h/"),
        ("url", "http://h/a b"),
        ("url", "http://h/\r\nX: y"),
        ("url", "http://h/#f"),
        ("url", 5),
    ],
)
def test_a_bad_setting_is_named(field: str, value: Any) -> None:
    """Which setting, what was found, what is allowed."""
    given: dict[str, Any] = {"url": "http://h/tx", field: value}
    with pytest.raises(SettingsError, match=f"{field} must be .*, not "):
        TargetSettings(**given)


@pytest.mark.parametrize(("field", "value"), [("fail_threshold", 0), ("fail_threshold", 1.0), ("reset_timeout", -1),
                                              ("reset_timeout", float("inf")), ("reset_timeout", None)])  # fmt: skip
def test_a_bad_breaker_setting_is_named(field: str, value: Any) -> None:
    """The same for the breaker's."""
    with pytest.raises(SettingsError, match=f"{field} must be .*, not "):
        BreakerSettings(**{field: value})


def test_names_and_routes_are_checked() -> None:
    """A target's name has an alphabet; a route leads to a target that is there."""
    good = TargetSettings("http://h/tx")
    with pytest.raises(SettingsError, match="'CO RE'"):
        HubSettings({"CO RE": good})
    with pytest.raises(SettingsError, match="'-'"):
        HubSettings({"-": good})  # where figures stand that belong to no target
    for targets in ({}, "http://h/tx", None, {"CORE": "http://h/tx"}, {"CORE": None}):
        with pytest.raises(SettingsError, match="target"):
            HubSettings(targets)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="routes"):
        HubSettings({"CORE": good}, ["PAY"])  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="the route of PAY must be one of the targets"):
        HubSettings({"CORE": good}, {"PAY": "CLAIM"})


@pytest.mark.parametrize(
    ("url", "authority", "path", "port", "tls"),
    [
        ("http://127.0.0.1:9201", "127.0.0.1:9201", "/tx", 9201, False),
        ("http://h/", "h", "/tx", 80, False),
        ("https://h/a/b?c=d", "h", "/a/b?c=d", 443, True),
        ("https://[::1]:8443/x", "[::1]:8443", "/x", 8443, True),
        ("http://H.example:80/x", "h.example", "/x", 80, False),
    ],
)
def test_a_url_is_taken_apart(url: str, authority: str, path: str, port: int, tls: bool) -> None:
    """Without a path it is /tx; the port is the scheme's own where none is given."""
    endpoint = TargetSettings(url).endpoint
    assert (endpoint.authority, endpoint.path, endpoint.port, endpoint.tls) == (authority, path, port, tls)
