"""JSON lines in and out, in process: the splitter, the reader, the writer, and the lanes of the targets."""

import asyncio
import json
import os
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relayed import Json, lines_of, tx

from eaimw.adapters import line_io, lines
from eaimw.adapters.line_io import BATCHES, OUTPUT_HIGH, Line, LineReader, LineSplitter, LineWriter
from eaimw.adapters.lines import PARKED_LINES, LineRelay
from eaimw.adapters.system import SystemClock
from eaimw.app import two_targets
from eaimw.hub import Hub
from eaimw.kernel.breaker import State
from eaimw.model import Answer, Call
from eaimw.wire import MAX_BYTES, read_transaction, write_reply

BOM = b"\xef\xbb\xbf"
WITHIN = 20.0  # seconds


def split(*chunks: bytes) -> list[Line]:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return [*lines, *splitter.end()]


# The splitter


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x0b", "\x0c", "\x85", "\x1c", "\r"])
def test_only_a_line_feed_ends_a_line(end: str) -> None:
    """What Python's splitlines takes for a line's end is part of the line."""
    raw = f"a{end}b".encode()
    assert split(raw + b"\nc\n") == [Line(1, raw), Line(2, b"c")]


def test_crlf_and_a_last_line_without_end_count() -> None:
    """The carriage return before the line feed is no part of the line; what stands after the last end is a line."""
    assert split(b"a\r\nb\nc") == [Line(1, b"a"), Line(2, b"b"), Line(3, b"c")]


def test_blank_lines_are_left_out_but_numbered() -> None:
    """The number is the one that an editor shows."""
    assert split(b"\n \t\r\n\r\na\n\n\nb\n\n") == [Line(4, b"a"), Line(7, b"b")]


def test_a_line_of_other_blanks_is_a_bad_line() -> None:
    """Form feed and vertical tab are no white space of JSON: such a line is not left out, it gets its E400."""
    assert [line.number for line in split(b"\x0c\n \t\r\n\x0b\n \x0c \n")] == [1, 3, 4]


def test_a_byte_order_mark_is_skipped_at_the_very_start_only() -> None:
    """Not on a later line, not twice, not after a blank one; also when it comes in pieces."""
    assert split(BOM + b"a\n" + BOM + b"b\n") == [Line(1, b"a"), Line(2, BOM + b"b")]
    assert split(BOM + BOM + b"a\n") == [Line(1, BOM + b"a")]
    assert split(b"\n" + BOM + b"a\n") == [Line(2, BOM + b"a")]
    assert split(*(bytes([byte]) for byte in BOM + b"a\n")) == [Line(1, b"a")]
    assert split(BOM) == []


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("start", [b"", BOM])
def test_the_longest_line_is_taken_and_one_byte_more_is_not(start: bytes, end: bytes) -> None:
    """The mark before it and the line's end are not counted."""
    longest, longer = b"x" * MAX_BYTES, b"x" * (MAX_BYTES + 1)
    assert split(start + longest + end) == [Line(1, longest)]
    assert split(start + longer + end) == [Line(1, None)]
    assert split(start + longest, end) == [Line(1, longest)]
    assert split(start + longer, end) == [Line(1, None)]


def test_a_line_that_goes_on_after_the_limit_is_not_taken_for_its_first_part() -> None:
    """With a mark before it the piece read so far may be exactly as long as a good line."""
    assert split(BOM + b"x" * MAX_BYTES, b"y\nb\n") == [Line(1, None), Line(2, b"b")]


def test_a_line_too_long_is_known_at_once_and_holds_no_memory() -> None:
    """It is given out before its end is seen, once, and the next line is whole."""
    splitter = LineSplitter()
    chunk = b"x" * 262_144
    seen = [line for _ in range(100) for line in splitter.feed(chunk)]
    assert seen == [Line(1, None)]
    assert len(splitter._rest) <= MAX_BYTES + 4
    assert list(splitter.feed(b"x\nb\n")) == [Line(2, b"b")]


