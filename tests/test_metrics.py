"""The metrics: what Prometheus gets of what the hub counts."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from scene import Gate, Scene, run

from eaimw.adapters.metrics import registry_of
from eaimw.errors import TimedOut
from eaimw.figures import BOUNDS
from eaimw.hub import Hub
from eaimw.target import MAX_CODES

Labels = tuple[str, ...]


def exposed(hub: Hub, log_errors: int = 0, lag: float = 0.0, access_log_errors: int = 0) -> bytes:
    return generate_latest(registry_of(hub, lambda: log_errors, lambda: lag, lambda: access_log_errors))


def samples(hub: Hub, name: str, *labels: str) -> dict[Labels, float]:
    """The values of one metric by those of its labels."""
    found = (sample for family in parse(exposed(hub).decode()) for sample in family.samples if sample.name == name)
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in found}


async def mixed(scene: Scene) -> int:
    """Transactions of every kind; how many they were."""
    count = 0
    for script in ("0000", "B201", "ZZZZ", "E500", TimedOut("late", handed_over=True), "E500", "0000", "0000"):
        scene.core.script = script
        await scene.send()
        await scene.send("CLAIM")
        await scene.send("NOBODY")
        await scene.hub.handle_tx({"tx_id": 5})
        count += 4
    scene.hub.go_down()
    await scene.send()
    await scene.send("NOBODY")
    return count + 2


# What Prometheus gets.


def test_names_types_and_labels_are_the_contracts() -> None:
    """Each metric as people build their dashboards on it, and no other."""
    target = {"target"}
    wanted = {
        "eaimw_transactions": ("counter", target | {"code"}),
        "eaimw_attempts": ("counter", target | {"kind"}),
        "eaimw_inflight": ("gauge", target),
        "eaimw_max_inflight": ("gauge", target),
        "eaimw_held": ("gauge", target),
        "eaimw_late_answers": ("counter", target),
        "eaimw_breaker_state": ("gauge", target),
        "eaimw_breaker_transitions": ("counter", target | {"from", "to"}),
        "eaimw_breaker_would_refuse": ("counter", target),
        "eaimw_retry_budget_tokens": ("gauge", target),
        "eaimw_call_seconds": ("histogram", target),
        "eaimw_connections": ("counter", target | {"event"}),
        "eaimw_unknown_codes": ("counter", target),
        "eaimw_breaker_log_errors": ("counter", set()),
        "eaimw_access_log_errors": ("counter", set()),
        "eaimw_loop_lag_seconds": ("gauge", set()),
    }

    async def story() -> None:
        scene = Scene()
        scene.core.connections = {"opened": 1, "reused": 2, "lost": 3}  # type: ignore[attr-defined]
        await mixed(scene)
        families = {family.name: family for family in parse(exposed(scene.hub).decode())}
        assert set(families) == set(wanted)
        for name, (kind, labels) in wanted.items():
            family = families[name]
            assert family.type == kind
            assert family.documentation.endswith(".")
            assert {label for sample in family.samples for label in sample.labels} - {"le"} == labels, name
            if kind == "counter":
                assert {sample.name for sample in family.samples} == {f"{name}_total"}
        events = samples(scene.hub, "eaimw_connections_total", "target", "event")
        assert events == {("CORE", "opened"): 1, ("CORE", "reused"): 2, ("CORE", "lost"): 3}

    run(story())


def test_the_sum_of_transactions_is_what_was_read() -> None:
    """Whatever became of each: by code under its target, or under `-` where it had no known one."""

    async def story() -> None:
        scene = Scene(threshold=3)
        count = await mixed(scene)
        by_code = samples(scene.hub, "eaimw_transactions_total", "target", "code")
        assert sum(by_code.values()) == count
        assert {code for target, code in by_code if target == "CORE"} == {
            "0000", "B201", "ZZZZ", "E500", "E901", "E904", "E911",
        }  # fmt: skip
        assert {code for target, code in by_code if target == "-"} == {"E400", "E903", "E911"}
        assert {target for target, _ in by_code} == {"CORE", "CLAIM", "-"}
        assert samples(scene.hub, "eaimw_unknown_codes_total", "target") == {("CORE",): 1, ("CLAIM",): 0}
        attempts = samples(scene.hub, "eaimw_attempts_total", "target", "kind")
        assert attempts == {
            ("CORE", "first"): 6, ("CORE", "retry"): 0, ("CLAIM", "first"): 8, ("CLAIM", "retry"): 0,
        }  # fmt: skip

    run(story())


def test_labels_are_bounded() -> None:
    """A target that invents codes has 100 of them and `other`; the sum is still what was read."""

    async def story() -> None:
        scene = Scene()
        for number in range(MAX_CODES + 30):
            scene.core.script = f"Z{number:03}"
            await scene.send()
        by_code = samples(scene.hub, "eaimw_transactions_total", "target", "code")
        assert len(by_code) == MAX_CODES + 1
        assert by_code["CORE", "other"] == 30
        assert sum(by_code.values()) == MAX_CODES + 30

    run(story())


def test_the_tables_changes_stand_at_0_from_the_start_and_are_counted() -> None:
    """From the first scrape on, so that no rate misses the first change; the state is a number."""

    async def story() -> None:
        scene = Scene(threshold=1)
        labels = ("target", "from", "to")
        changes = samples(scene.hub, "eaimw_breaker_transitions_total", *labels)
        assert len(changes) == 8
        assert set(changes.values()) == {0}
        assert samples(scene.hub, "eaimw_breaker_state", "target") == {("CORE",): 0, ("CLAIM",): 0}
        scene.core.script = "E500"
        await scene.codes(1)
        assert samples(scene.hub, "eaimw_breaker_state", "target")["CORE",] == 2
        scene.clock.seconds += 10
        scene.core.script = gate = Gate()
        probe = asyncio.create_task(scene.send())
        await gate.has(1)
        assert samples(scene.hub, "eaimw_breaker_state", "target")["CORE",] == 1
        assert samples(scene.hub, "eaimw_inflight", "target") == {("CORE",): 1, ("CLAIM",): 0}
        gate.open.set()
        await probe
        changes = samples(scene.hub, "eaimw_breaker_transitions_total", *labels)
        assert changes["CORE", "CLOSED", "OPEN"] == changes["CORE", "OPEN", "HALF_OPEN"] == 1
        assert (changes["CORE", "HALF_OPEN", "CLOSED"], changes["CORE", "HALF_OPEN", "OPEN"]) == (1, 0)
        assert samples(scene.hub, "eaimw_max_inflight", "target") == {("CORE",): 2, ("CLAIM",): 2}

    run(story())


def test_each_call_is_observed_once_however_it_ends() -> None:
    """Answered, timed out or cut: in its bucket, in the sum and in the count. A refusal is no call."""

    async def story() -> None:
        scene = Scene(threshold=3, inflight=1)

        async def slow(call: Any) -> Any:
            scene.clock.seconds += 0.3
            return "0000"

        async def late(call: Any) -> Any:
            scene.clock.seconds += 3.0
            return TimedOut("late", handed_over=True)

        for scene.core.script in (slow, late):
            await scene.send()
        scene.core.script = gate = Gate()
        cut = asyncio.create_task(scene.send())
        await gate.has(1)
        await scene.codes(1)  # E905
        scene.clock.seconds += 100.0
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
        buckets = samples(scene.hub, "eaimw_call_seconds_bucket", "target", "le")
        assert [buckets["CORE", le] for le in ("0.25", "0.5", "2.5", "5.0", "60.0", "+Inf")] == [0, 1, 1, 2, 2, 3]
        assert len(buckets) == 2 * (len(BOUNDS) + 1)
        assert samples(scene.hub, "eaimw_call_seconds_count", "target") == {("CORE",): 3, ("CLAIM",): 0}
        assert samples(scene.hub, "eaimw_call_seconds_sum", "target")["CORE",] == pytest.approx(103.3)

    run(story())


def test_two_hubs_in_one_process_do_not_clash() -> None:
    """Each has a registry of its own, with its own figures."""

    async def story() -> None:
        one, other = Scene(), Scene()
        await one.codes(3)
        labels = ("target", "code")
        assert samples(one.hub, "eaimw_transactions_total", *labels) == {("CORE", "0000"): 3}
        assert samples(other.hub, "eaimw_transactions_total", *labels) == {}

    run(story())


def test_losses_of_the_log_and_the_lag_are_told() -> None:
    """As they are when they are asked for."""
    lines = exposed(Scene().hub, log_errors=7, lag=0.25, access_log_errors=5).decode().splitlines()
    assert "eaimw_breaker_log_errors_total 7.0" in lines
    assert "eaimw_access_log_errors_total 5.0" in lines
    assert "eaimw_loop_lag_seconds 0.25" in lines


def test_a_scrape_never_trips_over_a_hub_that_counts() -> None:
    """Another thread inserts and removes codes as fast as it can, and threads change at every moment: no error."""
    hub, ended = Scene().hub, threading.Event()
    codes = hub.targets["CORE"].codes

    def count() -> None:
        while not ended.is_set():
            codes.clear()
            for number in range(MAX_CODES):
                codes.add(f"Z{number:03}")

    before = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(200):
            exposed(hub)
            json.dumps(hub.targets["CORE"].status())
    finally:
        sys.setswitchinterval(before)
        ended.set()
        thread.join()


def test_openmetrics_is_spoken_too() -> None:
    """The stricter format of a newer Prometheus: its own parser takes it whole."""

    async def story() -> None:
        scene = Scene()
        await mixed(scene)
        registry = registry_of(scene.hub, lambda: 0, lambda: 0.0)
        text = openmetrics.generate_latest(registry).decode()  # type: ignore[no-untyped-call]
        assert len(list(parse_openmetrics(text))) == 16  # type: ignore[no-untyped-call]

    run(story())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on the path; it comes with Prometheus")
def test_promtool_has_nothing_to_say() -> None:
    """`promtool check metrics`: names, units and help as Prometheus wants them."""

    async def story() -> None:
        scene = Scene()
        await mixed(scene)
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=exposed(scene.hub), capture_output=True, timeout=30, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, b"")

    run(story())
