"""The limit on request bodies, as ASGI middleware: counts what arrives and answers 413 past the limit."""

from __future__ import annotations

from fastapi import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.problems import MEDIA_TYPE, problem

_DRAIN_FACTOR = 4  # a client that has not stopped sending by then would miss the answer anyway


class BodyTooLargeError(HTTPException):
    """The body passed the limit while it was being read."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the request body is larger than {limit} bytes")


class BodyLimit:
    """Refuses bodies larger than ``max_body_bytes``, by their declared or their counted length."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app, self._limit = app, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a counting ``receive``, or answer 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limit:
            await self._refuse(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise BodyTooLargeError(self._limit)
            return message

        await self._app(scope, counted, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = 0
        while seen < self._limit * _DRAIN_FACTOR:
            message = await receive()
            seen += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body"):
                break
        document = problem(413, BodyTooLargeError(self._limit).detail, instance=scope["path"])
        response = JSONResponse(document, 413, {"connection": "close"}, media_type=MEDIA_TYPE)
        await response(scope, receive, send)
