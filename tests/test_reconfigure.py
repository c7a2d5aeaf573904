"""Other settings while it runs: what applies at once, and what nobody may lose."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scene import Gate, Scene, in_turn, run, run_virtually, takes, virtual_scene
from test_metrics import samples

from eaimw.config import HubSettings, OpSettings, TargetSettings
from eaimw.errors import SettingsError
from eaimw.model import Answer
from eaimw.policy import RetrySettings


def core_of(scene: Scene) -> Any:
    return scene.hub.targets["CORE"]


def test_states_calls_tokens_and_counts_stay() -> None:
    """With a call in flight, OPEN, three tokens spent and 4 codes counted; and again, for nothing changes twice."""

    async def story() -> None:
        retry = RetrySettings(attempts=2, base=0.0, cap=0.0, budget_ratio=0.0)
        scene = Scene(threshold=3, inflight=5, retry=retry, ops={"BALANCE": OpSettings(read=True)})
        scene.core.script = gate = Gate()
        held = asyncio.create_task(scene.send())
        await gate.has(1)
        scene.core.script = in_turn(["E500", "0000"] * 3 + ["E500"] * 3)
        for _ in range(3):
            await scene.send(op="BALANCE")
        await scene.codes(3)
        before = core_of(scene).snapshot()
        for turn in (1, 2):
            scene.reload(timeout=2.0 + turn, max_inflight=5 + turn, breaker={"fail_threshold": 3 + turn})
            core = core_of(scene)
            assert {**core.snapshot(), "max_inflight": 5} == before
            assert (core.bulkhead.limit, core.bulkhead.inflight, core.budget.tokens) == (5 + turn, 1, 7)
            assert (scene.state, await scene.codes(1)) == ("OPEN", ["E904"])
            before["codes"]["E904"] = turn
        gate.open.set()
        assert (await held)["code"] == "0000"
        assert scene.at_rest
        assert core_of(scene).codes["0000"] == 4

    run(story())


@pytest.mark.parametrize("threshold", [2, 3])
def test_a_threshold_applies_to_failures_that_were_counted(threshold: int) -> None:
    """Two failures of 5; the threshold becomes 2 or 3: the next failure opens."""

    async def story() -> None:
        scene = Scene(threshold=5)
        scene.core.script = "E500"
        await scene.codes(2)
        scene.reload(breaker={"fail_threshold": threshold})
        assert scene.state == "CLOSED"
        assert await scene.codes(2) == ["E500", "E904"]

    run(story())


def test_a_shorter_limit_refuses_until_enough_have_gone() -> None:
    """3 in flight and the limit becomes 1: all three end well, nobody enters before."""

    async def story() -> None:
        scene = virtual_scene(inflight=3)
        scene.core.script = takes(1.0)
        held = [asyncio.create_task(scene.send()) for _ in range(3)]
        await asyncio.sleep(0.5)
        scene.reload(max_inflight=1)
        assert await scene.codes(1) == ["E905"]
        assert {reply["code"] for reply in await asyncio.gather(*held)} == {"0000"}
        assert await scene.codes(1) == ["0000"]
        assert scene.at_rest

    run_virtually(story())


def test_a_shorter_wait_ends_one_that_is_under_way() -> None:
    """reset_timeout becomes 10 while it is OPEN for an hour: after 10 s in all a probe may pass."""

    async def story() -> None:
        scene = Scene(threshold=1, wait=3600.0)
        scene.core.script = in_turn(["E500", "0000"])
        await scene.codes(1)
        scene.clock.seconds += 9
        scene.reload(breaker={"reset_timeout": 10.0})
        assert await scene.codes(1) == ["E904"]
        scene.clock.seconds += 1
        assert await scene.codes(1) == ["0000"]

    run(story())


@pytest.mark.parametrize("settled", [{"jitter": 0.001}, {"reopen_factor": 2.0}], ids=str)
def test_a_wait_whose_length_is_settled_keeps_it(settled: dict[str, float]) -> None:
    """Drawn by chance, or grown: what is under way stays, and the next one is by the new settings."""

    async def story() -> None:
        scene = Scene(threshold=1, wait=100.0, breaker=settled)
        scene.core.script = "E500"
        await scene.codes(1)
        scene.reload(breaker={"reset_timeout": 10.0})
        scene.clock.seconds += 99.9
        assert await scene.codes(1) == ["E904"]
        scene.clock.seconds += 0.3
        assert await scene.codes(1) == ["E500"]
        assert 10.0 <= core_of(scene).breaker.wait() <= 20.0

    run(story())


def test_a_window_stays_where_its_settings_do() -> None:
    """19 of 20 ends are in it: another timeout leaves them there, another window starts empty."""

    async def story() -> None:
        for changed, codes in ({"timeout": 1.0}, ["E500", "E904"]), ({"breaker": {"window": 20.0}}, ["E500", "E500"]):
            scene = Scene(breaker={"rules": ["ratio"]})
            scene.core.script = "E500"
            await scene.codes(19)
            scene.reload(**changed)
            assert await scene.codes(2) == codes

    run(story())


def test_modes_change_at_once_and_the_state_beneath_stays() -> None:
    """OPEN; off: all are called; open: none; shadow: all; normal: E904 as before, and a probe after its wait."""

    async def story() -> None:
        scene = Scene(threshold=1)
        scene.core.script = "E500"
        await scene.codes(1)
        found = []
        for mode in ("off", "open", "shadow", "normal"):
            scene.reload(breaker={"mode": mode})
            found.append((await scene.codes(1), str(core_of(scene).standing.state)))
        assert found == [(["E500"], "CLOSED"), (["E904"], "OPEN"), (["E500"], "OPEN"), (["E904"], "OPEN")]
        scene.clock.seconds += 10
        scene.core.script = "0000"
        assert await scene.codes(1) == ["0000"]
        assert len(scene.heard.changes) == 3

    run(story())


def test_what_is_refused_without_a_breaker_is_not_said_of_an_open_one() -> None:
    """OPEN, then mode off: the access log has CLOSED where the limit or the deadline refused."""
    heard: list[tuple[str, str]] = []

    class Log:
        def answered(self, reply: Any, call: Any) -> None:
            heard.append((reply.code, str(call.state)))

    async def story() -> None:
        scene = Scene(threshold=1, inflight=1, access_log=Log())
        scene.core.script = "E500"
        await scene.codes(1)
        scene.reload(breaker={"mode": "off"})
        scene.core.script = gate = Gate()
        held = asyncio.create_task(scene.send())
        await gate.has(1)
        await scene.codes(1)
        await scene.send(timeout_ms=1)
        gate.open.set()
        await held

    run(story())
    assert heard[1:3] == [("E905", "CLOSED"), ("E906", "CLOSED")]


def test_a_ramp_under_way_keeps_its_calls() -> None:
    """One in flight, which is the limit: after a reload of something else it still is, and no second one enters."""

    async def story() -> None:
        scene = virtual_scene(threshold=1, inflight=10, breaker={"ramp": 100.0})
        scene.core.script = in_turn(["E500", "0000", takes(2.0), "0000"])
        await scene.codes(1)
        await asyncio.sleep(10.0)
        await scene.codes(1)
        held = asyncio.create_task(scene.send())
        await asyncio.sleep(0.1)
        scene.reload(timeout=2.5)
        assert await scene.codes(1) == ["E905"]
        await held
        assert await scene.codes(1) == ["0000"]
        assert scene.at_rest

    run_virtually(story())


def test_calls_that_are_stuck_stay_so() -> None:
    """Two hang; a reload of something else does not forget them."""

    async def story() -> None:
        scene = virtual_scene(inflight=10, breaker={"stuck_calls": 2, "slow_call": 1.0})
        scene.core.script = takes(100)
        hanging = [asyncio.create_task(scene.send()) for _ in range(2)]
        await asyncio.sleep(1.5)
        scene.reload(timeout=2.5)
        assert await scene.codes(1) == ["E904"]
        await asyncio.gather(*hanging)

    run_virtually(story())


def test_an_operations_circuit_is_told_of_where_it_is_asked() -> None:
    """REPORT is OPEN; per target nobody asks it, so no gauge says so; per op again it is as it was, counts too."""

    async def story() -> None:
        scene = Scene(threshold=1, breaker={"per": "op"})
        scene.core.script = in_turn(["E500", "0000"])
        await scene.send(op="REPORT")
        labels = ("target", "from", "to")
        assert samples(scene.hub, "eaimw_breaker_state", "target")["CORE/REPORT",] == 2
        scene.reload(breaker={"per": "target"})
        assert (await scene.send(op="REPORT"))["code"] == "0000"
        assert samples(scene.hub, "eaimw_breaker_state", "target") == {("CORE",): 0, ("CLAIM",): 0}
        assert "ops" not in core_of(scene).status()
        scene.reload(breaker={"per": "op", "fail_threshold": 2})
        assert (await scene.send(op="REPORT"))["code"] == "E904"
        assert samples(scene.hub, "eaimw_breaker_transitions_total", *labels)["CORE/REPORT", "CLOSED", "OPEN"] == 1

    run(story())


def test_the_circuits_of_operations_have_the_new_settings_too() -> None:
    """fail_threshold 3 becomes 1: REPORT's second failure opens."""

    async def story() -> None:
        scene = Scene(threshold=3, breaker={"per": "op"})
        scene.core.script = "E500"
        await scene.send(op="REPORT")
        scene.reload(breaker={"fail_threshold": 1})
        assert [(await scene.send(op="REPORT"))["code"] for _ in range(2)] == ["E500", "E904"]

    run(story())


