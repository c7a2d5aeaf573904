"""What a caller leaves behind in the server, and what it can read at its end: each byte counted, each answer read."""

from __future__ import annotations

import asyncio
import json

from relayed import ok, peer
from serving import Caller, request, serving

from eaimw.adapters.drive import Drive
from eaimw.adapters.http_request import Arrivals, RequestReader
from eaimw.adapters.http_server import HttpServer
from eaimw.app import open_hub, two_targets
from eaimw.config import Address
from eaimw.wire import MAX_BYTES


def test_a_refused_request_behind_a_call_is_read_with_its_answer() -> None:
    """The caller is still sending when its 413 comes, later than a second: what it sends is taken and thrown away."""
    with (
        peer(lambda sent: ok(sent)._replace(after=0.3)) as core,
        serving(core=core) as server,
        Caller(server) as caller,
    ):
        caller.send(request(), b"POST /tx HTTP/1.1\r\nHost: h\r\nContent-Length: 9000000\r\n\r\n")
        sent = 0
        while sent < 9_000_000:
            caller.send(b"x" * 100_000)
            sent += 100_000
        assert caller.answer()[0] == 200
        status, headers, _ = caller.answer()
        assert (status, headers["connection"]) == (413, "close")
        assert caller.is_ended()


def whole(size: int) -> bytes:
    return request(b"x" * size)


def test_bodies_that_wait_are_counted_until_they_are_taken() -> None:
    """Parsed or known by their head, waiting or kept: the room is given back when one is taken, or all at the end."""
    arrivals = Arrivals()
    reader = RequestReader(arrivals)
    reader.feed(whole(100_000))
    assert arrivals.bytes == 100_000
    reader.feed(whole(100_000))  # its head is known now
    assert arrivals.bytes == 200_000
    assert len(reader.take().body) == 100_000
    assert arrivals.bytes == 100_000
    reader.feed(whole(100_000)[:-1])
    assert 199_000 < arrivals.bytes < 200_000
    reader.end()
    assert arrivals.bytes == 0


def test_what_comes_after_a_final_refusal_is_not_kept() -> None:
    """The refusal waits for its turn, perhaps for long; the bytes behind it do not."""
    arrivals = Arrivals()
    reader = RequestReader(arrivals)
    reader.feed(b"nonsense\r\n\r\n" + b"x" * 100_000)
    assert reader.is_over
    assert (len(reader.kept), arrivals.bytes) == (0, 0)


def test_a_connection_at_rest_keeps_no_body() -> None:
    """A caller that has had its answer may stay for 75 s; its body of a megabyte does not."""
    big = json.dumps({"tx_id": "T-1", "target": "CORE", "note": "x" * (MAX_BYTES - 100)}).encode()

    async def story() -> None:
        async with open_hub(two_targets(core.url)) as hub:
            server = HttpServer(hub)
            await server.start(Address("127.0.0.1", 0))
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            writer.write(request(big))
            assert (await reader.readline()).split()[1] == b"200"
            (connection,) = server.connections
            assert connection._request.body == b""
            writer.close()
            await server.close()

    with peer() as core:
        asyncio.run(story())


def test_a_bare_yield_is_a_turn_of_the_loop() -> None:
    """As for a task: what waits for nothing in particular goes on in the next turn."""

    async def story() -> None:
        async def ask() -> str:
            await asyncio.sleep(0)
            return "0000"

        told: list[tuple[str | None, BaseException | None]] = []
        Drive(ask(), lambda value, problem: told.append((value, problem)))
        assert told == []
        await asyncio.sleep(0)
        assert told == [("0000", None)]

    asyncio.run(story())
