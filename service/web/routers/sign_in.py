"""/sign-in and /sign-out: exchange an API key for a session, and end the session."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from autosbp.service.http.api_route import audit_call
from autosbp.service.http.root_path import ROOT_PATH_KEY
from autosbp.service.models import KeyRow
from autosbp.service.problem_details import ProblemError, problem
from autosbp.service.request_limits import RequestBody
from autosbp.service.request_state import AppState
from autosbp.service.web.forms import Form
from autosbp.service.web.page_route import HEADERS, check_origin, error_page
from autosbp.service.web.rendering import render
from autosbp.service.web.sessions import COOKIE, LIFETIME_S, Session, Sessions

routes = APIRouter(include_in_schema=False)
_MOST_BYTES = 4096
_LONGEST = 2000  # characters of the path to go to after signing in


@routes.get("/sign-in")
def form(request: Request, following: str = "/") -> Response:
    """Shows the form, or redirects to the home page if no keys are needed."""
    state: AppState = request.app.state.service
    if not state.gate.needs_keys():
        return _to("/")
    return _with_security_headers(
        render(request, "sign_in.html", problem=None, following=safe_redirect_path(following))
    )


@routes.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Starts a session for a valid key; the key is not stored."""
    state: AppState = request.app.state.service
    sessions: Sessions = request.app.state.sessions
    address = request.client.host if request.client else ""
    try:
        check_origin(request)
        RequestBody.of(request.scope).allow(_MOST_BYTES)
        given = Form.parse(await request.body())
        key = await run_in_threadpool(state.gate.sign_in, given.text("key") or "", address)
        session = await run_in_threadpool(sessions.begin, key)
    except Exception as error:  # every error needs a page
        refused = error.status if isinstance(error, ProblemError) else 0
        if refused in (401, 403) and state.gate.should_audit(address, refused):
            await audit_call(request, state, refused)
        if refused == 401:
            following = safe_redirect_path(given.text("following") or "/")
            shown = problem(401, str(error), title="Invalid API key")
            return _with_security_headers(
                render(request, "sign_in.html", 401, problem=shown, following=following, wrong=True)
            )
        return _with_security_headers(error_page(request, error))
    await audit_call(request, state, 303, key.tenant, key.id)
    response = _to(safe_redirect_path(given.text("following") or "/"))
    response.set_cookie(
        COOKIE,
        str(session),
        max_age=LIFETIME_S,
        path=_cookie_path(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


@routes.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Ends this browser's session, also for others who have copied its cookie."""
    state: AppState = request.app.state.service
    sessions: Sessions = request.app.state.sessions
    try:
        check_origin(request)
        if (session := Session.parse(request.cookies.get(COOKIE, ""))) is not None:
            key = await run_in_threadpool(_end, state, sessions, session)
            if key is not None:
                await audit_call(request, state, 303, key.tenant, key.id)
    except Exception as error:  # every error needs a page
        return _with_security_headers(error_page(request, error))
    response = _to("/sign-in")
    response.delete_cookie(
        COOKIE, _cookie_path(request), httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )
    return response


def _end(state: AppState, sessions: Sessions, session: Session) -> KeyRow | None:
    """End a valid session and return its key; None otherwise."""
    key = state.gate.named(session.prefix)
    if key is None or not sessions.is_valid(session, key):
        return None
    sessions.end(session, key)
    return key


def safe_redirect_path(following: str) -> str:
    """Return ``following`` if it is a path on this service, else "/"; prevents open redirects."""
    is_path = following.startswith("/") and not following.startswith(("//", "/\\")) and following.isprintable()
    if not is_path or len(following) > _LONGEST:
        return "/"
    try:
        parts = urlsplit(following)
    except ValueError:
        return "/"
    return following if not parts.netloc and not parts.scheme else "/"


def _cookie_path(request: Request) -> str:
    """Path of the cookie, so that sites above the prefix do not get it."""
    return f"{request.scope.get(ROOT_PATH_KEY, '')}/"


def _to(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303, headers=HEADERS)


def _with_security_headers(response: Response) -> Response:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response