def test_operations_are_declared_and_forgotten() -> None:
    """BALANCE becomes a read: it is tried again; it is none any more: it is not."""

    async def story() -> None:
        scene = virtual_scene(threshold=9, retry=RetrySettings(attempts=2, base=0.0))
        scene.core.script = "E500"
        attempts = []
        for ops in ({}, {"BALANCE": OpSettings(read=True)}, {}):
            scene.reload(ops=ops)
            attempts.append((await scene.send(op="BALANCE"))["attempts"])
        assert attempts == [1, 2, 1]

    run_virtually(story())


# Targets come and go.


def test_a_removed_target_drains_and_its_counts_stay() -> None:
    """In flight goes on to its answer, new ones are E903; the counts are in the metrics, and go on when it is back."""

    async def story() -> None:
        scene = Scene()
        await scene.codes(2)
        scene.core.script = gate = Gate()
        held = asyncio.create_task(scene.send())
        await gate.has(1)
        scene.reload("CLAIM")
        assert scene.core.is_retired
        assert await scene.codes(1) == ["E903"]
        assert (await scene.hub.handle_tx({"tx_id": "A", "op": "PAY"}))["code"] == "E903"
        gate.open.set()
        assert (await held)["code"] == "0000"
        counted = samples(scene.hub, "eaimw_transactions_total", "target", "code")
        assert counted == {("CORE", "0000"): 3, ("-", "E903"): 2}
        scene.reload()
        assert await scene.codes(1) == ["0000"]
        assert scene.transports["CORE"] is not scene.core
        assert samples(scene.hub, "eaimw_transactions_total", "target", "code")["CORE", "0000"] == 4
        assert scene.hub.removed == {}

    run(story())


