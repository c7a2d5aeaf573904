"""Memory is bounded: what a caller or a target could make grow at the hub stays within what is promised.

The limits are written here once more, apart from the hub's own, so that a fault there cannot hide itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eaimw.sim.stage import Stage

__all__ = ["Bounds"]

# Of callers: connections that are heard; bytes of all of them that have arrived and not been taken up; heads that are
# remembered; and requests that wait on one connection, where each piece is parsed to its end: the shortest request has
# 18 bytes (GET / HTTP/1.1 and two line ends), and one more may have been nearly there before the piece.
MAX_CONNECTIONS = 10_000
MAX_ARRIVING = 268_435_456
KNOWN_HEADS = 1_024
MOST_WAITING, PIECE, SHORTEST = 16, 1_024, 18
# Of a target: codes that are counted by name; one more is `other`. Circuits of operations that nobody has declared; one
# more is the target's own. Tokens of its retry budget.
MAX_CODES = 100
MAX_OPS = 100
MAX_TOKENS = 100


class Bounds:
    """Watches one stage's hub and its server. complain: told what is above its limit, in a sentence."""

    def __init__(self, stage: Stage, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._server: Any = stage.server
        hub, settings = stage.world.hub, stage.settings.targets
        self._pools: list[tuple[str, Any, int]] = [
            (name, hub.targets[name].transport, settings[name].max_inflight) for name in settings
        ]
        self._targets = [(name, hub.targets[name]) for name in settings]
        self._most_circuits = len(stage.settings.ops.keys() | stage.settings.routes.keys()) + MAX_OPS + 1
        self._codes = [("no target", hub.untargeted), *((name, hub.targets[name].codes) for name in settings)]
        self._bytes = self._count = 0  # of the server, when it was looked at

    def step(self) -> None:
        """After each step: look at the server if bytes or connections of callers have come or gone."""
        server = self._server
        if server is not None and (server.arrivals.bytes != self._bytes or len(server.connections) != self._count):
            self._look_at_server()

    def look(self) -> None:
        """At each reply: what only replies make grow, and the server too, in case that it counts nothing."""
        for name, transport, limit in self._pools:
            size = sum(map(len, (transport._idle, transport._busy, transport._held, transport._connecting)))
            if size > limit:
                self._complain(f"{name}: the hub has {size} connections, and may have {limit}")
        for name, codes in self._codes:
            if len(codes) > MAX_CODES + 1:
                self._complain(f"{name}: {len(codes)} codes are counted, and the limit is {MAX_CODES + 1}")
        for name, target in self._targets:
            if not 0 <= target.budget.tokens <= MAX_TOKENS:
                self._complain(f"{name}: the retry budget has {target.budget.tokens:g} tokens, of 0 to {MAX_TOKENS}")
            if 1 + len(target._of_ops) > self._most_circuits:
                self._complain(
                    f"{name}: there are {1 + len(target._of_ops)} circuits, and may be {self._most_circuits}"
                )
        if self._server is not None:
            self._look_at_server()

    def _look_at_server(self) -> None:
        arrivals, connections = self._server.arrivals, self._server.connections
        self._bytes, self._count = arrivals.bytes, len(connections)
        held = heard = most = 0
        for connection in connections:
            reader = connection._reader
            held += len(reader.kept) + len(reader._body)
            heard += not connection._is_deaf
            if reader.requests:
                held += sum(len(request.body) for request in reader.requests)
                most = max(most, len(reader.requests))
        if arrivals.bytes != held:
            self._complain(f"the server counts {arrivals.bytes} bytes of arriving requests, and holds {held}")
        for what, count, limit in (
            ("connections of callers are heard", heard, MAX_CONNECTIONS),
            ("bytes of requests have arrived", held, MAX_ARRIVING),
            ("heads are remembered", len(arrivals._heads), KNOWN_HEADS),
            ("requests wait on one connection", most, MOST_WAITING + PIECE // SHORTEST),
        ):
            if count > limit:
                self._complain(f"{count} {what}, and the limit is {limit}")
