"""The class of the pages' routes.

Callers are identified by their session, forms must come from our own pages, and errors are answered with a page.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from starlette.requests import Request as PlainRequest

from autosbp.service.auth.caller import Caller
from autosbp.service.error_handlers import error_response
from autosbp.service.http.api_route import GuardedRoute, check_coding
from autosbp.service.models import KeyRow
from autosbp.service.problem_details import ProblemError
from autosbp.service.request_state import AppState
from autosbp.service.web.forms import WITH_FILES
from autosbp.service.web.rendering import problem_page
from autosbp.service.web.sessions import COOKIE, Session, Sessions

_log = logging.getLogger("autosbp.service.web")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    # With "no-referrer" browsers would not send the origin of a form.
    "referrer-policy": "same-origin",
    "vary": "cookie, hx-request",
}
"""Headers of every page, which replace those of the API."""
_FORMS = ("application/x-www-form-urlencoded", WITH_FILES)


class PageRoute(GuardedRoute):
    """A route of a page; ``needed`` as in ``GuardedRoute``. Unknown query parameters are accepted, as links may have them."""

    strict = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the authenticated handler: every exception becomes a page."""
        handler = super().get_route_handler()

        async def page(request: Request) -> Response:
            try:
                response = await handler(request)
            except Exception as error:  # every error needs a page
                response = error_page(request, error)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return page

    def asks_database(self, request: PlainRequest, state: AppState) -> bool:
        """Whether ``admit`` would read the database: a session may have to be looked up."""
        return COOKIE in request.cookies or state.gate.needs_database(request.headers)

    def admit(self, request: PlainRequest, state: AppState, address: str) -> Caller:
        """Return the signed-in caller; on a service without keys, anybody on this machine."""
        session = Session.parse(request.cookies.get(COOKIE, ""))
        sessions: Sessions = request.app.state.sessions

        def proves(key: KeyRow) -> bool:
            return session is not None and sessions.is_valid(session, key)

        return state.gate.authenticate_page(request.headers, address, session.prefix if session else None, proves)

    def check_post(self, request: PlainRequest) -> None:
        """Raise 403 for a form of another site's page, 415 for a body that is not a form."""
        check_origin(request)
        check_coding(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _FORMS:
            raise ProblemError(
                415,
                "media-type",
                "The body is not a form",
                f"expected one of {', '.join(_FORMS)}, not {kind or 'nothing'}",
            )


def check_origin(request: PlainRequest) -> None:
    """Raise 403 unless the browser says that a page of this service made the request.

    This does not depend on a session cookie: other sites' pages must not control a service without keys either.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "")
    same = site == "same-origin" if site is not None else _netloc(origin) == request.headers.get("host")
    if not same:
        detail = "forms are accepted only from the pages of this service; programs must use the API under /v1"
        raise ProblemError(403, "foreign-form", "Cross-site form rejected", detail)


def _netloc(origin: str) -> str | None:
    """Host and port of an origin; None if it is malformed."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def error_page(request: Request, error: Exception) -> Response:
    """Build the error page; an unexpected error is logged and its details are hidden."""
    answer = error_response(error, request.url.path)
    if answer.status_code >= 500:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem_page(request, bytes(answer.body), answer.status_code, answer.headers)


def page_router(*write: str) -> APIRouter:
    """Create a router of pages: GET needs the scope ``read``, POST one of ``write``."""
    route_class = type("Route", (PageRoute,), {"needed": {"GET": ("read",), "POST": write or ("read",)}})
    return APIRouter(route_class=route_class, include_in_schema=False)
