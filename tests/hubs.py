"""For tests: a hub of one target in either loop, told a story, and whether anything is left after it."""

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvloop
from served import eventually

from eaimw.adapters.http_client import IDLE_LIMIT
from eaimw.app import open_hub
from eaimw.config import HubSettings, TargetSettings
from eaimw.hub import Hub
from eaimw.policy import BreakerSettings

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.SelectorEventLoop,
}
PATIENCE = 10.0  # seconds that a test waits for what must come; a loaded machine is slow

T = TypeVar("T")


def hub_of(
    url: str, *, fail_threshold: int = 1_000_000, reset_timeout: float = 10.0, **settings: Any
) -> contextlib.AbstractAsyncContextManager[Hub]:
    """A hub whose CORE is at the URL; patient, and its circuit never opens, unless told otherwise."""
    patient = {"timeout": PATIENCE, "connect_timeout": PATIENCE, "max_inflight": 1000}
    breaker = BreakerSettings(fail_threshold, reset_timeout)
    return open_hub(HubSettings({"CORE": TargetSettings(url, breaker=breaker, **{**patient, **settings})}))


async def ask(hub: Hub, **fields: object) -> dict[str, Any]:
    """The reply to T-1 for CORE, or to one with other fields."""
    return await hub.handle_tx({"tx_id": "T-1", "target": "CORE", **fields})


def run_on(
    loop: str,
    open_the_hub: Callable[[], contextlib.AbstractAsyncContextManager[Hub]],
    story: Callable[[Hub], Awaitable[T]],
    may_say: str | None = None,
) -> T:
    """What the story gives, told to a hub in such a loop. Fails if a place did not come back, and as `run_alone`."""

    async def tell() -> T:
        async with open_the_hub() as hub:
            result = await story(hub)
            assert hub.targets["CORE"].bulkhead.inflight == 0, "a place did not come back"
            transport: Any = hub.targets["CORE"].transport
            assert not transport._busy, "a connection is still taken for busy"
            assert not transport._held, "a connection is still taken for held"
        return result

    return run_alone(loop, tell, may_say)


def run_alone(loop: str, story: Callable[[], Awaitable[T]], may_say: str | None = None) -> T:
    """What the story gives, told in such a loop. Fails if a task is left, or the loop complains but of `may_say`."""
    complaints: list[str] = []

    async def tell() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(str(context)))
        async with asyncio.timeout(3 * PATIENCE):  # a story that hangs fails by itself
            result = await story()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left behind"
        return result

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        result = runner.run(tell())
        gc.collect(1)  # an exception that nobody retrieved is complained of when its future is collected
        assert [complaint for complaint in complaints if may_say is None or may_say not in complaint] == []
    return result


async def until(condition: Callable[[], T], within: float = IDLE_LIMIT - 1) -> T:
    """The first true value of `condition`, the loop going on; fails if there is none within so many seconds.

    By default before the hub ends what merely rests: so what ends till then was ended for its own reason.
    """
    deadline = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not true within {within} s; it is {value!r}"
        await asyncio.sleep(0.001)
    return value


@contextmanager
def nothing_left() -> Iterator[None]:
    """Fails if the block leaves a socket or a loop's event queue open in this process."""
    before = _open_sockets()
    yield
    eventually(lambda: _open_sockets() == before, within=PATIENCE)


def _open_sockets() -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            kind = os.readlink(f"/proc/self/fd/{descriptor}")
            if kind.startswith(("socket:", "anon_inode:[event")):
                found.append(kind)
    return sorted(found)
