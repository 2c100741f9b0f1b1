"""The limit on request bodies, as ASGI middleware: counts what arrives and answers 413 past the limit."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import HTTPException, Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_DRAIN_FACTOR = 4  # a client that has not stopped sending by then would miss the answer anyway


class BodyTooLargeError(HTTPException):
    """The body passes the limit; ``declared`` is its length where that is known."""

    def __init__(self, limit: int, declared: int | None = None) -> None:
        has = "" if declared is None else f": it has {declared}"
        super().__init__(413, f"the request body is larger than {limit} bytes{has}")


class BodyLimit:
    """Refuses bodies larger than ``max_body_bytes``, by their declared or their counted length; ``answer`` writes what is said
    to a declared one, which nothing else sees."""

    def __init__(self, app: ASGIApp, max_body_bytes: int, answer: Callable[[Request, HTTPException], Response]) -> None:
        self._app, self._limit, self._answer = app, max_body_bytes, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a counting ``receive``, or answer 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limit:
            await self._refuse(int(declared), scope, receive, send)
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

    async def _refuse(self, declared: int, scope: Scope, receive: Receive, send: Send) -> None:
        seen = 0
        while seen < self._limit * _DRAIN_FACTOR:
            message = await receive()
            seen += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body"):
                break
        response = self._answer(Request(scope), BodyTooLargeError(self._limit, declared))
        response.headers["connection"] = "close"
        await response(scope, receive, send)
