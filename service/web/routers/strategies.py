"""/strategies: the list, one strategy, and what is worked out of it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query, Request, Response

from autosbp.search import SEARCHERS
from service.edge.route import slow
from service.schemas._base import PathId
from service.services import analyses, clusters, models, names, searches, strategies, trials
from service.services._window import Window
from service.state import State, StateDep
from service.web.presenters.curve import search_curve
from service.web.presenters.lists import strategy_lines, trial_lines
from service.web.presenters.strategy import strategy_view
from service.web.rendering import render
from service.web.route import pages

routes = pages("search")
_PAGE = 25
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
    """Newest first, filtered."""
    chosen = {"model_id": model_id, "cluster_id": cluster_id, "searcher": searcher}
    rows, following = strategies.listing(
        state, Window(_PAGE, cursor), **{name: value or None for name, value in chosen.items()}
    )
    kept = {name: value for name, value in chosen.items() if value}
    return render(
        request,
        "strategies.html",
        strategies=strategy_lines(
            rows,
            names.of_models(state, (row.model_id for row in rows)),
            names.of_clusters(state, (row.cluster_id for row in rows)),
        ),
        filters=_filters(state),
        chosen=chosen,
        following=f"/strategies?{urlencode({**kept, 'cursor': following})}" if following else None,
    )


@routes.get("/strategies/{strategy_id}")
@slow
def one(request: Request, state: StateDep, strategy_id: PathId) -> Response:
    """All that the plan itself says; parts that need the graph are asked for by the page."""
    row = strategies.get(state, strategy_id)
    view = strategy_view(row, models.get(state, row.model_id).name, clusters.get(state, row.cluster_id).name)
    found, _ = searches.listing(state, Window(1), "succeeded", strategy_id=row.id)
    asked, _ = analyses.listing(state, Window(_FEW), strategy_id=row.id)
    tried, _ = trials.listing(state, Window(_FEW), None, strategy_id=row.id)
    return render(
        request,
        "strategy.html",
        row=row,
        view=view,
        exports=_EXPORTS,
        curve=search_curve(row.plan, found[0].job) if found else None,
        questions=asked,
        trials=trial_lines(tried),
    )


def _filters(state: State) -> list[tuple[str, str, list[tuple[str, str]]]]:
    known_models, _ = models.listing(state, Window(_CHOICES))
    known_clusters, _ = clusters.listing(state, Window(_CHOICES))
    return [
        ("model_id", "Model", [(row.id, row.name) for row in known_models]),
        ("cluster_id", "Cluster", [(row.id, row.name) for row in known_clusters]),
        ("searcher", "Searcher", [(name, name) for name in SEARCHERS]),
    ]
