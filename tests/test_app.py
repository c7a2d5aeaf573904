"""The wiring for Python callers: what goes wrong at the start is said, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import eaimw
from eaimw import Relay, SettingsError, Unusable, app, open_hub, two_targets


def test_figures_before_the_block_are_a_clear_error() -> None:
    """snapshot() and handle_tx() outside the `with` block say what to do."""
    relay = Relay()
    with pytest.raises(RuntimeError, match="inside `with"):
        relay.snapshot()
    with pytest.raises(RuntimeError, match="inside `with"):
        relay.handle_tx({"tx_id": "T", "target": "CORE"})


def test_a_relay_is_open_once_at_a_time() -> None:
    """Entering it again while it is open is refused, and leaves it open; afterwards it may be opened anew."""
    before = threading.active_count()
    relay = Relay()
    with relay:
        with pytest.raises(RuntimeError, match="open already"), relay:
            pass
        assert relay.handle_tx({"tx_id": "T", "target": "NONE"})["code"] == "E903"
    with relay:
        assert relay.handle_tx({"tx_id": "T", "target": "NONE"})["code"] == "E903"
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"targets": "http://h/tx"}, "targets must be a mapping"),
        ({"targets": {}}, "targets must be a mapping .* of at least one"),
        ({"targets": {"CORE": None}}, "the target CORE must be"),
        ({"targets": {"CORE": ""}}, "the URL of CORE must be"),
        ({"routes": ["PAY"]}, "routes must be"),
        ({"breaker_log": 5}, "breaker_log must be"),
    ],
)
def test_settings_of_a_wrong_kind_are_named(settings: dict[str, Any], words: str) -> None:
    """Never an AttributeError from inside."""
    with pytest.raises(SettingsError, match=words):
        Relay(**settings)


def test_breaking_off_the_start_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the loop starts: KeyboardInterrupt comes out, the thread ends by itself."""
    before = threading.active_count()

    class Interrupted(Future[Any]):
        has_been = False

        def result(self, timeout: float | None = None) -> Any:
            if not self.has_been:
                self.has_been = True
                raise KeyboardInterrupt
            return super().result(timeout)

    monkeypatch.setattr(app, "Future", Interrupted)
    with pytest.raises(KeyboardInterrupt), Relay():
        pass
    assert threading.active_count() == before


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
    asyncio.run(_opened_and_closed())
