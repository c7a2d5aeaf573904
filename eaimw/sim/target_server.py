"""Serves a simulated target over HTTP: the target decides (`target.py`), this carries its plans out.

POST /tx             one transaction
POST /_ctl           the settings, as `curl -d '{"mode": "slow", "delay_ms": 500}'` sends them
GET  /_stats         the figures;  GET /_stats/tx/<tx_id>  those of one transaction
POST /_reset         figures, accounts and memory as at the start; the mode stays
"""

from __future__ import annotations

import asyncio
import errno
import json
import signal
from collections.abc import Sequence
from random import Random

import click
import uvloop
from aiohttp import web

from eaimw.sim.bank import TRADES
from eaimw.sim.target import CLOSE, HANG, LARGEST_BODY, Call, Refused, Target

__all__ = ["application", "main", "runner"]


def _json(answer: object, status: int = 200) -> web.Response:
    """With a line end, so that a terminal's next line stands by itself."""
    return web.json_response(answer, status=status, dumps=lambda value: json.dumps(value) + "\n")


class _Served:
    """The handlers, around one target."""

    def __init__(self, target: Target) -> None:
        self._target = target

    async def tx(self, request: web.Request) -> web.StreamResponse:
        call = self._target.receive(await request.read())
        try:
            return await self._carry_out(request, call)
        finally:
            # Also when the caller hangs up: the server cancels the handler as soon as the connection is lost.
            self._target.left(call)

    async def ctl(self, request: web.Request) -> web.Response:
        try:
            self._target.control(json.loads(await request.read()))
        except Refused as problem:
            return _json({"error": str(problem)}, status=400)
        except (ValueError, RecursionError) as problem:
            error = f'the settings must be a JSON object such as {{"mode": "fail"}}: {problem}'
            return _json({"error": error}, status=400)
        return _json(self._target.settings.shown())

    async def stats(self, request: web.Request) -> web.Response:
        return _json(self._target.stats())

    async def stats_of(self, request: web.Request) -> web.Response:
        return _json(self._target.stats_of(request.match_info["tx_id"]))

    async def reset(self, request: web.Request) -> web.Response:
        self._target.reset()
        return _json(self._target.stats())

    async def _carry_out(self, request: web.Request, call: Call) -> web.StreamResponse:
        plan = call.plan
        if plan.ending == CLOSE and request.transport is not None:
            request.transport.close()
        if plan.ending in (CLOSE, HANG):
            await asyncio.Event().wait()  # until the lost connection cancels this
        if plan.delay:
            await asyncio.sleep(plan.delay)
        if plan.drip:
            return await self._drip(request, call)
        self._target.answered(call)
        return web.Response(body=plan.body, status=plan.status, content_type=plan.content_type)

    async def _drip(self, request: web.Request, call: Call) -> web.StreamResponse:
        plan = call.plan
        response = web.StreamResponse(status=plan.status)
        response.content_type = plan.content_type
        response.content_length = len(plan.body)
        await response.prepare(request)
        for at in range(len(plan.body)):
            await asyncio.sleep(plan.drip)
            if at + 1 == len(plan.body):
                self._target.answered(call)
            await response.write(plan.body[at : at + 1])
        return response


def application(target: Target) -> web.Application:
    """The target's routes."""
    served = _Served(target)
    app = web.Application(client_max_size=LARGEST_BODY)
    app.router.add_post("/tx", served.tx)
    app.router.add_post("/_ctl", served.ctl)
    app.router.add_get("/_stats", served.stats)
    app.router.add_get("/_stats/tx/{tx_id}", served.stats_of)
    app.router.add_post("/_reset", served.reset)
    return app


def runner(target: Target) -> web.AppRunner:
    """Serves the target's routes as the programs do: who hangs up is no longer in flight, who hangs is let go."""
    return web.AppRunner(
        application(target),
        access_log=None,
        handler_cancellation=True,
        handle_signals=False,
        shutdown_timeout=0.1,  # those that hang would never end; 0 would be no limit
    )


def main(name: str, default_port: int, argv: Sequence[str] | None = None) -> None:
    """The program of the target `name` (CORE or CLAIM). Ends the process: 0 stopped, 1 cannot listen, 2 usage."""

    @click.command(
        help=f"The simulated target {name}: POST /tx, POST /_ctl, GET /_stats, POST /_reset.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    @click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
    @click.option(
        "--port", default=default_port, show_default=True, type=click.IntRange(0, 65535), help="0: any free one."
    )
    def command(host: str, port: int) -> None:
        if not host:  # the system would take it for every address of the machine
            raise click.BadParameter("it is empty", param_hint="--host")
        uvloop.run(_serve(name, host, port))

    command(argv)


async def _serve(name: str, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT; ClickException (one line, exit 1) if it cannot listen."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    served = runner(Target(TRADES[name], Random()))
    await served.setup()
    try:
        # The usual backlog of 128 would lose connections when a hub without limits calls from a thousand threads.
        site = web.TCPSite(served, host, port, backlog=1024)
        try:
            await site.start()
        except (OSError, UnicodeError) as problem:  # UnicodeError: a host that is no name
            advice = _advice(problem, host)
            raise click.ClickException(f"{name} cannot listen on {host} port {port}: {advice}") from None
        click.echo(f"{name} listening on http://{f'[{host}]' if ':' in host else host}:{served.addresses[0][1]}")
        await stopped.wait()
    finally:
        await served.cleanup()


def _advice(problem: OSError | UnicodeError, host: str) -> str:
    """What is wrong, and what to do."""
    number = problem.errno if isinstance(problem, OSError) else None
    if number == errno.EADDRINUSE:
        return "the port is taken; end the program that has it, or choose another with --port (0: any free one)"
    if number == errno.EACCES:
        return "the port needs rights that you do not have; choose one from 1024 with --port (0: any free one)"
    return f"{host} is no address of this machine; choose one with --host, for instance 127.0.0.1 ({problem})"
