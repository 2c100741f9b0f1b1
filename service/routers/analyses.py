"""/v1/analyses"""

from __future__ import annotations

from fastapi import Response

from service.edge.conditions import tag
from service.routers._base import listed, paged, router, tagged
from service.schemas._base import Page, PathId, QueryId, WindowDep
from service.schemas.analyses import Analysis, AnalysisBrief, AnalysisKind
from service.services import analyses
from service.state import StateDep

routes = router("analyses", "search")
_ONE = "get /v1/analyses/{analysis_id}"


@routes.get(
    "", summary="List analyses", response_model=Page[AnalysisBrief], responses=listed("analysis_id", analysis=_ONE)
)
def listing(
    state: StateDep, window: WindowDep, strategy_id: QueryId = None, kind: AnalysisKind | None = None
) -> Response:
    """Newest first; of one strategy or kind, if asked. They are asked for at the strategy."""
    rows, following = analyses.listing(state, window, strategy_id=strategy_id, kind=kind)
    return paged(AnalysisBrief, rows, following)


@routes.get("/{analysis_id}", summary="One analysis", responses=tagged(404))
def get(state: StateDep, response: Response, analysis_id: PathId) -> Analysis:
    """The question, its job, and the answer once it is there."""
    row = analyses.get(state, analysis_id)
    tag(response, row.id, row.job.id, row.job.revision)
    return Analysis.model_validate(row)
