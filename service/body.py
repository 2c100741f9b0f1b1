"""Strict reading of request bodies: JSON that every reader would read the same way, or a 422."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from autosbp.errors import InputError
from autosbp.jsonio import loads


class BadBodyError(HTTPException):
    """Carries an ``InputError`` through the framework's body parsing."""

    def __init__(self, error: InputError) -> None:
        self.error = error
        super().__init__(422, str(error))


def parse(body: bytes) -> Any:
    """The document in ``body``; raises ``InputError`` for syntax errors, NaN, infinities, bad UTF-8 and bad text.

    Numbers that overflow to infinity, lone surrogates and NUL characters are refused: neither the canonical form nor
    every database can hold them.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InputError("body", str(error), "JSON in UTF-8 is expected") from None
    document = loads(text, "body")
    try:
        json.dumps(document, allow_nan=False)
    except (ValueError, RecursionError):
        raise InputError("body", _first_infinite(text), "JSON numbers must be finite and nesting shallow") from None
    if "\\u" in text:
        _check_text(json.dumps(document, ensure_ascii=False))
    return document


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError("body", ascii(error.object[error.start]), "strings must hold whole characters") from None
    if "\\u0000" in text.replace("\\\\", ""):  # an escaped backslash before "u0000" is no NUL
        raise InputError("body", "\\u0000", "strings must not hold NUL characters")


def _first_infinite(text: str) -> str:
    found: list[str] = []

    def note(number: str) -> float:
        if math.isinf(value := float(number)):
            found.append(number)
        return value

    try:
        json.loads(text, parse_float=note)
    except RecursionError:
        return "nesting"
    return found[0] if found else "nesting"


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return parse(await self.body())
        except InputError as error:
            raise BadBodyError(error) from None


class StrictRoute(APIRoute):
    """A route whose JSON body is read by ``parse``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the framework's handler around the strict request."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict
