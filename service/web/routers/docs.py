"""/docs: the API's documentation with Swagger UI, and the documentation's pages; public, like /openapi.json."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

from autosbp.service.web.documentation_pages import document, documents, pictures
from autosbp.service.web.page_route import HEADERS
from autosbp.service.web.rendering import render

_POLICY = "content-security-policy"
routes = APIRouter(include_in_schema=False)


@routes.get("/docs")
def docs(request: Request) -> Response:
    """Shows the API's documentation. Its style sheet embeds images, which other pages may not do."""
    response = render(request, "docs.html")
    policy = HEADERS[_POLICY].replace("img-src 'self'", "img-src 'self' data:")
    response.headers.update({**HEADERS, _POLICY: policy})
    return response


@routes.get("/docs/{name:path}")
def page(request: Request, name: str) -> Response:
    """Shows a page of the documentation, or sends one of its pictures."""
    if name in pictures():
        response: Response = FileResponse(pictures()[name])
    elif name in documents():
        response = render(request, "document.html", document=document(name))
    else:
        raise HTTPException(404, "no such page of the documentation")
    response.headers.update(HEADERS)
    return response
