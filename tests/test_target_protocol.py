"""The simulated target as a plain Protocol: the real hub against every mode and every form, on both real loops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from hubs import ask, hub_of, run_alone, until
from peer import SOON

from eaimw.hub import Hub
from eaimw.sim.bank import Core
from eaimw.sim.capacity import Capacity, Station
from eaimw.sim.durations import Fixed
from eaimw.sim.forms import FORMS, PLAIN, Form, hub_must_say
from eaimw.sim.modes import MODES
from eaimw.sim.target import ANSWER, Known, Plan, Target
from eaimw.sim.target_protocol import Exchange, Service

pytestmark = pytest.mark.usefixtures("complaints")

DEPOSIT: dict[str, object] = {"op": "DEPOSIT", "account": "A-1", "amount": 10}


def core(**settings: object) -> Target:
    """A CORE in some mode."""
    target = Target(Core, Random(1))
    target.control(settings)
    return target


def limited(servers: int, queue: int | None = None) -> Station[Exchange]:
    return Station(Capacity(Fixed(0.01), servers, queue), Random(1))


@asynccontextmanager
async def served(target: Target, **options: Any) -> AsyncIterator[tuple[Service, str]]:
    """The target on a free port of the loop that runs, and its URL; at the end nothing of it is left."""
    service = Service(target, **options)
    server = await asyncio.get_running_loop().create_server(service.connection, "127.0.0.1", 0)
    try:
        yield service, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/tx"
    finally:
        server.close()
        service.abort()
        await until(lambda: not service.connections)
        await server.wait_closed()


class Forms:
    """For `choose`: the form that is in force."""

    def __init__(self) -> None:
        self.form = PLAIN

    def __call__(self) -> Form:
        return self.form


def tell(loop: str, target: Target, story: Callable[[Hub, Service], Awaitable[None]], **options: Any) -> None:
    """A story with a hub and the target that is its CORE. Afterwards nothing is in flight on either side."""

    async def telling() -> None:
        async with served(target, **options) as (service, url), hub_of(url) as hub:
            await story(hub, service)
            assert hub.targets["CORE"].bulkhead.inflight == 0
            await until(lambda: target.inflight == 0)
            if service.station is not None:
                station = service.station
                await until(lambda: (station.busy, station.waiting) == (0, 0))

    run_alone(loop, telling)


def patience(must_say: str) -> dict[str, object]:
    """For what must end by its timeout: a short one; else the hub's own, which no loaded machine needs."""
    return {"timeout_ms": 200} if must_say == "E901" else {}


def honest(reply: dict[str, Any], known: Known, must_say: str) -> None:
    """The hub says what it must, and no more than the target's books bear out."""
    assert reply["code"] == must_say, reply
    if must_say in ("E500", "E901", "E902"):
        assert reply["outcome"] == "unknown"  # never not_sent: the target has received it
    else:
        assert (reply["outcome"], reply["code"]) == ("done", known.code)
        assert reply["data"]["code"] == known.code
        assert known.answered == 1
    assert known.received == 1


# The forms.


@pytest.mark.parametrize("name", FORMS)
def test_the_hub_says_what_each_form_asks_of_it(loop: str, name: str) -> None:
    """A whole reply is taken and a lie is not, at once; then the next transaction is served as if nothing had been."""
    form, forms, target = FORMS[name], Forms(), core()

    async def story(hub: Hub, service: Service) -> None:
        forms.form = form
        must_say = "B298" if form.is_early else form.hub_says or "0000"
        reply = await ask(hub, **patience(must_say), **DEPOSIT)
        known = target.known("T-1")
        honest(reply, known, must_say)
        assert (known.answered, known.lied) == ((1, 0) if form.is_whole else (0, 1))
        assert known.executed == (not form.is_early)
        assert reply["elapsed_ms"] < SOON
        forms.form = PLAIN
        if form.rest == 0.0:
            await until(lambda: not service.connections)
        honest(await ask(hub, tx_id="T-2"), target.known("T-2"), "0000")
        by_code: Any = target.stats()["by_code"]
        assert sum(by_code.values()) == 1 + form.is_whole

    tell(loop, target, story, choose=forms)


