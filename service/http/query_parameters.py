"""Strict query parameters: unknown and repeated ones are refused, like members of bodies."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import Request as PlainRequest

from autosbp.errors import InputError


class PublicRoute(APIRoute):
    """A public route, without authentication; its operation id is its function's name."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **{**options, "operation_id": endpoint.__name__})
        self._query = query_names(self.dependant)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the framework's handler with the check of the query."""
        handler = super().get_route_handler()

        async def checked(request: Request) -> Response:
            check_query(self._query, request)
            return await handler(request)

        return checked


def check_query(known: tuple[str, ...], request: PlainRequest) -> None:
    """Raise ``InputError`` for a query parameter that is unknown or repeated."""
    seen = set[str]()
    for name, value in request.query_params.multi_items():
        if name not in known:
            limit = f"unknown query parameter; known: {', '.join(known)}" if known else "expected no query parameters"
            raise InputError(name or "query", value, limit)
        if name in seen:
            raise InputError(name, value, "duplicate query parameter")
        seen.add(name)


def query_names(dependant: Dependant) -> tuple[str, ...]:
    """Names of a route's query parameters, with those of its dependencies."""
    own = {each.alias for each in dependant.query_params}
    return tuple(sorted(own.union(*(query_names(each) for each in dependant.dependencies))))
