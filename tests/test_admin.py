"""The admin plane in this process: what it answers, whom, and that the hub does not feel it."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import requests
from scene import Scene, run
from served import eventually, get

from eaimw.adapters import admin
from eaimw.adapters.admin import CONNECTIONS, AdminPlane
from eaimw.errors import SettingsError, Unusable

TOKEN = "s3cret"


class Watched:
    """A hub and its plane in this process."""

    def __init__(self, scene: Scene, plane: AdminPlane, base: str, said: list[str]) -> None:
        self.scene = scene
        self.plane = plane
        self.base = base
        self.said = said

    async def get(self, path: str, *arguments: Any, **headers: str) -> requests.Response:
        return await asyncio.to_thread(get, self.base + path, *arguments, **headers)


@contextlib.asynccontextmanager
async def watched(token: str | None = None) -> AsyncIterator[Watched]:
    scene, said = Scene(threshold=1), list[str]()
    plane = AdminPlane(scene.hub, loop=asyncio.get_running_loop(), say=said.append, clock=scene.clock)
    try:
        address = plane.start("127.0.0.1", 0, token)
        yield Watched(scene, plane, f"http://{address}", said)
    finally:
        plane.close()


def test_each_path_and_what_is_none() -> None:
    """404 and 405 in JSON; what there is says what it is; each connection carries one request."""

    async def story() -> None:
        async with watched() as it:
            assert (await it.get("/healthz")).json() == {"status": "alive"}
            metrics = await it.get("/metrics")
            assert metrics.headers["Content-Type"].startswith("text/plain; version=")
            newer = await it.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
            assert newer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
            assert newer.text.endswith("# EOF\n")
            targets = await it.get("/targets")
            assert targets.headers["Connection"] == "close"
            one = await it.get("/targets/CORE")
            assert targets.json()["CORE"] == one.json()
            unknown = await it.get("/targets/core")
            assert unknown.status_code == 404
            assert unknown.json() == {"error": "there is no target core; there are: CORE, CLAIM"}
            assert (await it.get("/nope")).json() == {"error": "GET /nope: Not Found"}
            wrong = await it.get("/targets", None, "POST")
            assert (wrong.status_code, wrong.headers["Allow"]) == (405, "GET,HEAD")
            assert wrong.json() == {"error": "POST /targets: Method Not Allowed"}
            assert it.said == []

    run(story())


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        ("Bearer \u00e4", 401),
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
    ],
)
def test_only_the_right_token_opens(header: str | None, status: int) -> None:
    """Everything but health; what there is and what there is not look the same from outside."""

    async def story() -> None:
        async with watched(TOKEN) as it:
            headers = {} if header is None else {"Authorization": header}
            for path in ("/metrics", "/targets", "/targets/CORE"):
                answer = await it.get(path, **headers)
                assert answer.status_code == status
                assert (answer.headers.get("WWW-Authenticate") == 'Bearer realm="eaimw"') is (status == 401)
            assert (await it.get("/nope", **headers)).status_code == (401 if status == 401 else 404)
            for path in ("/healthz", "/readyz"):
                assert (await it.get(path, **headers)).status_code == 200
            assert it.said == []

    run(story())


def test_a_hub_that_goes_down_is_not_ready() -> None:
    """As soon as it refuses what is new, and for good."""

    async def story() -> None:
        async with watched() as it:
            assert (await it.get("/readyz")).status_code == 200
            it.scene.hub.go_down()
            answer = await it.get("/readyz")
            assert (answer.status_code, answer.json()) == (503, {"status": "going down"})

    run(story())


def test_two_planes_in_one_process_tell_their_own_hubs() -> None:
    """Each on a port of its own."""

    async def story() -> None:
        async with watched() as one, watched() as other:
            await one.scene.codes(2)
            assert (await one.get("/targets/CORE")).json()["codes"] == {"0000": 2}
            assert (await other.get("/targets/CORE")).json()["codes"] == {}

    run(story())


def test_nothing_is_left_after_the_close() -> None:
    """No thread, no listener, no timer; also with a connection open on which nothing is asked, and closed twice."""

    async def story() -> None:
        before = threading.active_count()
        async with watched() as it:
            assert threading.active_count() == before + 1
            host, _, port = it.base.removeprefix("http://").partition(":")
            with socket.create_connection((host, int(port)), 5) as idle:
                idle.settimeout(10)
                it.plane.close()
                with contextlib.suppress(ConnectionResetError):  # it had not yet been accepted
                    assert idle.recv(1) == b""
            assert threading.active_count() == before
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((host, int(port)), 5)
            await asyncio.sleep(0)
            assert it.plane._lag._due is None
            it.plane.close()

    run(story())


def test_an_address_that_cannot_be_had_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not ours, a name that is not known, one whose look-up hangs: Unusable within a bound, and no thread stays."""
    monkeypatch.setattr(admin, "START_LIMIT", 0.05)
    monkeypatch.setattr(admin, "CLOSE_LIMIT", 0.05)
    answer = threading.Event()

    def look_up(host: str, *arguments: Any, **more: Any) -> list[Any]:
        if host == "hangs.example":
            answer.wait(20)
        if host.endswith(".example"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, 0, 0, "", (host, 0))]

    async def story() -> None:
        scene, said = Scene(), list[str]()
        before = threading.active_count()
        plane = AdminPlane(scene.hub, loop=asyncio.get_running_loop(), say=said.append)
        with pytest.raises(Unusable, match="it is no address of this machine"):
            plane.start("192.0.2.1", 0, TOKEN)
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        with pytest.raises(Unusable, match="it is no address of this machine"):
            plane.start("unknown.example", 0, TOKEN)
        with pytest.raises(Unusable, match="give an address instead of a name"):
            plane.start("hangs.example", 0, TOKEN)
        answer.set()
        eventually(lambda: threading.active_count() == before)
        with pytest.raises(SettingsError, match=r"^admin must be a loopback address"):
            plane.start("192.0.2.1", 0)
        assert said == []

    run(story())


