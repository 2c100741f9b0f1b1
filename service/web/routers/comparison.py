"""/compare: two strategies side by side."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from autosbp.errors import InputError
from autosbp.service.http.api_route import in_thread
from autosbp.service.models import StrategyRow
from autosbp.service.request_state import AppState, StateDep
from autosbp.service.schemas._base import ID_PATTERN
from autosbp.service.services import clusters, list_details, models, strategies, trials
from autosbp.service.services._list_page import ListPage
from autosbp.service.web.page_route import page_router
from autosbp.service.web.presenters.comparison import MOST_CHANGES, comparison_view
from autosbp.service.web.presenters.list_rows import strategy_lines, trial_lines
from autosbp.service.web.rendering import render

routes = page_router()
_CHOICES = 50
_FEW = 10
Ids = Annotated[list[Annotated[str, Query(pattern=ID_PATTERN)]], Query(alias="id", min_length=1, max_length=2)]


@routes.get("/compare")
@in_thread
def compare(request: Request, state: StateDep, ids: Ids) -> Response:
    """Shows the differences of two strategies; with one, offers others to compare."""
    rows = [strategies.get(state, identifier) for identifier in ids]
    headings = [_heading(state, row) for row in rows]
    if len(rows) == 1:
        others, _ = strategies.listing(state, ListPage(_CHOICES), model_id=rows[0].model_id)
        details = list_details.strategy_details(state, (row.id for row in others))
        lines = strategy_lines([row for row in others if row.id != rows[0].id], details)
        return render(request, "compare_with.html", row=rows[0], heading=headings[0], strategies=lines)
    if ids[0] == ids[1]:
        raise InputError("id", ids[0], "expected two different strategies")
    found = strategies.compare(state, *ids)
    tried = [row for each in ids for row in trials.listing(state, ListPage(_FEW), None, strategy_id=each)[0]]
    return render(
        request,
        "compare.html",
        ids=ids,
        headings=headings,
        view=comparison_view(found, rows[0].plan, rows[1].plan),
        trials=trial_lines(tried, list_details.strategy_details(state, ids)),
        most=MOST_CHANGES,
    )


def _heading(state: AppState, row: StrategyRow) -> str:
    return f"{models.get(state, row.model_id).name} on {clusters.get(state, row.cluster_id).name}"