@given(
    pieces=st.lists(
        st.sampled_from([b"", b"a", b"bb", b"\n", b"\r", b"\r\n", b" ", BOM, b"\xe2\x80\xa8", b"x" * 7, b"y" * 20]),
        max_size=30,
    ),
    cuts=st.lists(st.integers(0, 200), max_size=20),
)
def test_however_the_bytes_are_cut_the_lines_are_the_same(pieces: list[bytes], cuts: list[int]) -> None:
    """The splitter equals a naive split of the whole, at a limit small enough to be met."""
    limit = 8
    whole = b"".join(pieces)
    expected = []
    for number, raw in enumerate(whole.removeprefix(BOM).split(b"\n"), 1):
        raw = raw.removesuffix(b"\r")
        if len(raw) > limit:
            expected.append(Line(number, None))
        elif raw.strip():
            expected.append(Line(number, raw))
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_io, "MAX_BYTES", limit)
        patch.setattr(line_io, "_MAX_RAW", len(BOM) + limit + 1)
        assert split(*(whole[a:b] for a, b in pairwise(edges))) == expected


# The reader


class Pipe:
    """Its two descriptors; each is closed once, by whom it suits."""

    def __init__(self) -> None:
        self.source, self.sink = os.pipe()
        self._open = {self.source, self.sink}

    def close(self, end: int) -> None:
        if end in self._open:
            self._open.remove(end)
            os.close(end)


@contextmanager
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    try:
        yield made
    finally:
        made.close(made.source)
        made.close(made.sink)


class Feeder:
    """Writes to a pipe in a thread, as fast as it is taken, and closes it."""

    def __init__(self, to: Pipe, data: bytes) -> None:
        self._thread = threading.Thread(target=self._work, args=(to, data))
        self._thread.start()

    def _work(self, to: Pipe, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(to.sink, rest) :]
        except BrokenPipeError:
            pass
        finally:
            to.close(to.sink)

    def join(self) -> None:
        self._thread.join(WITHIN)
        assert not self._thread.is_alive()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN):
        while not condition():
            await asyncio.sleep(0.002)


LOOKS = 10


async def where_it_stands_still(run: LineRelay) -> int:
    """Lines read, when ten looks in a row have seen no more: a reader that is only starved would have got on."""
    seen = [-1]
    while seen[-LOOKS:] != [run.read] * LOOKS or not run.read:
        seen.append(run.read)
        await asyncio.sleep(0.02)
    return run.read


class Read:
    """A reader and what it has told."""

    def __init__(self, fd: int) -> None:
        self.batches: list[list[Line]] = []
        self.ends: list[OSError | None] = []
        self.reader = LineReader(fd, self.batches.append, self.ends.append)

    @property
    def lines(self) -> list[Line]:
        assert len(self.ends) <= 1
        return [line for batch in self.batches for line in batch]


def test_the_reader_is_never_more_than_two_batches_ahead() -> None:
    """Without `taken` it stops reading; each `taken` lets one more batch come."""

    async def story(way: Pipe) -> None:
        feeder = Feeder(way, b"x\n" * 10_000)
        read = Read(way.source)
        read.reader.start()
        for taken in range(5):
            wanted = BATCHES + taken
            while len(read.batches) < wanted:
                await asyncio.sleep(0.002)
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(read.batches) == wanted
            read.reader.taken()
        read.reader.stop()
        await until(lambda: read.ends)
        await read.reader.close()
        way.close(way.source)
        feeder.join()

    with pipe() as way:
        asyncio.run(story(way))


def test_a_stopped_reader_hands_over_what_it_has_read() -> None:
    """A stop while it waits for `taken`: the rest of what was read comes, then one end, nothing twice."""

    async def story(way: Pipe) -> None:
        os.write(way.sink, b"".join(b"%d\n" % n for n in range(2_000)))
        read = Read(way.source)
        read.reader.start()
        await until(lambda: len(read.batches) == BATCHES)
        read.reader.stop()
        read.reader.stop()
        await until(lambda: read.ends)
        await read.reader.close()
        assert [line.raw for line in read.lines] == [b"%d" % n for n in range(2_000)]
        assert read.ends == [None]

    with pipe() as way:
        asyncio.run(story(way))


@pytest.mark.parametrize("is_early", [True, False])
def test_a_reader_that_is_stopped_before_anything_came_ends(is_early: bool) -> None:
    """Stopped before its start, or while it waits on an open pipe: it ends at once and has read nothing."""

    async def story(way: Pipe) -> None:
        read = Read(way.source)
        if is_early:
            os.write(way.sink, b"x\n")
            read.reader.stop()
        read.reader.start()
        read.reader.stop()
        await until(lambda: read.ends)
        await read.reader.close()
        assert (read.lines, read.ends) == ([], [None])

    with pipe() as way:
        asyncio.run(story(way))


