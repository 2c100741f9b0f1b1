"""Searches: checked at the door, run as jobs, answered by a stored strategy."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosbp import api
from autosbp.errors import InputError
from service.models import CalibrationRow, ClusterRow, JobRow, ModelRow, SearchRow
from service.schemas._base import Document
from service.schemas.searches import SearchRequest
from service.services import strategies
from service.services._store import new_id, page, referred, require
from service.state import State


def create(state: State, request: SearchRequest) -> JobRow:
    """Store a search and queue its job."""
    options = request.options.checked()
    longest_s = state.settings.max_time_limit_s
    if options.time_limit_s > longest_s:
        raise InputError("options.time_limit_s", options.time_limit_s, f"at most {longest_s:g} s is allowed here")
    with state.database.write() as session:
        model = referred(session, ModelRow, request.model_id, "model_id", "model")
        cluster = referred(session, ClusterRow, request.cluster_id, "cluster_id", "cluster")
        summary = model.summary
        there = api.Cluster.from_dict(cluster.document)
        api.require_room(summary["num_parameters"], summary["parameter_bytes"], there, options)
        if request.calibration_id is not None:
            _check_calibration(session, request.calibration_id, request.cluster_id)
        search_id = new_id("sea")
        job = state.runner.submit(session, "search", {"search_id": search_id}, f"/v1/searches/{search_id}")
        row = SearchRow(
            id=search_id,
            model_id=request.model_id,
            cluster_id=request.cluster_id,
            calibration_id=request.calibration_id,
            job_id=job.id,
            options=options.to_dict(),
        )
        session.add(row)
        return job


def _check_calibration(session: Session, calibration_id: str, cluster_id: str) -> None:
    calibration = referred(session, CalibrationRow, calibration_id, "calibration_id", "calibration")
    if calibration.cluster_id != cluster_id:
        limit = f"a calibration of cluster {cluster_id} is expected; this one is of {calibration.cluster_id}"
        raise InputError("calibration_id", calibration_id, limit)


def prepare(session: Session, job: JobRow) -> Document:
    """Inputs of a search: graph, cluster, calibration and options."""
    search = session.get_one(SearchRow, job.payload["search_id"])
    calibration = session.get(CalibrationRow, search.calibration_id) if search.calibration_id else None
    return {
        "graph": session.get_one(ModelRow, search.model_id).document,
        "cluster": session.get_one(ClusterRow, search.cluster_id).document,
        "calibration": calibration.document if calibration else None,
        "options": search.options,
    }


def store(session: Session, job: JobRow, found: Document) -> Document:
    """Store the strategy that the search found and link the search to it."""
    search = session.get_one(SearchRow, job.payload["search_id"])
    strategy = strategies.store(session, found, search)
    search.strategy_id = strategy.id
    return {"search_id": search.id, "strategy_id": strategy.id}


def get(state: State, search_id: str) -> SearchRow:
    """One search, or 404."""
    with state.database.read() as session:
        return require(session, SearchRow, search_id, "search")


def listing(
    state: State, model_id: str | None, cluster_id: str | None, limit: int, cursor: str | None
) -> tuple[Sequence[SearchRow], str | None]:
    """A page of searches."""
    query = select(SearchRow)
    if model_id is not None:
        query = query.where(SearchRow.model_id == model_id)
    if cluster_id is not None:
        query = query.where(SearchRow.cluster_id == cluster_id)
    with state.database.read() as session:
        return page(session, query, SearchRow, limit, cursor)
