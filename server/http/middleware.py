"""ASGI middleware around every HTTP request: its id, the key, errors as answers, one log line, one count."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxlane.server.cell.counts import CellCounts
from voxlane.server.config import Config
from voxlane.server.errors import Forbidden, InternalError, TooManyConnections, VoxlaneError
from voxlane.server.http.access import Access, AccessTable
from voxlane.server.http.auth import host_allowed, is_loopback, origin_allowed, refused_origin
from voxlane.server.http.body import ClientGone
from voxlane.server.http.heads import body_pending
from voxlane.server.http.proxies import FORWARDED
from voxlane.server.http.reply import error_response
from voxlane.server.log import line
from voxlane.server.tenants.accounts import Account, Tenants
from voxlane.server.watching.metrics import Metrics

logger = logging.getLogger(__name__)

CLIENT_GONE = 499
"""What the log and the metrics show for a client that left; it is sent to no client."""

CLOSE = (b"connection", b"close")
"""The header of an answer after which the connection is closed."""

_ACCOUNT = "voxlane.account"


class HttpMiddleware:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        config: Config,
        metrics: Metrics,
        tenants: Tenants,
        accesses: Mapping[str, Access],
        open_connections: Callable[[], int],
        connections_of: Callable[[str], int] = lambda _: 0,
        counts: CellCounts | None = None,
    ) -> None:
        self._counts = counts or CellCounts()  # of all server processes
        self._app = app
        self._config = config
        self._metrics = metrics
        self._tenants = tenants
        self._accesses = AccessTable(accesses)
        self._forwarded: Counter[str] = Counter()  # open requests by forwarded address
        self._open_connections = open_connections
        self._connections_of = connections_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request through."""
        if scope["type"] == "http":
            with self._counted(scope):
                found = self._accesses.find(scope["path"])
                visit = _Visit(self._app, self._config, self._metrics, self._tenants, scope, *found, self._full(scope))
                await visit.run(receive, send)
        else:
            await self._app(scope, receive, send)

    @contextmanager
    def _counted(self, scope: Scope) -> Iterator[None]:
        """Count a request that a trusted proxy brings: its connections are the proxy's, and carry many clients."""
        if not scope.get(FORWARDED):
            yield
            return
        address = scope["client"][0]
        self._forwarded[address] += 1
        self._counts.add_keyed("requests of address", address, 1)
        try:
            yield
        finally:
            self._forwarded[address] -= 1
            self._counts.add_keyed("requests of address", address, -1)
            if not self._forwarded[address]:
                del self._forwarded[address]

    def _full(self, scope: Scope) -> str:
        """Return the limit of connections that is reached, "" if none is. Both counts include this connection."""
        # Counted here, because uvicorn's own limit answers with a bare text.
        limits = self._config.limits
        if self._open_connections() > limits.connections:
            return "limits.connections"
        client = scope.get("client")
        count = self._requests_of if scope.get(FORWARDED) else self._connections_of
        if client and count(client[0]) > limits.connections_per_address:
            return "limits.connections_per_address"
        return ""

    def _requests_of(self, address: str) -> int:
        """Return how many requests of a forwarded address are open, at all server processes."""
        return self._forwarded[address] + int(self._counts.keyed_elsewhere("requests of address", address))


class _Visit:
    """One request from arrival to its log line."""

    def __init__(
        self,
        app: ASGIApp,
        config: Config,
        metrics: Metrics,
        tenants: Tenants,
        scope: Scope,
        route: str,
        access: Access,
        full: str,
    ) -> None:
        self._app = app
        self._config = config
        self._metrics = metrics
        self._tenants = tenants
        self._scope = scope
        self._route = route
        self._access = access
        self._full = full
        self._request_id = f"req_{secrets.token_hex(12)}"
        self._status = 0
        self._code: str | None = None

    async def run(self, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._metrics.open_requests.inc()

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
                message = {**message, "headers": [*message["headers"], *self._headers(message["headers"])]}
            await send(message)

        try:
            await self._answer(receive, stamped)
        finally:
            self._metrics.open_requests.dec()
            self._record(loop.time() - began)

    async def _answer(self, receive: Receive, send: Send) -> None:
        try:
            if self._full and not self._access.when_full:
                raise TooManyConnections(detail=self._full)
            if not self._access.any_host:
                check_page(self._scope, self._config, with_key=self._tenants.key_needed)
            if self._access.key == "middleware":
                charge(self._scope, self._metrics, check_key(self._scope, self._tenants))
            await self._app(self._scope, receive, send)
        except ClientGone:
            self._status = CLIENT_GONE
            self._metrics.disconnects.inc()
        except VoxlaneError as error:
            await self._refuse(error, receive, send)
        except Exception as error:  # a bug: the client gets an answer and the traceback goes to our log
            logger.exception(line("bug", request=self._request_id, error=type(error).__name__))
            self._metrics.caught("http")
            await self._refuse(InternalError(), receive, send)

    async def _refuse(self, error: VoxlaneError, receive: Receive, send: Send) -> None:
        self._code = error.code
        if error.detail:
            logger.info(line("refused", request=self._request_id, code=error.code, detail=error.detail))
        if not self._status:
            await error_response(error)(self._scope, receive, send)

    def _headers(self, given: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        ours = [(b"x-request-id", self._request_id.encode()), (b"date", formatdate(usegmt=True).encode())]
        # The rest of its body is not waited for.
        return [*ours, CLOSE] if body_pending(self._scope) and CLOSE not in given else ours

    def _record(self, seconds: float) -> None:
        self._metrics.http_requests.labels(self._route, str(self._status)).inc()
        client = self._scope.get("client") or ("-",)
        level = logging.DEBUG if self._access.quiet else logging.INFO
        fields = {
            "request": self._request_id,
            "client": client[0],
            "method": self._scope["method"],
            "route": self._route,
        }
        account = self._scope.get(_ACCOUNT)
        tenant = None if account is None else account.name
        logger.log(level, line("http", **fields, status=self._status, code=self._code, tenant=tenant, seconds=seconds))


def charge(scope: Scope, metrics: Metrics, account: Account) -> None:
    """Count a request for its tenant, or raise QuotaReached."""
    scope[_ACCOUNT] = account
    metrics.tenant_requests.labels(account.name).inc()
    metrics.tenant_limited(account.name, account.count_request)


def account_of(scope: Scope) -> Account:
    """Return the tenant of a request that was let through."""
    account: Account = scope[_ACCOUNT]
    return account


def check_key(scope: Scope, tenants: Tenants) -> Account:
    """Return the tenant of a request; raise Unauthorized if a key is needed and the request does not carry it."""
    given = b"".join(value for name, value in scope["headers"] if name == b"authorization")
    scheme, _, key = given.partition(b" ")
    return tenants.admit(key.decode("latin-1") if scheme == b"Bearer" else None)


def check_page(scope: Scope, config: Config, *, with_key: bool) -> None:
    """Raise Forbidden for a request that another site's page sends in its visitor's name; it could not send a key."""
    if with_key:
        return
    headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"host", b"origin")}
    host, origin = headers.get(b"host", ""), headers.get(b"origin")
    if not origin_allowed(origin, host, config.voice.origins, with_key=False):
        raise refused_origin(origin)
    if is_loopback(config.server.host) and host and not host_allowed(host, config.voice.origins):
        raise Forbidden("Without a key this server goes by localhost, addresses and the hosts in voice.origins.")
