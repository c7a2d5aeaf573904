"""Each check of the proofs can fail: a hub that is broken on purpose is caught by the check that is meant for it."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from broken import Break, Breaks, check_that_it_is_said, every

from eaimw import layers, replies, target, verdict, wire
from eaimw.adapters import http_reply, http_request, http_server, metrics
from eaimw.adapters.http_client import HttpTransport
from eaimw.adapters.http_request import RequestReader
from eaimw.circuit import Circuit
from eaimw.hub import Hub
from eaimw.kernel.breaker import CircuitBreaker, Permit, State
from eaimw.kernel.bulkhead import Bulkhead
from eaimw.model import Answer, Call, Reply
from eaimw.sim import bounds
from eaimw.sim.chance import stream
from eaimw.sim.link import Link
from eaimw.sim.prove import Failure, prove
from eaimw.sim.world import World
from eaimw.target import CodeCounts

SOUND = 30  # seeds of a hub that nobody has broken; those that are broken are caught within fewer
BREAKS = Breaks()
LIMITS: dict[str, dict[str, int]] = {}  # of some: those of the hub and of the checker that are lowered


def caught_by(*words: str, within: dict[str, int] | None = None) -> Callable[[Break], Break]:
    """What the checker must say when the hub is broken so: one of these.

    within: limits of the hub, and of the checker, which are lowered to what the small runs of a proof can reach.
    """

    def note(breaks: Break) -> Break:
        if within is not None:
            LIMITS[breaks.__name__] = within
        return BREAKS.caught_by(*words)(breaks)

    return note


@caught_by("places are taken at the hub, and there are")
def a_bulkhead_that_refuses_nobody(patch: pytest.MonkeyPatch) -> None:
    def acquire(self: Bulkhead) -> bool:
        self._taken += 1
        return True

    patch.setattr(Bulkhead, "acquire", acquire)


@caught_by("at rest, .* places are taken")
def a_bulkhead_that_leaks_a_place(patch: pytest.MonkeyPatch) -> None:
    release, now = Bulkhead.release, every(20)
    patch.setattr(Bulkhead, "release", lambda self: None if now() else release(self))


@caught_by("at rest, .* places are taken")
def a_place_that_a_cancelled_call_keeps(patch: pytest.MonkeyPatch) -> None:
    async def held(bulkhead: Bulkhead, answer: Coroutine[Any, Any, Reply], *others: Any) -> Reply:
        reply = await answer
        bulkhead.release()
        return reply

    patch.setattr(layers, "_held", held)


@caught_by("E905 with")
def a_bulkhead_that_is_full_too_soon(patch: pytest.MonkeyPatch) -> None:
    acquire, now = Bulkhead.acquire, every(20)
    patch.setattr(Bulkhead, "acquire", lambda self: not now() and acquire(self))


@caught_by("called while its circuit was OPEN")
def a_breaker_that_lets_calls_through_while_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CircuitBreaker, "wait", lambda self: 0.0)
    patch.setattr(CircuitBreaker, "acquire", lambda self: Permit(self, self._now))


@caught_by("E904, and its circuit is HALF_OPEN and lets a call through")
def a_permit_that_strands_its_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Permit, "ignore", lambda self: None)


@caught_by("its circuit is CLOSED; it must be OPEN")
def a_breaker_that_does_not_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Permit, "failure", Permit.success)


@caught_by("a second reply to the same call")
def a_reply_that_is_made_twice(patch: pytest.MonkeyPatch) -> None:
    finish, now = Hub._finish, every(50)

    def twice(self: Hub, reply: Reply, *others: Any) -> Reply:
        if now():
            finish(self, reply, *others)
        return finish(self, reply, *others)

    patch.setattr(Hub, "_finish", twice)


@caught_by("its caller has had 2 answers", "its caller has had the reply to")
def a_reply_that_is_written_twice(patch: pytest.MonkeyPatch) -> None:
    write, now = http_server._Connection._write, every(50)

    def twice(self: Any, *args: Any) -> None:
        if now():
            write(self, *args)
        write(self, *args)

    patch.setattr(http_server._Connection, "_write", twice)


@caught_by("transactions have had no answer", "its caller has had no reply")
def a_reply_that_is_not_written(patch: pytest.MonkeyPatch) -> None:
    write, now = http_server._Connection._write, every(50)
    patch.setattr(http_server._Connection, "_write", lambda self, *args: None if now() else write(self, *args))


@caught_by("its caller has had a reply that the hub has not made", "its caller has had the reply to")
def a_reply_that_goes_to_another(patch: pytest.MonkeyPatch) -> None:
    before: list[Reply] = []
    write = wire.write_reply

    def shifted(reply: Reply) -> bytes:
        before.append(reply)
        return write(before[max(0, len(before) - 2)])

    patch.setattr("eaimw.adapters.http_server.write_reply", shifted)


def failing_with(patch: pytest.MonkeyPatch, **said: Any) -> None:
    """The hub says so where a call has failed."""
    failed = replies.failed

    def lying(*args: Any) -> Reply:
        reply = failed(*args)
        for name, value in said.items():
            setattr(reply, name, value)
        return reply

    patch.setattr("eaimw.layers.failed", lying)


@caught_by("not_sent, and the target has received it", "E500 has the outcome not_sent")
def not_sent_where_it_was(patch: pytest.MonkeyPatch) -> None:
    failing_with(patch, outcome="not_sent", retryable=True)


@caught_by("0000, done; by how its . attempts ended: E")
def done_where_nobody_answered(patch: pytest.MonkeyPatch) -> None:
    failing_with(patch, code="0000", outcome="done", retryable=False)


@caught_by("says retryable: True")
def an_unknown_outcome_that_shall_be_tried_again(patch: pytest.MonkeyPatch) -> None:
    failing_with(patch, retryable=True)


@caught_by("by what the target has said .* it must be")
def a_transport_that_loses_the_reply(patch: pytest.MonkeyPatch) -> None:
    send = HttpTransport.send

    async def losing(self: HttpTransport, call: Call) -> Answer:
        return Answer((await send(self, call)).status, b"{}")

    patch.setattr(HttpTransport, "send", losing)


@caught_by("by how its . attempts ended: E500")
def a_status_that_nobody_looks_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verdict, "_is_judged_by_body", lambda status: True)


@caught_by("its budget is")
def a_deadline_that_comes_late(patch: pytest.MonkeyPatch) -> None:
    begin = layers.Deadline.__call__

    def late(self: layers.Deadline, call: Call) -> Any:
        self._timeout += 0.001
        return begin(self, call)

    patch.setattr(layers.Deadline, "__call__", late)


@caught_by("it was refused only after")
def a_refusal_that_waits(patch: pytest.MonkeyPatch) -> None:
    begin = Hub.begin

    def slow(self: Hub, tx: Any, started: float | None = None, caller: Any = None) -> Any:
        started = self._clock.monotonic() if started is None else started

        async def later() -> Reply:
            await asyncio.sleep(0.05)
            answer = begin(self, tx, started, caller)
            return answer if isinstance(answer, Reply) else await answer

        return later()

    patch.setattr(Hub, "begin", slow)


@caught_by("at rest, .* connections are open")
def a_connection_that_is_left_open_for_good(patch: pytest.MonkeyPatch) -> None:
    def abort(self: http_reply.Connection) -> None:
        self.is_closed = True

    patch.setattr(http_reply.Connection, "abort", abort)


@caught_by("calls are in flight at the target, and the hub may have")
def a_connection_that_ends_too_late(patch: pytest.MonkeyPatch) -> None:
    abort = http_reply.Connection.abort

    def late(self: http_reply.Connection) -> None:
        self.is_closed = True
        if self._transport is not None and not self._transport.is_closing():
            self.loop.call_later(1.0, abort, self)

    patch.setattr(http_reply.Connection, "abort", late)


@caught_by("connections, and may have")
def connections_that_are_never_used_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HttpTransport, "_take_idle", lambda self, now: None)


@caught_by("at rest, .* connections are busy")
def a_connection_that_stays_busy_after_its_call(patch: pytest.MonkeyPatch) -> None:
    put_back, now = HttpTransport._put_back, every(20)

    def kept(self: HttpTransport, connection: http_reply.Connection, *args: Any) -> None:
        if now():
            busy: dict[Any, Any] = self._busy
            busy[connection] = None
            connection.deadline = math.inf
        else:
            put_back(self, connection, *args)

    patch.setattr(HttpTransport, "_put_back", kept)


@caught_by("at rest, .* connections are being made")
def a_connection_that_is_made_for_ever(patch: pytest.MonkeyPatch) -> None:
    connect, now = HttpTransport._connect, every(20)

    class Limit:
        def reschedule(self, when: float) -> None:
            """Whoever has it has forgotten it."""

    async def connecting(self: HttpTransport, *args: Any) -> http_reply.Connection:
        if now():
            connecting: dict[Any, None] = self._connecting
            connecting[Limit()] = None
        return await connect(self, *args)

    patch.setattr(HttpTransport, "_connect", connecting)


@caught_by("at rest, .* connections of callers")
def a_caller_that_is_kept_when_it_has_gone(patch: pytest.MonkeyPatch) -> None:
    lost, now = http_server._Connection.connection_lost, every(20)

    def kept(self: Any, problem: Exception | None) -> None:
        lost(self, problem)
        if now():
            self._server.connections[self] = None

    patch.setattr(http_server._Connection, "connection_lost", kept)


@caught_by("at rest, .* tasks go on")
def a_task_that_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    call_ended, kept = HttpTransport._connected, []

    async def connected(self: HttpTransport, *args: Any) -> Any:
        kept.append(asyncio.get_running_loop().create_task(asyncio.sleep(1e6)))
        return await call_ended(self, *args)

    patch.setattr(HttpTransport, "_connected", connected)


@caught_by("the server counts .* bytes of arriving requests, and holds")
def room_that_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    feed = RequestReader.feed

    def feeding(self: RequestReader, data: bytes) -> None:
        self._arrivals.bytes += 1
        feed(self, data)

    patch.setattr(RequestReader, "feed", feeding)


@caught_by("bytes of requests have arrived, and the limit is", within={"MAX_ARRIVING": 100_000})
def a_server_that_takes_whatever_arrives(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(http_request, "MAX_ARRIVING", math.inf)


@caught_by("connections of callers are heard, and the limit is", within={"MAX_CONNECTIONS": 5})
def a_server_that_refuses_no_connection(patch: pytest.MonkeyPatch) -> None:
    def made(self: Any, transport: Any) -> None:
        self._transport = transport
        self._server.connections[self] = None

    patch.setattr(http_server._Connection, "connection_made", made)


@caught_by("heads are remembered, and the limit is", within={"KNOWN_HEADS": 5})
def heads_that_are_never_forgotten(patch: pytest.MonkeyPatch) -> None:
    learn = http_request.Arrivals.learn

    def learning(self: http_request.Arrivals, *args: Any) -> None:
        before = {**self._heads}
        learn(self, *args)
        self._heads = {**before, **self._heads}

    patch.setattr(http_request.Arrivals, "learn", learning)


@caught_by("requests wait on one connection, and the limit is", within={"MOST_WAITING": 1, "PIECE": 18})
def a_server_that_reads_on_while_it_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(http_server._Connection, "_pause", lambda self: None)
    patch.setattr(http_request, "MOST_WAITING", math.inf)


@caught_by("codes are counted, and the limit is", within={"MAX_CODES": 2})
def codes_that_are_all_counted_by_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CodeCounts, "add", lambda self, code: self.update([code]))


@caught_by("the log has")
def a_change_that_is_not_logged(patch: pytest.MonkeyPatch) -> None:
    changed = Circuit._changed

    def silent(self: Circuit, change: Any) -> None:
        if change.after is not State.HALF_OPEN:
            changed(self, change)

    patch.setattr(Circuit, "_changed", silent)


@caught_by("the figures count the changes")
def a_change_that_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    changed = Circuit._changed

    def counting(self: Circuit, change: Any) -> None:
        before = dict(self.changes)
        changed(self, change)
        self.changes = before

    patch.setattr(Circuit, "_changed", counting)


@caught_by("the metric eaimw_breaker_transitions is")
def a_metric_that_leaves_one_out(patch: pytest.MonkeyPatch) -> None:
    transitions = metrics._transitions
    patch.setattr(metrics, "_transitions", lambda targets: transitions(targets[1:]))


@caught_by("the counts of codes are")
def a_code_that_is_counted_twice(patch: pytest.MonkeyPatch) -> None:
    add = CodeCounts.add
    patch.setattr(CodeCounts, "add", lambda self, code: (add(self, code), add(self, code)))


@caught_by("E904 has retry_after_ms None")
def a_refusal_that_does_not_say_when(patch: pytest.MonkeyPatch) -> None:
    refused = replies.refused

    def silent(*args: Any, **options: Any) -> Reply:
        reply = refused(*args, **options)
        reply.retry_after_ms = None
        return reply

    patch.setattr("eaimw.layers.refused", silent)


@caught_by("retry_after_ms is .*; the wait is")
def a_refusal_that_calls_its_caller_back_too_soon(patch: pytest.MonkeyPatch) -> None:
    refused = replies.refused

    def hasty(*args: Any, **options: Any) -> Reply:
        reply = refused(*args, **options)
        reply.retry_after_ms = (reply.retry_after_ms or 0) // 2
        return reply

    patch.setattr("eaimw.layers.refused", hasty)


@caught_by("the counts of codes are")
def a_hub_that_is_broken_where_all_is_well(patch: pytest.MonkeyPatch) -> None:
    """In every second run: the one beside which a seed's own is held."""
    add, init, is_twin = CodeCounts.add, World.__init__, every(2)
    twice: list[bool] = [False]

    def make(self: World, *args: Any, **options: Any) -> None:
        twice[0] = is_twin()
        init(self, *args, **options)

    patch.setattr(World, "__init__", make)
    patch.setattr(CodeCounts, "add", lambda self, code: [add(self, code) for _ in range(1 + twice[0])])


