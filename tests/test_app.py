"""The wiring for Python callers: what goes wrong at the start is said, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import eaimw
from eaimw import Relay, Unusable, open_hub, two_targets
from eaimw.app import say


def test_figures_before_the_block_are_a_clear_error() -> None:
    """snapshot() and handle_tx() outside the `with` block say what to do."""
    relay = Relay()
    with pytest.raises(RuntimeError, match="inside `with"):
        relay.snapshot()
    with pytest.raises(RuntimeError, match="inside `with"):
        relay.handle_tx({"tx_id": "T", "target": "CORE"})


def test_a_log_name_that_cannot_be_is_unusable() -> None:
    """A NUL in the path: Unusable, as any other file that cannot be opened; no thread is left."""
    before = threading.active_count()
    with pytest.raises(Unusable, match="cannot be used"), Relay(breaker_log="a\0b"):
        pass
    assert threading.active_count() == before


def test_a_loop_that_cannot_be_made_is_raised(tmp_path: Path) -> None:
    """No descriptor left for the event loop: the error comes out, nothing hangs, the log is free again."""
    program = f"""
import resource, os
from eaimw import Relay
few = len(os.listdir("/proc/self/fd"))
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
try:
    with Relay(breaker_log={str(tmp_path / "breaker.log")!r}):
        print("open")
except OSError as problem:
    print("OSError")
resource.setrlimit(resource.RLIMIT_NOFILE, before)
with Relay(breaker_log={str(tmp_path / "breaker.log")!r}):
    print("open")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["OSError", "open"], done.stderr


def test_saying_something_without_standard_error_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was started with standard error closed has None there."""
    monkeypatch.setattr(sys, "stderr", None)
    say("nobody hears it")


def test_every_name_of_the_package_is_there() -> None:
    """What __all__ promises can be imported, and what it does not is an AttributeError."""
    for name in eaimw.__all__:
        assert getattr(eaimw, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = eaimw.nonsense


async def _opened_and_closed() -> None:
    async with open_hub(two_targets()) as hub:
        await hub.close()
    assert (await hub.handle_tx({"tx_id": "T", "target": "CORE"}))["code"] == "E911"


def test_a_closed_hub_refuses() -> None:
    """After its block the hub answers E911 and calls nobody; closing it twice is no fault."""
    import asyncio

    asyncio.run(_opened_and_closed())
