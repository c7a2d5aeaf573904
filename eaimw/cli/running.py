"""What every command that runs a hub has in common: descriptors, signals, the summary."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Mapping

from eaimw.app import say
from eaimw.cli.logs import Logs
from eaimw.cli.reload import Reload
from eaimw.codes import most_first
from eaimw.config import NO_TARGET, HubSettings
from eaimw.errors import Unusable
from eaimw.hub import Hub
from eaimw.target import CodeCounts

SPARE_DESCRIPTORS = 64  # for all that is not a call: the three streams, the logs, the loop, libraries
_ENDING = (signal.SIGTERM, signal.SIGINT)


def raise_limit(settings: HubSettings, callers: int = 0) -> int:
    """Let this process have a descriptor for each call in flight and each caller; say so where the system does not.

    The callers that there is room for: they get what the calls leave, and must not take what the targets need, but ten
    there are. Raises Unusable where there are too few descriptors to start at all.
    """
    calls = SPARE_DESCRIPTORS + sum(target.max_inflight for target in settings.targets.values())
    need = callers + calls
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= need or soft == resource.RLIM_INFINITY:
        return callers
    allowed = need if hard == resource.RLIM_INFINITY else min(need, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < SPARE_DESCRIPTORS // 2:
        raise Unusable(f"the system allows {allowed} descriptors (ulimit -Hn); allow {need:,}, and start again")
    if allowed < need:
        who = "--max-inflight and its callers" if callers else "--max-inflight"
        say(
            f"relay: {who} may need {need:,} descriptors and the system allows {allowed:,} (ulimit -Hn); "
            "calls beyond it will end as E902, not sent"
        )
    return max(10, min(callers, allowed - calls))


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """What signals do outside is theirs again afterwards. Until a transaction may be read, Ctrl-C just ends it."""
    if not _is_main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in (*_ENDING, signal.SIGHUP)}
    if before[signal.SIGINT] is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def heed_signals(stop: Callable[[], object], logs: Logs, reload: Reload | None = None) -> None:
    """As `heed_ending`, and SIGHUP makes the logs anew and reads the hub.toml again, if there is one."""
    heed_ending(stop, "relay")
    if not _is_main_thread():
        return
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[object]] = set()

    def hang_up() -> None:
        logs.reopen()
        if reload is not None:
            task = loop.create_task(reload())
            tasks.add(task)  # the loop itself keeps no task alive
            task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGHUP, hang_up)


def heed_ending(stop: Callable[[], object], program: str) -> None:
    """SIGTERM and SIGINT end the run in good order, the second one at once.

    They stay so while all is closed: `signals` takes them back.
    """
    if not _is_main_thread():  # signals are the main thread's, so are they the caller's
        return
    loop = asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        for each in _ENDING:  # the next one has its own effect again, which a shell sees as 128 + its number
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        stop()
        say(f"{program}: {number.name}: taking nothing new, waiting for what is in flight; once more ends it at once")

    for each in _ENDING:
        loop.add_signal_handler(each, end, each)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def summary(hub: Hub, read: int, replied: int, seconds: float) -> None:
    """Say how many there were, by target and code."""
    say_counts(counts_of(hub))
    say(f"transactions {read:,}, replies {replied:,}, {seconds:.1f} s")


def say_counts(counts: Mapping[str, Mapping[str, int]]) -> None:
    """A line for each target that has any: how many replies by code, the most frequent first."""
    width = max(map(len, counts), default=0)
    for name, codes in counts.items():
        if codes:
            say(f"{name:{width}}  " + "  ".join(f"{code} {count:,}" for code, count in most_first(codes)))


def counts_of(hub: Hub) -> dict[str, CodeCounts]:
    """Replies by target and code; what had no known target under `-`."""
    targets = hub.removed | hub.targets
    return {name: target.codes for name, target in targets.items()} | {NO_TARGET: hub.untargeted}
