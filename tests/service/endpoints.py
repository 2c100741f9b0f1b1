"""Every route that the application really has, whether the OpenAPI document names it or not."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI
from starlette.routing import BaseRoute, Route


@dataclass(frozen=True)
class Endpoint:
    """One method of one route."""

    method: str
    path: str
    route: Route

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def endpoints(app: FastAPI) -> list[Endpoint]:
    """In the order in which they are tried; a route of a kind that is not known here fails."""
    return [
        Endpoint(method, route.path_format, route)
        for route in map(_known, app.routes)
        for method in sorted(route.methods or ())
    ]


def _known(one: BaseRoute) -> Route:
    assert isinstance(one, Route), f"what does {one!r} serve, and to whom?"
    return one
