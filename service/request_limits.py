"""Request limits as ASGI middleware: body bytes per route, bytes of all bodies in memory, requests per address.

Bytes are counted as they arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosbp.service.auth.caller import rate_limit_address
from autosbp.service.problem_details import ProblemError
from autosbp.service.strict_json import BadBodyError

SMALL_BODY_BYTES = 64 * 2**10
"""Body limit of routes that set none."""
_BODY = "autosbp.body"
_RETRY_S = 5


class BodyBudget:
    """Memory budget of large request bodies, in total and per tenant. Belongs to one event loop.

    Bodies up to ``SMALL_BODY_BYTES`` are not counted: the number of connections limits them, and they are accepted
    however many large ones there are.

    Args:
        total_bytes: limit of all bodies together.
        share_bytes: limit of one tenant.
    """

    def __init__(self, total_bytes: int, share_bytes: int) -> None:
        self._total_bytes, self._share_bytes = total_bytes, share_bytes
        self._used: Counter[str] = Counter()

    def take(self, tenant: str, num_bytes: int) -> None:
        """Reserve bytes for a tenant; raise ``ProblemError`` 503 if the budget does not allow it."""
        others, own = self._used.total() - self._used[tenant], self._used[tenant] + num_bytes
        if own > self._share_bytes or others + own > self._total_bytes:
            detail = "the memory for request bodies is in use; try again later"
            headers = {"retry-after": str(_RETRY_S)}
            raise ProblemError(503, "too-many-bytes", "No memory for the request body", detail, headers)
        self._used[tenant] = own

    def release(self, tenant: str, num_bytes: int) -> None:
        """Return a tenant's reserved bytes."""
        self._used[tenant] -= num_bytes
        if not self._used[tenant]:
            del self._used[tenant]


def body_budget(total_bytes: int, largest_bytes: int) -> BodyBudget:
    """Build a budget that admits at least the largest body; a tenant may use half of it, or one largest body."""
    total_bytes = max(total_bytes, largest_bytes)
    return BodyBudget(total_bytes, max(total_bytes // 2, largest_bytes))


class RequestBody:
    """Body of one request, limited as it arrives. It is read only when a route asks, after authentication."""

    def __init__(self, scope: Scope, receive: Receive, budget: BodyBudget) -> None:
        length = Headers(scope=scope).get("content-length", "")
        self._declared = int(length) if length.isdigit() else None
        self._receive, self._budget = receive, budget
        self._limit, self._tenant, self._received_bytes, self._reserved_bytes = SMALL_BODY_BYTES, "", 0, 0

    @staticmethod
    def of(scope: Scope) -> RequestBody:
        """Return the body of a request from its scope."""
        found: RequestBody = scope[_BODY]
        return found

    def allow(self, limit_bytes: int, tenant: str = "") -> None:
        """Set the route's limit and the tenant; raise ``BadBodyError`` if Content-Length exceeds the limit."""
        self._limit, self._tenant = limit_bytes, tenant
        if self._declared is not None:
            self._check(self._declared)

    async def receive(self) -> Message:
        """Receive the next part; raise ``BadBodyError`` if a limit is exceeded."""
        message = await self._receive()
        self._received_bytes += len(message.get("body", b""))
        if self._received_bytes:
            # reserve the whole body at once, so that of many concurrent bodies some complete
            needed = max(self._received_bytes, self._declared or 0)
            self._check(needed)
            self._reserve(needed)
        return message

    def release(self) -> None:
        """Return the reserved bytes when the request is done."""
        self._budget.release(self._tenant, self._reserved_bytes)
        self._reserved_bytes = 0

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._limit:
            has = "" if self._declared is None else f": it has {self._declared}"
            detail = f"the request body is larger than {self._limit} bytes{has}"
            limit = f"expected at most {self._limit} bytes"
            raise BadBodyError(
                ProblemError(
                    413, "too-large", "The body is too large", detail, field="body", value=self._declared, limit=limit
                )
            )

    def _reserve(self, num_bytes: int) -> None:
        if num_bytes > max(self._reserved_bytes, SMALL_BODY_BYTES):
            try:
                self._budget.take(self._tenant, num_bytes - self._reserved_bytes)
            except ProblemError as problem:
                raise BadBodyError(problem) from None
            self._reserved_bytes = num_bytes


class BodyLimits:
    """Middleware that gives each request its ``RequestBody``."""

    def __init__(self, app: ASGIApp, budget: BodyBudget) -> None:
        self._app, self._budget = app, budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = scope[_BODY] = RequestBody(scope, receive, self._budget)
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.release()


class AddressLimit:
    """Middleware: at most ``limit`` requests of one address are in progress; ``answer`` builds the refusal.

    Direct connections are limited when they are accepted. A trusted proxy's connections carry requests of many
    addresses, which are known only here.
    """

    def __init__(self, app: ASGIApp, limit: int, answer: Callable[[Request, Exception], Response]) -> None:
        self._app, self._limit, self._make_response = app, limit, answer
        self._in_progress: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or answer 429."""
        client = scope.get("client") if scope["type"] == "http" else None
        if client is None:
            await self._app(scope, receive, send)
            return
        address = rate_limit_address(client[0])
        if self._in_progress[address] >= self._limit:
            detail = f"{self._limit} requests of {client[0]} are in progress"
            headers = {"retry-after": str(_RETRY_S)}
            refusal = ProblemError(429, "too-many-requests", "Too many requests", detail, headers)
            await self._make_response(Request(scope), refusal)(scope, receive, send)
            return
        self._in_progress[address] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_progress[address] -= 1
            if not self._in_progress[address]:
                del self._in_progress[address]
