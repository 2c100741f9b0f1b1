"""Searches: checked at the door, run as jobs, answered by stored strategies; an equal one is answered from the store."""

from __future__ import annotations

from typing import cast

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

import autosbp
from autosbp import api
from autosbp.errors import InputError
from autosbp.jsonio import digest
from service.models import CalibrationRow, ClusterRow, JobRow, ModelRow, SearchRow, StrategyRow, table_of
from service.schemas._base import Document
from service.schemas.searches import SearchRequest
from service.services import jobs, strategies
from service.services._pictures import columns
from service.services._store import Paged, existing, page, referred, require
from service.services._window import Window
from service.state import State
from service.tenancy import narrowed

_HASH_DIGITS = 64


def create(state: State, request: SearchRequest, *, fresh: bool = False) -> tuple[JobRow, bool]:
    """Store a search and queue its job, or find an equal one that has succeeded or is under way; the job, and whether it is
    a new one. ``fresh`` searches again all the same."""
    options = request.options.checked()
    longest_s = state.settings.max_time_limit_s
    if options.time_limit_s > longest_s:
        raise InputError("options.time_limit_s", options.time_limit_s, f"at most {longest_s:g} s is allowed here")
    if request.start_id is not None:
        _check_start(options)
    asked = _hash(request, options)
    if state.call.key is None and not fresh and (answered := _answered(state, asked)) is not None:
        return answered, False
    with state.database.write() as session:
        if (job := jobs.again(state, session)) is not None:
            return job, True
        if not fresh and (earlier := _earlier(session, asked)) is not None:
            return earlier.job, False
        model = referred(session, ModelRow, request.model_id, "model_id", "model")
        cluster = referred(session, ClusterRow, request.cluster_id, "cluster_id", "cluster")
        summary = model.summary
        there = api.Cluster.from_dict(cluster.document)
        api.require_room(summary["num_parameters"], summary["parameter_bytes"], there, options)
        if request.calibration_id is not None:
            _check_calibration(session, request.calibration_id, request.cluster_id)
        if request.start_id is not None:
            referred(session, StrategyRow, request.start_id, "start_id", "strategy")
        search_id = state.new_id("sea")
        job = jobs.submit(state, session, "search", {"search_id": search_id}, f"/v1/searches/{search_id}")
        row = SearchRow(
            id=search_id,
            model_id=request.model_id,
            cluster_id=request.cluster_id,
            calibration_id=request.calibration_id,
            job_id=job.id,
            options=options.to_dict(),
            start_id=request.start_id,
            num_points=request.num_points,
            request_hash=asked,
        )
        session.add(row)
        return job, True


def _hash(request: SearchRequest, options: api.PlanOptions) -> str:
    """Of everything that the answer depends on. So may a start: on what a limit of time leaves, and on how much was left to
    search; without one, hashes are what they were before there were any."""
    everything = {
        "model": request.model_id,
        "cluster": request.cluster_id,
        "calibration": request.calibration_id,
        "options": options.to_dict(),
        "num_points": request.num_points,
        "release": autosbp.__version__,
        **({} if request.start_id is None else {"start": request.start_id}),
    }
    return digest(everything, _HASH_DIGITS)


_searches, _jobs = table_of(SearchRow).c, table_of(JobRow).c
_OF_USE = (_jobs.state == "succeeded") & _searches.strategy_id.is_not(None) | (
    _jobs.state.in_(("queued", "running")) & _jobs.cancel_requested.is_(False)
)
"""Of a search and its job: it has an answer, or will have one."""
_ANSWERED = narrowed(
    select(*columns(JobRow))
    .where(_searches.job_id == _jobs.id, _searches.request_hash == bindparam("asked"), _OF_USE)
    .order_by(_searches.created_at.desc())
    .limit(1)
)


def _answered(state: State, asked: str) -> JobRow | None:
    """A picture of the job of the newest equal search: most are found so, without waiting for those that write."""
    found = state.database.fetch(_ANSWERED, asked=asked)
    return cast("JobRow", found[0]) if found else None


def _earlier(session: Session, asked: str) -> SearchRow | None:
    """The newest equal search, where none may come in between."""
    query = select(SearchRow).where(SearchRow.request_hash == asked, SearchRow.job.has(_OF_USE))
    return session.scalar(query.order_by(SearchRow.created_at.desc()).limit(1))


def _check_calibration(session: Session, calibration_id: str, cluster_id: str) -> None:
    calibration = referred(session, CalibrationRow, calibration_id, "calibration_id", "calibration")
    if calibration.cluster_id != cluster_id:
        limit = f"a calibration of cluster {cluster_id} is expected; this one is of {calibration.cluster_id}"
        raise InputError("calibration_id", calibration_id, limit)


def _check_start(options: api.PlanOptions) -> None:
    try:
        options.require_start()
    except InputError as error:
        raise InputError(f"options.{error.field}", error.value, error.limit) from None


def prepare(session: Session, job: JobRow) -> Document:
    """Inputs of a search: graph, cluster, calibration, options and start."""
    search = existing(session, SearchRow, job.payload["search_id"])
    known, start = search.calibration_id, search.start_id
    return {
        "graph": existing(session, ModelRow, search.model_id).document,
        "cluster": existing(session, ClusterRow, search.cluster_id).document,
        "calibration": None if known is None else existing(session, CalibrationRow, known).document,
        "options": search.options,
        "start": None if start is None else existing(session, StrategyRow, start).plan["strategy"],
        "num_points": search.num_points,
    }


def store(session: Session, job: JobRow, found: Document) -> Document:
    """Store the strategies that the search found, fastest first, and link the search to them."""
    search = existing(session, SearchRow, job.payload["search_id"])
    ids = [strategies.store(session, plan, search).id for plan in found["plans"]]
    search.strategy_id = ids[0]
    if search.num_points is not None:
        search.front = ids
    # Plans hold no times of the clock, so that equal searches find equal plans: how this one went is the job's to keep.
    return {"search_id": search.id, "strategy_id": ids[0], "curve": found.get("curve", [])}


def get(state: State, search_id: str) -> SearchRow:
    """One search, or 404."""
    with state.database.read() as session:
        return require(session, SearchRow, search_id, "search")


def listing(state: State, window: Window, job_state: str | None, /, **equal: object) -> Paged[SearchRow]:
    """A page of searches."""
    where = () if job_state is None else (SearchRow.job.has(JobRow.state == job_state),)
    with state.database.read() as session:
        return page(session, SearchRow, window, where, **equal)
