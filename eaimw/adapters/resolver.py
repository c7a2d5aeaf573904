"""Names to addresses, off the event loop.

The loop's own look-ups share a pool of four threads: four names that hang would stop every other one. Here each
host has at most one look-up at a time, in a thread of its own, so the threads are bounded by the hosts and a host
that hangs holds up nobody else. Callers bound their wait themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Sequence

from eaimw.ports import Clock

# Seconds for which an answer is used again. Short enough for a fail-over by DNS, long enough to spare the server.
KEEP = 30.0
# Seconds that a caller waits for a new answer where an old one is known: a name server that is gone lets look-ups
# hang for longer than a connection may take, and the old addresses are most likely still right.
PATIENCE = 0.1
# Seconds for which the old addresses then serve on before anyone asks and waits again.
PAUSE = 1.0


class ThreadResolver:
    """`ports.Resolver` over `getaddrinfo`. When a name can no longer be looked up, its last addresses serve on.

    look_up: addresses of a host, best first; runs in a thread and may raise OSError or hang.
    """

    def __init__(self, clock: Clock, look_up: Callable[[str], Sequence[str]] | None = None) -> None:
        self._clock = clock
        self._look_up = look_up or system_addresses
        self._known: dict[str, tuple[float, Sequence[str]]] = {}
        self._under_way: dict[str, asyncio.Future[Sequence[str]]] = {}

    async def resolve(self, host: str) -> Sequence[str]:
        """The host's addresses, best first. Raises OSError."""
        if _is_address(host):
            return (host,)
        known = self._known.get(host)
        if known is not None and self._clock.monotonic() < known[0] + KEEP:
            return known[1]
        under_way = self._under_way.get(host) or self._start(host)
        if known is None:
            # A caller that gives up must not end the look-up for the others.
            return await asyncio.shield(under_way)
        await asyncio.wait((under_way,), timeout=PATIENCE)
        if self._known[host] is known:
            self._known[host] = (self._clock.monotonic() - KEEP + PAUSE, known[1])
        return self._known[host][1]

    def _start(self, host: str) -> asyncio.Future[Sequence[str]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[str]] = loop.create_future()
        self._under_way[host] = future

        def done(addresses: Sequence[str], problem: OSError | None) -> None:
            del self._under_way[host]
            if problem is None:
                self._known[host] = (self._clock.monotonic(), addresses)
                future.set_result(addresses)
            else:
                future.set_exception(problem)
                future.exception()  # seen: every caller may have given up by now

        def work() -> None:
            addresses: Sequence[str] = ()
            problem: OSError | None = None
            try:
                addresses = self._look_up(host)
                if not addresses:
                    problem = OSError(f"{host} has no address")
            except OSError as raised:
                problem = _lack() or raised
            except Exception as raised:  # as UnicodeError, getaddrinfo's word for a name with an empty or long part
                problem = OSError(f"{host} cannot be looked up: {raised!r}")
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(done, addresses, problem)

        try:
            threading.Thread(target=work, name=f"look up {host}", daemon=True).start()
        except RuntimeError as problem:  # the system has no thread to give
            done((), OSError(errno.EAGAIN, str(problem)))
        return future


def system_addresses(host: str) -> Sequence[str]:
    """What the operating system says, in its order, each once."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _lack() -> OSError | None:
    """The real reason where this process has no descriptor left: a look-up then says that there is no such name."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as lack:
        return lack
    return None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
