"""Strategies: every plan that a search found, kept for good."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, undefer

from service.models import SearchRow, StrategyRow
from service.schemas._base import Document
from service.services._store import insert_once, page, require
from service.state import State


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


def listing(
    state: State, model_id: str | None, cluster_id: str | None, limit: int, cursor: str | None
) -> tuple[Sequence[StrategyRow], str | None]:
    """A page of strategies."""
    query = select(StrategyRow)
    if model_id is not None:
        query = query.where(StrategyRow.model_id == model_id)
    if cluster_id is not None:
        query = query.where(StrategyRow.cluster_id == cluster_id)
    with state.database.read() as session:
        return page(session, query, StrategyRow, limit, cursor)
