"""Lines from a descriptor and to one, each in a thread of its own with a bounded hand-over to the event loop.

Standard input and output may be files, pipes or terminals; the loop can wait for pipes alone, and a slow one of any
kind must not hold it up.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from eaimw.wire import MAX_BYTES

CHUNK = 262_144  # bytes per read
# One turn of the loop deals with a batch, and everybody else waits for it: at 10 us a line, under a millisecond.
BATCH_LINES = 64
BATCH_BYTES = 1_048_576
# Batches handed over and not yet taken: one under way, one ready.
BATCHES = 2
# Bytes of output that may wait before those who write are asked to pause.
OUTPUT_HIGH = 4 * MAX_BYTES

_BLANKS = b" \t\r"  # what JSON takes for white space within a line
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A longer piece is no transaction, whatever of it may still be dropped at either end.
_MAX_RAW = len(_BYTE_ORDER_MARK) + MAX_BYTES + len(b"\r")


class Line(NamedTuple):
    """A line of the input. number: from 1. raw: without its line end; None if longer than a transaction may be."""

    number: int
    raw: bytes | None


class LineSplitter:
    """Cuts bytes into lines at `\\n` only; drops the `\\r` before it; leaves out blank lines. Memory is bounded.

    A line over the limit is given out, without its bytes, as soon as that is known; the rest of it is skipped.
    """

    def __init__(self) -> None:
        self._number = 1
        self._rest = bytearray()  # of a line that has not ended: it grows in place, however small the chunks are
        self._is_skipping = False
        self._is_start = True

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """The lines that end in this chunk."""
        pieces = chunk.split(b"\n")
        last = pieces.pop()
        for piece in pieces:
            is_whole = not (self._rest or self._is_skipping or self._is_start)
            line = self._line(piece) if is_whole else self._last_piece(piece)
            if line is not None:
                yield line
            self._number += 1
        self._rest += last
        if self._is_skipping:
            self._rest.clear()
        elif len(self._rest) > _MAX_RAW:
            self._rest.clear()
            self._is_skipping = True
            yield Line(self._number, None)

    def end(self) -> Iterator[Line]:
        """The last line, if the input did not end with a line end."""
        line = self._last_piece(b"")
        if line is not None:
            yield line

    def _last_piece(self, piece: bytes) -> Line | None:
        """The line that ends with this piece; earlier ones of it may wait."""
        raw = bytes(self._rest + piece)
        self._rest.clear()
        is_skipping, self._is_skipping = self._is_skipping, False
        if self._is_start:
            self._is_start = False
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        return None if is_skipping else self._line(raw)

    def _line(self, raw: bytes) -> Line | None:
        """None: it is blank."""
        raw = raw.removesuffix(b"\r")
        if len(raw) > MAX_BYTES:
            return Line(self._number, None)
        return Line(self._number, raw) if raw.strip(_BLANKS) else None


class LineReader:
    """Reads a descriptor's lines in batches, never more than `BATCHES` ahead of `taken()`.

    on_batch(lines) and on_end(problem or None) are called in the loop; on_end once, last. consumed: bytes read.
    """

    def __init__(
        self, fd: int, on_batch: Callable[[list[Line]], None], on_end: Callable[[OSError | None], None]
    ) -> None:
        self._fd = fd
        self._on_batch = on_batch
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._credit = threading.Semaphore(BATCHES)
        self._is_stopping = False
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._work, name="line reader", daemon=True)
        self.consumed = 0

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def taken(self) -> None:
        """One batch has been dealt with: another may come."""
        self._credit.release()

    def stop(self) -> None:
        """Read no more. What was read is still handed over, without waiting for `taken()`; then on_end."""
        if not self._is_stopping:
            self._is_stopping = True
            os.write(self._wake, b"x")
            self._credit.release(BATCHES)

    async def close(self) -> None:
        """After stop(): give the thread and its pipe back."""
        await self._loop.run_in_executor(None, self._thread.join)
        os.close(self._woken)
        os.close(self._wake)

    def _work(self) -> None:
        splitter = LineSplitter()
        problem: OSError | None = None
        try:
            while self._wait_readable():
                try:
                    chunk = os.read(self._fd, CHUNK)
                except BlockingIOError:  # another reader of the same pipe was quicker
                    continue
                if not chunk:
                    self._hand_over(splitter.end())
                    break
                self.consumed += len(chunk)
                self._hand_over(splitter.feed(chunk))
        except OSError as raised:
            problem = raised
        finally:
            self._loop.call_soon_threadsafe(self._on_end, problem)

    def _wait_readable(self) -> bool:
        """Wait for input, an end of it, or a stop (then False)."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(self._fd, select.POLLIN)  # a regular file is always readable
        return self._woken not in (fd for fd, _ in poll.poll())

    def _hand_over(self, lines: Iterator[Line]) -> None:
        batch: list[Line] = []
        size = 0
        for line in lines:
            batch.append(line)
            size += len(line.raw or b"")
            if len(batch) >= BATCH_LINES or size >= BATCH_BYTES:
                self._post(batch)
                batch, size = [], 0
        if batch:
            self._post(batch)

    def _post(self, batch: list[Line]) -> None:
        if not self._is_stopping:
            self._credit.acquire()
        self._loop.call_soon_threadsafe(self._on_batch, batch)


