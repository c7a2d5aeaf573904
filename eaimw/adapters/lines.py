"""JSON lines in and out: reads transactions, keeps them in their target's lane, writes each reply as it is known.

With back-pressure a lane takes no more than its target has room for and parks the rest; without it every line goes to
the hub as it is read, which refuses what does not fit (E905). What is parked is bounded; beyond it reading pauses.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

from eaimw.adapters.line_io import BATCH_BYTES, BATCH_LINES, BATCHES, Line, LineReader, LineWriter
from eaimw.errors import Malformed
from eaimw.hub import Hub
from eaimw.model import Transaction
from eaimw.wire import MAX_BYTES, read_transaction, write_reply

PARKED_LINES = 10_000
PARKED_BYTES = 64 * 1_048_576
# Reading goes on only below these, so that the batches on their way still fit.
_LINES_TO_GO_ON = PARKED_LINES - BATCHES * BATCH_LINES
_BYTES_TO_GO_ON = PARKED_BYTES - BATCHES * (BATCH_BYTES + MAX_BYTES)


class _Lane:
    """The lines of one target that wait for room, and how many are on their way."""

    __slots__ = ("limit", "parked", "under_way")

    def __init__(self, limit: Callable[[], float]) -> None:
        self.limit = limit
        self.parked: deque[Transaction] = deque()
        self.under_way = 0


class LineRelay:
    """One run over one input. read, replied: transactions so far; they are equal at the end.

    problem: a sentence on why input or output could not be used to the end, else None.
    """

    def __init__(self, hub: Hub, source: int, sink: int, *, backpressure: bool) -> None:
        self._hub = hub
        self._backpressure = backpressure
        self._lanes: dict[str | None, _Lane] = {}
        self._parked_lines = 0
        self._parked_bytes = 0
        self._owed = 0  # batches that the reader may not yet follow with another
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._is_stopping = False
        self._is_over = False
        self._reader = LineReader(source, self._on_batch, self._on_end)
        self._writer = LineWriter(sink, self._settle, self._on_output_problem)
        self.read = 0
        self.replied = 0
        self.problem: str | None = None

    @property
    def consumed(self) -> int:
        """Bytes of the input read so far."""
        return self._reader.consumed

    async def run(self) -> None:
        """Until every transaction read has its reply and the replies are written."""
        self._reader.start()
        try:
            await self._ended.wait()
            while self._tasks:
                await asyncio.wait(self._tasks)
        except BaseException:  # this run was cancelled itself: nothing more is sent
            self._is_over = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            raise
        finally:
            self._reader.stop()
            await self._reader.close()
            await self._writer.close()  # which waits for whoever reads the output, as any program does
        if self._writer.problem is not None:
            self.problem = (
                f"standard output cannot be written: {self._writer.problem.strerror}; "
                f"{self._writer.undelivered} replies could not be delivered"
            )
        elif self.read != self.replied:
            self.problem = f"{self.read - self.replied} transactions were left without a reply, by a fault of the hub"

    def stop(self) -> None:
        """Take nothing new: what is read but not sent is refused (E911), what is in flight gets its answer."""
        self._is_stopping = True
        self._hub.go_down()
        self._reader.stop()
        for lane in self._lanes.values():
            if lane.parked:  # those under way may take their whole timeout; the parked are refused at once
                self._start(lane)

    def _on_batch(self, batch: list[Line]) -> None:
        if self._is_over:
            return
        for line in batch:
            try:
                self._take(line)
            except Exception as problem:  # a fault of ours: this line is told so, and the others are served
                self._hub.note_fault(f"line {line.number}", problem)
                fault = Malformed(f"the transaction could not be read: {type(problem).__name__}")
                self._refuse(line, fault)
        self._owed += 1
        self._settle()

    def _on_end(self, problem: OSError | None) -> None:
        if problem is not None:
            self.problem = f"the input cannot be read: {problem.strerror}"
        self._ended.set()

    def _on_output_problem(self) -> None:
        # Nobody sees the replies any more: what was not sent is not sent, what is in flight ends by itself.
        self.stop()

    def _take(self, line: Line) -> None:
        self.read += 1
        try:
            if line.raw is None:
                raise Malformed(f"the transaction is longer than {MAX_BYTES:,} bytes, which is the most allowed")
            tx = read_transaction(line.raw)
        except Malformed as problem:
            self._refuse(line, problem)
            return
        lane = self._lane_of(tx)
        lane.parked.append(tx)
        self._parked_lines += 1
        self._parked_bytes += len(tx.raw)
        if lane.under_way < lane.limit() or self._is_stopping:
            self._start(lane)

    def _refuse(self, line: Line, problem: Malformed) -> None:
        self._reply(write_reply(self._hub.refuse_malformed(problem, where=f"line {line.number}: ")))

    def _lane_of(self, tx: Transaction) -> _Lane:
        target = self._hub.target_of(tx)
        name = target.name if target is not None else None
        lane = self._lanes.get(name)
        if lane is None:
            if target is None or not self._backpressure:
                lane = _Lane(lambda: math.inf)
            else:
                lane = _Lane(lambda: target.room)
            self._lanes[name] = lane
        return lane

    def _start(self, lane: _Lane) -> None:
        lane.under_way += 1
        task = asyncio.get_running_loop().create_task(self._work(lane))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._worked(lane, task))

    def _worked(self, lane: _Lane, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            self._hub.note_fault("a line", problem)
            if lane.parked:  # the others are served; the one that was lost shows in the count at the end
                self._start(lane)

    async def _work(self, lane: _Lane) -> None:
        """Send the lane's lines, one after another, until none is parked."""
        try:
            while lane.parked and (lane.under_way <= lane.limit() or self._is_stopping):
                if not self._writer.has_room:
                    await self._writer.room()
                    continue  # another may have taken the last one meanwhile
                tx = lane.parked.popleft()
                self._parked_lines -= 1
                self._parked_bytes -= len(tx.raw)
                if self._owed:
                    self._settle()
                reply = await self._hub.handle(tx)
                if lane.parked and lane.under_way < lane.limit() < math.inf:
                    self._start(lane)  # the target has more room than it had
                self._reply(write_reply(reply))
                if not reply.attempts:
                    # A refusal takes no time: ten thousand parked ones in a row would hold up every other target.
                    await asyncio.sleep(0)
        finally:
            lane.under_way -= 1

    def _reply(self, line: bytes) -> None:
        self.replied += 1
        self._writer.write(line)

    def _settle(self) -> None:
        """Let the reader go on if there is room for what it would bring."""
        if self._writer.has_room and self._parked_lines <= _LINES_TO_GO_ON and self._parked_bytes <= _BYTES_TO_GO_ON:
            while self._owed:
                self._owed -= 1
                self._reader.taken()
