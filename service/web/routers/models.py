"""/models: the list, and one model with its graph by layers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from autosbp import api
from autosbp.service.http.api_route import in_thread
from autosbp.service.request_state import StateDep
from autosbp.service.schemas._base import PathId
from autosbp.service.services import clusters, list_details, models, strategies
from autosbp.service.services._list_page import ListPage
from autosbp.service.web.lru_cache import LruCache
from autosbp.service.web.page_route import page_router
from autosbp.service.web.presenters.list_rows import model_line, strategy_lines
from autosbp.service.web.presenters.model import ModelView, model_view
from autosbp.service.web.rendering import render, render_part

routes = page_router("search")
_PAGE = 25
_FEW = 10
_views: LruCache[ModelView] = LruCache(8)
Cursor = Annotated[str | None, Query(max_length=200)]


@routes.get("/models")
def listing(request: Request, state: StateDep, cursor: Cursor = None) -> Response:
    """Lists models, newest first."""
    rows, following = models.listing(state, ListPage(_PAGE, cursor))
    lines = [model_line(row) for row in rows]
    return render(request, "models.html", lines=lines, following=f"/models?cursor={following}" if following else None)


@routes.get("/models/{model_id}")
def one(request: Request, state: StateDep, model_id: PathId) -> Response:
    """Shows the model's summary and its strategies."""
    row = models.get(state, model_id)
    found, _ = strategies.listing(state, ListPage(_FEW), model_id=row.id)
    return render(
        request,
        "model.html",
        row=row,
        line=model_line(row),
        strategies=strategy_lines(found, list_details.strategy_details(state, (each.id for each in found))),
        clusters=clusters.listing(state, ListPage(_FEW))[0],
    )


@routes.get("/models/{model_id}/needs")
@in_thread
def needs(request: Request, state: StateDep, model_id: PathId) -> Response:
    """Shows FLOPs, memory and layers, which need the whole graph."""
    row = models.get(state, model_id)
    view = _views.get(row.id, lambda: model_view(api.load_graph(models.graph(state, model_id))))
    return render_part(request, "model_needs.html", row.name, f"/models/{model_id}", view=view)
