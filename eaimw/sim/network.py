"""The simulated network: who listens where, how connections come about, and what names stand for.

Each destination is a link of its own with its own stream of chance; links share nothing, so what happens on one
changes no time on another.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from eaimw.sim.chance import stream
from eaimw.sim.link import Conditions, Link
from eaimw.sim.loop import NotSimulated, VirtualLoop
from eaimw.sim.transport import Address, Connection, End

FIRST_FREE_PORT = 49_152
# Where all callers stand; which connection it is, its port says.
CALLERS = "198.51.100.1"

Factory = Callable[[], Any]


class Network:
    """The connections of one loop. conditions: those of every link until it gets its own."""

    def __init__(self, loop: VirtualLoop, seed: int = 0, conditions: Conditions | None = None) -> None:
        self._loop = loop
        self._seed = seed
        self._conditions = Conditions() if conditions is None else conditions
        self._links: dict[Address, Link] = {}
        self._listeners: dict[Address, Listener] = {}
        self._aliases: dict[Address, Address] = {}
        loop.network = self

    def alias(self, address: Address, of: Address) -> None:
        """One more address for what listens at another: a link of its own, with its own stream of chance."""
        self._aliases[address] = of

    def link(self, host: str, port: int, name: str = "") -> Link:
        """The link to a destination. name: of its stream of chance, given when it is first asked for; else HOST:PORT.

        Raises ValueError for another name than it has.
        """
        link = self._links.get((host, port))
        if link is None:
            name = name or f"{host}:{port}"
            link = self._links[host, port] = Link(name, stream(self._seed, f"link {name}"), self._conditions)
        elif name not in ("", link.name):
            raise ValueError(f"the link to {host}:{port} is called {link.name} already, not {name}")
        return link

    def open_connections(self) -> list[Connection]:
        """All of which an end is not yet gone."""
        return [connection for link in self._links.values() for connection in link.connections]

    async def connect(
        self, factory: Factory, host: str, port: int, *, server_hostname: str | None = None, **others: Any
    ) -> tuple[Any, Any]:
        """As `loop.create_connection`; host is an address. It takes one round trip; raises ConnectionRefusedError."""
        _refuse_others("create_connection", others)
        link = self.link(host, port)
        loop = self._loop
        attempt = _Attempt(factory, link, (host, port), loop.create_future(), [])
        loop.call_later(link.latency(link.conditions.there), self._knock, attempt)
        try:
            await attempt.future
        except BaseException:
            # The caller has given up, perhaps in the moment in which the connection was there.
            for end, _ in attempt.made:
                end.close()
            raise
        return attempt.made[0]

    def listen(
        self, factory: Factory, host: str, port: int, *, backlog: int = 100, **others: Any
    ) -> asyncio.AbstractServer:
        """As `loop.create_server`; host is one address, port 0 gives a free one. Raises OSError where one listens."""
        _refuse_others("create_server", others)
        if not isinstance(host, str) or not host:
            raise NotSimulated(f"create_server on {host!r}: it takes one address")
        if port == 0:
            port = next(port for port in range(FIRST_FREE_PORT, 65_536) if (host, port) not in self._listeners)
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"error while attempting to bind on address {(host, port)}: in use")
        listener = self._listeners[host, port] = Listener(self._loop, factory, (host, port), self._listeners)
        return listener

    def _knock(self, attempt: _Attempt) -> None:
        """The request for a connection has arrived."""
        conditions = attempt.link.conditions
        if conditions.connect == "swallow":
            return
        is_refused = conditions.connect == "refuse" or self._listener(attempt.to) is None
        answer = self._refuse if is_refused else self._establish
        self._loop.call_later(attempt.link.latency(conditions.back), answer, attempt)

    def _refuse(self, attempt: _Attempt) -> None:
        if not attempt.future.done():
            where = f"Connect call failed {attempt.to}"
            attempt.future.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, where))

    def _establish(self, attempt: _Attempt) -> None:
        """The answer has come back: the caller's end is there, and its acknowledgement goes ahead of its bytes."""
        link, future = attempt.link, attempt.future
        if future.done():
            return
        try:
            protocol = attempt.factory()
        except Exception as problem:
            future.set_exception(problem)
            return
        own = (CALLERS, 1024 + link.opened % 64_512)
        connection = Connection(self._loop, link, own, attempt.to)
        connection.acknowledge(lambda: self._accept(connection, attempt.to))
        attempt.made.append((connection.near, protocol))
        connection.near.start(protocol)
        self._loop.call_soon(_done, future)

    def _listener(self, to: Address) -> Listener | None:
        return self._listeners.get(self._aliases.get(to, to))

    def _accept(self, connection: Connection, to: Address) -> None:
        listener = self._listener(to)
        if listener is None:  # it has gone in the meantime
            connection.far.abort()
            connection.reset()
            return
        listener.accept(connection.far)


class _Attempt(NamedTuple):
    """Somebody who connects. made: the caller's end and its protocol, once there are some."""

    factory: Factory
    link: Link
    to: Address
    future: asyncio.Future[None]
    made: list[tuple[End, Any]]


class Listener(asyncio.AbstractServer):
    """What `create_server` gives. `wait_closed` waits for no connection, as Python 3.11's."""

    def __init__(
        self, loop: VirtualLoop, factory: Factory, address: Address, listeners: dict[Address, Listener]
    ) -> None:
        self._loop = loop
        self._factory = factory
        self._address = address
        self._listeners = listeners
        self.sockets: tuple[ListeningSocket, ...] = (ListeningSocket(address),)

    def accept(self, end: End) -> None:
        """A connection for it has come about."""
        try:
            protocol = self._factory()
        except Exception as problem:
            self._loop.call_exception_handler({"message": "no protocol for a connection", "exception": problem})
            end.abort()
            return
        end.start(protocol)

    def close(self) -> None:
        """Listen no more; connections go on."""
        if self._listeners.get(self._address) is self:
            del self._listeners[self._address]
        self.sockets = ()

    async def start_serving(self) -> None:
        """It does from the start."""

    async def serve_forever(self) -> NoReturn:
        """NotSimulated: who serves in a simulation ends with it."""
        raise NotSimulated("serve_forever")

    async def wait_closed(self) -> None:
        """Nothing to wait for."""

    def is_serving(self) -> bool:
        """Does it listen?"""
        return bool(self.sockets)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it serves in."""
        return self._loop


class ListeningSocket(NamedTuple):
    """As much of a listening socket as a server shows of it."""

    address: Address

    def getsockname(self) -> Address:
        """Host and port."""
        return self.address


class SimulatedResolver:
    """`ports.Resolver`. names: addresses by host; another host is unknown. delays: seconds by host; inf hangs."""

    def __init__(self) -> None:
        self.names: dict[str, Sequence[str]] = {}
        self.delays: dict[str, float] = {}

    async def resolve(self, host: str) -> Sequence[str]:
        """The host's addresses; an address stands for itself. Raises OSError (gaierror)."""
        if is_address(host):
            return (host,)
        delay = self.delays.get(host, 0.0)
        if delay:
            await asyncio.sleep(delay)
        found = self.names.get(host, ())
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found


def is_address(host: str) -> bool:
    """Is it an IP address, and no name?"""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _refuse_others(what: str, others: dict[str, Any]) -> None:
    wanted = sorted(name for name, value in others.items() if value)
    if wanted:
        raise NotSimulated(f"{what} with {', '.join(wanted)}")


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