# The hub does not feel it.


def test_a_fault_of_the_plane_is_said_once_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 to who asks, one sentence to the people on duty; other paths and the hub go on."""

    async def story() -> None:
        async with watched() as it:

            def broken() -> dict[str, Any]:
                raise KeyError("x")

            monkeypatch.setattr(it.scene.hub.targets["CORE"], "status", broken)
            for _ in range(3):
                answer = await it.get("/targets")
                assert (answer.status_code, answer.json()) == (500, {"error": "a fault of the admin plane: KeyError"})
            assert (await it.get("/metrics")).status_code == 200
            assert await it.scene.codes(1) == ["0000"]
            assert it.said == [
                "admin: a fault in GET /targets: KeyError: 'x'; relaying goes on, and further ones are not said"
            ]

    run(story())


def test_the_hub_relays_while_a_scrape_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plane's thread stands still in the middle of an answer: transactions go through all the same."""

    async def story() -> None:
        asked, goes_on = threading.Event(), threading.Event()

        def hang() -> dict[str, Any]:
            asked.set()
            assert goes_on.wait(20)
            return {}

        async with watched() as it:
            monkeypatch.setattr(it.scene.hub.targets["CLAIM"], "status", hang)
            scrape = asyncio.create_task(it.get("/targets/CLAIM"))
            assert await asyncio.to_thread(asked.wait, 10)
            assert await it.scene.codes(100) == ["0000"] * 100
            assert await it.scene.codes(1, "CLAIM") == ["0000"]
            goes_on.set()
            assert (await scrape).status_code == 200

    run(story())


def test_connections_are_few_and_do_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many that say nothing a few stay open and the others are closed at once; the few, when their time is over."""
    monkeypatch.setattr(admin, "CONNECTION_LIMIT", 3.0)

    async def story() -> None:
        async with watched() as it:
            host, _, port = it.base.removeprefix("http://").partition(":")
            with contextlib.ExitStack() as stack:
                silent = [
                    stack.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(CONNECTIONS * 2)
                ]
                eventually(lambda: ended(silent) >= CONNECTIONS)
                assert ended(silent) == CONNECTIONS
                eventually(lambda: ended(silent) == CONNECTIONS * 2, within=20)
            assert (await it.get("/healthz")).status_code == 200
            assert it.said == []

    run(story())


def ended(connections: list[socket.socket]) -> int:
    """How many of them have been closed by the other end."""
    return len(select.select(connections, [], [], 0)[0])


@pytest.mark.parametrize(
    "said", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nA" + b"a" * 99_999]
)
def test_what_is_no_http_is_the_callers_fault(said: bytes) -> None:
    """Its connection ends, nobody on duty hears of it, the next one is served."""

    async def story() -> None:
        async with watched() as it:
            host, _, port = it.base.removeprefix("http://").partition(":")
            with socket.create_connection((host, int(port)), 10) as caller:
                caller.settimeout(10)
                with contextlib.suppress(ConnectionError):
                    caller.sendall(said)
                    while caller.recv(1000):
                        pass
            assert (await it.get("/healthz")).status_code == 200
            assert it.said == []

    run(story())