# Whatever a target wants to say, by mode or otherwise, can go out in each form.
SAYING: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "normal": ({}, DEPOSIT),
    "a denial of the trade": ({}, {"op": "WITHDRAW", "account": "A-1", "amount": 5000}),
    "no operation of it": ({}, {"op": "NONE"}),
    "fail": ({"mode": "fail"}, DEPOSIT),
    "deny": ({"mode": "deny"}, DEPOSIT),
    "garbage": ({"mode": "garbage"}, DEPOSIT),
    "drip": ({"mode": "drip", "delay_ms": 0.001}, DEPOSIT),
}


@pytest.mark.parametrize("case", SAYING)
def test_whatever_is_said_in_whatever_form(loop: str, case: str) -> None:
    """`hub_must_say` foretells the hub's code for each answer in each form, and the books agree with it."""
    settings, tx = SAYING[case]
    forms, target = Forms(), core(**settings)
    probe = core(**settings)  # plans the same answer elsewhere, to foretell by

    async def story(hub: Hub, service: Service) -> None:
        for form in FORMS.values():
            if case == "drip" and form.name in ("largest", "too_long", "too_long_in_chunks"):
                continue  # a mebibyte, byte by byte
            forms.form = form
            call = probe.receive(json.dumps({"tx_id": form.name, **tx}).encode())
            plan = probe.deny_unread(form.name).plan if form.is_early else call.plan
            must_say = hub_must_say(plan, form)
            reply = await ask(hub, tx_id=form.name, **patience(must_say), **tx)
            honest(reply, target.known(form.name), must_say)
            if form.rest == 0.0:
                await until(lambda: not service.connections)

    tell(loop, target, story, choose=forms)


@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: form.name)
def test_every_form_gives_its_reason(form: Form) -> None:
    """One line each, a code only of those that the hub has for what is no reply, and no whole one is called a lie."""
    assert form.why
    assert "\n" not in form.why
    assert form.hub_says in (None, "E500", "E901", "E902")
    assert form.is_whole == (form.hub_says is None)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Plan(ANSWER, 200, b"", "0000"), "0000"),
        (Plan(ANSWER, 200, b"", "B201"), "B201"),
        (Plan(ANSWER, 400, b"", "E400"), "E400"),
        (Plan(ANSWER, 413, b"", "B298"), "B298"),
        (Plan(ANSWER, 500, b"", "E500"), "E500"),
        (Plan(ANSWER, 500, b"", "0000"), "E500"),
        (Plan(ANSWER, 429, b"", "0000"), "E500"),
        (Plan(ANSWER, 503), "E500"),
        (Plan(ANSWER, 503, b"", "E908"), "E908"),
        (Plan(ANSWER, 200), "E500"),
    ],
)
def test_what_the_hub_must_say_of_a_plain_answer(plan: Plan, says: str) -> None:
    """The code that was given, unless there was none or the status is a system error's."""
    assert hub_must_say(plan, PLAIN) == says
    assert hub_must_say(plan, FORMS["interim_alone"]) == "E902"


def test_an_answer_before_a_large_request_is_read(loop: str) -> None:
    """The denial comes while the hub still writes a mebibyte; it is taken, and another connection is used next."""
    forms, target = Forms(), core()

    async def story(hub: Hub, service: Service) -> None:
        forms.form = FORMS["early"]
        reply = await ask(hub, pad="x" * 1_048_000)
        honest(reply, target.known("T-1"), "B298")
        forms.form = PLAIN
        honest(await ask(hub, tx_id="T-2", pad="x" * 1_048_000), target.known("T-2"), "0000")

    tell(loop, target, story, choose=forms)


def test_a_connection_that_the_target_ends_when_idle(loop: str) -> None:
    """The hub makes another one and nothing is lost."""
    target = core()

    async def story(hub: Hub, service: Service) -> None:
        for number in range(2):
            honest(await ask(hub, tx_id=f"T-{number}"), target.known(f"T-{number}"), "0000")
            await until(lambda: not service.connections)
        transport: Any = hub.targets["CORE"].transport
        assert transport.connections == {"opened": 2, "reused": 0, "lost": 1}

    tell(loop, target, story, choose=lambda: FORMS["closed_when_idle"])


