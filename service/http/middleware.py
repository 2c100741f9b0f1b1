"""The outermost ASGI middleware: request ids, security headers, access log, metrics, and the last error handler.

It wraps all other middleware, so that their refusals and internal errors get all of these too.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from contextvars import ContextVar

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autosbp.service.error_handlers import error_response
from autosbp.service.http.metrics import Metrics

_log = logging.getLogger("autosbp.service.http")
_access = logging.getLogger("autosbp.service.access")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

request_id: ContextVar[str] = ContextVar("request_id", default="-")
"""Id of the request that is being served; log lines include it."""

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every response, unless the route sets its own value."""
_CACHING = {"cache-control": "private, no-cache", "vary": "authorization"}
_HEADERS = [(name.encode(), value.encode()) for name, value in {**SECURITY_HEADERS, **_CACHING}.items()]


class OuterMiddleware:
    """The outermost middleware of the application."""

    def __init__(self, app: ASGIApp, metrics: Metrics, access_log: bool) -> None:
        self._app, self._metrics, self._access_log = app, metrics, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s = time.perf_counter()
        asked = Headers(scope=scope).get("x-request-id", "")
        own = asked if _REQUEST_ID.fullmatch(asked) else f"req-{secrets.token_hex(8)}"
        token = request_id.set(own)
        scope["request_id"] = own
        status, taken_s = 0, 0.0
        asked_head, ended = scope["method"] == "HEAD", False
        inner = {**scope, "method": "GET"} if asked_head else scope  # a copy: the server keeps using the original

        async def sending(message: Message) -> None:
            nonlocal status, taken_s, ended
            if message["type"] == "http.response.start":
                status, taken_s = message["status"], time.perf_counter() - begun_s
                given = {name for name, _ in message["headers"]}
                more = [pair for pair in _HEADERS if pair[0] not in given]
                message["headers"] = [*message["headers"], *more, (b"x-request-id", own.encode())]
            elif asked_head:  # answer HEAD like GET without a body, also for streams, which would never end
                if ended:
                    return
                message, ended = {"type": "http.response.body", "body": b"", "more_body": False}, True
            await send(message)

        try:
            await self._app(inner, receive, sending)
        except Exception as error:
            _log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
            if status:
                raise  # headers are sent already: the server closes the connection
            await error_response(error, scope["path"])(scope, receive, sending)
        finally:
            self._note({**inner, "method": scope["method"]}, status or 499, taken_s or time.perf_counter() - begun_s)
            request_id.reset(token)

    def _note(self, scope: Scope, status: int, taken_s: float) -> None:
        """Count and log a request; 499 means that the client left before the answer."""
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.observe(method, route_template(scope), status, taken_s)
        if self._access_log:
            _access.info("%s %s %d %.1f ms", scope["method"], scope["path"], status, 1e3 * taken_s)


def route_template(scope: Scope) -> str:
    """Path template of the route that served a request; ``none`` if no route matched."""
    route = scope.get("route")
    return getattr(route, "path_format", None) or "none"


class RequestIds(logging.Filter):
    """Log filter that adds the current request's ``request_id`` to records."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the id and pass every record."""
        record.request_id = request_id.get()
        return True
