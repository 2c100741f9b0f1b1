"""/models: the list, and one model with its graph by layers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from autosbp import api
from service.edge.route import slow
from service.schemas._base import PathId
from service.services import clusters, models, names, strategies
from service.services._window import Window
from service.state import StateDep
from service.web.memo import Memo
from service.web.presenters.lists import model_line, strategy_lines
from service.web.presenters.model import ModelView, model_view
from service.web.rendering import render, render_part
from service.web.route import pages

routes = pages("search")
_PAGE = 25
_FEW = 10
_views: Memo[ModelView] = Memo(8)
Cursor = Annotated[str | None, Query(max_length=200)]


@routes.get("/models")
def listing(request: Request, state: StateDep, cursor: Cursor = None) -> Response:
    """Newest first."""
    rows, following = models.listing(state, Window(_PAGE, cursor))
    lines = [model_line(row) for row in rows]
    return render(request, "models.html", lines=lines, following=f"/models?cursor={following}" if following else None)


@routes.get("/models/{model_id}")
def one(request: Request, state: StateDep, model_id: PathId) -> Response:
    """What the summary says, and the strategies that were found."""
    row = models.get(state, model_id)
    found, _ = strategies.listing(state, Window(_FEW), model_id=row.id)
    named = names.of_clusters(state, (each.cluster_id for each in found))
    return render(
        request,
        "model.html",
        row=row,
        line=model_line(row),
        strategies=strategy_lines(found, {row.id: row.name}, named),
        clusters=clusters.listing(state, Window(_FEW))[0],
    )


@routes.get("/models/{model_id}/needs")
@slow
def needs(request: Request, state: StateDep, model_id: PathId) -> Response:
    """FLOPs, memory and layers, which take the whole graph."""
    row = models.get(state, model_id)
    view = _views.get(row.id, lambda: model_view(api.load_graph(models.graph(state, model_id))))
    return render_part(request, "model_needs.html", row.name, f"/models/{model_id}", view=view)