# The modes.

OF_MODE: dict[str, tuple[dict[str, object], str]] = {
    "normal": ({}, "0000"),
    "fail": ({}, "E500"),
    "slow": ({"delay_ms": 30}, "0000"),
    "deny": ({}, "B299"),
    "hang": ({}, "E901"),
    "drop": ({}, "E902"),
    "garbage": ({}, "E500"),
    "flaky": ({"rate": 0}, "0000"),
    "drip": ({"delay_ms": 1}, "0000"),
}


@pytest.mark.parametrize("station", [False, True], ids=["without limit", "one server"])
@pytest.mark.parametrize("mode", MODES)
def test_the_hub_says_what_each_mode_gives(loop: str, mode: str, station: bool) -> None:
    """Code, outcome and the target's books agree, once and again over whatever connection is left; also in turn."""
    settings, code = OF_MODE[mode]
    target = core(mode=mode, **settings)

    async def story(hub: Hub, service: Service) -> None:
        for number in range(2):
            reply = await ask(hub, tx_id=f"T-{number}", **patience(code), **DEPOSIT)
            known = target.known(f"T-{number}")
            honest(reply, known, code)
            assert known.executed == (mode not in ("fail", "deny", "hang"))
            assert known.answered == (mode not in ("hang", "drop"))
            assert reply["elapsed_ms"] >= {"slow": 29, "drip": 20}.get(mode, 0)
            await until(lambda: target.inflight == 0)

    options = {"station": limited(1)} if station else {}
    tell(loop, target, story, **options)


def test_flaky_mixes_its_answers(loop: str) -> None:
    """The hub's codes are the target's, one by one."""
    target = core(mode="flaky", seed=3)

    async def story(hub: Hub, service: Service) -> None:
        codes = []
        for number in range(30):
            reply = await ask(hub, tx_id=f"T-{number}")
            known = target.known(f"T-{number}")
            honest(reply, known, known.code or "-")
            codes.append(reply["code"])
        assert set(codes) == {"0000", "E500"}
        assert target.stats()["by_code"] == {code: codes.count(code) for code in codes}

    tell(loop, target, story)


# Capacity.


def test_servers_queue_and_refusals(loop: str) -> None:
    """One server, stuck; one waits; a third is E500 at once. When the first one's caller leaves, the next is served."""
    target = core(mode="hang")

    async def story(hub: Hub, service: Service) -> None:
        assert service.station is not None
        stuck = asyncio.create_task(ask(hub, tx_id="S", **DEPOSIT))
        await until(lambda: target.inflight == 1)
        waiting = asyncio.create_task(ask(hub, tx_id="W", **DEPOSIT))
        await until(lambda: target.inflight == 2)
        target.control({"mode": "normal"})
        honest(await ask(hub, tx_id="R", **DEPOSIT), target.known("R"), "E500")
        assert target.known("R") == Known(received=1, executed=0, answered=1, lied=0, code=None)
        assert (service.station.busy, service.station.waiting, target.inflight) == (1, 1, 2)
        stuck.cancel()
        honest(await waiting, target.known("W"), "0000")
        assert (target.stats()["by_code"], target.max_inflight) == ({"0000": 1, "-": 1}, 3)
        with pytest.raises(asyncio.CancelledError):
            await stuck

    tell(loop, target, story, station=limited(1, 1))


def test_the_death_of_the_target_ends_every_call(loop: str) -> None:
    """`abort`: E902 for those in flight; the next connection is served."""
    target = core(mode="hang")

    async def story(hub: Hub, service: Service) -> None:
        calls = [asyncio.create_task(ask(hub, tx_id=f"T-{n}")) for n in range(3)]
        await until(lambda: target.inflight == 3)
        service.abort()
        for number, reply in enumerate(await asyncio.gather(*calls)):
            honest(reply, target.known(f"T-{number}"), "E902")
        target.control({"mode": "normal"})
        honest(await ask(hub), Known(1, 1, 1, 0, "0000"), "0000")

    tell(loop, target, story)