def test_a_target_that_comes_back_is_as_it_went() -> None:
    """OPEN when it was removed: OPEN when it is back, until its wait is over."""

    async def story() -> None:
        scene = Scene(threshold=1)
        scene.core.script = "E500"
        await scene.codes(1)
        scene.reload("CLAIM")
        scene.reload("CLAIM", "CORE")
        assert await scene.codes(1) == ["E904"]
        scene.clock.seconds += 10
        assert await scene.codes(1) == ["0000"]

    run(story())


def test_a_new_target_is_served_at_once_and_leaves_the_others() -> None:
    """STOCK comes: it answers; CORE has kept its transport."""

    async def story() -> None:
        scene = Scene()
        scene.reload("CORE", "CLAIM", "STOCK")
        assert await scene.codes(1, "STOCK") == ["0000"]
        assert scene.transports["CORE"] is scene.core
        assert not scene.core.is_retired

    run(story())


def test_another_url_is_another_transport() -> None:
    """Who was under way ends there, who comes now goes here; the old one is retired, and closed with the hub."""

    async def story() -> None:
        scene = Scene()
        scene.core.script = gate = Gate()
        held = asyncio.create_task(scene.send())
        await gate.has(1)
        scene.reload(url="http://127.0.0.1:2/tx")
        assert (scene.core.is_retired, scene.core.is_closed) == (True, False)
        assert await scene.codes(1) == ["0000"]
        assert (len(scene.core.calls), len(scene.transports["CORE"].calls)) == (1, 1)
        gate.open.set()
        assert (await held)["code"] == "0000"
        await scene.hub.close()
        assert scene.core.is_closed
        assert all(transport.is_closed for transport in scene.transports.values())

    run(story())


