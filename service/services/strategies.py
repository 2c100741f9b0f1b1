"""Strategies: every plan that a search found, kept until it is deleted."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Text, bindparam, cast, select
from sqlalchemy.orm import Session, undefer

from autosbp import api
from autosbp.errors import InputError
from autosbp.export import EXPORTERS, export_plan
from autosbp.graph.precision import planned_graph
from autosbp.plan.plan import content_hash_of
from autosbp.report.plan_diff import difference
from autosbp.service.models import CalibrationRow, ModelRow, SearchRow, StrategyRow, table_of
from autosbp.service.problem_details import not_found
from autosbp.service.request_state import AppState
from autosbp.service.schemas._base import Document
from autosbp.service.services._fast_reads import read_page
from autosbp.service.services._list_page import ListPage
from autosbp.service.services._queries import Paged, existing, require
from autosbp.service.services.content_ids import insert_content
from autosbp.service.tenancy import restricted_to_tenant

_strategies = table_of(StrategyRow).c
_TEXT = restricted_to_tenant(select(cast(_strategies.plan, Text)).where(_strategies.id == bindparam("id")))
_ID = restricted_to_tenant(select(_strategies.id).where(_strategies.id == bindparam("id")))


def store(session: Session, plan: Document, search: SearchRow) -> StrategyRow:
    """Insert a plan; equal plans are one strategy."""
    row = StrategyRow(
        id=plan["plan_id"],
        model_id=search.model_id,
        cluster_id=search.cluster_id,
        calibration_id=search.calibration_id,
        searcher=plan["searcher"],
        step_time_s=plan["step_time_s"],
        comm_bytes_per_device=plan["comm_bytes_per_device"],
        memory_bytes_per_device=plan["memory_bytes_per_device"],
        content_hash=content_hash_of(plan),
        plan=plan,
    )
    return insert_content(session, row)[0]


def get(state: AppState, strategy_id: str) -> StrategyRow:
    """Return a strategy with its plan, or raise 404."""
    with state.database.read() as session:
        return require(session, StrategyRow, strategy_id, "strategy", undefer(StrategyRow.plan))


def text(state: AppState, strategy_id: str) -> str:
    """Return a plan's JSON text as stored, without parsing it, or raise 404."""
    found = state.database.fetch(_TEXT, id=strategy_id)
    if not found:
        raise not_found("strategy", strategy_id)
    return str(found[0][0])


def require_stored(state: AppState, strategy_id: str) -> None:
    """Raise 404 unless the strategy is stored."""
    if not state.database.fetch(_ID, id=strategy_id):
        raise not_found("strategy", strategy_id)


def listing(state: AppState, window: ListPage, /, **equal: object) -> Paged[StrategyRow]:
    """Return a page of strategies."""
    return read_page(state.database, StrategyRow, window, **equal)


def compare(state: AppState, strategy_id: str, other_id: str) -> Document:
    """Return the differences between two strategies, of any release; raise 404 if one is missing."""
    return difference(get(state, strategy_id).plan, get(state, other_id).plan)


def export(state: AppState, strategy_id: str, target: str, baseline: str | None) -> dict[str, str]:
    """Export a strategy, or one of its baselines, as the files of another tool; the files by name.

    Raises ``InputError`` or ``UnsupportedError`` if the tool cannot express it.
    """
    if target not in EXPORTERS:
        raise InputError("target", target, f"expected one of {', '.join(EXPORTERS)}")
    found = load_context(state, strategy_id)
    plan = found.plan if baseline is None else found.plan.with_baseline(baseline)
    return export_plan(target, plan, found.graph, found.calibration)


@dataclass(frozen=True, slots=True)
class StrategyContext:
    """A strategy with everything that its costs depend on."""

    plan: api.Plan
    graph: api.LogicalGraph
    calibration: api.Calibration | None


def load_context(state: AppState, strategy_id: str) -> StrategyContext:
    """Load a strategy with its graph and calibration, or raise 404."""
    with state.database.read() as session:
        row = require(session, StrategyRow, strategy_id, "strategy", undefer(StrategyRow.plan))
        graph = existing(session, ModelRow, row.model_id).document
        known = row.calibration_id
        calibration = None if known is None else existing(session, CalibrationRow, known).document
    costs = None if calibration is None else api.Calibration.from_dict(calibration)
    plan = api.Plan.from_dict(row.plan)
    return StrategyContext(plan, planned_graph(api.load_graph(graph), plan.document), costs)
