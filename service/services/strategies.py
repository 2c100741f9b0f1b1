"""Strategies: every plan that a search found, kept for good."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Text, bindparam, cast, select
from sqlalchemy.orm import Session, undefer

from autosbp import api
from autosbp.comparison import difference
from autosbp.errors import InputError
from autosbp.export import EXPORTERS, export_plan
from service.models import CalibrationRow, ModelRow, SearchRow, StrategyRow, table_of
from service.problems import not_found
from service.schemas._base import Document
from service.services._pictures import pictures
from service.services._store import Paged, existing, insert_once, require
from service.services._window import Window
from service.state import State
from service.tenancy import narrowed

_strategies = table_of(StrategyRow).c
_TEXT = narrowed(select(cast(_strategies.plan, Text)).where(_strategies.id == bindparam("id")))
_ID = narrowed(select(_strategies.id).where(_strategies.id == bindparam("id")))


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
        plan=plan,
    )
    return insert_once(session, row)[0]


def get(state: State, strategy_id: str) -> StrategyRow:
    """One strategy with its plan, or 404."""
    with state.database.read() as session:
        return require(session, StrategyRow, strategy_id, "strategy", undefer(StrategyRow.plan))


def text(state: State, strategy_id: str) -> str:
    """One strategy's plan as it is stored, or 404: JSON that nobody reads on the way is not parsed."""
    found = state.database.fetch(_TEXT, id=strategy_id)
    if not found:
        raise not_found("strategy", strategy_id)
    return str(found[0][0])


def require_stored(state: State, strategy_id: str) -> None:
    """404 unless the strategy is there."""
    if not state.database.fetch(_ID, id=strategy_id):
        raise not_found("strategy", strategy_id)


def listing(state: State, window: Window, /, **equal: object) -> Paged[StrategyRow]:
    """A page of strategies."""
    return pictures(state.database, StrategyRow, window, **equal)


def compare(state: State, strategy_id: str, other_id: str) -> Document:
    """What two strategies, of any release, do otherwise; 404 where one is not there."""
    return difference(get(state, strategy_id).plan, get(state, other_id).plan)


def export(state: State, strategy_id: str, target: str, baseline: str | None) -> dict[str, str]:
    """A strategy, or one of its baselines, as the files of another tool; ``InputError`` or ``UnsupportedError`` where the
    tool cannot say it."""
    if target not in EXPORTERS:
        raise InputError("target", target, f"one of {', '.join(EXPORTERS)} is expected")
    found = subject(state, strategy_id)
    plan = found.plan if baseline is None else found.plan.with_baseline(baseline)
    return export_plan(target, plan, found.graph, found.calibration)


@dataclass(frozen=True, slots=True)
class Subject:
    """A strategy with all that its costs are worked out of."""

    plan: api.Plan
    graph: api.LogicalGraph
    calibration: api.Calibration | None


def subject(state: State, strategy_id: str) -> Subject:
    """A strategy with its graph and its calibration, or 404."""
    with state.database.read() as session:
        row = require(session, StrategyRow, strategy_id, "strategy", undefer(StrategyRow.plan))
        graph = existing(session, ModelRow, row.model_id).document
        known = row.calibration_id
        calibration = None if known is None else existing(session, CalibrationRow, known).document
    costs = None if calibration is None else api.Calibration.from_dict(calibration)
    return Subject(api.Plan.from_dict(row.plan), api.load_graph(graph), costs)
