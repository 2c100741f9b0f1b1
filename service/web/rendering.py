"""Rendering of templates. Values are escaped, and undefined names raise an error."""

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
from autosbp.service.auth.caller import SCOPES
from autosbp.service.http.root_path import ROOT_PATH_KEY
from autosbp.service.request_state import STATE_KEY, AppState
from autosbp.service.web import number_format
from autosbp.service.web.assets import asset_url
from autosbp.service.web.presenters.request_words import refusal_words

_ROOT = Path(__file__).parent / "templates"
_ADDRESS = re.compile(r'\s(?:href|src|action|hx-get)="(?=/(?!/))')
"""Matches the attribute in front of a URL of this service. Escaped values contain no quotes, so they cannot match."""
_KEPT = ("www-authenticate", "retry-after", "allow", "accept-encoding")
_HELP = {
    401: "This service requires an API key. Its operator can create one with “autosbp keys create”.",
    403: "Use a key with the required scope.",
    404: "It may have been deleted, or belong to another tenant.",
    413: "Go back to correct the form; your entries are kept.",
    429: "Wait a moment, then reload the page.",
    500: "See the service’s log under the request id below.",
    503: "Reload the page in a moment.",
    507: "The service’s operator must free space first.",
}


_GUIDES: Mapping[str, tuple[str, str]] = {
    "": ("how-to/use-the-pages", "use the pages"),
    "plan": ("how-to/constrain-a-plan", "constrain a plan"),
    "searches": ("concepts/search", "the search and its bound"),
    "strategies": ("how-to/read-an-explanation", "read an explanation"),
    "questions": ("how-to/read-an-explanation", "read an explanation"),
    "compare": ("how-to/read-an-explanation", "read an explanation"),
    "models": ("how-to/choose-a-model", "choose a model"),
    "clusters": ("how-to/describe-a-cluster", "describe a cluster"),
    "calibrations": ("concepts/calibration", "calibration"),
    "trials": ("how-to/ci", "trials and gates in CI"),
    "jobs": ("concepts/jobs", "jobs"),
    "sign-in": ("how-to/keys-and-tenants", "keys and tenants"),
    "docs": ("how-to/use-the-http-api", "use the HTTP API"),
}
"""Page of the documentation that explains a section, and what it is about."""


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_ROOT),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"static": asset_url, "release": autosbp.__version__}
    made.filters |= {**number_format.FILTERS, "refusal": refusal_words}
    return made


_TEMPLATES = _environment()


def is_fragment(request: Request) -> bool:
    """Whether htmx requests a part of a page."""
    return request.headers.get("hx-request") == "true"


def render(request: Request, template: str, status: int = 200, **shown: Any) -> HTMLResponse:
    """Render a page."""
    text = _TEMPLATES.get_template(template).render(**_common_context(request), **shown)
    if root := request.scope.get(ROOT_PATH_KEY):
        text = _ADDRESS.sub(rf"\g<0>{root}", text)
    return HTMLResponse(text, status)


def render_part(request: Request, template: str, heading: str, back: str, **shown: Any) -> HTMLResponse:
    """Render a part of a page for htmx, or a page of its own with a link ``back`` for everybody else."""
    if is_fragment(request):
        return render(request, template, **shown)
    return render(request, "alone.html", part=template, heading=heading, back=back, **shown)


def problem_page(request: Request, body: bytes, status: int, headers: Mapping[str, str]) -> Response:
    """Render the page of a problem document; 401 is the sign-in page."""
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


def _common_context(request: Request) -> dict[str, Any]:
    """Values that every template gets: the caller, the scopes, the section of the navigation and its guide."""
    own: AppState | None = request.scope.get(STATE_KEY)
    call = None if own is None else own.call
    scopes = call.caller.scopes if call else frozenset()
    section = request.url.path.strip("/").partition("/")[0]
    return {
        "guide": _GUIDES.get(section, _GUIDES[""]),
        "signed_in": call is not None and call.caller.key_id is not None,
        "tenant": call.caller.tenant if call else "",
        "may": {scope: scope in scopes for scope in SCOPES},
        "root": request.scope.get(ROOT_PATH_KEY, ""),
        "section": section,
    }
