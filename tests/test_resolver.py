"""Names to addresses: one look-up per host at a time, off the loop; answers are kept, and old ones better than none."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Iterator, Sequence
from datetime import UTC, datetime

import pytest
from hubs import LOOPS, run_alone, until

from eaimw.adapters import resolver
from eaimw.adapters.resolver import KEEP, PAUSE, ThreadResolver, system_addresses


class FakeClock:
    """`ports.Clock` that stands still until told."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def time(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)


class Names:
    """A name server. answers: by host; an exception is raised. is_up: look-ups wait while it is not set."""

    def __init__(self, **answers: Sequence[str] | Exception) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.threads: set[str] = set()
        self.is_up = threading.Event()
        self.is_up.set()

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        self.threads.add(threading.current_thread().name)
        assert self.is_up.wait(10)
        answer = self.answers[host]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def names() -> Iterator[Names]:
    """A name server that knows `core` and `claim`; its waiting look-ups end with the test."""
    names = Names(core=["10.0.0.1", "10.0.0.2"], claim=["10.0.0.3"])
    yield names
    names.is_up.set()
    for thread in threading.enumerate():
        if thread.name.startswith("look up"):
            thread.join(10)


def test_an_address_is_not_looked_up(loop: str, clock: FakeClock, names: Names) -> None:
    """IPv4, IPv6 and IPv6 with a zone are answered as they are."""

    async def story() -> None:
        for address in ("127.0.0.1", "::1", "fe80::1%eth0"):
            assert list(await ThreadResolver(clock, names).resolve(address)) == [address]

    run_alone(loop, story)
    assert names.asked == []


def test_an_answer_is_kept_for_a_while(loop: str, clock: FakeClock, names: Names) -> None:
    """Asked again only after KEEP seconds; then the new answer counts."""

    async def story() -> None:
        resolver = ThreadResolver(clock, names)
        assert list(await resolver.resolve("core")) == ["10.0.0.1", "10.0.0.2"]
        names.answers["core"] = ["10.9.9.9"]
        clock.seconds += KEEP - 0.01
        assert list(await resolver.resolve("core")) == ["10.0.0.1", "10.0.0.2"]
        assert names.asked == ["core"]
        clock.seconds += 0.01
        assert list(await resolver.resolve("core")) == ["10.9.9.9"]
        assert names.asked == ["core", "core"]

    run_alone(loop, story)


def test_one_look_up_per_host_at_a_time(loop: str, clock: FakeClock, names: Names) -> None:
    """Fifty callers wait for the same look-up; another host's is not held up by it."""

    async def story() -> None:
        resolver = ThreadResolver(clock, names)
        names.is_up.clear()
        callers = [asyncio.create_task(_list(resolver.resolve("core"))) for _ in range(50)]
        other = asyncio.create_task(_list(resolver.resolve("claim")))
        await until(lambda: len(names.asked) == 2)
        assert sorted(names.asked) == ["claim", "core"]
        assert len(names.threads) == 2
        names.is_up.set()
        assert await asyncio.gather(*callers) == [["10.0.0.1", "10.0.0.2"]] * 50
        assert await other == ["10.0.0.3"]
        assert len(names.asked) == 2

    run_alone(loop, story)


def test_a_hundred_names_that_hang_hold_up_no_other(loop: str, clock: FakeClock, names: Names) -> None:
    """No pool of threads stands between a look-up and its start."""
    hanging = threading.Event()

    def look_up(host: str) -> Sequence[str]:
        if host.startswith("hangs"):
            hanging.wait(10)
        return ["10.0.0.1"]

    async def story() -> None:
        resolver = ThreadResolver(clock, look_up)
        stuck = [asyncio.create_task(_list(resolver.resolve(f"hangs-{n}"))) for n in range(100)]
        assert await _list(resolver.resolve("core")) == ["10.0.0.1"]
        assert not any(task.done() for task in stuck)
        hanging.set()
        await asyncio.gather(*stuck)

    run_alone(loop, story)


def test_a_caller_that_gives_up_ends_nobody_elses_look_up(loop: str, clock: FakeClock, names: Names) -> None:
    """The others still get its answer."""

    async def story() -> None:
        resolver = ThreadResolver(clock, names)
        names.is_up.clear()
        first, second = (asyncio.create_task(_list(resolver.resolve("core"))) for _ in range(2))
        await until(lambda: names.asked)
        first.cancel()
        await asyncio.wait([first])
        names.is_up.set()
        assert await second == ["10.0.0.1", "10.0.0.2"]
        assert names.asked == ["core"]

    run_alone(loop, story)


