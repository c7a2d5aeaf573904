"""TLS for the hub's callers: the context, from its PEM files, and the listener that shakes hands."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import ssl
import sys
import termios
from collections.abc import Callable
from typing import Any

from eaimw.adapters.pem import authority_fault, own_faults
from eaimw.config import Address, TlsSettings
from eaimw.errors import Unusable

BACKLOG = 1024
CLOSE_LIMIT = 1.0  # seconds; a handshake that is ended needs a few turns of the loop
ACCEPT_AGAIN = 0.05  # seconds until the next try where the process has no descriptor left for a caller


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """TLS 1.2 or later with that certificate; with a client CA only for callers who show one that it has signed.

    Raises Unusable, with a line for each file that cannot be used: its setting, the file, and what is wrong with it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate, key = ("hub.tls_certificate", settings.certificate), ("hub.tls_key", settings.key)
    faults = [*own_faults(context, certificate, key, "the hub")]
    if settings.client_ca is not None:
        faults.append(authority_fault(context, "hub.tls_client_ca", settings.client_ca))
        context.verify_mode = ssl.CERT_REQUIRED
    if any(faults):
        raise Unusable("\n".join(filter(None, faults)))
    return context


class TlsListener:
    """Takes connections and shakes hands; a handshake that fails or is not over in time ends its connection alone.

    The loop's own server would do, but for its want of a bound: it says nothing of callers before their handshake is
    over, and ten thousand silent ones would take every descriptor that the targets need.

    make: a protocol for each caller. room: how many callers may be in their handshake. limit: seconds for one.
    farewell: seconds that a connection's end may take.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        *,
        room: Callable[[], int],
        limit: float,
        farewell: float,
    ) -> None:
        self._make = make
        self._room = room
        self._options: dict[str, Any] = {
            "ssl": context,
            "ssl_handshake_timeout": limit,
            "ssl_shutdown_timeout": farewell,
        }
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        self._accepting: list[asyncio.Task[None]] = []
        self.sockets: list[socket.socket] = []

    async def open(self, address: Address) -> None:
        """Listen at every address of the host. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, place in dict.fromkeys((family, place) for family, *_, place in found):
                listener = socket.create_server(place, family=family, backlog=BACKLOG)
                self.sockets.append(listener)
                listener.setblocking(False)
        except OSError:
            for listener in self.sockets:
                listener.close()
            raise
        self._accepting = [loop.create_task(self._accept(listener)) for listener in self.sockets]

    async def close(self) -> None:
        """Listen no more, and end every handshake."""
        for task in self._accepting:
            task.cancel()
        # Not cancelled: a task that has not begun would leave its connection open, as would uvloop before TLS begins.
        for caller in self._handshakes.values():
            with contextlib.suppress(OSError):
                caller.shutdown(socket.SHUT_RDWR)
        ending = [*self._accepting, *self._handshakes]
        if ending:
            await asyncio.wait(ending, timeout=CLOSE_LIMIT)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    caller, _ = await loop.sock_accept(listener)
                except OSError:
                    await asyncio.sleep(ACCEPT_AGAIN)
                    continue
                if len(self._handshakes) >= self._room():
                    caller.close()  # a handshake would cost more than a refusal may
                    continue
                task = loop.create_task(self._shake_hands(caller))
                self._handshakes[task] = caller
                task.add_done_callback(self._handshakes.pop)
        finally:
            listener.close()

    async def _shake_hands(self, caller: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # No TLS, no certificate that will do, gone, too late: the loop has ended the connection.
        with contextlib.suppress(OSError):
            await loop.connect_accepted_socket(self._make, caller, **self._options)


def untaken(sock: Any | None) -> int:
    """Bytes that the caller's machine has not yet taken; 0 where the system does not say (it is not Linux).

    What TLS has encrypted waits below it, where the loop does not show it. Where it waits, this is above 0.
    """
    if sock is None:
        return 0  # it has ended
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):
        return 0
