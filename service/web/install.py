"""The pages on an application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from service.db import Database
from service.handlers import answer_to, methods_of
from service.settings import Settings
from service.web import assets
from service.web.route import HEADERS, failed
from service.web.routers import (
    clusters,
    comparison,
    files,
    home,
    insights,
    jobs,
    models,
    planning,
    questions,
    sign_in,
    strategies,
    trials,
)
from service.web.sessions import Sessions

_ROUTES = (
    *(assets.routes, sign_in.routes, home.routes, planning.routes, strategies.routes, insights.routes),
    *(comparison.routes, questions.routes, models.routes, clusters.routes, clusters.measuring, trials.routes),
    *(jobs.routes, files.routes),
)
_SECRET = "session.secret"  # noqa: S105 - a file's name
_OF_PROGRAMS = ("/v1", "/healthz", "/readyz", "/metrics", "/openapi.json")

_Handler = Callable[[Request, Exception], Awaitable[Response]]


def install(app: FastAPI, settings: Settings, database: Database) -> None:
    """Add the pages' routes behind those of the interface, and a page about paths that nobody serves."""
    app.state.sessions = Sessions(settings.data_dir.resolve() / _SECRET, database)
    for routes in _ROUTES:
        app.routes.extend(routes.routes)
    usual: _Handler = app.exception_handlers[HTTPException]  # type: ignore[assignment]

    async def lost(request: Request, error: Exception) -> Response:
        if not _is_of_browser(request):
            return await usual(request, error)
        response = refusal(request, error)
        if response.status_code == 405:
            response.headers["allow"] = methods_of(request)
        return response

    app.add_exception_handler(HTTPException, lost)


def refusal(request: Request, error: Exception) -> Response:
    """What is said to a request that reached no route: a page to a browser, a problem document to a program."""
    if not _is_of_browser(request):
        return answer_to(error, request.url.path)
    response = failed(request, error)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _is_of_browser(request: Request) -> bool:
    asks_page = "text/html" in request.headers.get("accept", "")
    return asks_page and not request.url.path.startswith(_OF_PROGRAMS)
