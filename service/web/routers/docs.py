"""/docs: the API's documentation with Swagger UI; public, like /openapi.json."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from autosbp.service.web.page_route import HEADERS
from autosbp.service.web.rendering import render

_POLICY = "content-security-policy"
routes = APIRouter(include_in_schema=False)


@routes.get("/docs")
def docs(request: Request) -> Response:
    """Shows the documentation. Its style sheet embeds images, which other pages may not do."""
    response = render(request, "docs.html")
    policy = HEADERS[_POLICY].replace("img-src 'self'", "img-src 'self' data:")
    response.headers.update({**HEADERS, _POLICY: policy})
    return response
