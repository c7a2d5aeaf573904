"""What comes from the real world is caught, wherever the code under test has it from."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import datetime
import logging
import os
import random
import secrets
import socket
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable

import pytest

from eaimw.adapters.system import SystemClock
from eaimw.kernel.breaker import CircuitBreaker
from eaimw.sim.forbidden import Forbidden, forbidden
from eaimw.sim.loop import VirtualClock, VirtualLoop

HERE = __file__


@pytest.mark.parametrize(
    ("call", "name"),
    [
        *[(lambda name=name: getattr(time, name)(), f"time.{name}()") for name in (
            "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns",
        )],
        (lambda: time.sleep(0), "time.sleep()"),
        (lambda: datetime.datetime.now(datetime.UTC), "datetime.datetime.now()"),
        (lambda: datetime.datetime.utcnow(), "datetime.datetime.utcnow()"),
        (lambda: datetime.datetime.today(), "datetime.datetime.today()"),
        (lambda: datetime.date.today(), "datetime.date.today()"),
        (lambda: os.urandom(1), "os.urandom()"),
        (lambda: secrets.token_hex(), "os.urandom()"),
        (lambda: secrets.randbelow(9), "os.urandom()"),
        (lambda: random.SystemRandom().random(), "os.urandom()"),
        (lambda: uuid.uuid1(), "uuid.uuid1()"),
        (lambda: uuid.uuid4(), "uuid.uuid4()"),
        (lambda: random.random(), "random.random()"),
        (lambda: random.randint(1, 6), "random.randint()"),
        (lambda: random.choice([1]), "random.choice()"),
        (lambda: random.shuffle([1]), "random.shuffle()"),
        (lambda: random.seed(1), "random.seed()"),
        (lambda: random.Random(), "random.Random() without a seed"),
        (lambda: random.Random(None), "random.Random() without a seed"),
        (lambda: random.Random(1).seed(), "random.Random() without a seed"),
        (lambda: socket.socket(), "socket.socket()"),
        (lambda: socket.socketpair(), "socket.socketpair()"),
        (lambda: socket.getaddrinfo("localhost", 1), "socket.getaddrinfo()"),
        (lambda: socket.create_connection(("127.0.0.1", 1)), "socket.getaddrinfo()"),
        (lambda: threading.Thread(target=print).start(), "threading.Thread.start()"),
        (lambda: threading.Timer(1, print).start(), "threading.Thread.start()"),
        (lambda: _thread.start_new_thread(print, ()), "_thread.start_new_thread()"),
        (lambda: SystemClock().monotonic(), "time.monotonic()"),
        (lambda: SystemClock.time(), "time.time()"),
        (lambda: SystemClock().now(), "datetime.datetime.now()"),
        (lambda: CircuitBreaker(1, 1.0).record_failure(), "time.monotonic()"),
    ],
)  # fmt: skip
def test_it_is_caught(call: Callable[[], object], name: str) -> None:
    """The message says what was called, and from where."""
    with pytest.raises(Forbidden) as raised, forbidden():
        call()
    assert str(raised.value).startswith(f"{name} was called, in ")
    assert HERE in str(raised.value) or "eaimw" in str(raised.value)
    call_again = time.monotonic, random.random, datetime.datetime.now, SystemClock.monotonic
    assert all(each() for each in call_again)  # and afterwards all is as before


def swallowing() -> None:
    try:
        time.time()
    except Exception:
        pytest.fail("it is no Exception")


def test_nobody_can_swallow_it() -> None:
    """Neither an `except Exception` nor one of everything; the block says it at its end."""
    with pytest.raises(Forbidden, match=r"time\.time"), forbidden(), contextlib.suppress(BaseException):
        swallowing()


def failing_otherwise() -> None:
    try:
        os.urandom(1)
    except BaseException:
        raise LookupError("something else") from None


def test_it_is_said_in_place_of_what_follows() -> None:
    """Which is its effect."""
    with pytest.raises(Forbidden, match=r"os\.urandom") as raised, forbidden():
        failing_otherwise()
    assert isinstance(raised.value.__cause__, LookupError)


def test_another_failure_stays_what_it_is() -> None:
    """Where nothing forbidden was called."""
    with pytest.raises(LookupError), forbidden():
        raise LookupError


def test_what_a_module_of_ours_has_bound_is_caught() -> None:
    """By whatever name: in the module, in a class, as a method, as a default of a function."""
    module = types.ModuleType("eaimw.made_up")
    source = (
        "from time import monotonic as now\n"
        "from datetime import datetime, date\n"
        "from random import random, Random\n"
        "from os import urandom as bytes_of\n"
        "def by_default(clock=now, *, also=now): return clock\n"
        "def by_keyword(*, clock=now): return clock()\n"
        "class Clock:\n"
        "    __module__ = 'eaimw.made_up'\n"
        "    read = staticmethod(now)\n"
        "    def wait(self, clock=now): return clock()\n"
    )
    exec(source, vars(module))
    sys.modules[module.__name__] = module
    try:
        before = dict(vars(module))
        calls: tuple[Callable[[], object], ...] = (
            lambda: module.now(),
            lambda: module.datetime.now(),
            lambda: module.date.today(),
            lambda: module.random(),
            lambda: module.Random(),
            lambda: module.bytes_of(1),
            lambda: module.by_default()(),
            lambda: module.by_keyword(),
            lambda: module.Clock.read(),
            lambda: module.Clock().wait(),
        )
        for call in calls:
            with pytest.raises(Forbidden), forbidden():
                call()
        assert dict(vars(module)) == before
        assert module.by_default()() == pytest.approx(time.monotonic(), abs=60)
        assert module.Clock().wait() > 0
    finally:
        del sys.modules[module.__name__]


def test_what_is_repeatable_is_allowed() -> None:
    """Seeded chance, dates that are given, clocks of a virtual loop, and asyncio's own work with its debug mode."""

    async def story() -> float:
        await asyncio.sleep(5)
        return asyncio.get_running_loop().time()

    with forbidden():
        assert random.Random(1).random() == random.Random(1).random()
        given = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
        assert isinstance(given, datetime.datetime)
        assert not isinstance(given.date(), datetime.datetime)
        assert issubclass(datetime.datetime, datetime.date)
        assert datetime.datetime.fromtimestamp(given.timestamp(), datetime.UTC) == given
        assert datetime.datetime.fromisoformat("2026-01-02T00:00:00+00:00") == given
        loop = VirtualLoop()
        assert VirtualClock(loop).now().year == 2026
        with asyncio.Runner(loop_factory=lambda: loop, debug=True) as runner:
            assert runner.run(story()) == 5
        logging.getLogger("asyncio").debug("a record has a time of its own")
    assert type(given) is datetime.datetime


def test_other_threads_are_not_watched() -> None:
    """Those of the test's own surroundings go on."""
    go, read = threading.Event(), []

    def work() -> None:
        go.wait(30)
        read.append((time.monotonic(), random.random(), os.urandom(1)))

    thread = threading.Thread(target=work)
    thread.start()
    with forbidden():
        go.set()
        thread.join()
    assert len(read) == 1


def test_a_guard_that_somebody_kept_lets_all_pass_afterwards() -> None:
    """Its block is over."""
    with forbidden():
        kept = time.monotonic
        breaker = CircuitBreaker(1, 1.0)
    assert kept() > 0
    breaker.record_failure()
    assert not breaker.allow()
