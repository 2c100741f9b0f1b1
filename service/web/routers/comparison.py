"""/compare: two strategies side by side."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from autosbp.errors import InputError
from service.edge.route import slow
from service.models import StrategyRow
from service.schemas._base import ID_PATTERN
from service.services import clusters, models, names, strategies
from service.services._window import Window
from service.state import State, StateDep
from service.web.presenters.comparison import MOST_CHANGES, comparison_view
from service.web.presenters.lists import strategy_lines
from service.web.rendering import render
from service.web.route import pages

routes = pages()
_CHOICES = 50
Ids = Annotated[list[Annotated[str, Query(pattern=ID_PATTERN)]], Query(alias="id", min_length=1, max_length=2)]


@routes.get("/compare")
@slow
def compare(request: Request, state: StateDep, ids: Ids) -> Response:
    """Of one strategy: which other? Of two: what differs."""
    rows = [strategies.get(state, identifier) for identifier in ids]
    headings = [_heading(state, row) for row in rows]
    if len(rows) == 1:
        others, _ = strategies.listing(state, Window(_CHOICES), model_id=rows[0].model_id)
        named = names.of_clusters(state, (row.cluster_id for row in others))
        lines = strategy_lines(
            [row for row in others if row.id != rows[0].id],
            names.of_models(state, [rows[0].model_id]),
            named,
        )
        return render(request, "compare_with.html", row=rows[0], heading=headings[0], strategies=lines)
    if ids[0] == ids[1]:
        raise InputError("id", ids[0], "two different strategies are expected")
    found = strategies.compare(state, *ids)
    return render(
        request,
        "compare.html",
        ids=ids,
        headings=headings,
        view=comparison_view(found, rows[0].plan, rows[1].plan),
        most=MOST_CHANGES,
    )


def _heading(state: State, row: StrategyRow) -> str:
    return f"{models.get(state, row.model_id).name} on {clusters.get(state, row.cluster_id).name}"
