"""Searches: validated in the request, run as jobs, answered by stored strategies; equal searches share one job.

A search may be posted with its model's capture, which queues it in the transaction that stores the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session, undefer

import autosbp
from autosbp import api
from autosbp.errors import InputError
from autosbp.graph.precision import require_executor
from autosbp.launch.local import MAX_LOCAL_RANKS
from autosbp.service.auth.authentication import check_scope
from autosbp.service.models import CalibrationRow, ClusterRow, JobRow, ModelRow, SearchRow, StrategyRow, table_of
from autosbp.service.problem_details import not_found
from autosbp.service.request_state import AppState
from autosbp.service.schemas._base import Document
from autosbp.service.schemas.searches import SearchOfCapture, SearchRequest, Tuning
from autosbp.service.services import jobs, quotas, strategies
from autosbp.service.services._fast_reads import columns
from autosbp.service.services._list_page import ListPage
from autosbp.service.services._queries import Paged, existing, new_id, page, require, require_referenced
from autosbp.service.settings import Settings
from autosbp.service.tenancy import restricted_to_tenant
from autosbp.tuning.options import TuneOptions
from autosbp.tuning.summary import tuning_summary as summarize
from autosbp.tuning.trial_store import read_trials
from autosbp.utils.json_io import digest

_HASH_DIGITS = 64


def create(state: AppState, request: SearchRequest, *, fresh: bool = False) -> tuple[JobRow, bool]:
    """Store a search and queue its job, or find an equal one that has succeeded or is running.

    Args:
        state: of the request.
        request: the search.
        fresh: search again even if there is an equal search.

    Returns:
        The job, and whether it is new.
    """
    options = check_options(state.settings, request)
    check_tuning(state, request)
    asked = _hash(request, options)
    if state.call.key is None and not fresh and (answered := _find_equal_fast(state, asked)) is not None:
        return answered, False
    with state.database.write() as session:
        if (job := jobs.find_retried(state, session)) is not None:
            return job, True
        if not fresh and (earlier := _find_equal_locked(session, asked)) is not None:
            return earlier.job, False
        submit = partial(jobs.submit, state)
        return _store_request(session, state.settings, request, options, state.new_id("sea"), submit), True


def create_after_capture(settings: Settings, session: Session, request: SearchRequest) -> JobRow:
    """Store a search of a model that was just captured and queue its job, or find an equal one.

    Args:
        settings: of the service.
        session: the one that stores the capture's result.
        request: the search, which ``check_options`` and ``check_references`` accepted when the capture was posted.

    Raises:
        AutosbpError: the model does not fit, or what the request refers to was deleted.
        ProblemError: the queue is full.
    """
    options = check_options(settings, request)
    if (earlier := _find_equal_locked(session, _hash(request, options))) is not None:
        return earlier.job
    submit = partial(jobs.submit_following, settings)
    return _store_request(session, settings, request, options, new_id("sea"), submit)


def check_options(settings: Settings, request: SearchOfCapture) -> api.PlanOptions:
    """Return the options of the search; raise ``InputError``."""
    options = request.options.checked()
    longest_s = settings.max_time_limit_s
    if options.time_limit_s > longest_s:
        raise InputError("options.time_limit_s", options.time_limit_s, f"at most {longest_s:g} s is allowed here")
    if request.start_id is not None:
        with _fields_of_options():
            options.check_warm_start()
    return options


def check_references(session: Session, request: SearchOfCapture) -> ClusterRow:
    """Return the cluster; raise ``InputError`` if the cluster, calibration or warm start is not stored."""
    cluster = require_referenced(session, ClusterRow, request.cluster_id, "cluster_id", "cluster")
    if request.calibration_id is not None:
        _check_calibration(session, request.calibration_id, request.cluster_id)
    if request.start_id is not None:
        require_referenced(session, StrategyRow, request.start_id, "start_id", "strategy")
    return cluster


def _store_request(
    session: Session,
    settings: Settings,
    request: SearchRequest,
    options: api.PlanOptions,
    search_id: str,
    submit: Callable[..., JobRow],
) -> JobRow:
    """Store the search and queue its job; nothing is stored if it is refused."""
    summary = require_referenced(session, ModelRow, request.model_id, "model_id", "model").summary
    there = api.Cluster.from_dict(check_references(session, request).document)
    with _fields_of_options():
        options.on(there)
    api.check_memory(summary["num_parameters"], summary["parameter_bytes"], there, options)
    tuning = _tune_options(request)
    if tuning is not None:
        require_executor(options.precision)
        _check_tuned_cluster(there, request.cluster_id)
        quotas.require_room(session, settings, quotas.FILES, 0)
    kind, asked_s = "search" if tuning is None else "tune", _expected_s(options, request, tuning)
    job = submit(session, kind, {"search_id": search_id}, f"/v1/searches/{search_id}", asked_s)
    row = SearchRow(
        id=search_id,
        model_id=request.model_id,
        cluster_id=request.cluster_id,
        calibration_id=request.calibration_id,
        job_id=job.id,
        options=options.to_dict(),
        start_id=request.start_id,
        num_points=request.num_points,
        tuning=None if tuning is None else tuning.to_dict(),
        request_hash=_hash(request, options),
    )
    session.add(row)
    return job


def _hash(request: SearchRequest, options: api.PlanOptions) -> str:
    """Hash of everything that the answer depends on.

    That includes the warm start, because a search that a time limit or tolerance stops may end elsewhere. Searches
    without one keep the hashes of earlier releases.
    """
    everything = {
        "model": request.model_id,
        "cluster": request.cluster_id,
        "calibration": request.calibration_id,
        "options": options.to_dict(),
        "num_points": request.num_points,
        "release": autosbp.__version__,
        **({} if request.start_id is None else {"start": request.start_id}),
        **({} if request.mode == "plan" else {"tuning": (request.tuning or Tuning()).checked().to_dict()}),
    }
    return digest(everything, _HASH_DIGITS)


_searches, _jobs = table_of(SearchRow).c, table_of(JobRow).c
_HAS_OR_WILL_HAVE_ANSWER = (_jobs.state == "succeeded") & _searches.strategy_id.is_not(None) | (
    _jobs.state.in_(("queued", "running")) & _jobs.cancel_requested.is_(False)
)
"""Condition on a search and its job: it has an answer, or will have one."""
_EQUAL_SEARCH_JOB = restricted_to_tenant(
    select(*columns(JobRow))
    .where(_searches.job_id == _jobs.id, _searches.request_hash == bindparam("asked"), _HAS_OR_WILL_HAVE_ANSWER)
    .order_by(_searches.created_at.desc())
    .limit(1)
)


def _find_equal_fast(state: AppState, asked: str) -> JobRow | None:
    """Job of the newest equal search, read without waiting for writers; most repetitions are found here."""
    found = state.database.fetch(_EQUAL_SEARCH_JOB, asked=asked)
    return cast("JobRow", found[0]) if found else None


def _find_equal_locked(session: Session, asked: str) -> SearchRow | None:
    """The newest equal search, read in a writing session, so that none can appear in between."""
    query = select(SearchRow).where(SearchRow.request_hash == asked, SearchRow.job.has(_HAS_OR_WILL_HAVE_ANSWER))
    return session.scalar(query.order_by(SearchRow.created_at.desc()).limit(1))


def _check_calibration(session: Session, calibration_id: str, cluster_id: str) -> None:
    calibration = require_referenced(session, CalibrationRow, calibration_id, "calibration_id", "calibration")
    if calibration.cluster_id != cluster_id:
        limit = f"expected a calibration of cluster {cluster_id}; this one is of {calibration.cluster_id}"
        raise InputError("calibration_id", calibration_id, limit)


@contextmanager
def _fields_of_options() -> Iterator[None]:
    """Names the fields of errors as fields of the request's options."""
    try:
        yield
    except InputError as error:
        raise InputError(f"options.{error.field}", error.value, error.limit) from None


