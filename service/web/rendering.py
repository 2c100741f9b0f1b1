"""Templates to responses. Everything in them is escaped, and a name that a template lacks is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import autosbp
from service.access.caller import SCOPES
from service.edge.prefix import ROOT
from service.state import OWN, State
from service.web import text
from service.web.assets import address

_ROOT = Path(__file__).parent / "templates"
_ADDRESS = re.compile(r'\s(?:href|src|action|hx-get)="(?=/(?!/))')
"""Before an address of this service. Whatever a template is given has its quotes escaped, so that it cannot look like this."""
_KEPT = ("www-authenticate", "retry-after", "allow", "accept-encoding")
_HELP = {
    401: "This service asks for an API key. Whoever runs it can make one with “autosbp keys create”.",
    403: "Another key may be allowed to do this.",
    404: "It may have been deleted, or it may be another tenant’s.",
    413: "Go back: the form is as you left it.",
    429: "Wait a moment, then load the page again.",
    500: "The service’s log says what happened, under the request id below.",
    503: "Load the page again in a moment.",
    507: "Whoever runs the service has to make room first.",
}


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_ROOT),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"static": address, "release": autosbp.__version__}
    made.filters |= text.FILTERS
    return made


_TEMPLATES = _environment()


def is_fragment(request: Request) -> bool:
    """Whether htmx asks for a part of a page rather than somebody for the page."""
    return request.headers.get("hx-request") == "true"


def render(request: Request, template: str, status: int = 200, **shown: Any) -> HTMLResponse:
    """A page."""
    text = _TEMPLATES.get_template(template).render(**_about(request), **shown)
    if root := request.scope.get(ROOT):
        text = _ADDRESS.sub(rf"\g<0>{root}", text)
    return HTMLResponse(text, status)


def render_part(request: Request, template: str, heading: str, back: str, **shown: Any) -> HTMLResponse:
    """A part of a page where htmx asks for it; a page of its own, with the way ``back``, for everybody else."""
    if is_fragment(request):
        return render(request, template, **shown)
    return render(request, "alone.html", part=template, heading=heading, back=back, **shown)


def problem_page(request: Request, body: bytes, status: int, headers: Mapping[str, str]) -> Response:
    """The page about a problem document; 401 is the page for signing in."""
    problem = json.loads(body)
    kept = {name: headers[name] for name in _KEPT if name in headers}
    if status == 401:
        following = quote(request.url.path) if request.method == "GET" else "/"
        response = render(request, "sign_in.html", status, problem=problem, following=following)
    else:
        identity = request.scope.get("request_id", "-")
        response = render(
            request, "problem.html", status, problem=problem, advice=_HELP.get(status, ""), identity=identity
        )
    response.headers.update(kept)
    return response


def _about(request: Request) -> dict[str, Any]:
    """What every page knows: who looks at it, and where in the navigation it is."""
    own: State | None = request.scope.get(OWN)
    call = None if own is None else own.call
    scopes = call.caller.scopes if call else frozenset()
    return {
        "signed_in": call is not None and call.caller.key_id is not None,
        "tenant": call.caller.tenant if call else "",
        "may": {scope: scope in scopes for scope in SCOPES},
        "root": request.scope.get(ROOT, ""),
        "section": request.url.path.strip("/").partition("/")[0],
    }
