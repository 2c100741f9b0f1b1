"""The class of the pages' routes: callers are known by their session, forms have to come from our own pages, and what goes
wrong is answered with a page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from starlette.requests import Request as PlainRequest

from service.access.caller import Caller
from service.edge.route import GuardedRoute, check_coding
from service.handlers import answer_to
from service.models import KeyRow
from service.problems import ProblemError
from service.state import State
from service.web.forms import WITH_FILES
from service.web.rendering import problem_page
from service.web.sessions import COOKIE, Session, Sessions

_log = logging.getLogger("service.web")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    # With "no-referrer" browsers would not say where a form comes from.
    "referrer-policy": "same-origin",
    "vary": "cookie, hx-request",
}
"""Of every page, in the place of those that the interface has."""
_FORMS = ("application/x-www-form-urlencoded", WITH_FILES)


class PageRoute(GuardedRoute):
    """``needed`` is as of ``GuardedRoute``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The guarded handler; whatever it raises becomes a page."""
        handler = super().get_route_handler()

        async def page(request: Request) -> Response:
            try:
                response = await handler(request)
            except Exception as error:  # the page must say something whatever happened
                response = failed(request, error)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return page

    def asks_database(self, request: PlainRequest, state: State) -> bool:
        """A session may always have to be looked up."""
        return COOKIE in request.cookies or state.gate.asks_database(request.headers)

    def admit(self, request: PlainRequest, state: State, address: str) -> Caller:
        """Whoever signed in; on a service without keys, anybody on this machine."""
        session = Session.parse(request.cookies.get(COOKIE, ""))
        sessions: Sessions = request.app.state.sessions

        def proves(key: KeyRow) -> bool:
            return session is not None and sessions.is_of(session, key)

        return state.gate.visit(request.headers, address, session.prefix if session else None, proves)

    def check_post(self, request: PlainRequest) -> None:
        """403 for a form that another site's page sends, 415 for a body that is no form."""
        check_origin(request)
        check_coding(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _FORMS:
            raise ProblemError(
                415,
                "media-type",
                "The body is no form",
                f"one of {', '.join(_FORMS)} is expected, not {kind or 'nothing'}",
            )


def check_origin(request: PlainRequest) -> None:
    """403 unless a browser says that the request was made by a page of this very service. No cookie is asked for here: a
    service without keys must not be steered by other sites' pages either."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "")
    same = site == "same-origin" if site is not None else _netloc(origin) == request.headers.get("host")
    if not same:
        detail = "forms are accepted from the pages of this service only; programs use the interface under /v1"
        raise ProblemError(403, "foreign-form", "The form is not from here", detail)


def _netloc(origin: str) -> str | None:
    """The host and port of an origin; None for what is none."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def failed(request: Request, error: Exception) -> Response:
    """The page about an error; one that nobody foresaw is logged and opaque."""
    answer = answer_to(error, request.url.path)
    if answer.status_code >= 500:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem_page(request, bytes(answer.body), answer.status_code, answer.headers)


def pages(*write: str) -> APIRouter:
    """The router of some pages: GET needs the scope ``read``, POST one of ``write``."""
    route_class = type("Route", (PageRoute,), {"needed": {"GET": ("read",), "POST": write or ("read",)}})
    return APIRouter(route_class=route_class, include_in_schema=False)