# What cannot be wired.


@pytest.mark.parametrize("names", [("CLAIM", "BAD"), ("BAD", "CLAIM"), ("CORE", "CLAIM", "BAD")], ids=str)
def test_what_cannot_be_wired_changes_nothing(names: tuple[str, ...]) -> None:
    """A CA file that cannot be read, of one target: the others are as they were, also one that was left out."""

    async def story() -> None:
        scene = Scene()
        targets, routes, transports = scene.hub.targets, scene.hub.routes, dict(scene.transports)
        before = scene.hub.snapshot()
        good = TargetSettings("http://127.0.0.1:2/tx", timeout=1.0, max_inflight=77)
        bad = TargetSettings("https://127.0.0.1:3/tx", ca_file="nowhere.pem")
        with pytest.raises(SettingsError, match="ca_file"):
            scene.hub.reconfigure(HubSettings({name: bad if name == "BAD" else good for name in names}))
        assert (scene.hub.targets is targets, scene.hub.routes is routes, scene.hub.removed) == (True, True, {})
        assert scene.hub.snapshot() == before
        for name, transport in transports.items():
            assert await scene.codes(1, name) == ["0000"]
            assert (len(transport.calls), transport.is_retired) == (1, False)

    run(story())


@pytest.mark.parametrize(
    ("change", "sent"),
    [
        ({"breaker": {"mode": "open"}}, 1),
        ({"retry": RetrySettings(attempts=1)}, 1),
        ({"ops": {}}, 1),
        ({"min_call": 100.0}, 2),  # of a budget, and this caller gave none
    ],
    ids=str,
)
def test_what_waits_to_be_tried_again_heeds_the_new_settings(change: dict[str, Any], sent: int) -> None:
    """While it waits everybody is to be refused, nothing to be tried again, or its op is no longer read."""

    async def story() -> None:
        retry = RetrySettings(attempts=2, base=0.0, cap=0.0)
        scene = virtual_scene(threshold=1_000, retry=retry, ops={"BALANCE": OpSettings(read=True)})
        scene.core.script = Answer(503, b"", "2")
        task = asyncio.create_task(scene.send(op="BALANCE"))
        await asyncio.sleep(1.0)
        scene.reload(**change)
        reply = await task
        assert (reply["code"], reply["attempts"], len(scene.core.calls)) == ("E500", sent, sent)
        assert core_of(scene).budget.tokens == pytest.approx(10.1 - (sent - 1))

    run_virtually(story())
