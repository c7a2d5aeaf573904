"""Reading the hub.toml again while the hub runs: what is good applies at once, what is not changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import NamedTuple

from eaimw.app import say
from eaimw.config import HubSettings
from eaimw.differences import Reloaded, differences
from eaimw.errors import SettingsError, Unusable
from eaimw.hub import Hub
from eaimw.hub_file import HubFile
from eaimw.toml_file import BadFile

READ_LIMIT = 10.0  # seconds for the file, which may lie on a disk that hangs
MOST_WAITING = 4


class Source(NamedTuple):
    """Settings, and where they came from. file, read: what they stood in, and how to read it once more, which raises
    BadFile, Unusable, SettingsError; None: the command line.
    """

    settings: HubSettings
    file: HubFile | None = None
    read: Callable[[], HubFile] | None = None


def reload_of(hub: Hub, source: Source, prepare: Callable[[HubSettings], object]) -> Reload | None:
    """None where there is nothing to be read again."""
    if source.file is None or source.read is None:
        return None
    return Reload(hub, source.file, source.read, prepare)


class Reload:
    """Awaited, it reads the file again and changes the hub; one at a time. To be used in the hub's loop.

    prepare: gets the new settings before they are in force, as to raise the process's limits; may raise Unusable.
    """

    def __init__(
        self, hub: Hub, file: HubFile, read: Callable[[], HubFile], prepare: Callable[[HubSettings], object]
    ) -> None:
        self._hub = hub
        self._file = file
        self._read = read
        self._prepare = prepare
        self._one = asyncio.Lock()
        self._waiting = 0
        self._is_reading = False

    async def __call__(self) -> Reloaded:
        """Read and apply; what came of it is said, too."""
        if self._waiting >= MOST_WAITING:
            return Reloaded(["a reload is under way: ask again when it is over"], [], [])
        self._waiting += 1
        try:
            async with self._one:
                result = await self._applied()
        finally:
            self._waiting -= 1
        _say(result)
        return result

    async def _applied(self) -> Reloaded:
        try:
            async with asyncio.timeout(READ_LIMIT):
                file = await self._whole()
            result = differences(self._file, file)
            self._prepare(file.settings)
            self._hub.reconfigure(file.settings)
        except TimeoutError:
            return Reloaded([f"the file could not be read within {READ_LIMIT:g} s"], [], [])
        except (BadFile, Unusable, SettingsError) as problem:
            return Reloaded(str(problem).splitlines(), [], [])
        self._file = file
        return result

    async def _whole(self) -> HubFile:
        """The file, read by a thread that nobody waits for at the end: a disk that hangs would keep the hub from it.

        One at a time: while one hangs, another would hang beside it.
        """
        if self._is_reading:
            raise Unusable("the file is still being read, for an earlier reload: its disk hangs")
        loop = asyncio.get_running_loop()
        file: asyncio.Future[HubFile] = loop.create_future()

        def settle(found: HubFile | Exception) -> None:
            self._is_reading = False
            if file.done():  # nobody waits any more
                return
            if isinstance(found, Exception):
                file.set_exception(found)
            else:
                file.set_result(found)

        def read() -> None:
            found: HubFile | Exception
            try:
                found = self._read()
            except Exception as problem:
                found = problem
            with contextlib.suppress(RuntimeError):  # the hub has ended, and its loop with it
                loop.call_soon_threadsafe(settle, found)

        try:
            threading.Thread(target=read, name="reload", daemon=True).start()
        except RuntimeError as problem:  # the system has none left
            raise Unusable(f"the file cannot be read: {problem}") from None
        self._is_reading = True
        return await file


def _say(result: Reloaded) -> None:
    for line in result.faults:
        say(f"reload: {line}")
    if result.faults:
        say("reload: nothing has changed")
        return
    for line in result.changed:
        say(f"reload: {line}")
    for line in result.needs_restart:
        say(f"reload: {line} (after a restart)")
    if not result.changed and not result.needs_restart:
        say("reload: the file says what it said before")
