"""Any policies under any traffic, changed while it runs: what holds whatever happens."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from scene import Scene, run_virtually, takes, virtual_scene

from eaimw.config import OpSettings
from eaimw.errors import LocalFault, NoConnection, TimedOut
from eaimw.model import Answer, Call
from eaimw.policy import RetrySettings

OPS = {"READ": OpSettings(read=True), "SHORT": OpSettings(idempotent=True, timeout=0.3), "PAY": OpSettings()}
MOST_INFLIGHT, MOST_PROBES, MOST_RATIO = 4, 3, 0.5

breakers = st.fixed_dictionaries(
    {},
    optional={
        "fail_threshold": st.integers(1, 3),
        "reset_timeout": st.sampled_from([0.0, 0.5, 5.0]),
        "rules": st.sampled_from([["consecutive"], ["ratio"], ["consecutive", "ratio"]]),
        "window": st.sampled_from([0.1, 5.0]),
        "window_calls": st.sampled_from([0, 3]),
        "min_calls": st.integers(1, 4),
        "failure_ratio": st.sampled_from([0.1, 0.5, 1.0]),
        "slow_call": st.sampled_from([0.0, 0.2]),
        "slow_ratio": st.sampled_from([0.3, 1.0]),
        "stuck_calls": st.integers(0, 3),
        "probes": st.integers(1, MOST_PROBES),
        "probe_timeout": st.sampled_from([0.0, 0.2]),
        "reopen_factor": st.sampled_from([1.0, 2.0, 100.0]),
        "reopen_max": st.sampled_from([0.0, 8.0]),
        "jitter": st.sampled_from([0.0, 0.1, 1.0]),
        "ramp": st.sampled_from([0.0, 2.0]),
        "mode": st.sampled_from(["normal"] * 5 + ["shadow", "open", "off"]),
        "per": st.sampled_from(["target", "op"]),
    },
)
retries = st.builds(
    RetrySettings,
    attempts=st.integers(1, 4),
    base=st.sampled_from([0.0, 0.1]),
    cap=st.sampled_from([0.0, 1.0]),
    budget_ratio=st.sampled_from([0.0, 0.1, MOST_RATIO]),
    budget_min=st.integers(0, 3),
)
policies = st.fixed_dictionaries(
    {"breaker": breakers, "retry": retries, "max_inflight": st.integers(1, MOST_INFLIGHT)},
    optional={"min_call": st.sampled_from([0.0, 0.1])},
)
answers = st.sampled_from(
    ["0000"] * 4
    + ["B201", "E500", "E500", "E904", Answer(503, b"", "1"), Answer(503, b"", "soon"), Answer(404, b"")]
    + [TimedOut("late", handed_over=False), NoConnection("refused", handed_over=False), KeyError("x")]
    + [NoConnection("lost", handed_over=True), LocalFault("no descriptor", handed_over=False)]
)
calls = st.fixed_dictionaries(
    {"after": st.sampled_from([0.0, 0.0, 0.0, 0.1, 1.0, 6.0]), "takes": st.sampled_from([0.0, 0.1, 0.25, 2.0, 9.0])},
    optional={
        "op": st.sampled_from([*OPS, "OTHER"]),
        "timeout_ms": st.sampled_from([1, 50, 200, 1000]),
        "idempotency_key": st.just("K"),
        "answer": answers,
        "cancelled_after": st.sampled_from([0.0, 0.05, 0.5]),
    },
)
stories = st.lists(st.one_of(calls, calls, calls, policies.map(lambda policy: {"reload": policy})), max_size=40)


@dataclass
class Watch:
    """Stands before the target and looks at every attempt."""

    scene: Scene
    minimum: int
    plan: dict[str, tuple[float, Any]] = field(default_factory=dict)  # of each transaction: seconds, and the answer
    inflight: int = 0
    probing: Counter[tuple[str, int]] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)
    left: defaultdict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))

    async def __call__(self, call: Call) -> Any:
        self.made[call.tx.tx_id] += 1
        self.look()
        probe = self.probe_of(call)
        self.inflight += 1
        assert self.inflight <= MOST_INFLIGHT
        if probe is not None:
            self.probing[probe] += 1
            assert self.probing[probe] <= MOST_PROBES
        try:
            seconds, answer = self.plan[call.tx.tx_id]
            answer = await takes(seconds, answer)(call)
        finally:
            self.inflight -= 1
            if probe is not None:
                self.probing[probe] -= 1
        self.left[call.tx.tx_id].append(getattr(answer, "handed_over", True))
        return answer

    def probe_of(self, call: Call) -> tuple[str, int] | None:
        """The circuit that it is a probe of, and the how manieth time that it is half-open."""
        core = self.scene.hub.targets["CORE"]
        if call.state != "HALF_OPEN" or core.settings.breaker.mode != "normal":
            return None
        circuit = core.circuit_of(call.tx.op) if core.settings.breaker.per == "op" else core.circuit
        return circuit.name, circuit.changes["OPEN", "HALF_OPEN"]

    def look(self) -> None:
        """What holds at every moment."""
        core = self.scene.hub.targets["CORE"]
        assert 0 <= core.budget.tokens <= 100
        kinds = core.attempts_by_kind
        assert kinds["retry"] <= MOST_RATIO * kinds["first"] + self.minimum
        assert core.bulkhead.inflight <= MOST_INFLIGHT


@settings(max_examples=300, deadline=None)
@given(policies, stories)
def test_what_holds_under_any_policies_and_any_traffic(policy: dict[str, Any], story: list[dict[str, Any]]) -> None:
    """One honest reply each, in time; places, probes and tokens within bounds, and all given back at the end."""

    async def told() -> None:
        scene = virtual_scene(ops=OPS, **{"inflight": policy["max_inflight"], **of_scene(policy)})
        watch = Watch(scene, policy["retry"].budget_min)
        scene.core.script = watch
        tasks: dict[str, asyncio.Task[dict[str, Any]]] = {}
        for step in story:
            if "reload" in step:
                scene.reload(**step["reload"])
                scene.transports["CORE"].script = watch  # another limit, another transport
                continue
            await asyncio.sleep(step["after"])
            tx = f"T{scene.count + 1}"
            watch.plan[tx] = step["takes"], step.get("answer", "0000")
            fields = {name: step[name] for name in ("op", "timeout_ms", "idempotency_key") if name in step}
            tasks[tx] = asyncio.create_task(scene.send(**fields))
            if "cancelled_after" in step:
                asyncio.get_running_loop().call_later(step["cancelled_after"], tasks[tx].cancel)
            await asyncio.sleep(0)
        replies = await asyncio.gather(*tasks.values(), return_exceptions=True)
        for tx, reply in zip(tasks, replies, strict=True):
            if not isinstance(reply, asyncio.CancelledError):
                assert isinstance(reply, dict), reply
                judge(tx, reply, watch)
        answered = [reply for reply in replies if isinstance(reply, dict)]
        core = scene.hub.targets["CORE"]
        assert core.codes == Counter(reply["code"] for reply in answered)
        assert scene.at_rest
        for circuit in core.circuits:
            assert (circuit.ramped.inflight, circuit.waiting) == (0, {})
        watch.look()

    run_virtually(told())


def of_scene(policy: dict[str, Any]) -> dict[str, Any]:
    """As `Scene` takes it: threshold and wait stand apart."""
    breaker = dict(policy["breaker"])
    apart = {"threshold": breaker.pop("fail_threshold", 3), "wait": breaker.pop("reset_timeout", 10.0)}
    return {**policy, "breaker": breaker, **apart}


def judge(tx: str, reply: dict[str, Any], watch: Watch) -> None:
    """Is it the honest reply to that transaction?"""
    assert reply["tx_id"] == tx
    assert reply["attempts"] == watch.made[tx] <= 4
    left = watch.left[tx]
    if reply["outcome"] == "not_sent":
        assert not any(left), "a byte has left"
    elif reply["outcome"] == "unknown":
        assert any(left), "nothing has left, and the hub knows"
    assert reply["retryable"] is (reply["outcome"] == "not_sent" and reply["code"] != "E906")


def test_the_watch_sees_what_it_looks_for() -> None:
    """With the calls of one story told: probes, retries, refusals and late ends are among what is checked."""

    async def told() -> None:
        retry = RetrySettings(attempts=2, base=0.0, cap=0.0)
        scene = virtual_scene(threshold=2, ops=OPS, retry=retry)
        scene.core.script = watch = Watch(scene, 10)
        watch.plan |= {"T1": (0.1, "E500"), "T2": (0.1, "0000"), "T3": (0.1, "0000")}
        assert [(await scene.send(op="READ"))["code"] for _ in range(2)] == ["E500", "E904"]
        await asyncio.sleep(10.0)
        assert (await scene.send(op="READ"))["code"] == "0000"
        assert watch.probing == {("CORE", 1): 0}
        assert (watch.made, watch.left["T1"]) == (Counter(T1=2, T3=1), [True, True])

    run_virtually(told())
