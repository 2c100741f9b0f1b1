"""Whatever goes wrong in a request, the answer is a problem document."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from autosbp.errors import AutosbpError
from service.body import BadBodyError
from service.problems import MEDIA_TYPE, ProblemError, problem, problem_of
from service.schemas._base import input_error

_log = logging.getLogger("service.edge")
_RETRY = {"retry-after": "10"}
_FULL = ("disk is full", "no space left", "disk full")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_SAME = {"HEAD": "GET"}  # the outermost layer makes one of the other
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def install(app: FastAPI) -> None:
    """Register the handlers on ``app``; errors of no known class reach ``service.edge.middleware``."""
    for kind in (RequestValidationError, HTTPException, AutosbpError, ProblemError, SQLAlchemyError, OSError):
        app.add_exception_handler(kind, _handle)


async def _handle(request: Request, error: Exception) -> JSONResponse:
    response = answer_to(error, request.url.path)
    if response.status_code == 405:
        response.headers["allow"] = methods_of(request)
    if isinstance(error, (SQLAlchemyError, OSError)):
        unforeseen = error if response.status_code == 500 else None
        _log.error("%s %s: %s", request.method, request.url.path, error, exc_info=unforeseen)
    return response


def methods_of(request: Request) -> str:
    """The methods that the request's path takes: each has a route of its own, so that the framework names one of them."""
    routes, scope = request.app.routes, request.scope
    taken = [
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": _SAME.get(method, method)})[0] == Match.FULL for route in routes)
    ]
    return ", ".join(taken)


def answer_to(error: Exception, path: str) -> JSONResponse:
    """The response to a request that failed with ``error``; anything unexpected is an opaque 500."""
    document, headers = _described(error, path)
    return JSONResponse(document, document["status"], headers, media_type=MEDIA_TYPE)


def _described(error: Exception, path: str) -> tuple[dict[str, Any], dict[str, str]]:
    if isinstance(error, RequestValidationError):
        return problem_of(input_error(error.errors()[0]), path), {}
    if isinstance(error, BadBodyError):
        return problem_of(error.error, path), {}
    if isinstance(error, HTTPException):
        return problem(error.status_code, str(error.detail), instance=path), dict(error.headers or {})
    refusal = error if isinstance(error, ProblemError) else storage_problem(error)
    if refusal is None:
        return problem_of(error, path), {}
    retry = _RETRY if refusal.status in (429, 503, 507) else {}
    return problem_of(refusal, path), {**retry, **refusal.headers}


def storage_problem(error: BaseException) -> ProblemError | None:
    """503 or 507 where an error says that the database or the disk cannot serve now, which is nobody's mistake."""
    if any(_is_full(each) for each in _behind(error)):
        return ProblemError(507, "storage-full", "The storage is full", "there is no room to store anything")
    away = isinstance(error, (OperationalError, InterfaceError, PoolTimeoutError))
    if away or "read-only transaction" in str(error) or (isinstance(error, OSError) and error.errno == errno.EROFS):
        detail = "the storage is locked, read-only or not reachable; try again later"
        return ProblemError(503, "storage-unavailable", "The storage cannot be used now", detail)
    return None


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it came from: undoing what a full disk had undone already is one of its own."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_full(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    return isinstance(error, DBAPIError) and any(words in str(error.orig).lower() for words in _FULL)
