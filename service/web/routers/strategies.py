"""/strategies: the list, and one strategy."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query, Request, Response

from autosbp.search import SEARCHERS
from autosbp.service.http.api_route import in_thread
from autosbp.service.request_state import AppState, StateDep
from autosbp.service.schemas._base import PathId
from autosbp.service.services import analyses, clusters, list_details, models, searches, strategies, trials
from autosbp.service.services._list_page import ListPage
from autosbp.service.web.page_route import page_router
from autosbp.service.web.presenters.list_rows import strategy_lines, trial_lines
from autosbp.service.web.presenters.search_progress import search_curve
from autosbp.service.web.presenters.strategy import strategy_view
from autosbp.service.web.rendering import render

routes = page_router("search")
_PAGE = 50
_CHOICES = 100
_FEW = 20
_EXPORTS = (
    ("perfetto", "Perfetto trace"),
    ("torchtitan", "TorchTitan"),
    ("megatron", "Megatron-LM"),
    ("deepspeed", "DeepSpeed"),
    ("dtensor", "DTensor program"),
)
Chosen = Annotated[str, Query(max_length=64)]
Cursor = Annotated[str | None, Query(max_length=200)]


@routes.get("/strategies")
def listing(
    request: Request,
    state: StateDep,
    model_id: Chosen = "",
    cluster_id: Chosen = "",
    searcher: Chosen = "",
    cursor: Cursor = None,
) -> Response:
    """Lists strategies, newest first, filtered."""
    chosen = {"model_id": model_id, "cluster_id": cluster_id, "searcher": searcher}
    rows, following = strategies.listing(
        state, ListPage(_PAGE, cursor), **{name: value or None for name, value in chosen.items()}
    )
    kept = {name: value for name, value in chosen.items() if value}
    return render(
        request,
        "strategies.html",
        strategies=strategy_lines(rows, list_details.strategy_details(state, (row.id for row in rows))),
        filters=_filters(state),
        chosen=chosen,
        following=f"/strategies?{urlencode({**kept, 'cursor': following})}" if following else None,
    )


@routes.get("/strategies/{strategy_id}")
@in_thread
def one(request: Request, state: StateDep, strategy_id: PathId) -> Response:
    """Shows what the plan itself contains; the page requests the parts that need the graph."""
    row = strategies.get(state, strategy_id)
    view = strategy_view(row, models.get(state, row.model_id).name, clusters.get(state, row.cluster_id).name)
    found, _ = searches.listing(state, ListPage(1), "succeeded", strategy_id=row.id)
    asked, _ = analyses.listing(state, ListPage(_FEW), strategy_id=row.id)
    tried, _ = trials.listing(state, ListPage(_FEW), None, strategy_id=row.id)
    return render(
        request,
        "strategy.html",
        row=row,
        view=view,
        exports=_EXPORTS,
        curve=search_curve(row.plan, found[0].job) if found else None,
        questions=asked,
        trials=trial_lines(tried, list_details.strategy_details(state, [row.id])),
    )


def _filters(state: AppState) -> list[tuple[str, str, list[tuple[str, str]]]]:
    known_models, _ = models.listing(state, ListPage(_CHOICES))
    known_clusters, _ = clusters.listing(state, ListPage(_CHOICES))
    return [
        ("model_id", "Model", [(row.id, row.name) for row in known_models]),
        ("cluster_id", "Cluster", [(row.id, row.name) for row in known_clusters]),
        ("searcher", "Searcher", [(name, name) for name in SEARCHERS]),
    ]