def prepare(session: Session, job: JobRow) -> Document:
    """Inputs of a search: graph, cluster, calibration, options and warm start."""
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
    # Plans contain no wall-clock times, so that equal searches find equal plans; the job keeps the search's curve.
    return {"search_id": search.id, "strategy_id": ids[0], "curve": found.get("curve", [])}


def check_tuning(state: AppState, request: SearchOfCapture) -> None:
    """Refuse a search by trials that the caller may not ask for, or that this service cannot run."""
    if request.mode == "plan":
        if request.tuning is not None:
            raise InputError("tuning", "given", 'expected with mode "tune" only')
        return
    check_scope(state.call.caller, (jobs.SCOPE_OF["tune"],))
    for name in ("num_points", "start_id"):
        if getattr(request, name) is not None:
            raise InputError(name, getattr(request, name), 'not allowed with mode "tune"')
    if state.settings.launching is not None:
        raise InputError("mode", "tune", "expected a service whose ranks run on its own machine, without a launcher")
    _tune_options(request)


def _tune_options(request: SearchOfCapture) -> TuneOptions | None:
    """The options of a search by trials; None for a search without."""
    return None if request.mode == "plan" else (request.tuning or Tuning()).checked()


def _check_tuned_cluster(cluster: api.Cluster, cluster_id: str) -> None:
    if cluster.groups or cluster.num_devices > MAX_LOCAL_RANKS:
        limit = f'with mode "tune", expected at most {MAX_LOCAL_RANKS} equal devices'
        raise InputError("cluster_id", cluster_id, limit)


