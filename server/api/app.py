"""The ASGI application: its routes, and a lifespan that starts and stops the engine.

commands/serve.py opens the listening socket and shuts the process down.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from voxlane.server import limits
from voxlane.server.api.addresses import instead_of, other_methods
from voxlane.server.api.assets import read_assets
from voxlane.server.api.phone import PhoneDesk
from voxlane.server.api.routes import TABLE
from voxlane.server.api.service import Service
from voxlane.server.errors import InternalError, InvalidRequest, MethodNotAllowed, NotFound, WebSocketOnly
from voxlane.server.http.middleware import HttpMiddleware
from voxlane.server.http.proxies import TrustedProxies
from voxlane.server.http.reply import error_response
from voxlane.server.phone.incoming import AudioSocketListener
from voxlane.server.room.agent_check import AgentCheck

ANYWHERE = "/{path:path}"

LAG_INTERVAL_SECONDS = 0.25
"""How often the event loop's lag is measured: often enough to see a stall, at no measurable cost."""

FOLLOW_SECONDS = 1.0
"""How often budgets per minute follow those of other processes: in a second, a sixtieth is earned."""


def make_app(
    service: Service,
    open_connections: Callable[[], int] = lambda: 0,
    connections_of: Callable[[str], int] = lambda _: 0,
) -> Starlette:
    """Return the application; its lifespan starts and stops the engine.

    `open_connections` returns the number of open connections, `connections_of` that of an address's HTTP connections.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.sessions.moving.start()
        agent = AgentCheck(
            service.config.server,
            lambda: service.room.tell_balancer() if service.engine.ready else None,
            shared=service.seat.shared,
        )
        async with service.watch, service.engine, AudioSocketListener(service.phone), agent:
            if service.config.server.reuse_port:  # the process that has the port now goes on until we are ready
                await _ready_or_stopped(service)
            tasks = [
                asyncio.create_task(_measure_lag(service), name="loop lag"),
                asyncio.create_task(_watch_keys(service), name="keys"),
            ]
            if service.seat.shared:
                tasks.append(asyncio.create_task(_follow_budgets(service), name="budgets"))
            yield
            await service.calls.aclose()
            await service.sessions.aclose()
            await service.phone.aclose()
            await service.decoder.aclose()
            service.watch.leave()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def no_websocket(websocket: WebSocket) -> None:
        await websocket.send_denial_response(error_response(_nothing_at(websocket)))

    app = Starlette(
        routes=[*TABLE.routes(), WebSocketRoute(ANYWHERE, no_websocket)],
        middleware=[
            Middleware(TrustedProxies, proxies=service.config.server.trusted_proxies),
            Middleware(
                HttpMiddleware,
                config=service.config,
                metrics=service.metrics,
                tenants=service.tenants,
                accesses=TABLE.accesses(),
                open_connections=open_connections,
                connections_of=connections_of,
                counts=service.seat.counts,
            ),
        ],
        exception_handlers={HTTPException: _http_error},
        lifespan=lifespan,
    )
    app.state.service, app.state.table, app.state.assets = service, TABLE, read_assets()
    app.state.phone_desk = PhoneDesk(service.config, service.phone.admission, service.sessions.limits.check_socket)
    return app


async def _ready_or_stopped(service: Service) -> None:
    """Wait until the engine is ready or has failed, or the server is told to stop; `serve` does the rest."""
    waits = (service.engine.wait_ready(), service.sessions.stop_asked.wait())
    tasks = [asyncio.ensure_future(one) for one in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _http_error(request: Request, error: Exception) -> Response:
    """Return the router's errors in the shape of ours."""
    status, path = cast(HTTPException, error).status_code, request.scope["path"]
    if status == HTTPStatus.NOT_FOUND:
        if path in {one.path for one in TABLE.sockets}:
            return error_response(WebSocketOnly())  # a plain HTTP request to a WebSocket address
        return error_response(_nothing_at(request))
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        here = [one for one in request.app.routes if isinstance(one, Route) and one.path_regex.match(path)]
        allowed = {method for one in here for method in one.methods or ()}
        return error_response(MethodNotAllowed(other_methods(allowed)))
    return error_response((InvalidRequest if status < HTTPStatus.INTERNAL_SERVER_ERROR else InternalError)())


def _nothing_at(request: HTTPConnection) -> NotFound:
    """Return the error for an address without an endpoint; it names the right one."""
    routes = [one.path for one in request.app.routes if isinstance(one, Route | WebSocketRoute)]
    return NotFound(instead_of(request.scope["path"], [path for path in routes if "{" not in path]))


async def _watch_keys(service: Service) -> None:
    """Read keys.file again when it changes; the conversations of revoked keys end."""
    while True:
        await asyncio.sleep(limits.WATCH_SECONDS)
        if service.tenants.refresh():
            service.sessions.end_revoked()


async def _follow_budgets(service: Service) -> None:
    """Look every second at what tenants have spent at the other server processes."""
    while True:
        await asyncio.sleep(FOLLOW_SECONDS)
        service.tenants.follow()


async def _measure_lag(service: Service) -> None:
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        await asyncio.sleep(LAG_INTERVAL_SECONDS)
        took_s = loop.time() - began
        lag_s = max(0.0, took_s - LAG_INTERVAL_SECONDS)
        service.metrics.loop_lag.observe(lag_s)
        service.room.looped(lag_s, took_s)
