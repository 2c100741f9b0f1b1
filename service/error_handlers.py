"""Exception handlers: every failed request is answered with a problem document (RFC 9457)."""

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
from autosbp.service.database_damage import is_damage
from autosbp.service.problem_details import MEDIA_TYPE, ProblemError, problem, problem_of
from autosbp.service.schemas._base import input_error
from autosbp.service.strict_json import BadBodyError

_log = logging.getLogger("autosbp.service.http")
_RETRY = {"retry-after": "10"}
_FULL = ("disk is full", "no space left", "disk full")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_METHOD_ALIASES = {"HEAD": "GET"}  # the outermost middleware answers HEAD from GET
_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


def install(app: FastAPI) -> None:
    """Register the handlers on ``app``; errors of unknown classes reach ``autosbp.service.http.middleware``."""
    for kind in (RequestValidationError, HTTPException, AutosbpError, ProblemError, SQLAlchemyError, OSError):
        app.add_exception_handler(kind, _handle)


async def _handle(request: Request, error: Exception) -> JSONResponse:
    response = error_response(error, request.url.path)
    if response.status_code == 405:
        response.headers["allow"] = methods_of(request)
    if isinstance(error, (SQLAlchemyError, OSError)):
        unforeseen = error if response.status_code == 500 else None
        _log.error("%s %s: %s", request.method, request.url.path, error, exc_info=unforeseen)
    return response


def methods_of(request: Request) -> str:
    """Methods that the request's path accepts, for the Allow header.

    Each method has a route of its own, so the framework would name only one of them.
    """
    routes, scope = request.app.routes, request.scope
    taken = [
        method
        for method in _METHODS
        if any(
            route.matches({**scope, "method": _METHOD_ALIASES.get(method, method)})[0] == Match.FULL for route in routes
        )
    ]
    return ", ".join(taken)


def error_response(error: Exception, path: str) -> JSONResponse:
    """Build the response to a request that failed with ``error``; unexpected errors become an opaque 500."""
    document, headers = _problem_and_headers(error, path)
    return JSONResponse(document, document["status"], headers, media_type=MEDIA_TYPE)


def _problem_and_headers(error: Exception, path: str) -> tuple[dict[str, Any], dict[str, str]]:
    if isinstance(error, RequestValidationError):
        return problem_of(input_error(error.errors()[0]), path), {}
    if isinstance(error, BadBodyError):
        return _problem_and_headers(error.error, path)
    if isinstance(error, HTTPException):
        return problem(error.status_code, str(error.detail), instance=path), dict(error.headers or {})
    refusal = error if isinstance(error, ProblemError) else storage_problem(error)
    if refusal is None:
        return problem_of(error, path), {}
    retry = _RETRY if refusal.status in (429, 503, 507) else {}
    return problem_of(refusal, path), {**retry, **refusal.headers}


def storage_problem(error: BaseException) -> ProblemError | None:
    """Return the 503 or 507 problem if the error says that the database or disk is unavailable, else None."""
    if any(_is_full(each) for each in _error_chain(error)):
        return ProblemError(507, "storage-full", "Storage is full", "no space left on the service's storage")
    if is_damage(error):
        detail = "the database is corrupt; an operator must restore a backup"
        return ProblemError(503, "storage-damaged", "Storage is corrupt", detail)
    away = isinstance(error, (OperationalError, InterfaceError, PoolTimeoutError))
    if away or "read-only transaction" in str(error) or (isinstance(error, OSError) and error.errno == errno.EROFS):
        detail = "storage is locked, read-only or unreachable; try again later"
        return ProblemError(503, "storage-unavailable", "Storage is unavailable", detail)
    return None


def _error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes: a full disk may show only in the cause, behind an error of the rollback."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_full(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _DISK_FULL_ERRNOS
    return isinstance(error, DBAPIError) and any(words in str(error.orig).lower() for words in _FULL)
