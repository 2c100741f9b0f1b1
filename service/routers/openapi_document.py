"""Route /openapi.json."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request, Response
from pydantic_core import to_json
from starlette.routing import Route

from autosbp.service.http.etags import etag, matches_if_none_match
from autosbp.service.thread_pools import CoalescingThread
from autosbp.utils.json_io import digest


class OpenApiDocument:
    """The OpenAPI document of an application, serialised once, because anybody may request it at any rate."""

    def __init__(self, app: FastAPI) -> None:
        self._app, self._thread = app, CoalescingThread()
        self._written: tuple[bytes, str] | None = None

    async def get(self) -> tuple[bytes, str]:
        """Return the document's bytes and its ETag."""
        if self._written is None:
            self._written = await self._thread.run(self._write)
        return self._written

    def _write(self) -> tuple[bytes, str]:
        document = self._app.openapi()
        return to_json(document), etag(digest(document))


async def _interface(request: Request) -> Response:
    """Returns the OpenAPI document; needs no key."""
    content, tag = await request.app.state.interface.get()
    if matches_if_none_match(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers={"etag": tag})
    return Response(content, headers={"etag": tag}, media_type="application/json")


# a plain route, without the framework's work per request
routes = APIRouter(routes=[Route("/openapi.json", _interface)])
