"""What the admin plane answers, and whom."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from eaimw.differences import Reloaded
from eaimw.hub import Hub

OPEN_TO_ALL = ("/healthz", "/readyz")

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(
    hub: Hub,
    registry: CollectorRegistry,
    token: str | None,
    complain: Callable[[str, BaseException], None],
    reload: Callable[[], Awaitable[Reloaded | None]],
) -> web.Application:
    """The paths that there are, where a token is asked for with all but those OPEN_TO_ALL.

    What fails is an answer in JSON too. complain: gets the place and the fault of what should not have failed.
    reload: reads the hub.toml again; None if there is none.
    """

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    async def healthz(request: web.Request) -> web.Response:
        return _json({"status": "alive"})

    async def readyz(request: web.Request) -> web.Response:
        return _json({"status": "going down"}, 503) if hub.is_going_down else _json({"status": "ready"})

    async def targets(request: web.Request) -> web.Response:
        return _json({name: target.status() for name, target in dict(hub.targets).items()})

    async def target(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        found = hub.targets.get(name)
        if found is None:
            return _json({"error": f"there is no target {name}; there are: {', '.join(dict(hub.targets))}"}, 404)
        return _json(found.status())

    async def reloaded(request: web.Request) -> web.Response:
        result = await reload()
        if result is None:
            return _json({"error": "there is no hub.toml to read again: start with `eaimw serve` or --config"}, 409)
        if result.faults:
            return _json({"error": "nothing has changed", "faults": result.faults}, 422)
        return _json({"changed": result.changed, "needs_restart": result.needs_restart})

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            if request.path in OPEN_TO_ALL or _is_allowed(request, token):
                response = await handler(request)
            else:
                response = _json({"error": "this needs `Authorization: Bearer` with the admin token"}, 401)
                response.headers["WWW-Authenticate"] = 'Bearer realm="eaimw"'
        except web.HTTPException as problem:  # no such path, or not with this method
            response = _json({"error": f"{request.method} {request.path}: {problem.reason}"}, problem.status)
            if "Allow" in problem.headers:
                response.headers["Allow"] = problem.headers["Allow"]
        except Exception as problem:
            complain(f"{request.method} {request.path}", problem)
            response = _json({"error": f"a fault of the admin plane: {type(problem).__name__}"}, 500)
        response.headers.update({"Cache-Control": "no-store", "Server": "eaimw"})
        response.force_close()  # one request per connection: none is kept, none can be kept open
        return response

    app = web.Application(middlewares=[guard])
    app.add_routes(
        [
            web.get("/metrics", metrics),
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/targets", targets),
            web.get("/targets/{name}", target),
            web.post("/reload", reloaded),
        ]
    )
    return app


def _is_allowed(request: web.Request, token: str | None) -> bool:
    """No token is asked for, or it is the right one; in a time that does not tell how much of it was right."""
    if token is None:
        return True
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        given.strip().encode(errors="surrogateescape"), token.encode()
    )


def _json(answer: object, status: int = 200) -> web.Response:
    """With a line end, so that a terminal's next line stands by itself."""
    return web.json_response(answer, status=status, dumps=lambda value: json.dumps(value) + "\n")