def _expected_s(options: api.PlanOptions, request: SearchRequest, tuning: TuneOptions | None) -> float:
    """Expected seconds of the job."""
    if tuning is None:
        return options.time_limit_s * (request.num_points or 1)
    budget_s = tuning.trials * tuning.effort.max_s
    return options.time_limit_s + (budget_s if tuning.minutes is None else min(budget_s, 60 * tuning.minutes))


def tuning_folder(settings: Settings, job_id: str) -> Path:
    """The folder of a search's trials in the data folder."""
    return (settings.data_dir / "tunings" / job_id).resolve()


def prepare_tune(settings: Settings, session: Session, job: JobRow) -> Document:
    """Inputs of a search by trials: those of a search, budgets, and the folder in which it resumes."""
    search = existing(session, SearchRow, job.payload["search_id"])
    return {
        **prepare(session, job),
        "tuning": search.tuning,
        "workdir": str(tuning_folder(settings, job.id)),
        "sandbox": settings.confinement.to_dict(),
    }


def store_tune(session: Session, job: JobRow, found: Document) -> Document:
    """Store the fastest strategies, and what the trials showed."""
    search = existing(session, SearchRow, job.payload["search_id"])
    search.front = [strategies.store(session, plan, search).id for plan in found["plans"]]
    search.strategy_id, search.tuning_summary = search.front[0], found["summary"]
    return {"search_id": search.id, "strategy_id": search.strategy_id}


def tuning_summary(state: AppState, search_id: str) -> Document:
    """What the trials of a search showed, also while it runs; raise 404 for a search without trials."""
    with state.database.read() as session:
        row = require(session, SearchRow, search_id, "search", undefer(SearchRow.tuning_summary))
    if row.tuning is None:
        raise not_found("search by trials", search_id)
    if row.tuning_summary is not None:
        return row.tuning_summary
    try:
        trials = read_trials(tuning_folder(state.settings, row.job_id))
    except InputError:  # none yet, or on another host
        trials = []
    return summarize(trials)


def get(state: AppState, search_id: str) -> SearchRow:
    """Return a search, or raise 404."""
    with state.database.read() as session:
        return require(session, SearchRow, search_id, "search")


def listing(state: AppState, window: ListPage, job_state: str | None, /, **equal: object) -> Paged[SearchRow]:
    """Return a page of searches."""
    where = () if job_state is None else (SearchRow.job.has(JobRow.state == job_state),)
    with state.database.read() as session:
        return page(session, SearchRow, window, where, **equal)