def test_another_reader_of_the_same_pipe_may_be_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that does not block was said to be readable and is empty: that is neither an end nor a problem."""

    async def story(way: Pipe) -> None:
        os.set_blocking(way.source, False)
        read = Read(way.source)
        looked = 0

        def is_readable() -> bool:
            nonlocal looked
            looked += 1
            return True

        monkeypatch.setattr(read.reader, "_wait_readable", is_readable)
        read.reader.start()
        await until(lambda: looked > 3)
        os.write(way.sink, b"a\n")
        way.close(way.sink)
        await until(lambda: read.ends)
        await read.reader.close()
        assert (read.lines, read.ends) == ([Line(1, b"a")], [None])

    with pipe() as way:
        asyncio.run(story(way))


def test_the_reader_says_why_it_cannot_read() -> None:
    """An input that fails (as /proc/self/mem does at its start) ends with its reason."""

    async def story(source: int) -> None:
        read = Read(source)
        read.reader.start()
        await until(lambda: read.ends)
        await read.reader.close()
        assert [problem and problem.strerror for problem in read.ends] == ["Input/output error"]

    source = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        asyncio.run(story(source))
    finally:
        os.close(source)


# The writer


class Sink:
    """Reads what comes out of a pipe, when it is let."""

    def __init__(self, fd: int) -> None:
        self.data = b""
        self._fd = fd
        self._thread = threading.Thread(target=self._work)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> bytes:
        self._thread.join(WITHIN)
        assert not self._thread.is_alive()
        return self.data

    def _work(self) -> None:
        pieces = []
        while piece := os.read(self._fd, 1_000_000):
            pieces.append(piece)
        self.data = b"".join(pieces)


def nothing() -> None:
    pass


class PausingLock:
    """A lock at which the writer's thread stops once, just after it has left it for the `at`-th time."""

    def __init__(self, at: int) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._lock = threading.Lock()
        self._at = at

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if threading.current_thread().name == "line writer":
            self._at -= 1
            if self._at == 0:
                self.reached.set()
                self.go_on.wait(WITHIN)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_no_line_is_lost_between_a_write_and_the_end(at: int) -> None:
    """Wherever the writer's thread stands when the last line is written and the end is told, the line is delivered."""

    async def story(way: Pipe) -> None:
        writer = LineWriter(way.sink, nothing, nothing)
        lock = PausingLock(at)
        writer._lock = lock  # type: ignore[assignment]
        writer.write(b"first")
        await until(lock.reached.is_set)
        writer.write(b"last")
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)  # the end is told
        lock.go_on.set()
        await closing
        assert os.read(way.source, 100) == b"first\nlast\n"

    with pipe() as way:
        asyncio.run(story(way))


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_slow_sink_takes_the_room_and_gives_it_back(is_blocking: bool) -> None:
    """Room ends above OUTPUT_HIGH and comes back when it is read; all lines arrive, whole and in order."""

    async def story(way: Pipe) -> None:
        os.set_blocking(way.sink, is_blocking)
        heard: list[str] = []
        writer = LineWriter(way.sink, lambda: heard.append("room"), lambda: heard.append("problem"))
        written: list[bytes] = []
        while writer.has_room:
            written.append(b"%d " % len(written) + b"x" * 10_000)
            writer.write(written[-1])
        assert OUTPUT_HIGH < sum(len(line) + 1 for line in written) < OUTPUT_HIGH + 200_000
        reading = Sink(way.source)
        reading.start()
        async with asyncio.timeout(WITHIN):
            await writer.room()
        assert heard == ["room"]
        await writer.close()
        way.close(way.sink)
        assert reading.end() == b"".join(line + b"\n" for line in written)
        assert (writer.problem, writer.undelivered) == (None, 0)

    with pipe() as way:
        asyncio.run(story(way))