@pytest.mark.parametrize("problem", [OSError("server failure"), UnicodeError("label too long"), KeyError("a bug"), []])
def test_a_failure_is_an_oserror_and_is_not_kept(
    loop: str, clock: FakeClock, names: Names, problem: Sequence[str] | Exception
) -> None:
    """Whatever the look-up raises, and no address at all: OSError for every caller; the next one asks again."""

    async def story() -> None:
        resolver = ThreadResolver(clock, names)
        names.answers["bad"] = problem
        failed = await asyncio.gather(*(resolver.resolve("bad") for _ in range(3)), return_exceptions=True)
        assert [isinstance(result, OSError) for result in failed] == [True] * 3
        assert names.asked == ["bad"]
        names.answers["bad"] = ["10.0.0.4"]
        assert await _list(resolver.resolve("bad")) == ["10.0.0.4"]

    run_alone(loop, story)


def test_a_failure_that_nobody_waits_for_is_not_complained_of(loop: str, clock: FakeClock, names: Names) -> None:
    """Every caller has given up when the look-up fails: nothing is left, nothing is said."""

    async def story() -> None:
        resolver = ThreadResolver(clock, names)
        names.answers["bad"] = OSError("server failure")
        names.is_up.clear()
        caller = asyncio.create_task(_list(resolver.resolve("bad")))
        await until(lambda: names.asked)
        caller.cancel()
        await asyncio.wait([caller])
        names.is_up.set()
        names.answers["bad"] = ["10.0.0.4"]
        await until(lambda: not resolver._under_way)

    run_alone(loop, story)


def test_the_last_addresses_serve_on_when_the_look_up_fails(loop: str, clock: FakeClock, names: Names) -> None:
    """A name server that says no longer what it said: the old addresses, and no question at every call."""

    async def story() -> None:
        resolver = ThreadResolver(clock, names)
        await resolver.resolve("core")
        names.answers["core"] = OSError("server failure")
        clock.seconds += KEEP
        for _ in range(20):
            assert await _list(resolver.resolve("core")) == ["10.0.0.1", "10.0.0.2"]
        assert names.asked == ["core"] * 2
        clock.seconds += PAUSE
        names.answers["core"] = ["10.9.9.9"]
        assert await _list(resolver.resolve("core")) == ["10.9.9.9"]

    run_alone(loop, story)


def test_the_last_addresses_serve_on_when_the_look_up_hangs(
    loop: str, clock: FakeClock, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that is gone: the old addresses after PATIENCE, well within any connect timeout; one look-up."""
    monkeypatch.setattr(resolver, "PATIENCE", 0.02)

    async def story() -> None:
        resolver = ThreadResolver(clock, names)
        await resolver.resolve("core")
        names.is_up.clear()
        for _ in range(3):
            clock.seconds += KEEP
            assert await _list(resolver.resolve("core")) == ["10.0.0.1", "10.0.0.2"]
        assert names.asked == ["core"] * 2
        names.answers["core"] = ["10.9.9.9"]
        names.is_up.set()
        await until(lambda: not resolver._under_way)
        assert await _list(resolver.resolve("core")) == ["10.9.9.9"]

    run_alone(loop, story)


def test_no_thread_to_be_had(loop: str, clock: FakeClock, names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives no thread: OSError, and the host is looked up again once there are some."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def story() -> None:
        resolver = ThreadResolver(clock, names)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(OSError, match="thread"):
                await resolver.resolve("core")
        assert await _list(resolver.resolve("core")) == ["10.0.0.1", "10.0.0.2"]

    run_alone(loop, story)


def test_a_look_up_that_outlives_its_loop(loop: str, clock: FakeClock, names: Names) -> None:
    """The hub has ended meanwhile: the thread ends too, without a word (warnings fail this test)."""

    async def story() -> None:
        names.is_up.clear()
        caller = asyncio.create_task(_list(ThreadResolver(clock, names).resolve("core")))
        await until(lambda: names.asked)
        caller.cancel()
        await asyncio.wait([caller])

    run_alone(loop, story)
    names.is_up.set()


def test_the_system_knows_localhost() -> None:
    """Each address once, as the system orders them, in a form that is looked up no more."""
    found = system_addresses("localhost")
    assert len(set(found)) == len(found)
    assert set(found) & {"127.0.0.1", "::1"}
    for address in found:
        socket.getaddrinfo(address, 80, flags=socket.AI_NUMERICHOST)


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..b"])
def test_what_cannot_be_a_name(loop: str, clock: FakeClock, host: str) -> None:
    """Names that cannot be, with a part too long or empty: OSError, though getaddrinfo says it otherwise."""

    async def story() -> None:
        with pytest.raises(OSError, match=r"."):
            await ThreadResolver(clock).resolve(host)

    run_alone(loop, story)


async def _list(addresses: Awaitable[Sequence[str]]) -> list[str]:
    return list(await addresses)
