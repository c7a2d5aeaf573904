"""The simulated target's Protocol on a line and a clock of ten lines each: requests, pieces, time, capacity, order."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
from collections.abc import Callable
from random import Random
from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaimw.sim.bank import Core
from eaimw.sim.capacity import Capacity, Station
from eaimw.sim.durations import Exponential, Fixed
from eaimw.sim.forms import FORMS, PLAIN, Form
from eaimw.sim.modes import MODES
from eaimw.sim.target import Known, Target
from eaimw.sim.target_protocol import Service
from eaimw.sim.timeline import Timeline


class Clock:
    """The part of an event loop that the target uses; time stands still until `advance`."""

    def __init__(self) -> None:
        self._now = 100.0  # not 0: a run may begin at any time of its loop
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, act: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(self._now + delay, act, args, self)  # type: ignore[arg-type]
        heapq.heappush(self._timers, (self._now + delay, next(self._numbers), timer))
        return timer

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        pass

    def left(self) -> int:
        """Timers that would still ring."""
        return sum(not timer.cancelled() for *_, timer in self._timers)

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            self._now, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                timer._run()
        self._now = end


class Line:
    """A caller's end of a connection; what it sends arrives at once, in pieces if it says so."""

    def __init__(self, world: World) -> None:
        self.got = b""
        self.is_ended = False
        self._connection = world.service.connection()
        self._clock = world.clock
        self._connection.connection_made(self)

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.is_ended:
                self._connection.data_received(piece)

    def ask(self, **tx: object) -> None:
        self.send(request(json.dumps(tx).encode()))

    def hang_up(self) -> None:
        self.close()

    # What the target calls.

    def write(self, data: bytes) -> None:
        assert not self.is_ended, "written after the end"
        self.got += data

    def is_closing(self) -> bool:
        return self.is_ended

    def close(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self._clock.call_later(0, self._connection.connection_lost, None)

    abort = close


class World:
    """A CORE with its service, in a loop that is a Clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mode: dict[str, object] | None = None, **options: Any) -> None:
        self.clock = Clock()
        self.target = Target(Core, Random(1))
        self.target.control(mode or {})
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "get_running_loop", lambda: self.clock)
            self.service = Service(self.target, **options)

    def line(self) -> Line:
        return Line(self)


def request(body: bytes, line: bytes = b"POST /tx HTTP/1.1", *headers: bytes) -> bytes:
    return b"\r\n".join([line, b"Host: core", b"Content-Length: %d" % len(body), *headers, b"", body])


def answer(tx_id: str, **results: object) -> bytes:
    body = json.dumps({"tx_id": tx_id, "code": "0000", "message": "done", **results}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


# Requests.


def test_requests_one_after_another_on_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets its own answer at once, and the connection stays."""
    world = World(monkeypatch)
    line = world.line()
    for number in range(3):
        line.got = b""
        line.ask(tx_id=f"T-{number}")
        assert line.got == answer(f"T-{number}")
    assert not line.is_ended
    assert world.clock.left() == 0


def test_where_a_request_is_cut_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two segments, cut at every byte, and byte by byte."""
    raw = request(b'{"tx_id": "T-1"}')
    for pieces in [*([raw[:cut], raw[cut:]] for cut in range(1, len(raw))), [raw[n : n + 1] for n in range(len(raw))]]:
        world = World(monkeypatch)
        line = world.line()
        line.send(*pieces)
        assert line.got == answer("T-1")
        assert world.target.known("T-1") == Known(1, 1, 1, 0, "0000")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (request(b"{}", b"POST /other HTTP/1.1"), b"404 Not Found"),
        (request(b"{}", b"GET /tx HTTP/1.1"), b"404 Not Found"),
        (b"what is this\r\n\r\n", b"400 Bad Request"),
        (b"POST /tx HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400 Bad Request"),
        (b"POST /tx HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n" + b" " * (16 * 1024 * 1024 + 1), b"413 Content Too"),
    ],
)
def test_what_is_no_transaction_of_http(monkeypatch: pytest.MonkeyPatch, raw: bytes, status: bytes) -> None:
    """Its status, and the connection is ended; the target has received nothing."""
    world = World(monkeypatch)
    line = world.line()
    line.send(raw)
    assert line.got.startswith(b"HTTP/1.1 " + status)
    assert line.is_ended
    assert world.target.stats()["calls"] == 0


def test_a_body_that_is_no_transaction_is_e400_in_every_mode_and_by_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target says so at once, though it hangs and its one server is taken."""
    world = World(monkeypatch, {"mode": "hang"}, station=Station(Capacity(servers=1, queue=0), Random(1)))
    world.line().ask(tx_id="T-1")
    line = world.line()
    line.send(request(b"{}"))
    assert line.got.startswith(b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n")
    assert b'"code": "E400"' in line.got


@pytest.mark.parametrize("when", ["in the same bytes", "later"])
def test_who_sends_more_before_the_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """One request at a time: the second was not received, and the first gets no answer any more."""
    world = World(monkeypatch, {"mode": "slow"})
    line = world.line()
    both = [request(b'{"tx_id": "T-1"}'), request(b'{"tx_id": "T-2"}')]
    line.send(*([b"".join(both)] if when == "in the same bytes" else both))
    assert line.is_ended
    world.clock.advance(10)
    assert line.got == b""
    assert (world.target.inflight, world.clock.left()) == (0, 0)
    assert world.target.known("T-1") == Known(1, 1, 0, 0, None)
    assert world.target.known("T-2").received == 0


@pytest.mark.parametrize("head", [(b"POST /tx HTTP/1.1", b"Connection: close"), (b"POST /tx HTTP/1.0",)])
@pytest.mark.parametrize("mode", ["normal", "slow"])
def test_who_wants_no_keep_alive_gets_none(monkeypatch: pytest.MonkeyPatch, head: tuple[bytes], mode: str) -> None:
    """The answer comes, and then the end."""
    world = World(monkeypatch, {"mode": mode})
    line = world.line()
    line.send(request(b'{"tx_id": "T-1"}', *head))
    world.clock.advance(2)
    assert line.got == answer("T-1")
    assert line.is_ended


def test_a_fault_of_the_target_does_not_pass_for_one_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised, where the loop reports it; it does not become a 400."""
    world = World(monkeypatch)
    monkeypatch.setattr(world.target, "arrive", lambda body: 1 // 0)
    line = world.line()
    with pytest.raises(httptools.HttpParserCallbackError):
        line.ask(tx_id="T-1")
    assert line.got == b""


# Time.


def test_a_delay_and_a_drip_keep_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """slow: nothing before its delay. drip: the head at once, then a byte a step."""
    world = World(monkeypatch, {"mode": "slow", "delay_ms": 2000})
    line = world.line()
    line.ask(tx_id="T-1")
    world.clock.advance(1.999)
    assert line.got == b""
    world.clock.advance(0.001)
    assert line.got == answer("T-1")
    world.target.control({"mode": "drip", "delay_ms": 250})
    line.got = b""
    line.ask(tx_id="T-2")
    head, _, body = answer("T-2").partition(b"\r\n\r\n")
    for count in range(len(body) + 1):
        assert line.got == head + b"\r\n\r\n" + body[:count]
        assert world.target.known("T-2").answered == (count == len(body))
        world.clock.advance(0.25)
    assert world.clock.left() == 0


def test_who_hangs_up_is_no_longer_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every mode: no timer is left for it, and no answer is counted."""
    for mode in MODES:
        world = World(monkeypatch, {"mode": mode, **({"delay_ms": 50} if "delay_ms" in MODES[mode] else {})})
        line = world.line()
        line.ask(tx_id="T-1")
        had = world.target.known("T-1").answered
        line.hang_up()
        world.clock.advance(0)
        assert (world.target.inflight, world.target.known("T-1").answered, world.clock.left()) == (0, had, 0)
        assert not world.service.connections


def test_nothing_is_said_to_who_hangs_up_at_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transport closes and its Protocol is not yet told: no answer is written, or counted."""
    world = World(monkeypatch, {"mode": "slow", "delay_ms": 2000})
    line = world.line()
    world.clock.call_later(2.0, line.hang_up)
    line.ask(tx_id="T-1")
    world.clock.advance(2.0)
    assert (line.got, world.target.known("T-1").answered) == (b"", 0)


def test_a_hanging_target_holds_its_server_until_the_caller_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that is; then the next is worked on, by the mode of that moment."""
    world = World(monkeypatch, {"mode": "hang"}, station=Station(Capacity(Fixed(1.0), 1), Random(1)))
    lines = [world.line() for _ in range(2)]
    for number, line in enumerate(lines):
        line.ask(tx_id=f"T-{number}")
    world.target.control({"mode": "normal"})
    world.clock.advance(100)
    assert [line.got for line in lines] == [b"", b""]
    lines[0].hang_up()
    world.clock.advance(1)
    assert lines[1].got == answer("T-1")


def test_the_timeline_is_in_force_from_the_start_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its 0 is when the service was made; each change comes at its moment, and a seed is not started anew by asking."""
    faults = [
        {"at": 3, "until": 8, "mode": "fail"},
        {"at": 10, "mode": "flaky", "seed": 4},
    ]
    world = World(monkeypatch, timeline=Timeline.of(faults))
    line = world.line()
    codes: list[str] = []
    for number in range(40):
        line.got = b""
        line.ask(tx_id=f"T-{number}")
        codes.append(str(world.target.known(f"T-{number}").code))
        world.clock.advance(0.5)
    assert codes[:20] == ["0000"] * 6 + ["E500"] * 10 + ["0000"] * 4
    chance = Random(4)
    assert codes[20:] == ["E500" if chance.random() < 0.5 else "0000" for _ in range(20)]


def test_a_mode_is_that_of_the_moment_when_the_work_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that arrived in health and waited into a fault fails."""
    timeline = Timeline.of([{"at": 1, "mode": "fail"}])
    world = World(monkeypatch, timeline=timeline, station=Station(Capacity(Fixed(2.0), 1), Random(1)))
    lines = [world.line() for _ in range(2)]
    for number, line in enumerate(lines):
        line.ask(tx_id=f"T-{number}")
    world.clock.advance(4)
    assert [world.target.known(f"T-{n}").code for n in range(2)] == ["0000", "E500"]


def test_service_time_and_delay_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow target's server is busy for both, so the next begins after both."""
    world = World(monkeypatch, {"mode": "slow"}, station=Station(Capacity(Fixed(1.0), 1), Random(1)))
    lines = [world.line() for _ in range(2)]
    for number, line in enumerate(lines):
        line.ask(tx_id=f"T-{number}")
    for seconds, answered in [(2.99, 0), (0.02, 1), (2.98, 1), (0.02, 2)]:
        world.clock.advance(seconds)
        assert sum(bool(line.got) for line in lines) == answered


def test_who_hangs_up_in_the_queue_is_never_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Received and not executed; who hangs up while worked on is executed, and the server is busy to the end."""
    world = World(monkeypatch, station=Station(Capacity(Fixed(1.0), 1), Random(1)))
    worked_on, in_queue, last = (world.line() for _ in range(3))
    for name, line in (("W", worked_on), ("Q", in_queue), ("L", last)):
        line.ask(tx_id=name)
    world.clock.advance(0.5)
    for line in (in_queue, worked_on):
        line.hang_up()
    world.clock.advance(1.49)
    assert (last.got, world.target.inflight) == (b"", 1)
    world.clock.advance(0.01)
    assert last.got == answer("L")
    assert [world.target.known(name) for name in "WQ"] == [Known(1, 1, 0, 0, None), Known(1, 0, 0, 0, None)]


# Forms.


def test_early_answers_as_soon_as_the_tx_id_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the rest of the body; when that has come, the connection serves the next."""
    forms = [FORMS["early"], PLAIN]
    world = World(monkeypatch, choose=lambda: forms.pop(0))
    line = world.line()
    raw = request(b'{"tx_id": "T-1", "pad": "%b"}' % (b"x" * 1000))
    line.send(raw[:60])
    assert line.got == b""
    line.send(raw[60:400])
    assert line.got.startswith(b"HTTP/1.1 413 ")
    assert b'"code": "B298"' in line.got
    assert world.target.known("T-1") == Known(1, 0, 1, 0, "B298")
    line.got = b""
    line.send(raw[400:])
    line.ask(tx_id="T-2")
    assert line.got == answer("T-2")


def test_keep_alive_ends_after_its_rest_unless_a_request_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request starts the rest anew."""
    world = World(monkeypatch, choose=lambda: FORMS["closed_when_idle"])
    line = world.line()
    for number in range(5):
        line.ask(tx_id=f"T-{number}")
        world.clock.advance(0.4)
        assert not line.is_ended
    world.clock.advance(0.2)
    assert line.is_ended


# All together.

LARGE = ("largest", "too_long", "too_long_in_chunks")  # a mebibyte each: for other tests
asks = st.tuples(
    st.just("ask"), st.sampled_from(list(MODES)), st.sampled_from([f for f in FORMS.values() if f.name not in LARGE])
)
steps = st.lists(
    st.one_of(
        asks,
        asks.map(lambda ask: (*ask[:2], PLAIN)),
        st.tuples(st.just("hang up"), st.integers(0, 9), st.none()),
        st.tuples(st.just("advance"), st.sampled_from([0.05, 0.3, 2.0]), st.none()),
        st.tuples(st.just("abort"), st.none(), st.none()),
    ),
    min_size=5,
    max_size=40,
)
stations = st.none() | st.builds(
    lambda servers, queue, law: Capacity(law, servers, queue),
    st.none() | st.integers(1, 3),
    st.none() | st.integers(0, 3),
    st.sampled_from([Fixed(0.0), Fixed(0.2), Exponential(0.1)]),
)


@settings(deadline=None)
@given(steps, stations)
def test_whatever_happens_the_books_come_out_even(steps: list[tuple[str, Any, Any]], capacity: Capacity | None) -> None:
    """Always: in flight is what is open and unanswered, within the servers. In the end: nothing is left of anything."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        form: list[Form] = [PLAIN]
        station: Any = None if capacity is None else Station(capacity, Random(2))
        world = World(monkeypatch, station=station, choose=lambda: form[0])
        target, lines = world.target, []
        for what, value, wanted in steps:
            if what == "ask":
                form[0] = wanted
                target.control({"mode": value})
                lines.append(world.line())
                lines[-1].ask(tx_id=f"T-{len(lines)}", op="DEPOSIT", account="A-1", amount=1)
            elif what == "hang up" and value < len(lines):
                lines[value].hang_up()
            elif what == "advance":
                world.clock.advance(value)
            elif what == "abort":
                world.service.abort()
            open_lines = sum(not line.is_ended for line in lines)
            world.clock.advance(0)
            assert target.inflight <= open_lines
            if capacity is not None:
                assert capacity.servers is None or station.busy <= capacity.servers
                assert capacity.queue is None or station.waiting <= capacity.queue
        world.service.abort()
        world.clock.advance(1000)
        assert (target.inflight, world.clock.left(), world.service.connections) == (0, 0, {})
        assert station is None or (station.busy, station.waiting) == (0, 0)
        stats: Any = target.stats()
        known = [target.known(tx_id) for tx_id in target.tx_ids()]
        assert all(one.received == 1 and one.executed <= 1 and one.answered + one.lied <= 1 for one in known)
        assert sum(one.answered for one in known) == sum(stats["by_code"].values())
        assert sum(one.executed for one in known) == stats["executed"]
        assert sum(one.received for one in known) == stats["calls"] == len(lines)