def test_lines_that_could_not_be_delivered_are_counted() -> None:
    """The reader leaves after the first line: all later ones are undelivered, and nothing waits any more."""

    async def story(way: Pipe) -> None:
        problems: list[str] = []
        writer = LineWriter(way.sink, nothing, lambda: problems.append("problem"))
        writer.write(b"first")
        await until(lambda: not writer._waiting)
        assert os.read(way.source, 100) == b"first\n"
        way.close(way.source)
        for _ in range(500):
            writer.write(b"x" * 20_000)
        async with asyncio.timeout(WITHIN):
            await writer.room()
            await writer.close()
        await until(lambda: problems)
        assert isinstance(writer.problem, BrokenPipeError)
        assert writer.undelivered == 500
        assert problems == ["problem"]

    with pipe() as way:
        asyncio.run(story(way))


# The lanes


class Desk:
    """A transport that answers when it is told. `calls` are those that wait for it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Call, asyncio.Future[str]]] = []
        self.is_open = False  # answers at once

    async def send(self, call: Call) -> Answer:
        code = "0000"
        if not self.is_open:
            future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self.calls.append((call, future))
            code = await future
        return Answer(200, json.dumps({"tx_id": call.tx.tx_id, "code": code}).encode())

    def answer_all(self, code: str = "0000") -> None:
        """Answer what waits, and from now on everything at once."""
        self.is_open = True
        for _, future in self.calls:
            future.set_result(code)
        self.calls.clear()

    is_busy = False

    def retire(self, heir: object) -> None:
        raise AssertionError("the settings do not change here")

    async def close(self) -> None:
        pass


class Deaf:
    """Telemetry that fails on a fault of the hub and hears nothing else."""

    def changed(self, target: str, before: State, after: State) -> None:
        pass

    def unforeseen(self, where: str, problem: BaseException) -> None:
        raise AssertionError(where) from problem


class Run:
    """A LineRelay between two pipes, its targets' desks, and the replies as they come out."""

    def __init__(self, hub: Hub, desks: dict[str, Desk], source: int, sink: int, backpressure: bool) -> None:
        self.hub = hub
        self.core, self.claim = desks["CORE"], desks["CLAIM"]
        self.lines = LineRelay(hub, source, sink, backpressure=backpressure)
        self.text = b""

    @property
    def replies(self) -> list[Json]:
        return [json.loads(line) for line in self.text.split(b"\n")[:-1]]

    @property
    def codes(self) -> list[str]:
        return [reply["code"] for reply in self.replies]


def hub_with(desks: dict[str, Desk], **settings: Any) -> Hub:
    return Hub(
        two_targets(**settings),
        clock=SystemClock(),
        telemetry=Deaf(),
        make_transport=lambda name, _: desks[name],
        make_random=lambda name: random.Random(1),
    )


@asynccontextmanager
async def run(data: bytes, *, backpressure: bool = True, **settings: int) -> AsyncIterator[Run]:
    """A run over this input, which is under way; at the block's end it has ended by itself."""
    desks = {"CORE": Desk(), "CLAIM": Desk()}
    hub = hub_with(desks, timeout=60, **settings)
    with pipe() as given, pipe() as out:
        feeder = Feeder(given, data)
        os.set_blocking(out.source, False)
        made = Run(hub, desks, given.source, out.sink, backpressure)

        async def collect() -> None:
            while True:
                try:
                    made.text += os.read(out.source, 1_000_000)
                except BlockingIOError:
                    await asyncio.sleep(0.001)

        collecting = asyncio.create_task(collect())
        running = asyncio.create_task(made.lines.run())
        try:
            yield made
            async with asyncio.timeout(WITHIN):
                await running
            await until(lambda: made.text.count(b"\n") == made.lines.replied)
            assert made.lines.read == made.lines.replied
        finally:
            collecting.cancel()
            running.cancel()
            made.core.answer_all()
            made.claim.answer_all()
            await asyncio.gather(collecting, running, return_exceptions=True)
            await hub.close()
            given.close(given.source)
            feeder.join()


