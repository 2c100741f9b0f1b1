"""Exception handlers: whatever goes wrong in a request, the answer is a problem document."""

from __future__ import annotations

import logging
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from autosbp.errors import AutosbpError
from service.body import BadBodyError
from service.problems import MEDIA_TYPE, ProblemError, problem, problem_of
from service.schemas._base import input_error

_log = logging.getLogger(__name__)


def install(app: FastAPI) -> None:
    """Register the handlers on ``app``."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(AutosbpError, _ours)
    app.add_exception_handler(ProblemError, _ours)
    app.add_exception_handler(Exception, _unexpected)


def answer(document: dict[str, Any], headers: dict[str, str] | None = None) -> JSONResponse:
    """A response that carries a problem document."""
    return JSONResponse(document, document["status"], headers, media_type=MEDIA_TYPE)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    first = cast(RequestValidationError, error).errors()[0]
    return answer(problem_of(input_error(first), request.url.path))


async def _http(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, BadBodyError):
        return answer(problem_of(error.error, request.url.path))
    refusal = cast(HTTPException, error)
    document = problem(refusal.status_code, str(refusal.detail), instance=request.url.path)
    return answer(document, dict(refusal.headers or {}))


async def _ours(request: Request, error: Exception) -> JSONResponse:
    document = problem_of(error, request.url.path)
    headers = {"retry-after": "10"} if document["status"] in (429, 503) else None
    return answer(document, headers)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer(problem_of(error, request.url.path))
