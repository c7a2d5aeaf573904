"""JSON lines to a hub that runs: each line is a request of its own, so many at a time; each reply becomes a line.

Reading is never further ahead than the reader's batches, however long the input is. A line that brought no reply is
told, by its number, and the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from eaimw.adapters.line_io import Line, LineReader, LineWriter
from eaimw.codes import MALFORMED
from eaimw.codes import NO_TARGET as NO_TARGET_CODE
from eaimw.config import NO_TARGET
from eaimw.errors import CallFailed, LocalFault, NoConnection, NoHub
from eaimw.target import CodeCounts
from eaimw.wire import MAX_BYTES

Reply = tuple[bytes, str, str | None]


class _Named(msgspec.Struct, gc=False):
    tx_id: str


class LineSender:
    """One run over one input.

    post: sends one line and gives its reply as (line, code, target); blocks, in a thread; raises CallFailed.
    tell: gets a sentence for each line without a reply; blocks, in a thread.
    read, replied: transactions so far. consumed: bytes of the input, up to the last line sent.
    unsent, unknown: those without a reply, by what may have become of them.
    codes: replies by target and code. cut_after: the last line sent, if a stop kept the rest of the input back.
    no_hub: when there had been no reply yet: why no connection could be had, or why it is no hub that answers, which
        ends the run; else None.
    problem: a sentence on why input or output could not be used to the end, else None.
    """

    def __init__(
        self,
        post: Callable[[bytes], Reply],
        tell: Callable[[str], None],
        source: int,
        sink: int,
        at_once: int,
    ) -> None:
        self._post = post
        self._tell = tell
        self._pool = ThreadPoolExecutor(at_once, "post")
        self._places = asyncio.Semaphore(at_once)
        self._batches: asyncio.Queue[list[Line] | None] = asyncio.Queue()
        self._is_stopping = False
        self._has_all = False  # the input came to its end before anybody asked to stop
        self._reader = LineReader(source, self._batches.put_nowait, self._on_end)
        self._writer = LineWriter(sink, lambda: None, self.stop)
        self.read = self.replied = self.unsent = self.unknown = self.consumed = 0
        self.codes: dict[str, CodeCounts] = {}
        self.cut_after: int | None = None
        self.no_hub: CallFailed | None = None
        self.problem: str | None = None

    async def run(self) -> None:
        """Until every line that was sent has its reply, or is known to have none, and the replies are written."""
        self._reader.start()
        last_sent = 0
        try:
            async with asyncio.TaskGroup() as under_way:
                while (batch := await self._batches.get()) is not None:
                    for line in batch:
                        await self._writer.room()
                        await self._places.acquire()
                        if self._is_stopping:
                            self._places.release()
                            self._has_all = False
                            break
                        last_sent = line.number
                        self.read += 1
                        self.consumed += len(line.raw or b"\n") + 1
                        under_way.create_task(self._send(line))
                    self._reader.taken()
        finally:
            self._reader.stop()
            await self._reader.close()
            await self._writer.close()
            self._pool.shutdown()
        if self._has_all:
            self.consumed = self._reader.consumed  # with blank lines and carriage returns
        else:
            self.cut_after = last_sent
        if self._writer.problem is not None:
            self.problem = (
                f"standard output cannot be written: {self._writer.problem.strerror}; "
                f"{self._writer.undelivered} replies could not be delivered"
            )

    def stop(self) -> None:
        """Send nothing new; what is in flight is waited for."""
        self._is_stopping = True
        self._reader.stop()

    def _on_end(self, problem: OSError | None) -> None:
        if problem is not None:
            self.problem = f"the input cannot be read: {problem.strerror}"
        self._has_all = problem is None and not self._is_stopping
        self._batches.put_nowait(None)

    async def _send(self, line: Line) -> None:
        work = asyncio.get_running_loop().run_in_executor
        try:
            if line.raw is None:
                raise NoConnection(f"it is longer than {MAX_BYTES:,} bytes, the most allowed", handed_over=False)
            raw, code, target = await work(self._pool, self._post, line.raw)
        except Exception as problem:  # a fault of ours too: the others go on
            if not isinstance(problem, CallFailed):
                problem = LocalFault(f"a fault of eaimw: {type(problem).__name__}: {problem}", handed_over=True)
            sentence = self._lost(line, problem)
            if sentence:
                await work(self._pool, self._tell, sentence)
        else:
            self.replied += 1
            name = NO_TARGET if code in (MALFORMED, NO_TARGET_CODE) or target is None else target
            self.codes.setdefault(name, CodeCounts()).add(code)
            self._writer.write(raw)
        finally:
            self._places.release()

    def _lost(self, line: Line, problem: CallFailed) -> str:
        """Count a line without a reply; what there is to say of it."""
        ends_it = line.raw is not None and not self.replied and (not problem.handed_over or isinstance(problem, NoHub))
        if ends_it and not self._is_stopping:  # it is said once, and no further line is tried
            self.no_hub = problem
            self.stop()
        if problem.handed_over:
            self.unknown += 1
            return f"line {line.number}{_name_of(line)}: {problem}: its outcome is unknown; look it up"
        self.unsent += 1
        return "" if ends_it else f"line {line.number}{_name_of(line)}: {problem}: not sent"


def _name_of(line: Line) -> str:
    """Its tx_id, if it can be read."""
    try:
        tx_id = msgspec.json.decode(line.raw or b"", type=_Named).tx_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return f" ({tx_id if tx_id.isprintable() else repr(tx_id)})"[:140]