class LineWriter:
    """Writes lines to a descriptor, whole and in order, as soon as the descriptor takes them.

    on_room and on_problem are called in the loop. problem: why it can no longer be written to; lines after that are
    counted in `undelivered`.
    """

    def __init__(self, fd: int, on_room: Callable[[], None], on_problem: Callable[[], None]) -> None:
        self._fd = fd
        self._on_room = on_room
        self._on_problem = on_problem
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._work_to_do = threading.Event()
        self._lines: list[bytes] = []
        self._waiting = 0  # bytes
        self._is_waking = False
        self._is_ending = False
        self._room = asyncio.Event()
        self._room.set()
        self.problem: OSError | None = None
        self.undelivered = 0
        self._thread = threading.Thread(target=self._work, name="line writer", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Queue one line (its end is added). Never waits: those who write much ask `room` between lines."""
        with self._lock:
            self._lines.append(line)
            self._waiting += len(line) + 1
            if self._waiting > OUTPUT_HIGH:
                self._room.clear()  # under the lock: the thread must not find it set after it has made room
        if not self._is_waking:
            # Once per turn of the loop: each waking lets the thread have the interpreter, and costs as much as a call.
            self._is_waking = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        self._work_to_do.set()

    @property
    def has_room(self) -> bool:
        """Is less waiting than OUTPUT_HIGH?"""
        return self._room.is_set()

    async def room(self) -> None:
        """Wait until there is room."""
        await self._room.wait()

    async def close(self) -> None:
        """Write what waits, and end the thread."""
        self._is_ending = True
        self._work_to_do.set()
        await self._loop.run_in_executor(None, self._thread.join)

    def _make_room(self) -> None:
        with self._lock:
            if self._waiting > OUTPUT_HIGH or self._room.is_set():
                return  # filled again meanwhile, and the thread will ask again; or it has asked twice
        self._room.set()
        self._on_room()

    def _work(self) -> None:
        while True:
            self._work_to_do.wait()
            self._work_to_do.clear()
            while True:
                is_ending = self._is_ending  # before the look for lines: what is written before the end is seen
                with self._lock:
                    lines, self._lines = self._lines, []
                if not lines:
                    break
                self._deliver(lines)
                with self._lock:
                    self._waiting -= sum(len(line) + 1 for line in lines)
                    has_room = self._waiting <= OUTPUT_HIGH
                if has_room and not self._room.is_set():
                    self._loop.call_soon_threadsafe(self._make_room)
            if is_ending:
                return

    def _deliver(self, lines: list[bytes]) -> None:
        if self.problem is not None:
            self.undelivered += len(lines)
            return
        lines.append(b"")
        rest = memoryview(b"\n".join(lines))
        lines.pop()
        try:
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:  # somebody made the terminal or pipe that we share non-blocking
                    room = select.poll()
                    room.register(self._fd, select.POLLOUT)
                    room.poll()
        except OSError as problem:
            self.problem = problem
            # Those whose line end is among the bytes that were not taken.
            self.undelivered += bytes(rest).count(b"\n")
            self._loop.call_soon_threadsafe(self._on_problem)