def story(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run a test that is a coroutine."""

    def run_it() -> None:
        asyncio.run(test())  # type: ignore[arg-type]

    run_it.__name__, run_it.__doc__ = test.__name__, test.__doc__
    return run_it


@story
async def test_a_fault_of_ours_costs_one_line_its_service_and_none_its_reply() -> None:
    """Reading a line raises what nobody foresaw: that line gets an E400, duty is told, the others are served."""
    told: list[tuple[str, type]] = []

    def read(raw: bytes) -> Any:
        if b'"T-3"' in raw:
            raise ZeroDivisionError
        return read_transaction(raw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "read_transaction", read)
        patch.setattr(Hub, "note_fault", lambda self, where, problem: told.append((where, type(problem))))
        async with run(b"".join(b'{"tx_id":"T-%d","target":"CORE"}\n' % n for n in range(1, 201))) as running:
            while running.lines.replied < 200:
                running.core.answer_all()
                await asyncio.sleep(0.001)
    codes = {reply["tx_id"]: reply["code"] for reply in running.replies}
    assert told == [("line 3", ZeroDivisionError)]
    assert codes.pop(None) == "E400"
    assert set(codes.values()) == {"0000"}
    assert len(codes) == 199


@story
async def test_a_fault_of_ours_after_the_call_is_said_at_the_end() -> None:
    """Writing a reply raises: the run goes on, and its end says how many were left without a reply."""
    told: list[type] = []

    def write(reply: Any) -> bytes:
        if reply.tx_id == "T-3":
            raise ZeroDivisionError
        return write_reply(reply)

    data = b"".join(b'{"tx_id":"T-%d","target":"NONE"}\n' % n for n in range(1, 21))
    with pytest.MonkeyPatch.context() as patch, pipe() as given, pipe() as out:
        patch.setattr(lines, "write_reply", write)
        patch.setattr(Hub, "note_fault", lambda self, where, problem: told.append(type(problem)))
        os.write(given.sink, data)
        given.close(given.sink)
        hub = hub_with({"CORE": Desk(), "CLAIM": Desk()})
        made = LineRelay(hub, given.source, out.sink, backpressure=True)
        async with asyncio.timeout(WITHIN):
            await made.run()
        await hub.close()
    assert (made.read, made.replied, told) == (20, 19, [ZeroDivisionError])
    assert made.problem == "1 transactions were left without a reply, by a fault of the hub"


@story
async def test_a_cancelled_run_sends_nothing_more() -> None:
    """Cancelled with calls in flight and lines unread: they are cancelled, no other begins, all places are back."""
    desks = {"CORE": Desk(), "CLAIM": Desk()}
    hub = hub_with(desks, max_inflight=5)
    with pipe() as given, pipe() as out:
        feeder = Feeder(given, lines_of(tx(n) for n in range(1_500)))
        made = LineRelay(hub, given.source, out.sink, backpressure=True)
        running = asyncio.create_task(made.run())
        await until(lambda: len(desks["CORE"].calls) == 5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(desks["CORE"].calls) == 5
        assert hub.targets["CORE"].bulkhead.inflight == 0
        given.close(given.source)
        feeder.join()
    await hub.close()


@story
async def test_a_hung_target_does_not_stop_the_other_ones_lines() -> None:
    """CORE's lines are parked behind its two places; all of CLAIM's, which stand between them, get through."""
    lines = lines_of(tx(n, "CLAIM" if n % 3 == 0 else "CORE") for n in range(900))
    async with run(lines, max_inflight=2) as running:
        running.claim.is_open = True
        await until(lambda: running.codes == ["0000"] * 300)
        assert {reply["target"] for reply in running.replies} == {"CLAIM"}
        assert len(running.core.calls) == 2
        running.core.answer_all()
    assert running.codes == ["0000"] * 900


@story
async def test_parked_lines_are_bounded_and_then_reading_pauses() -> None:
    """Behind a hung target no more than 10,000 lines wait; when it answers, the rest is read and answered."""
    async with run(lines_of(tx(n) for n in range(12_000)), max_inflight=2) as running:
        await until(lambda: running.lines.read > PARKED_LINES - 2_000)
        at = await where_it_stands_still(running.lines)
        assert at <= PARKED_LINES + 2
        running.core.answer_all()
    assert running.codes == ["0000"] * 12_000


@story
async def test_parked_bytes_are_bounded() -> None:
    """Of lines of 1 MB, no more wait than 64 MiB hold."""
    async with run(lines_of(tx(n, x="x" * 1_000_000) for n in range(90)), max_inflight=1) as running:
        await until(lambda: running.lines.read >= 55)
        at = await where_it_stands_still(running.lines)
        assert at <= 67
        running.core.answer_all()
    assert running.codes == ["0000"] * 90


@story
async def test_with_one_place_a_targets_lines_keep_their_order() -> None:
    """What is parked is sent first come, first served."""
    async with run(lines_of(tx(n) for n in range(300)), max_inflight=1) as running:
        await until(lambda: running.core.calls)
        running.core.answer_all()
    assert [reply["tx_id"] for reply in running.replies] == [f"T-{n}" for n in range(300)]


@story
async def test_without_backpressure_what_finds_no_place_is_refused_at_once() -> None:
    """Four places: 4 calls, and E905 for the others while those four are still under way."""
    async with run(lines_of(tx(n) for n in range(50)), backpressure=False, max_inflight=4) as running:
        await until(lambda: len(running.replies) == 46)
        assert running.codes == ["E905"] * 46
        assert len(running.core.calls) == 4
        running.core.answer_all()
    assert sorted(running.codes) == ["0000"] * 4 + ["E905"] * 46


@story
async def test_a_crowd_of_refusals_lets_the_others_run() -> None:
    """Thousands of parked lines of a target whose circuit opens are refused in turns, not in one long one."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with run(lines_of(tx(n) for n in range(9_000)), max_inflight=2, fail_threshold=1) as running:
        await until(lambda: running.lines.read == 9_000)
        other = asyncio.create_task(others())
        running.core.answer_all("E500")
        await until(lambda: running.lines.replied == 9_000)
        other.cancel()
    assert running.codes.count("E904") == 8_998
    assert turns > 1_000


@story
async def test_a_stop_refuses_what_is_parked_and_awaits_what_is_in_flight() -> None:
    """E911 at once for all that was read and not sent; the two calls under way end with their answers."""
    async with run(lines_of(tx(n) for n in range(500)), max_inflight=2) as running:
        await until(lambda: running.lines.read == 500)
        running.lines.stop()
        await until(lambda: len(running.replies) == 498)
        assert set(running.codes) == {"E911"}
        running.core.answer_all()
    assert sorted(running.codes) == ["0000"] * 2 + ["E911"] * 498


@story
async def test_a_stop_before_the_start_reads_nothing() -> None:
    """A signal may come before the first line."""
    async with run(b'{"tx_id": "T-1", "target": "CORE"}\n') as running:
        running.lines.stop()  # the task of the run has not had its first turn
    assert (running.lines.read, running.replies) == (0, [])


@story
async def test_lines_of_all_kinds_get_their_reply_and_its_number() -> None:
    """A bad line has its number before the message, an unknown target is E903, and good ones are served."""
    lines = b'\n{"tx_id": "T-1", "target": "CORE"}\r\nx\n\n{"tx_id": "T-2", "target": "NOBODY"}\n[]'
    async with run(lines, max_inflight=2) as running:
        running.core.is_open = True
    replies = {reply["tx_id"] or reply["message"]: reply["code"] for reply in running.replies}
    assert replies == {
        "T-1": "0000",
        "T-2": "E903",
        "line 3: the transaction is not JSON: Expecting value at character 1": "E400",
        "line 6: the transaction is not one JSON object: []": "E400",
    }


@pytest.mark.parametrize("backpressure", [True, False])
def test_a_stalled_output_holds_the_reading_up_and_nothing_is_lost(backpressure: bool) -> None:
    """Nobody reads the replies: reading pauses, memory with it; when they are read again all come, once each."""

    async def story() -> None:
        count = 40_000
        desks = {"CORE": Desk(), "CLAIM": Desk()}
        desks["CORE"].is_open = True
        hub = hub_with(desks)
        with pipe() as given, pipe() as out:
            feeder = Feeder(given, lines_of(tx(n) for n in range(count)))
            lines = LineRelay(hub, given.source, out.sink, backpressure=backpressure)
            running = asyncio.create_task(lines.run())
            at = await where_it_stands_still(lines)
            assert at < count, "the replies that nobody has read would fit into the buffers"
            reading = Sink(out.source)
            reading.start()
            async with asyncio.timeout(WITHIN):
                await running
            out.close(out.sink)
            ids = [json.loads(line)["tx_id"] for line in reading.end().splitlines()]
            assert sorted(ids) == sorted(f"T-{n}" for n in range(count))
            feeder.join()
        await hub.close()

    asyncio.run(story())
