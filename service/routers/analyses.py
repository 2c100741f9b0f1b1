"""Routes of /v1/analyses: list, read and delete analyses."""

from __future__ import annotations

from fastapi import Response

from autosbp.service.http.etags import IfMatch, check_if_match, etag, set_etag
from autosbp.service.models import AnalysisRow
from autosbp.service.request_state import StateDep
from autosbp.service.routers._base import (
    Cascade,
    documented_delete_problems,
    documented_etag,
    documented_list,
    respond_with_page,
    router,
)
from autosbp.service.schemas._base import Page, PathId, QueryId, WindowDep
from autosbp.service.schemas.analyses import Analysis, AnalysisBrief, AnalysisKind
from autosbp.service.services import analyses, deletion

routes = router("analyses", "search")
_ONE = "get /v1/analyses/{analysis_id}"


@routes.get(
    "",
    summary="List analyses",
    response_model=Page[AnalysisBrief],
    responses=documented_list("analysis_id", analysis=_ONE),
)
def list_analyses(
    state: StateDep, window: WindowDep, strategy_id: QueryId = None, kind: AnalysisKind | None = None
) -> Response:
    """Lists analyses, newest first, optionally of one strategy or kind. Analyses are created at their strategy."""
    rows, following = analyses.listing(state, window, strategy_id=strategy_id, kind=kind)
    return respond_with_page(AnalysisBrief, rows, following)


@routes.get("/{analysis_id}", summary="One analysis", responses=documented_etag(404))
def get_analysis(state: StateDep, response: Response, analysis_id: PathId) -> Analysis:
    """Returns the question, its job, and the answer once the job has succeeded."""
    row = analyses.get(state, analysis_id)
    set_etag(response, row.id, row.job.id, row.job.revision)
    return Analysis.model_validate(row)


@routes.delete("/{analysis_id}", summary="Delete an analysis", status_code=204, responses=documented_delete_problems())
def delete_analysis(state: StateDep, analysis_id: PathId, cascade: Cascade = False, if_match: IfMatch = None) -> None:
    """Deletes the analysis with its job, which must have ended."""
    deletion.remove(
        state,
        AnalysisRow,
        analysis_id,
        "analysis",
        lambda row: check_if_match(if_match, etag(row.id, row.job.id, row.job.revision)),
        cascade=cascade,
    )
