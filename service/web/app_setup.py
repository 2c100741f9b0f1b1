"""Adds the web pages to an application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from autosbp.service.db import Database
from autosbp.service.error_handlers import error_response, methods_of
from autosbp.service.settings import Settings
from autosbp.service.web import assets
from autosbp.service.web.page_route import HEADERS, error_page
from autosbp.service.web.routers import (
    clusters,
    comparison,
    docs,
    files,
    home,
    jobs,
    models,
    planning,
    questions,
    sign_in,
    strategies,
    strategy_parts,
    trials,
)
from autosbp.service.web.sessions import Sessions

_ROUTES = (
    *(assets.routes, sign_in.routes, home.routes, planning.routes, strategies.routes, strategy_parts.routes),
    *(comparison.routes, questions.routes, models.routes, clusters.routes, clusters.measuring, trials.routes),
    *(jobs.routes, files.routes, docs.routes),
)
_SECRET = "session.secret"  # noqa: S105 - a file's name
_API_PREFIXES = ("/v1", "/healthz", "/readyz", "/metrics", "/openapi.json")

_Handler = Callable[[Request, Exception], Awaitable[Response]]


def install(app: FastAPI, settings: Settings, database: Database) -> None:
    """Add the pages' routes after those of the API, and an error page for unknown paths."""
    app.state.sessions = Sessions(settings.data_dir.resolve() / _SECRET, database)
    for routes in _ROUTES:
        app.routes.extend(routes.routes)
    usual: _Handler = app.exception_handlers[HTTPException]  # type: ignore[assignment]

    async def lost(request: Request, error: Exception) -> Response:
        if not _wants_page(request):
            return await usual(request, error)
        response = refusal(request, error)
        if response.status_code == 405:
            response.headers["allow"] = methods_of(request)
        return response

    app.add_exception_handler(HTTPException, lost)


def refusal(request: Request, error: Exception) -> Response:
    """Answer a request that reached no route: a page for a browser, a problem document for a program."""
    if not _wants_page(request):
        return error_response(error, request.url.path)
    response = error_page(request, error)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _wants_page(request: Request) -> bool:
    asks_page = "text/html" in request.headers.get("accept", "")
    return asks_page and not request.url.path.startswith(_API_PREFIXES)