@caught_by("changes .* replies of CLAIM")
def targets_that_share_their_chance(patch: pytest.MonkeyPatch) -> None:
    shared: dict[World, Any] = {}
    patch.setattr(World, "make_random", lambda self, name: shared.setdefault(self, stream(self.seed, "all")))


@caught_by("changes .* replies of CLAIM")
def links_that_share_their_chance(patch: pytest.MonkeyPatch) -> None:
    shared = stream(0, "all links")
    init = Link.__init__
    patch.setattr(Link, "__init__", lambda self, name, random, conditions: init(self, name, shared, conditions))


@caught_by("Forbidden: time.time()", "Forbidden: time.monotonic()")
def a_hub_that_looks_at_the_real_clock(patch: pytest.MonkeyPatch) -> None:
    begin, now = layers.Deadline.__call__, every(5)

    def looking(self: layers.Deadline, call: Call) -> Any:
        if now():
            time.monotonic()
        return begin(self, call)

    patch.setattr(layers.Deadline, "__call__", looking)


@caught_by("E500 without a call")
def a_hub_that_fails(patch: pytest.MonkeyPatch) -> None:
    begin, now = layers.Deadline.__call__, every(50)
    patch.setattr(layers.Deadline, "__call__", lambda self, call: 1 / 0 if now() else begin(self, call))


def lower(limits: dict[str, int], patch: pytest.MonkeyPatch) -> None:
    """Of the hub as of who checks it."""
    for name, limit in limits.items():
        patch.setattr(bounds, name, limit)
        if name == "MAX_CONNECTIONS":
            defaults: Any = http_server.HttpServer.__init__.__kwdefaults__
            patch.setitem(defaults, "max_connections", limit)
        else:
            patch.setattr(target if name == "MAX_CODES" else http_request, name, limit)


@pytest.mark.parametrize("name", LIMITS)
def test_a_hub_that_is_sound_keeps_its_limits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are as low as for the one that is broken; what else it then says is not asked."""
    lower(LIMITS[name], monkeypatch)
    for seed in range(SOUND):
        proved = prove(seed)
        assert not isinstance(proved, Failure) or not re.search(BREAKS[name][1], proved.why)


@pytest.mark.parametrize("name", BREAKS)
def test_a_hub_that_is_broken_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In words that name what was broken."""
    breaks, words = BREAKS[name]
    lower(LIMITS.get(name, {}), monkeypatch)
    breaks(monkeypatch)
    check_that_it_is_said(words)
