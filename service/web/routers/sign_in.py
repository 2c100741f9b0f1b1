"""/sign-in and /sign-out: an API key becomes a session."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from service.edge.prefix import ROOT
from service.edge.route import note
from service.models import KeyRow
from service.problems import ProblemError, problem
from service.state import State
from service.web.forms import Form
from service.web.rendering import render
from service.web.route import HEADERS, check_origin, failed
from service.web.sessions import COOKIE, LIFETIME_S, Session, Sessions

routes = APIRouter(include_in_schema=False)
_MOST_BYTES = 4096
_LONGEST = 2000  # of a path to go on to


@routes.get("/sign-in")
def form(request: Request, following: str = "/") -> Response:
    """The form; where no keys are needed there is nothing to sign in to."""
    state: State = request.app.state.service
    if not state.gate.needs_keys():
        return _to("/")
    return _headed(render(request, "sign_in.html", problem=None, following=local(following)))


@routes.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """A session for whoever shows a valid key, which is not kept."""
    state: State = request.app.state.service
    sessions: Sessions = request.app.state.sessions
    address = request.client.host if request.client else ""
    try:
        check_origin(request)
        body = await request.body()
        if len(body) > _MOST_BYTES:
            raise ProblemError(413, "too-large", "The form is too large", f"at most {_MOST_BYTES} bytes are expected")
        given = Form.parse(body)
        key = await run_in_threadpool(state.gate.sign_in, given.text("key") or "", address)
        session = await run_in_threadpool(sessions.begin, key)
    except Exception as error:  # the page must say something whatever happened
        refused = error.status if isinstance(error, ProblemError) else 0
        if refused in (401, 403) and state.gate.is_noted(address, refused):
            await note(request, state, refused)
        if refused == 401:
            following = local(given.text("following") or "/")
            shown = problem(401, str(error), title="This key opens nothing")
            return _headed(render(request, "sign_in.html", 401, problem=shown, following=following, wrong=True))
        return _headed(failed(request, error))
    await note(request, state, 303, key.tenant, key.id)
    response = _to(local(given.text("following") or "/"))
    response.set_cookie(
        COOKIE,
        str(session),
        max_age=LIFETIME_S,
        path=_below(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


@routes.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """End the session of this browser, also for whoever has copied its cookie."""
    state: State = request.app.state.service
    sessions: Sessions = request.app.state.sessions
    try:
        check_origin(request)
        if (session := Session.parse(request.cookies.get(COOKIE, ""))) is not None:
            key = await run_in_threadpool(_end, state, sessions, session)
            if key is not None:
                await note(request, state, 303, key.tenant, key.id)
    except Exception as error:  # the page must say something whatever happened
        return _headed(failed(request, error))
    response = _to("/sign-in")
    response.delete_cookie(
        COOKIE, _below(request), httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )
    return response


def _end(state: State, sessions: Sessions, session: Session) -> KeyRow | None:
    """The key of the session, if that was one."""
    key = state.gate.named(session.prefix)
    if key is None or not sessions.is_of(session, key):
        return None
    sessions.end(session, key)
    return key


def local(following: str) -> str:
    """Where to go on, if that is here; a link from elsewhere must not lead there by way of us."""
    is_path = following.startswith("/") and not following.startswith(("//", "/\\")) and following.isprintable()
    if not is_path or len(following) > _LONGEST:
        return "/"
    try:
        parts = urlsplit(following)
    except ValueError:
        return "/"
    return following if not parts.netloc and not parts.scheme else "/"


def _below(request: Request) -> str:
    """Where browsers send the cookie: a site above us has no use for it."""
    return f"{request.scope.get(ROOT, '')}/"


def _to(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303, headers=HEADERS)


def _headed(response: Response) -> Response:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response
